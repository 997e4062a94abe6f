"""What is known of a run while it goes on: its phase, its ranks, their last metrics. It only listens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pumasi.core import events

if TYPE_CHECKING:
    from pumasi.core.events import Event
    from pumasi.core.metrics import Reading
    from pumasi.store import EventRow

_PHASES: dict[type[Event], str] = {
    events.Waiting: "queued",
    events.Starting: "starting",
    events.Running: "running",
    events.Ending: "ending",
    events.Restarting: "starting",
}
_BEFORE = (events.Waiting, events.Starting, events.Restarting)
"""Of one of several tasks, this says nothing about those that run."""


class RankRow:
    __slots__ = ("epoch", "node", "role", "state", "step", "values")

    def __init__(self, node: str, role: str) -> None:
        self.node = node
        self.role = role
        self.state = "running"
        self.step: int | None = None
        self.epoch: int | None = None
        self.values: dict[str, float] = {}


def replayed(rows: Iterable[EventRow]) -> Board:
    """What was known at the end of these."""
    board = Board()
    for row in rows:
        board.event(row.at, row.event)
    return board


class Board:
    """`began` is the time of the first event, `started` the one when processes first ran; None before."""

    def __init__(self) -> None:
        self.run = ""
        self.phase = "planning"
        self.reason = ""
        self.attempt = 0
        self.began: float | None = None
        self.started: float | None = None
        self.ranks: dict[int, RankRow] = {}
        self.labels: dict[int, str] = {}

    def event(self, at: float, event: Event) -> None:
        if self.began is None:
            self.began = at
        self.run = getattr(event, "run", None) or self.run
        self._follow(event)
        match event:
            case events.Starting(numbers=(_, _)):
                self._name(event)
            case events.Running():
                self.started = at if self.started is None else self.started
                self._start(event)
            case events.RankEnded() if (number := event.first + event.rank) in self.ranks:
                self.ranks[number].state = rank_end(event)
            case events.TaskEnded(task=str(task)) | events.Restarting(task=str(task)):
                self._clear(task)
            case events.Finished():
                self.phase = event.verdict
                for row in self.ranks.values():
                    row.state = "gone" if row.state == "running" else row.state

    def _follow(self, event: Event) -> None:
        if getattr(event, "task", None) is None:
            attempt = getattr(event, "attempt", None)
            self.attempt = self.attempt if attempt is None else attempt
        elif self.ranks and isinstance(event, _BEFORE):
            return
        self.phase = _PHASES.get(type(event), self.phase)
        if isinstance(event, (events.Waiting, events.Restarting)):
            self.reason = event.reason
        elif isinstance(event, events.Ending):
            self.reason = event.why

    def reading(self, rank: int, reading: Reading) -> None:
        row = self.ranks.setdefault(rank, RankRow("", ""))
        row.values.update(reading.values)
        row.step = row.step if reading.step is None else reading.step
        row.epoch = row.epoch if reading.epoch is None else reading.epoch

    def elapsed(self, now: float) -> float:
        """Without the time that it waited for room."""
        began = self.began if self.started is None else self.started
        return now - began if began is not None else 0.0

    @property
    def waited(self) -> float:
        return self.started - self.began if self.started is not None and self.began is not None else 0.0

    def metrics(self) -> dict[str, float]:
        """The last metrics of the first rank that has some."""
        return next((row.values for _, row in sorted(self.ranks.items()) if row.values), {})

    def label(self, number: int) -> str:
        """What a process is called: its rank, and in a run of several tasks the name of its task."""
        return self.labels.get(number, str(number))

    def _name(self, event: events.Starting) -> None:
        first, ranks = event.numbers or (0, 0)
        for rank in range(ranks):
            self.labels[first + rank] = str(event.task) if ranks == 1 else f"{event.task}:{rank}"

    def _clear(self, task: str) -> None:
        """What is over is shown no longer."""
        for number in [number for number in self.ranks if self.label(number).partition(":")[0] == task]:
            del self.ranks[number]

    def _start(self, event: events.Running) -> None:
        self.reason = ""
        for seat in event.ranks:
            row = RankRow(str(seat.get("node", "")), str(seat.get("role", "")))
            number = event.first + seat["rank"]
            before = self.ranks.get(number)
            if before is not None:
                row.values = before.values
            self.ranks[number] = row


def rank_end(event: events.RankEnded) -> str:
    """ended · exit 1 · SIGKILL"""
    if event.signal:
        return event.signal
    return "ended" if not event.code else f"exit {event.code}"
