"""The loop that joins planner, pool and store: events go through `core.manage`, and what it answers is done.

Records tell the time of day; deadlines go by the clock that nobody sets.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Coroutine, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pumasi.core import manage
from pumasi.core.endings import outcome_of
from pumasi.core.flows.single import Single
from pumasi.core.frameworks import Gang
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.planner import plan
from pumasi.core.ranks import chief_first
from pumasi.errors import ClusterTrouble, DoesNotFit, RunBusy, Unreachable
from pumasi.pools.base import Found, Order, Pool
from pumasi.recorder import Recorder

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

TASK = "main"
_PHASES = {"starting": manage.Phase.LAUNCHING, "running": manage.Phase.RUNNING, "ending": manage.Phase.RUNNING}


class Manager:
    """Steers one run from its plan to its outcome. Also the pool's sink: whatever the gang does comes in here."""

    def __init__(self, run_id: str, folder: str, spec: Spec, program: Program, pool: Pool, recorder: Recorder) -> None:
        self._run_id = run_id
        self._folder = folder
        self._spec = spec
        self._program = program
        self._pool = pool
        self._recorder = recorder
        self._events: asyncio.Queue[manage.Event | BaseException] = asyncio.Queue()
        self._gangs: dict[int, Gang] = {}
        self._gpus: dict[int, Mapping[str, Any]] = {}
        self._started: float | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        pool.tell = self._note
        pool.fail = self._events.put_nowait
        pool.stop = lambda force: self.stop(force=force)
        pool.lose = self._lose

    async def run(self) -> Outcome:
        """Trouble with the cluster, or another manager, ends this one and not the run."""
        asyncio.get_running_loop().set_exception_handler(self._fail)
        self._pool.attend()
        try:
            outcome = await self._steer(self._begin(self._pool.found))
        except (ClusterTrouble, RunBusy):
            await self._pool.let_go()
            raise
        except BaseException:
            await self._pool.close()
            raise
        await self._pool.close()
        return self._finish(outcome)

    async def _steer(self, state: manage.RunState) -> Outcome:
        while state.outcome is None:
            before = state.summary
            state, actions = manage.step(state, await self._next())
            if state.summary != before and state.outcome is None:
                self._recorder.update(time.time(), state=state.summary)
            for action in actions:
                self._do(action)
        return state.outcome

    def _begin(self, found: Found | None) -> manage.RunState:
        spec = self._spec
        policy = manage.Policy(
            spec.restarts, spec.timeout, spec.start_timeout, spec.grace, spec.wait, self._pool.confirm
        )
        now = time.monotonic()
        if found is None:
            for note in self._program.notes:
                self._note(note)
            self._post(manage.Begun(now))
            return manage.begin(Single(TASK), policy)
        self._post(manage.Begun(now - (time.time() - found.created)))
        phase = _PHASES.get(found.state, manage.Phase.QUEUED)
        due = None if phase is manage.Phase.RUNNING else now + spec.start_timeout * (phase in _PHASES.values())
        task = manage.TaskState(TASK, found.attempt, phase, due, restarts=found.restarts)
        if phase is not manage.Phase.QUEUED:
            self._started = found.started
            self._pool.adopt(self._order(found.attempt, found.placement), self, self._recorder.heard(found.attempt))
        return manage.begin(Single(TASK), policy, [task])

    def stop(self, *, force: bool = False) -> None:
        self._post(manage.StopAsked(time.monotonic(), force))

    def _lose(self, why: str) -> None:
        """Somebody has taken the run away: what may be left of it is ended."""
        self._post(manage.StopAsked(time.monotonic(), outcome=Outcome(Verdict.LOST, why)))

    async def _next(self) -> manage.Event:
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def _post(self, event: manage.Event) -> None:
        self._events.put_nowait(event)

    def _finish(self, outcome: Outcome) -> Outcome:
        now = time.time()
        told = {**asdict(outcome), "verdict": outcome.verdict.value}
        # In this order: who sees that the run has ended finds the event that tells how.
        self._recorder.event(now, "finished", run=self._run_id, **told)
        self._recorder.update(
            now, state=outcome.verdict.value, ended=now, outcome=told, exit_code=outcome.verdict.exit_code
        )
        return outcome

    # ---- actions

    def _do(self, action: manage.Action) -> None:
        now = time.time()
        match action:
            case manage.Place():
                self._spawn(self._place(action.task, action.attempt))
            case manage.Launch():
                self._spawn(self._launch(action.attempt, action.placement))
            case manage.End():
                self._recorder.event(now, "ending", why=action.why)
                self._pool.end(action.task, action.attempt, action.grace)
            case manage.Kill():
                self._pool.end(action.task, action.attempt, 0)
            case manage.Wake():
                self._set_wake(action.at)
            case manage.Waiting():
                self._recorder.event(now, "waiting", run=self._run_id, reason=action.reason)
            case manage.Restarting():
                self._recorder.event(
                    now, "restarting", attempt=action.attempt, reason=action.reason, spent=action.spent
                )

    def _note(self, text: str) -> None:
        self._recorder.event(time.time(), "note", text=text)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._collect)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._events.put_nowait(context.get("exception") or RuntimeError(context["message"]))

    def _collect(self, task: asyncio.Task[None]) -> None:
        """What fails in the background ends the loop as if it had failed there: nothing may die unseen."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._events.put_nowait(error)

    def _set_wake(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay = max(0.0, at - time.monotonic())
        self._wake = asyncio.get_running_loop().call_later(delay, lambda: self._post(manage.Tick(time.monotonic())))

    async def _place(self, task: str, attempt: int) -> None:
        spec = self._spec
        try:
            nodes = await self._pool.nodes()
        except Unreachable as error:
            self._post(manage.Refused(time.monotonic(), task, attempt, error.message, False, error.hint))
            return
        try:
            placement = plan(nodes, spec.slots, most_per_node=spec.max_per_node).placement
        except DoesNotFit as error:
            self._post(self._refusal(task, attempt, error))
            return
        gpus = await self._pool.reserve(placement)
        if gpus is None:
            self._post(manage.Refused(time.monotonic(), task, attempt, "Another run was faster to take the GPUs."))
            return
        self._gpus[attempt] = gpus
        self._post(manage.Placed(time.monotonic(), task, attempt, placement))

    def _refusal(self, task: str, attempt: int, error: DoesNotFit) -> manage.Refused:
        """What would not fit even if nobody else were there is told as that."""
        now = time.monotonic()
        try:
            plan(self._pool.capacity(), self._spec.slots, most_per_node=self._spec.max_per_node)
        except DoesNotFit as never:
            return manage.Refused(now, task, attempt, never.message, True, never.hint)
        reason = f"{error.message} {self._pool.remark}".rstrip()
        return manage.Refused(now, task, attempt, reason, False, error.hint)

    async def _launch(self, attempt: int, placement: Mapping[str, int]) -> None:
        order = self._order(attempt, placement)
        gang = self._gangs[attempt]
        now = time.time()
        self._recorder.event(
            now,
            "planned",
            run=self._run_id,
            on=self._spec.on,
            placement=dict(placement),
            unplaced=self._pool.is_blind,
            chief=order.nodes[0],
            framework=self._program.framework,
            because=self._program.because,
            python=self._program.command[0],
            gpus={node: list(ids) for node, ids in self._gpus[attempt].items()},
            see_gpus=gang.see_gpus,
        )
        self._recorder.update(now, attempt=attempt, placement=dict(placement), ranks=len(gang.table.ranks))
        self._recorder.event(now, "starting", attempt=attempt)
        try:
            await self._pool.launch(order, self)
        except OSError as error:
            outcome = Outcome(Verdict.FAILED, f"The gang could not be started: {error}.")
            self._post(manage.Ended(time.monotonic(), TASK, attempt, outcome))

    def _order(self, attempt: int, placement: Mapping[str, int]) -> Order:
        details = Attempt(
            run=self._run_id,
            number=attempt,
            placement=placement,
            gpus=self._gpus.get(attempt, {}),
            secret=secrets.token_hex(32),
            nonce=secrets.token_hex(4),
            folder=self._folder,
            addresses=self._pool.addresses(chief_first(placement)),
        )
        gang = self._gangs[attempt] = gang_of(self._spec, self._program, details)
        return Order(TASK, attempt, gang.table.nodes, agent_configs(self._spec, self._program, details, gang))

    # ---- what the gang tells

    def frames(self, order: Order, chunk: bytes) -> None:
        self._recorder.frames(time.time(), order.attempt, chunk)

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        now = time.time()
        if words["event"] == "running":
            self._started = self._started or now
            self._recorder.update(now, started=self._started)
            self._tell_once(now, "running", attempt=order.attempt, ranks=self._named(order, words["ranks"]))
            self._post(manage.Started(time.monotonic(), order.task, order.attempt))
        elif words["event"] == "exit":
            ended = {key: words[key] for key in ("rank", "code", "signal")}
            self._tell_once(now, "rank ended", attempt=order.attempt, **ended)
        elif words["event"] == "ending":
            outcome = self._outcome(order, words["outcome"])
            self._post(manage.Failing(time.monotonic(), order.task, order.attempt, outcome))
        elif words["event"] == "note":
            self._note(words["text"])
        elif words["event"] == "gap":
            self._recorder.event(now, "gap", attempt=order.attempt, rank=words["rank"], lines=words["lines"])

    def _tell_once(self, at: float, kind: str, **data: Any) -> None:
        """A gang that was adopted tells from its beginning what the manager before us has written down already."""
        if self._pool.found is None or not self._recorder.has_event(kind, data):
            self._recorder.event(at, kind, **data)

    def _named(self, order: Order, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        table = self._gangs[order.attempt].table
        return [{**rank, "node": order.nodes[rank["node"]], "role": table.ranks[rank["rank"]].role} for rank in ranks]

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        outcome, spends = self._outcome(order, facts), facts.get("spends", True)
        self._post(manage.Ended(time.monotonic(), order.task, order.attempt, outcome, spends))

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        """Two that raced for the same room both lose it: the dice decide who asks again first."""
        patience = random.uniform(0.5, 1.5)
        now = time.monotonic()
        self._post(manage.TurnedAway(now, order.task, order.attempt, reason, hopeless, hint, patience))

    def _outcome(self, order: Order, facts: Mapping[str, Any]) -> Outcome:
        return outcome_of(facts, order.nodes, len(self._gangs[order.attempt].table.ranks))
