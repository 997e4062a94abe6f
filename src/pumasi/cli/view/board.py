"""What is known of a run while it goes on: its phase, its ranks, their last metrics. It only listens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumasi.core.metrics import Reading
    from pumasi.store import EventRow

_PHASES = {
    "waiting": "queued",
    "starting": "starting",
    "running": "running",
    "ending": "ending",
    "restarting": "starting",
}


_BEFORE = frozenset(("waiting", "starting", "restarting"))
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


def replayed(events: Iterable[EventRow]) -> Board:
    """What was known at the end of these."""
    board = Board()
    for event in events:
        board.event(event.at, event.kind, event.data)
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

    def event(self, at: float, kind: str, data: Mapping[str, Any]) -> None:
        if self.began is None:
            self.began = at
        self.run = data.get("run", self.run)
        self._follow(kind, data)
        if kind == "starting" and "numbers" in data:
            self._name(data)
        elif kind == "running":
            self.started = at if self.started is None else self.started
            self._start(data)
        elif kind == "rank ended" and (number := _first(data) + data["rank"]) in self.ranks:
            self.ranks[number].state = rank_end(data)
        elif kind in ("task ended", "restarting") and "task" in data:
            self._clear(data["task"])
        elif kind == "finished":
            self.phase = str(data["verdict"])
            for row in self.ranks.values():
                row.state = "gone" if row.state == "running" else row.state

    def _follow(self, kind: str, data: Mapping[str, Any]) -> None:
        if "task" not in data:
            self.attempt = data.get("attempt", self.attempt)
        elif self.ranks and kind in _BEFORE:
            return
        self.phase = _PHASES.get(kind, self.phase)
        if kind in ("waiting", "restarting", "ending"):
            self.reason = str(data.get("reason") or data.get("why") or "")

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

    def _name(self, data: Mapping[str, Any]) -> None:
        first, ranks = data["numbers"]
        for rank in range(ranks):
            self.labels[first + rank] = data["task"] if ranks == 1 else f"{data['task']}:{rank}"

    def _clear(self, task: str) -> None:
        """What is over is shown no longer."""
        for number in [number for number in self.ranks if self.label(number).partition(":")[0] == task]:
            del self.ranks[number]

    def _start(self, data: Mapping[str, Any]) -> None:
        self.reason = ""
        for seat in data.get("ranks", ()):
            row = RankRow(str(seat.get("node", "")), str(seat.get("role", "")))
            number = _first(data) + seat["rank"]
            before = self.ranks.get(number)
            if before is not None:
                row.values = before.values
            self.ranks[number] = row


def _first(data: Mapping[str, Any]) -> int:
    return int(data["numbers"][0]) if "numbers" in data else 0


def rank_end(data: Mapping[str, Any]) -> str:
    """ended · exit 1 · SIGKILL"""
    if data.get("signal"):
        return str(data["signal"])
    return "ended" if not data.get("code") else f"exit {data['code']}"
