"""pumasi logs: what the processes of a run wrote, while it runs and afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

from pumasi.cli.grammar import JSON, RUNS, WHERE, Option, Verb
from pumasi.cli.parsing import Arguments, closest
from pumasi.cli.runs import find_run, open_store, size_of
from pumasi.cli.view import sentences
from pumasi.cli.view.board import Board, replayed
from pumasi.cli.view.output import is_colourful, say
from pumasi.cli.view.printer import Printer, to_streams
from pumasi.core.events import Waiting
from pumasi.core.frames import OpenLines
from pumasi.errors import SpecError, UsageError

if TYPE_CHECKING:
    from pumasi.cli.view.views import JsonView
    from pumasi.core.frames import Frame
    from pumasi.store import RunRecord, Store

VERB = Verb(
    name="logs",
    usage=("pumasi logs [RUN] [options]",),
    about="""Prints what the processes of a run wrote: to stdout what they wrote to stdout, to stderr the rest. With
    several processes each line has its rank in front.""",
    options=(
        Option(("-f", "--follow"), "go on until the run ends"),
        Option(("-r", "--rank"), "only this rank; may be given several times", "N"),
        Option(("--task",), "only this task, of a run that has several; may be given several times", "NAME"),
        Option(("--since",), "only what is younger: 10m, 2h, 2026-11-15T21:40", "TIME"),
        Option(("--tail",), "only the last N lines", "N"),
        Option(("-t", "--timestamps"), "put the time in front of each line, with the offset from UTC"),
        *WHERE,
        JSON._replace(help="print one JSON object a line instead"),
    ),
    takes=(0, 1),
    completes=RUNS,
    examples=(
        ("pumasi logs -f", "watch the last run"),
        ("pumasi logs train-x7k2p --rank 3 --tail 50", "the last words of rank 3"),
    ),
)
_BATCH = 4096
_POLL = 0.1
_LOOK_AFTER = 2.0
"""Seconds between looks whether the manager of a followed run still lives."""


def main(arguments: Arguments) -> int:
    _check_namespace(arguments)
    ranks = [_number("--rank", text) for text in arguments.all("rank")]
    tail = None if (text := arguments.last("tail")) is None else _number("--tail", text)
    since = None if (text := arguments.last("since")) is None else int(parse_since(text, time.time()) * 1000)
    store = open_store()
    record = find_run(store, arguments, output=not arguments.has("follow"))
    board = replayed(store.events(record.id))
    if arguments.has("task"):
        ranks = _numbers(arguments.all("task"), board, record)
    else:
        _check_ranks(ranks, record)
    one = len(ranks) == 1 or (record.ranks or size_of(record.spec)) == 1
    is_stamped = arguments.has("timestamps") and not arguments.has("json")
    printer: Printer | JsonView = Printer(
        to_streams,
        prefixed=not one,
        exact=one and not is_stamped,
        colour=is_colourful(sys.stdout),
        label=_labels(store, record.id, board),
    )
    if arguments.has("json"):
        from pumasi.cli.view.views import JsonView

        printer = JsonView(to_streams)
    wanted: dict[str, Any] = {"since_ms": since, "tail": tail, "ranks": ranks}
    read = _follow if arguments.has("follow") else _read
    stamp = _Stamper() if is_stamped else _unchanged
    from pumasi.runs.control import kept_up

    with kept_up(store, record) if arguments.has("follow") else nullcontext(lambda: None) as check:
        for batch in read(store, record.id, wanted, check):
            printer.output(stamp(batch))
    if isinstance(printer, Printer):
        printer.finish()
    return 0


def _check_namespace(arguments: Arguments) -> None:
    """Other tools have -n for lines."""
    name = arguments.last("namespace") or ""
    if name.isdecimal() and not arguments.has("on"):
        raise UsageError(f"-n names a namespace of a cluster, and '{name}' is a number.", f"For lines: --tail {name}")


def _number(option: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{option} takes a whole number; '{text}' is none.", f"Write {option} 3.")
    return int(text)


def _numbers(tasks: Collection[str], board: Board, record: RunRecord) -> list[int]:
    """Of the processes of these tasks."""
    by_task: dict[str, list[int]] = {}
    for number, label in board.labels.items():
        by_task.setdefault(label.partition(":")[0], []).append(number)
    unknown = [task for task in tasks if task not in by_task]
    if unknown:
        near = closest(unknown[0], by_task)
        hint = f"Did you mean {near}?" if near else f"It has {', '.join(by_task) or 'none'}."
        raise UsageError(f"{record.id} has no task {unknown[0]}.", hint)
    return [number for task in tasks for number in by_task[task]]


def _labels(store: Store, run_id: str, board: Board) -> Callable[[int], str]:
    """Also of tasks that start while they are followed."""

    def label(number: int) -> str:
        nonlocal board
        if number not in board.labels:
            board = replayed(store.events(run_id))
        return board.label(number)

    return label


def _check_ranks(ranks: Collection[int], record: RunRecord) -> None:
    beyond = [rank for rank in ranks if rank >= record.ranks > 0]
    if beyond:
        known = "rank 0 only" if record.ranks == 1 else f"ranks 0 to {record.ranks - 1}"
        raise UsageError(f"{record.id} has no rank {beyond[0]}.", f"It has {known}.")


def _read(store: Store, run_id: str, wanted: dict[str, Any], _: Callable[[], None]) -> Iterator[list[Frame]]:
    frames = store.read_log(run_id, **wanted)
    while batch := list(islice(frames, _BATCH)):
        yield batch


def _follow(store: Store, run_id: str, wanted: dict[str, Any], check: Callable[[], None]) -> Iterator[list[Frame]]:
    from pumasi.runs.control import look_after

    log = store.follow_log(run_id, **wanted)
    looked = time.monotonic()
    patience = _Patience(store, run_id)
    while True:
        patience.tell()
        # Before the reading: what an ended run wrote is all there.
        record = store.run(run_id)
        while frames := log.read():
            yield frames
        if record.ended is not None:
            return
        check()
        time.sleep(_POLL)
        if time.monotonic() - looked > _LOOK_AFTER and not record.is_remote:
            look_after(store, record)
            looked = time.monotonic()


class _Patience:
    """Says that a followed run waits, and for what, once for each reason."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id, self._seen, self._told = store, run_id, 0, ""

    def tell(self) -> None:
        rows = self._store.events(self._run_id, after=self._seen)
        self._seen = rows[-1].seq if rows else self._seen
        reasons = [row.event.reason for row in rows if isinstance(row.event, Waiting)]
        record = self._store.run(self._run_id)
        if record.state != "queued":
            return
        reason = reasons[-1] if reasons else self._told or "it has not started yet."
        if reason != self._told:
            promise = () if self._told else ("Its output follows here as soon as it runs.",)
            self._told = reason
            say(f"{self._run_id} is {sentences.waiting_words(reason)}", *promise)


def _unchanged(frames: list[Frame]) -> list[Frame]:
    return frames


class _Stamper:
    """Puts the time in front of each line: not into a long one, which comes in pieces, and only in front of the last
    state of a progress bar."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, bool], bytes] = {}
        """How the last text of a rank and stream ended: in a newline, a carriage return, or nothing."""
        self._open = OpenLines()

    def __call__(self, frames: list[Frame]) -> list[Frame]:
        return [self._stamped(frame) for frame in self._open.closing(frames)]

    def _stamped(self, frame: Frame) -> Frame:
        key = (frame.rank, frame.is_stderr)
        before = self._before.get(key, b"\n")
        self._before[key] = frame.end
        if before == b"" or (before == b"\r" and not frame.text):
            return frame
        return frame._replace(text=_stamp(frame.ms) + frame.text)


def _stamp(ms: int) -> bytes:
    """2026-11-15T21:40:07.123+09:00, and a space"""
    from datetime import datetime

    return f"{datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec='milliseconds')} ".encode()


def parse_since(text: str, now: float) -> float:
    """10m and 2h before `now`; a date, a date and a time, or a time of today."""
    from datetime import datetime

    from pumasi.core.fields import parse_duration

    written = text.strip().replace("Z", "+00:00")
    if written[:2].isdigit() and written[2:3] == ":":
        written = f"{datetime.fromtimestamp(now).date().isoformat()}T{written}"
    try:
        return datetime.fromisoformat(written).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except SpecError:
        raise UsageError(
            f"--since takes a time; '{text}' is none.", "Write --since 10m, --since 2h or --since 2026-11-15T21:40."
        ) from None
