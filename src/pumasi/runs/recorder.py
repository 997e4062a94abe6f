"""Writes down what happens to a run, and shows it. A store that fails (a full disk) costs the record, not the training:
that there are gaps is told once, and the state of the run is written again with its next change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pumasi.core.events import Event, Note
from pumasi.core.flows import journal
from pumasi.core.frames import Frame, parse_frames
from pumasi.errors import SystemTrouble
from pumasi.store import MetricRow, Store

if TYPE_CHECKING:
    from pumasi.core.measuring import FrameParser
    from pumasi.core.metrics import Reading
    from pumasi.pools.base import Copy


class View(Protocol):
    """Who watches a run: a terminal, a pipe, a notebook, or nobody."""

    def event(self, at: float, event: Event) -> None: ...

    def output(self, frames: Sequence[Frame]) -> None: ...

    def reading(self, rank: int, reading: Reading) -> None: ...

    def ask(self, question: str) -> None: ...

    def close(self) -> None: ...


class Unwatched:
    """The view of a run that nobody looks at."""

    def event(self, at: float, event: Event) -> None: ...

    def output(self, frames: Sequence[Frame]) -> None: ...

    def reading(self, rank: int, reading: Reading) -> None: ...

    def ask(self, question: str) -> None: ...

    def close(self) -> None: ...


class Recorder:
    def __init__(self, store: Store, run_id: str, view: View) -> None:
        self._store = store
        self._run_id = run_id
        self.view = view
        self.copy: Copy | None = None
        self._parser: FrameParser | None = None
        self._pending: dict[str, object] = {}
        self._tasks: dict[str, dict[str, Any]] = {}
        self._entries: list[journal.Entry] = []
        self._told = False
        self.last: dict[int, dict[str, float]] = {}
        """The last metrics, by the number of the process."""
        self.measured: Callable[[int, Mapping[str, float]], None] = lambda number, values: None
        """Called with what a process has told."""

    def event(self, at: float, event: Event) -> None:
        self.view.event(at, event)
        if self.copy is not None:
            self.copy.event(at, event)
        try:
            self._store.add_event(self._run_id, at, event)
        except SystemTrouble as trouble:
            self._tell(at, trouble)

    def update(self, at: float, **fields: object) -> None:
        """What fails now is written together with what comes next."""
        self._pending.update(fields)
        if self.copy is not None:
            self.copy.update(fields)
        try:
            self._store.update_run(self._run_id, **self._pending)
            self._pending.clear()
        except SystemTrouble as trouble:
            self._tell(at, trouble)

    def take_over(self, tasks: Mapping[str, dict[str, Any]]) -> None:
        """What another manager has kept of those that are on their way."""
        self._tasks = dict(tasks)
        if self.copy is not None:
            self.copy.update({"tasks": self._tasks})

    def offered(self, at: float, name: str) -> None:
        """The flow gave this task, one of several."""
        self._write(at, journal.offered(name))

    def task(self, at: float, name: str, **fields: object) -> None:
        """What the next manager needs of one that is on its way."""
        self._tasks.setdefault(name, {}).update(fields)
        if self.copy is not None:
            self.copy.update({"tasks": self._tasks})
        self._write(at, journal.changed(name, fields))

    def end_task(self, at: float, name: str, **fields: object) -> None:
        """It has ended for good, and is forgotten here."""
        known = self._tasks.pop(name, {})
        if self.copy is not None:
            self.copy.update({"tasks": self._tasks})
        numbers: dict[str, Any] = {key: known[key] for key in ("first", "ranks") if key in known}
        self._write(at, journal.ended(name, {**numbers, **fields}))
        self.forget(range(numbers.get("first", 0), numbers.get("first", 0) + numbers.get("ranks", 0)))

    def _write(self, at: float, entry: journal.Entry) -> None:
        """What fails now is written together with what comes next: an entry that is missing would be worse than
        none."""
        self._entries.append(entry)
        if self.copy is not None and journal.is_history(entry):
            self.copy.journal(entry)
        try:
            self._store.add_to_journal(self._run_id, self._entries)
            self._entries.clear()
        except SystemTrouble as trouble:
            self._tell(at, trouble)

    def forget(self, numbers: Iterable[int]) -> None:
        """These processes have ended, and their metrics are known to whoever wants to know them."""
        for number in numbers:
            self.last.pop(number, None)
            if self._parser is not None:
                self._parser.forget(number)

    def frames(self, at: float, attempt: int, chunk: bytes) -> None:
        if self.copy is not None:
            self.copy.frames(attempt, chunk)
        try:
            self._store.append_log(self._run_id, attempt, chunk)
        except SystemTrouble as trouble:
            self._tell(at, trouble)
        frames = parse_frames(chunk)
        self.view.output(frames)
        self._measure(at, attempt, frames)

    def has_event(self, event: Event) -> bool:
        return any(row.event == event for row in self._store.events(self._run_id))

    def heard(self, attempt: int) -> dict[int, int]:
        return self._store.last_heard(self._run_id, attempt)

    def recall(self, numbers: Sequence[int]) -> None:
        """What these processes have told while another manager listened."""
        frames = self._store.read_log(self._run_id, ranks=numbers) if numbers else ()
        for rank, reading in self._readings(frames):
            self.last.setdefault(rank, {}).update(reading.values)

    def _readings(self, frames: Iterable[Frame]) -> Iterator[tuple[int, Reading]]:
        if self._parser is None:
            # Here and not above, where the first line of a program would wait for it.
            from pumasi.core.measuring import FrameParser

            self._parser = FrameParser()
        return self._parser.readings(frames)

    def _measure(self, at: float, attempt: int, frames: Iterable[Frame]) -> None:
        rows = []
        for rank, reading in self._readings(frames):
            self.view.reading(rank, reading)
            self.last.setdefault(rank, {}).update(reading.values)
            self.measured(rank, reading.values)
            rows += [
                MetricRow(at, attempt, rank, reading.step, reading.epoch, name, value)
                for name, value in reading.values.items()
            ]
        if rows:
            try:
                self._store.add_metrics(self._run_id, rows)
            except SystemTrouble as trouble:
                self._tell(at, trouble)

    def _tell(self, at: float, trouble: SystemTrouble) -> None:
        if not self._told:
            self._told = True
            text = f"{trouble.message} The training goes on, but its record has gaps. {trouble.hint}"
            self.view.event(at, Note(text=text))
