"""Going on with a run of several tasks after its manager: its flow hears again what the journal has of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.core.flows import MAIN, Flow, Task
from pumasi.core.flows.journal import is_history
from pumasi.core.manage import MOST_WAITING
from pumasi.core.outcome import outcome_from
from pumasi.errors import SystemTrouble
from pumasi.pools.base import Found, FoundTask, found_task

if TYPE_CHECKING:
    from pumasi.runs.recorder import Recorder
    from pumasi.store import RunRecord, Store

_FRESH = FoundTask("queued")


class Adopted(NamedTuple):
    """The tasks that are on their way, as the flow gave them and as they were left; how many have ended; those that are
    done once more, for which the others wait; and the first number that no process has had."""

    tasks: Mapping[str, tuple[Task, FoundTask]]
    ended: int
    redone: frozenset[str]
    next_number: int


def left_behind(store: Store, record: RunRecord) -> Found | None:
    """Of a run whose processes died with its manager: what is done stays done, the rest starts anew."""
    kept = store.tasks(record.id)
    if not kept:
        return None
    history = [entry for entry in store.journal(record.id) if is_history(entry)]
    tasks = {name: found_task(fields) for name, fields in kept.items()}
    if history:
        tasks = {name: task for name, task in tasks.items() if task.state != "ended"}
    again = {name: task if task.outcome else _anew(task) for name, task in tasks.items()}
    return Found(time.time(), record.started, again, history, broken=True)


def _anew(task: FoundTask) -> FoundTask:
    return FoundTask("queued", task.attempt + 1, first=task.first, ranks=task.ranks)


def repeat(flow: Flow, found: Found, recorder: Recorder) -> Adopted:
    """Raises SystemTrouble where the flow answers otherwise than it did."""
    replay = _Replay(flow, found, recorder)
    for entry in found.history:
        replay.hear(entry)
    replay.catch_up()
    redone = replay.redo() if found.broken else frozenset()
    return Adopted(replay.tasks, len(replay.attempts) - len(redone), redone, replay.next_number)


class _Replay:
    def __init__(self, flow: Flow, found: Found, recorder: Recorder) -> None:
        self._flow = flow
        self._found = found
        self._recorder = recorder
        self._given: set[str] = set()
        self.tasks: dict[str, tuple[Task, FoundTask]] = {}
        self.attempts: dict[str, int] = {}
        """The last one of each task that has ended."""
        self.next_number = max((task.first + task.ranks for task in found.tasks.values()), default=0)

    def hear(self, entry: Mapping[str, Any]) -> None:
        if "offered" in entry:
            self._take(entry["offered"])
        elif "ended" in entry:
            self._end(entry["ended"], entry)

    def _take(self, name: str) -> None:
        task = self._flow.next()
        if task is None or task.name != name:
            raise SystemTrouble(
                f"The journal of the run has the task {name} where its flow has {task.name if task else 'none'}.",
                "Another version of Pumasi, or of the flow, may have written it: go on with that one.",
            )
        self._given.add(name)
        self.tasks[name] = task, self._found.tasks.get(name, _FRESH)

    def _end(self, name: str, entry: Mapping[str, Any]) -> None:
        """Told once more, it is passed over: a manager that was replaced may have had a last word."""
        self.next_number = max(self.next_number, entry.get("first", 0) + entry.get("ranks", 0))
        self.attempts[name] = max(self.attempts.get(name, 0), entry.get("attempt", 0))
        if self.tasks.pop(name, None):
            self._flow.ended(name, outcome_from(entry["outcome"]))

    def catch_up(self) -> None:
        """With what was kept of a run that had no journal: all that there is of one of a single task, or of one that a
        version without journals has begun. Its flow tells what comes when; what is known of it is written down."""
        for name, (_, kept) in list(self.tasks.items()):
            if kept.outcome is not None:
                self._write_end(name, kept)
        known = {name: task for name, task in self._found.tasks.items() if name not in self._given}
        for _ in range(len(known) + MOST_WAITING):
            task = self._flow.next() if known else None
            if task is None:
                return
            kept = known.pop(task.name, _FRESH)
            self.tasks[task.name] = task, kept
            if task.name != MAIN:
                self._recorder.offered(time.time(), task.name)
            if kept.outcome is not None:
                self._write_end(task.name, kept)

    def _write_end(self, name: str, kept: FoundTask) -> None:
        assert kept.outcome is not None
        told = {"attempt": kept.attempt, "first": kept.first, "ranks": kept.ranks, "outcome": kept.outcome.told()}
        self._recorder.end_task(time.time(), name, **told)
        self._end(name, told)

    def redo(self) -> frozenset[str]:
        tasks = list(self._flow.resumed())
        for task in tasks:
            kept = self._found.tasks.get(task.name)
            if kept is None or kept.outcome is not None:
                kept = FoundTask("queued", self.attempts.get(task.name, -1) + 1)
            self.tasks[task.name] = task, kept
        return frozenset(task.name for task in tasks)
