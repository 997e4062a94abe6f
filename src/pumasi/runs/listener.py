"""What the gangs of a run tell, on its way to the manager, to the record and to the flow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pumasi.core import events, manage
from pumasi.core.endings import outcome_of
from pumasi.core.events import Event
from pumasi.core.flows import MAIN, Flow, log_of
from pumasi.core.frameworks import Gang
from pumasi.core.outcome import Outcome
from pumasi.pools.base import Order, Runner
from pumasi.runs.lives import Lives, about
from pumasi.runs.recorder import Recorder


class Listener:
    """The pool's sink. `post` hears what the manager has to know; `started` is the time of day at which the first gang
    of the run was whole."""

    def __init__(
        self,
        lives: Lives,
        flow: Flow,
        framework: str,
        pool: Runner,
        recorder: Recorder,
        post: Callable[[manage.Event], None],
    ) -> None:
        self._lives = lives
        self._flow = flow
        self._framework = framework
        self._pool = pool
        self._recorder = recorder
        self._post = post
        self.started: float | None = None

    def frames(self, order: Order, chunk: bytes) -> None:
        self._recorder.frames(time.time(), log_of(order.task, order.attempt), chunk)

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        gang, now = self._lives.gang(order), time.time()
        if gang is None:
            return
        if words["event"] == "running":
            if self.started is None or order.task == MAIN:
                self.started = self.started or now
                self._recorder.update(now, started=self.started)
            ranks = _named(gang, order, words["ranks"])
            self._tell_once(
                now, order, events.Running(**self._lives.numbered(order), attempt=order.attempt, ranks=ranks)
            )
            self._flow.started(order.task)
            self._post(manage.Started(time.monotonic(), order.task, order.attempt))
        elif words["event"] == "exit":
            ended = {key: words[key] for key in ("rank", "code", "signal")}
            told = {**self._lives.numbered(order), "attempt": order.attempt, **ended}
            self._tell_once(now, order, events.RankEnded(**told))
        elif words["event"] == "ending":
            outcome = self._outcome(gang, order, words["outcome"])
            self._post(manage.Failing(time.monotonic(), order.task, order.attempt, outcome))
        elif words["event"] == "note":
            told = {**self._lives.numbered(order), "attempt": order.attempt, "text": words["text"]}
            self._tell_once(now, order, events.Note(**told))
        elif words["event"] == "gap":
            lost = {"attempt": order.attempt, "rank": words["rank"], "lines": words["lines"]}
            self._recorder.event(now, events.Gap(task=about(order.task), **lost))

    def _tell_once(self, at: float, order: Order, event: Event) -> None:
        """A gang that was adopted tells from its beginning what the manager before us has written down already."""
        is_adopted = self._lives.by_name[order.task].adopted == order.attempt
        if not is_adopted or not self._recorder.has_event(event):
            self._recorder.event(at, event)

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        gang = self._lives.gang(order)
        if gang is None:
            return
        life = self._lives.by_name[order.task]
        life.plan = None
        outcome, spends = self._outcome(gang, order, facts), facts.get("spends", True)
        if order.task != MAIN:
            outcome = replace(outcome, metrics=self._recorder.last.get(order.configs[0]["first"], {}))
        self._post(manage.Ended(time.monotonic(), order.task, order.attempt, outcome, spends))
        life.forget(order.attempt)

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        """Two that raced for the same room both lose it: the dice decide who asks again first."""
        if order.task in self._lives.by_name:
            self._lives.by_name[order.task].forget(order.attempt)
        patience = random.uniform(0.5, 1.5)
        now = time.monotonic()
        self._post(manage.TurnedAway(now, order.task, order.attempt, reason, hopeless, hint, patience))

    def _outcome(self, gang: Gang, order: Order, facts: Mapping[str, Any]) -> Outcome:
        setting = self._pool.setting._replace(framework=self._framework)
        return outcome_of(facts, order.nodes, len(gang.table.ranks), setting)


def _named(gang: Gang, order: Order, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = gang.table
    return [{**rank, "node": order.nodes[rank["node"]], "role": table.ranks[rank["rank"]].role} for rank in ranks]
