"""The agent's output, line by line: which rank said what, and when.

    0.17 1763240000123|loss: 0.31

is rank 0's 17th piece of output, at that millisecond. The character after the time is the kind; a reader who sees the
numbers jump knows that it has lost something. Lines that start with `@` are the agent's own words, in JSON. The same
bytes are what the store keeps as a run's log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

STDOUT_LINE = b"|"
STDERR_LINE = b":"
STDOUT_PIECE = b">"
"""A piece of a line that goes on in the next frame."""
STDERR_PIECE = b"}"
STDOUT_PROGRESS = b"~"
"""A line that ended in a carriage return: the next one overwrites it."""
STDERR_PROGRESS = b"^"

_LINES = frozenset((STDOUT_LINE, STDERR_LINE))
_STDERR = frozenset((STDERR_LINE, STDERR_PIECE, STDERR_PROGRESS))
_ENDS = {STDOUT_LINE: b"\n", STDERR_LINE: b"\n", STDOUT_PROGRESS: b"\r", STDERR_PROGRESS: b"\r"}
_FRAME = re.compile(rb"^(\d+)\.(\d+) (\d{13})([|:>}~^])(.*)$", re.MULTILINE)


class Frame(NamedTuple):
    rank: int
    seq: int
    ms: int
    kind: bytes
    text: bytes

    @property
    def is_stderr(self) -> bool:
        return self.kind in _STDERR

    @property
    def end(self) -> bytes:
        """What ended this text in the program's own output: a newline, a carriage return, or nothing yet."""
        return _ENDS.get(self.kind, b"")


def parse_frame(line: bytes) -> Frame | None:
    """The frame in `line` (without its newline), or None when it is not one: torn, or not the agent's."""
    return next(iter(parse_frames(line)), None)


def parse_frames(chunk: bytes) -> list[Frame]:
    """All frames in a chunk of whole lines. In the path of every line that is printed, hence `tuple.__new__`."""
    new = tuple.__new__
    return [new(Frame, (int(r), int(s), int(ms), kind, text)) for r, s, ms, kind, text in _FRAME.findall(chunk)]


class OpenLines:
    """The lines that ranks have begun and not ended. An attempt that ends in the middle of a line leaves it open: it is
    closed before the next attempt, whose numbers start again, adds to it."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, bool], Frame] = {}

    def closing(self, frames: Sequence[Frame]) -> Sequence[Frame]:
        """The same frames, with an end for each line that was left open."""
        if not self._last and _LINES.issuperset([frame.kind for frame in frames]):
            return frames  # Nearly always, and this is in the path of every line that is printed.
        return [each for frame in frames for each in self.follow(frame)]

    def close(self, ranks: Collection[int] | None = None) -> list[Frame]:
        """Ends for the open lines of these ranks, or of all."""
        keys = [key for key in self._last if ranks is None or key[0] in ranks]
        return [_end_of(self._last.pop(key)) for key in keys]

    def follow(self, frame: Frame) -> list[Frame]:
        before = [self._last.get((frame.rank, stderr)) for stderr in (False, True)]
        is_anew = any(last is not None and last.seq >= frame.seq for last in before)
        ends = self.close([frame.rank]) if is_anew else []
        if frame.kind in _LINES:
            self._last.pop((frame.rank, frame.is_stderr), None)
        elif frame.text:
            self._last[frame.rank, frame.is_stderr] = frame
        return [*ends, frame]


def _end_of(frame: Frame) -> Frame:
    return frame._replace(seq=frame.seq + 1, kind=STDERR_LINE if frame.is_stderr else STDOUT_LINE, text=b"")


def unheard(chunk: bytes, heard: Mapping[int, int]) -> bytes:
    """Of a chunk of whole frames those with a higher number than the last that is known of their rank."""
    lines = [(parse_frame(line), line) for line in chunk.split(b"\n")]
    return b"".join(line + b"\n" for frame, line in lines if frame and frame.seq > heard.get(frame.rank, 0))


def separate(chunk: bytes) -> Iterator[bytes | Mapping[str, Any]]:
    """Frames and an agent's own words, in the order in which they came: a rank's last line before the news of its end.
    `chunk` holds whole lines."""
    if not (chunk.startswith(b"@") or b"\n@" in chunk):
        if chunk:
            yield chunk
        return
    frames: list[bytes] = []
    for line in chunk.split(b"\n")[:-1]:
        if not line.startswith(b"@"):
            frames += (line, b"\n")
            continue
        if frames:
            yield b"".join(frames)
            frames.clear()
        yield json.loads(line[1:])
    if frames:
        yield b"".join(frames)
