"""Metrics from frames: puts the pieces of a line together before it is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pumasi.core.frames import STDERR_PIECE, STDOUT_PIECE, Frame, OpenLines
from pumasi.core.metrics import MetricParser, Reading

_PIECES = (STDOUT_PIECE, STDERR_PIECE)
LONGEST = 4096
"""A line that is longer tells no metric that a person would want."""


class FrameParser:
    def __init__(self) -> None:
        self._lines = MetricParser()
        self._begun: dict[tuple[int, bool], bytes] = {}
        self._open = OpenLines()

    def readings(self, frames: Iterable[Frame]) -> Iterator[tuple[int, Reading]]:
        for frame in frames:
            closed = self._open.follow(frame) if self._begun or frame.kind in _PIECES else (frame,)
            yield from self._read(closed)

    def forget(self, rank: int) -> None:
        """It has ended; another of that number begins anew."""
        self._lines.forget(rank)
        self._open.close([rank])
        for stderr in (False, True):
            self._begun.pop((rank, stderr), None)

    def _read(self, frames: Iterable[Frame]) -> Iterator[tuple[int, Reading]]:
        feed = self._lines.feed
        for frame in frames:
            rank, _, _, kind, text = frame
            if kind in _PIECES:
                key = rank, frame.is_stderr
                self._begun[key] = (self._begun.get(key, b"") + text)[-LONGEST:]
                continue
            if self._begun:
                text = self._begun.pop((rank, frame.is_stderr), b"") + text
            reading = feed(rank, text)
            if reading is not None:
                yield rank, reading
