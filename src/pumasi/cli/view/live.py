"""The live view: the programs' output scrolls, and below it stands how the run is doing.

Rich draws the few lines at the bottom; the output above them is written as the bytes that it is, many lines at once.
(Rich's own Live would format each line of the output: far too slow for a program that prints 200,000 of them a second.)
A thread draws, at most eight times a second, so that the clock goes on while nothing happens.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pumasi.cli.view.board import Board, RankRow
from pumasi.cli.view.output import STATE_COLOURS, is_colourful
from pumasi.cli.view.printer import Printer, to_streams_patiently
from pumasi.cli.view.sentences import report_lines
from pumasi.cli.view.text import clock, count, fit, notable
from pumasi.cli.view.views import ENDS_ATTEMPT, end_words, event_words, ranks_of
from pumasi.core import events
from pumasi.core.printable import clean

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from pumasi.core.events import Event
    from pumasi.core.frames import Frame
    from pumasi.core.metrics import Reading

_INTERVAL = 0.125
_SHORTEST_DELAY = 0.03
_MOST_ROWS = 16
_MOST_PENDING = 256 * 1024
_MOST_HELD = 4 * 1024 * 1024
"""Output that waits while a question is open, before it scrolls the question away."""
_SAID = (events.Planned, events.FlowBegun, events.Note, events.Restarting, events.Left, events.TaskEnded)
_FIRST_DRAW = 0.4
"""Rich takes a while to import: not in the way of starting the ranks."""


class LiveView:
    def __init__(self, *, ranks: int, words: Sequence[str] | None = None) -> None:
        self.board = Board()
        self._words = words
        self._printer = Printer(
            self._scroll, prefixed=ranks > 1, colour=is_colourful(sys.stdout), label=self.board.label
        )
        self._report: list[str] = []
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._flushed = 0.0
        self._lines: list[str] = []
        self._drawn = 0
        self._asking = False
        self._end: list[str] = []
        # Re-entrant: a signal handler that asks a question may interrupt a draw.
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, name="live view", daemon=True)
        self._thread.start()

    def event(self, at: float, event: Event) -> None:
        with self._lock:
            self.board.event(at, event)
            if isinstance(event, ENDS_ATTEMPT):
                self._printer.end_attempt(ranks_of(self.board, event.task))
            if isinstance(event, (events.Ending, events.Finished)):
                self._asking = False
            if isinstance(event, events.Reported):
                self._report = report_lines(event.others)
            elif isinstance(event, events.Finished):
                self._end = end_words(self.board, at, event, self._words)
            elif isinstance(event, _SAID):
                if words := event_words(self.board.run, event):
                    self._say(*words)
                self._flush()

    def output(self, frames: Sequence[Frame]) -> None:
        with self._lock:
            self._printer.output(frames)
            if self._asking and self._pending_size < _MOST_HELD:
                return
            if self._pending_size > _MOST_PENDING or time.monotonic() - self._flushed > _SHORTEST_DELAY:
                self._flush()

    def reading(self, rank: int, reading: Reading) -> None:
        with self._lock:
            self.board.reading(rank, reading)

    def ask(self, question: str) -> None:
        """While a question is open nothing scrolls and the lines at the bottom are gone: what the user types must not
        be drawn over."""
        with self._lock:
            self._asking = bool(question)
            if question:
                self._lines = []
                self._say(question)
            self._flush()

    def close(self) -> None:
        with self._lock:
            self._over.set()
            self._lines = []
            self._printer.finish()
            if self._report:
                self._say(*self._report)
            if self._end:
                self._say(*self._end)
            self._flush()
        self._thread.join(timeout=5.0)

    def _scroll(self, _to_stderr: bool, data: bytes) -> None:
        self._pending.append(data)
        self._pending_size += len(data)

    def _say(self, text: str, *more: str) -> None:
        head = "\x1b[1mpumasi:\x1b[0m" if is_colourful(sys.stdout) else "pumasi:"
        lines = [f"{head} {text}", *(f"  {line}" for line in more)]
        self._scroll(False, ("\n".join(lines) + "\n").encode(errors="replace"))

    def _keep_drawing(self) -> None:
        if self._over.wait(_FIRST_DRAW):
            return
        import rich.table  # noqa: F401  (here, where nobody waits for it)

        while not self._over.wait(_INTERVAL):
            with self._lock:
                if not self._asking and not self._over.is_set():
                    self._lines = draw(self.board, self._unfinished(), time.time(), *_terminal_size())
                    self._flush()

    def _unfinished(self) -> dict[int, str]:
        texts = {rank: self._printer.unfinished(rank) for rank in self.board.ranks}
        return {rank: clean(text.decode(errors="replace")).strip() for rank, text in texts.items() if text}

    def _flush(self) -> None:
        """Everything in one write, so that nothing flickers: away with the lines at the bottom, what was printed
        meanwhile, the lines anew."""
        if self._pending or self._lines or self._drawn:
            erase = "\r" + (f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else "") + "\x1b[J" if self._drawn else ""
            below = "\n".join(self._lines).encode(errors="replace")
            to_streams_patiently(False, b"".join((erase.encode(), *self._pending, below)))
        self._pending.clear()
        self._pending_size = 0
        self._drawn = len(self._lines)
        self._flushed = time.monotonic()


def _terminal_size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


def draw(board: Board, unfinished: Mapping[int, str], now: float, columns: int, lines: int) -> list[str]:
    """The lines at the bottom: what the run does, and a row for each rank, or a summary where there are many."""
    from io import StringIO

    from rich.console import Console

    # A line as wide as the terminal would be followed by an empty one on some of them.
    room = max(columns - 1, 20)
    rows = board.ranks if 1 < len(board.ranks) <= min(_MOST_ROWS, lines - 4) else {}
    colourless = not is_colourful(sys.stdout)
    console = Console(file=StringIO(), width=room, force_terminal=True, no_color=colourless, highlight=False)
    with console.capture() as capture:
        if rows:
            console.print(_table(board, rows, unfinished, room))
        elif len(board.ranks) == 1:
            for text in unfinished.values():
                console.print(_plain(fit(text, room)))
        console.print(_status(board, now, room, with_metrics=not rows))
    return capture.get().rstrip("\n").split("\n")


def _status(board: Board, now: float, room: int, *, with_metrics: bool) -> Text:
    parts = [board.run, board.phase, clock(board.elapsed(now))]
    if board.attempt:
        parts.append(f"attempt {board.attempt}")
    if board.reason:
        parts.append(board.reason)
    if len(board.ranks) > 1:
        parts.append(_summary(board))
    else:
        parts += [board.labels[number] for number in board.ranks if number in board.labels]
    if with_metrics:
        parts.append(notable(board.metrics(), most=4))
    text = _plain(fit(" · ".join(clean(part) for part in parts if part), room))
    phase = len(board.run) + len(" · ") if board.run else 0
    text.stylize(STATE_COLOURS.get(board.phase, "cyan"), phase, phase + len(board.phase))
    return text


def _summary(board: Board) -> str:
    """64 ranks: 60 running, 4 ended"""
    states: dict[str, int] = {}
    for row in board.ranks.values():
        states[row.state] = states.get(row.state, 0) + 1
    what = "task" if board.labels else "rank"
    return f"{count(len(board.ranks), what)}: " + ", ".join(f"{number} {state}" for state, number in states.items())


def _table(board: Board, rows: Mapping[int, RankRow], unfinished: Mapping[int, str], room: int) -> Table:
    from rich.table import Table

    several_nodes = len({row.node for row in board.ranks.values()}) > 1
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, width=room)
    for rank, row in sorted(rows.items()):
        where = [row.node] if several_nodes else []
        cells = [f"[{board.label(rank)}]", *where, row.role, row.state, _doing(row, unfinished.get(rank, ""))]
        table.add_row(*(_plain(clean(cell)) for cell in cells))
    for column in table.columns:
        column.no_wrap = True
        column.overflow = "ellipsis"
    if table.columns:
        table.columns[-1].ratio = 1
    return table


def _doing(row: RankRow, unfinished: str) -> str:
    where = f"epoch {row.epoch}" if row.epoch is not None else f"step {row.step}" if row.step is not None else ""
    return " · ".join(part for part in (where, notable(row.values), unfinished) if part)


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")
