"""What a user sees of a run. The manager feeds a view while it runs; `attach` feeds one from the store.

On a terminal there is a live view (see `live`), elsewhere there are plain lines on stderr; with --json there is one
object a line on stdout. What a view has to do is said by `recorder.View`. How the run ended is said when the view is
closed: output may still come after that event.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli.view import sentences
from pumasi.cli.view.board import Board
from pumasi.cli.view.output import is_colourful, say
from pumasi.cli.view.printer import Printer, Write
from pumasi.cli.view.text import finite, with_finite_metrics
from pumasi.core import events
from pumasi.core.frames import OpenLines

if TYPE_CHECKING:
    from pumasi.core.events import Event
    from pumasi.core.frames import Frame
    from pumasi.core.metrics import Reading
    from pumasi.runs.recorder import View


class PlainView:
    """Phase lines on stderr; with `quiet` only what went wrong. `words` are those of `pumasi run`, for the next one."""

    def __init__(self, write: Write, *, ranks: int, quiet: bool = False, words: Sequence[str] | None = None) -> None:
        self.board = Board()
        self._quiet = quiet
        self._words = words
        self._end: list[str] = []
        self._report: list[str] = []
        self._printer = Printer(
            write, prefixed=ranks > 1, exact=ranks == 1, colour=is_colourful(sys.stdout), label=self.board.label
        )

    def event(self, at: float, event: Event) -> None:
        self.board.event(at, event)
        if isinstance(event, ENDS_ATTEMPT):
            self._printer.end_attempt(ranks_of(self.board, event.task))
        match event:
            case events.Reported():
                self._report = sentences.report_lines(event.others)
            case events.Finished():
                is_silent = self._quiet and event.verdict == "done"
                self._end = [] if is_silent else end_words(self.board, at, event, self._words)
            case _ if not self._quiet:
                if words := event_words(self.board.run, event):
                    say(*words)

    def output(self, frames: Sequence[Frame]) -> None:
        self._printer.output(frames)

    def reading(self, rank: int, reading: Reading) -> None:
        self.board.reading(rank, reading)

    def ask(self, question: str) -> None:
        if question:
            say(question)

    def close(self) -> None:
        self._printer.finish()
        if self._report and not self._quiet:
            say(*self._report)
        if self._end:
            say(*self._end)


class JsonView:
    """One JSON object a line on stdout: the events as they are, `output` and `metrics`."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._end: list[Mapping[str, Any]] = []
        self._open = OpenLines()

    def event(self, at: float, event: Event) -> None:
        if isinstance(event, events.Restarting) and event.task is None:
            self._show_output(self._open.close())
        kind, data = events.pack(event)
        told = {"event": kind, "at": at, **data}
        if isinstance(event, events.Finished):
            self._end = [with_finite_metrics(told)]
        else:
            self._show([told])

    def output(self, frames: Sequence[Frame]) -> None:
        self._show_output(self._open.closing(frames))

    def _show_output(self, frames: Iterable[Frame]) -> None:
        self._show(
            {
                "event": "output",
                "at": frame.ms / 1000,
                "rank": frame.rank,
                "stream": "stderr" if frame.is_stderr else "stdout",
                "text": frame.text.decode(errors="replace"),
                "end": frame.end.decode(),
            }
            for frame in frames
        )

    def reading(self, rank: int, reading: Reading) -> None:
        from pumasi.core.metrics import VERSION

        values = {name: finite(value) for name, value in reading.values.items()}
        self._show([{"event": "metrics", "v": VERSION, "rank": rank, **reading._asdict(), "values": values}])

    def ask(self, question: str) -> None:
        if question:
            say(question)

    def close(self) -> None:
        self._show(self._end)

    def _show(self, values: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
        self._write(False, text.encode(errors="replace"))


ENDS_ATTEMPT = (events.Restarting, events.TaskEnded)


def ranks_of(board: Board, task: str | None) -> list[int] | None:
    """The processes of a task; None: all, where there is only one task."""
    if task is None:
        return None
    return [number for number, label in board.labels.items() if label.partition(":")[0] == task]


def event_words(run: str, event: Event) -> list[str]:
    """What is said of an event as it happens."""
    match event:
        case events.Planned():
            return [] if event.task else [sentences.plan_line(run, event)]
        case events.FlowBegun():
            return [sentences.flow_line(run, event)]
        case events.Left():
            return sentences.left_words(run)
    line = sentences.phase_line(event)
    return [line] if line else []


def end_words(board: Board, at: float, end: events.Finished, words: Sequence[str] | None) -> list[str]:
    metrics = end.metrics or board.metrics()
    line = sentences.end_line(board.run, end, board.elapsed(at), metrics, waited=board.waited)
    return [line, *sentences.end_details(board.run, end, words, bool(metrics))]


def is_live() -> bool:
    """Whether a live view can be drawn: stdout and stderr are one terminal that can move its cursor."""
    import os

    if not (sys.stdout.isatty() and sys.stderr.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return os.fstat(sys.stdout.fileno()).st_rdev == os.fstat(sys.stderr.fileno()).st_rdev


def choose_view(
    write: Write, *, ranks: int, as_json: bool = False, quiet: bool = False, words: Sequence[str] | None = None
) -> View:
    if as_json:
        return JsonView(write)
    if is_live() and not quiet:
        from pumasi.cli.view.live import LiveView

        return LiveView(ranks=ranks, words=words)
    return PlainView(write, ranks=ranks, quiet=quiet, words=words)
