"""Frames of a run ─► what a user sees of the programs' own output, on the stream that the program chose.

One process and no live view: byte by byte what the program wrote, so that nothing shows that Pumasi stands between.
Otherwise whole lines, each with its rank in front when there are several. A line that grows without end is broken where
it becomes too long to hold. A text that ended in a carriage return is about to be overwritten: only the last one of a
series counts. This is the hot path of a run that prints a lot: a line costs well under a microsecond.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence

from pumasi.cli.view.output import hush
from pumasi.core.frames import (
    STDERR_LINE,
    STDERR_PIECE,
    STDERR_PROGRESS,
    STDOUT_LINE,
    STDOUT_PIECE,
    STDOUT_PROGRESS,
    Frame,
    OpenLines,
)

Write = Callable[[bool, bytes], None]
"""Takes whether it is for stderr, and the bytes."""

HOLD = 256 * 1024
"""How much of an unfinished line is held, a rank and a stream."""
_COLOURS = (36, 33, 32, 35, 34, 31)


class Printer:
    def __init__(
        self,
        write: Write,
        *,
        prefixed: bool,
        exact: bool = False,
        colour: bool = False,
        label: Callable[[int], str] = str,
    ) -> None:
        """`exact` passes bytes through as they are; it makes sense for one rank only."""
        self._write = write
        self._label = label
        self._prefixed = prefixed
        self._exact = exact
        self._colour = colour
        self._prefixes: dict[int, bytes] = {}
        self._held: dict[tuple[int, bool], bytearray] = {}
        self._progress: dict[tuple[int, bool], bytes] = {}
        self._open = OpenLines()

    def output(self, frames: Sequence[Frame]) -> None:
        self._show(self._open.closing(frames))

    def end_attempt(self, ranks: Collection[int] | None = None) -> None:
        """The lines that these ranks, or all, have begun will not go on: another attempt follows."""
        self._show(self._open.close(ranks))

    def _show(self, frames: Iterable[Frame]) -> None:
        if self._exact:
            self._pass_through(frames)
        else:
            self._print_lines(frames)

    def unfinished(self, rank: int) -> bytes:
        """What stands on the rank's current line: a progress bar, or the beginning of a line."""
        for stderr in (False, True):
            text = bytes(self._held.get((rank, stderr), b"")) or self._progress.get((rank, stderr), b"")
            if text:
                return text
        return b""

    def finish(self) -> None:
        """Prints what still waits for the end of its line."""
        for (rank, stderr), text in [*self._progress.items(), *self._held.items()]:
            if text:
                self._write(stderr, self._prefix(rank) + bytes(text) + b"\n")
        self._progress.clear()
        self._held.clear()

    def _pass_through(self, frames: Iterable[Frame]) -> None:
        parts: list[bytes] = []
        to_stderr = False
        for frame in frames:
            if frame.is_stderr is not to_stderr:
                self._send(to_stderr, parts)
                to_stderr = not to_stderr
            parts += (frame.text, frame.end)
        self._send(to_stderr, parts)

    def _print_lines(self, frames: Iterable[Frame]) -> None:
        parts: list[bytes] = []
        to_stderr = False
        prefixes, held, progress = self._prefixes, self._held, self._progress
        for rank, _, _, kind, text in frames:
            is_stderr = kind in _STDERR
            if is_stderr is not to_stderr:
                self._send(to_stderr, parts)
                to_stderr = is_stderr
            if held or progress or kind not in _LINES:
                text = self._whole_line(rank, is_stderr, kind, text)  # type: ignore[assignment]
                if text is None:
                    continue
            parts += (prefixes.get(rank) or self._prefix(rank), text, b"\n")
        self._send(to_stderr, parts)

    def _whole_line(self, rank: int, is_stderr: bool, kind: bytes, text: bytes) -> bytes | None:
        """The line that this piece completes, or None where it is not complete yet."""
        key = (rank, is_stderr)
        if kind in _PIECES:
            held = self._held.setdefault(key, bytearray())
            held += text
            return bytes(self._held.pop(key)) if len(held) >= HOLD else None
        whole = bytes(self._held.pop(key)) + text if key in self._held else text
        if kind in _PROGRESS:
            if whole:
                self._progress[key] = whole
            return None
        overwritten = self._progress.pop(key, b"")
        # A carriage return right before the newline overwrites nothing.
        return whole or overwritten

    def _send(self, to_stderr: bool, parts: list[bytes]) -> None:
        if parts:
            self._write(to_stderr, b"".join(parts))
            parts.clear()

    def _prefix(self, rank: int) -> bytes:
        if rank not in self._prefixes:
            self._prefixes[rank] = self._make_prefix(rank) if self._prefixed else b""
        return self._prefixes[rank]

    def _make_prefix(self, rank: int) -> bytes:
        label = self._label(rank).encode()
        if self._colour:
            return b"\x1b[%dm[%b]\x1b[0m " % (_COLOURS[rank % len(_COLOURS)], label)
        return b"[%b] " % label


_STDERR = frozenset((STDERR_LINE, STDERR_PIECE, STDERR_PROGRESS))
_LINES = frozenset((STDOUT_LINE, STDERR_LINE))
_PIECES = frozenset((STDOUT_PIECE, STDERR_PIECE))
_PROGRESS = frozenset((STDOUT_PROGRESS, STDERR_PROGRESS))


def to_streams(to_stderr: bool, data: bytes) -> None:
    stream = sys.stderr.buffer if to_stderr else sys.stdout.buffer
    stream.write(data)
    stream.flush()


def to_streams_patiently(to_stderr: bool, data: bytes) -> None:
    """Until one can't be written any more (`| head`, a terminal that was closed), then no longer to that one: a healthy
    run goes on, and its log is in the store."""
    try:
        to_streams(to_stderr, data)
    except OSError:
        hush(sys.stderr if to_stderr else sys.stdout)
