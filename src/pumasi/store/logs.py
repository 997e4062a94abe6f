"""A run's log: one file an attempt, in the agent's own frames, readable from both ends while it grows."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from pumasi.core.frames import Frame, parse_frame

_BLOCK = 1 << 16


class Wanted:
    """Which frames a reader asks for; no ranks means all."""

    def __init__(self, ranks: Collection[int], since_ms: int | None) -> None:
        self._starts = tuple(b"%d." % rank for rank in ranks) or (b"",)
        self._since_ms = since_ms or 0

    def frame(self, line: bytes) -> Frame | None:
        if not line.startswith(self._starts):
            return None
        frame = parse_frame(line)
        return frame if frame is not None and frame.ms >= self._since_ms else None


class Position(NamedTuple):
    """A place between two frames: in the log of that attempt, so many bytes from its start."""

    attempt: int
    offset: int


class LogFile:
    """A log that grows by whole lines only. For one writer at a time: the manager that holds the run's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._cut_off_torn_line()

    def append(self, chunk: bytes) -> None:
        """Frames that found no room are lost, the ones before them are kept. Do not append the same chunk again: the
        ranks' sequence numbers tell a reader that something is missing."""
        if not chunk.endswith(b"\n"):
            raise ValueError("a log takes whole lines only")
        rest = memoryview(chunk)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            self._cut_off_torn_line()
            raise

    def close(self) -> None:
        os.close(self._fd)

    def _cut_off_torn_line(self) -> None:
        """What a writer left that died, or ran out of space, in the middle of a line. Readers never go beyond the
        last whole line, so that none of them notices."""
        size = os.fstat(self._fd).st_size
        whole = _end_of_whole_lines(self._fd, size)
        if whole < size:
            os.ftruncate(self._fd, whole)


def log_path(folder: Path, attempt: int) -> Path:
    return folder / f"{attempt}.log"


def last_heard(path: Path) -> dict[int, int]:
    """The number of the last frame of each rank."""
    last: dict[int, int] = {}
    if path.exists():
        with path.open("rb") as log:
            for line in log:
                frame = parse_frame(line[:-1])
                if frame is not None:
                    last[frame.rank] = frame.seq
    return last


def read_frames(folder: Path, wanted: Wanted, tail: int | None) -> Iterator[Frame]:
    """The frames of all attempts, in order; of the last `tail` lines only, where that is given."""
    start = Position(0, 0) if tail is None else tail_start(folder, wanted, tail)
    for attempt in _attempts(folder, start.attempt):
        with log_path(folder, attempt).open("rb") as log:
            log.seek(start.offset if attempt == start.attempt else 0)
            for line in log:
                frame = wanted.frame(line[:-1]) if line.endswith(b"\n") else None
                if frame is not None:
                    yield frame


def tail_start(folder: Path, wanted: Wanted, lines: int) -> Position:
    """Where the last so many lines begin, found from the end. Lines are counted as `tail` counts them, by their
    newlines: a progress bar, which overwrites itself a thousand times, is part of the line that ends it."""
    for attempt in reversed(_attempts(folder)):
        for end, line in _lines_from_end(log_path(folder, attempt)):
            frame = wanted.frame(line)
            if frame is not None and frame.end == b"\n":
                if lines == 0:
                    return Position(attempt, end)
                lines -= 1
    return Position(0, 0)


class LogFollower:
    """What is new in a log since one last looked, from one attempt to the next. Holds no file open."""

    def __init__(self, folder: Path, wanted: Wanted, start: Position) -> None:
        self._folder = folder
        self._wanted = wanted
        self._attempt, self._offset = start

    def read(self) -> list[Frame]:
        """The next frames, about a block of them at the most; an empty list where there is nothing new."""
        while True:
            # Before the reading: once the next attempt has a log, this one has got its last line.
            later = _attempts(self._folder, self._attempt + 1)
            lines = self._read_lines()
            frames = [frame for line in lines if (frame := self._wanted.frame(line)) is not None]
            if frames or not (lines or later):
                return frames
            if not lines:
                self._attempt, self._offset = later[0], 0

    def _read_lines(self) -> list[bytes]:
        try:
            with log_path(self._folder, self._attempt).open("rb") as log:
                log.seek(self._offset)
                lines = log.readlines(_BLOCK)
        except FileNotFoundError:
            return []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        self._offset += sum(map(len, lines))
        return [line[:-1] for line in lines]


def _attempts(folder: Path, first: int = 0) -> list[int]:
    """The attempts that have a log, from the first that is asked for."""
    numbers = (int(path.stem) for path in folder.glob("*.log") if path.stem.isdigit())
    return sorted(number for number in numbers if number >= first)


def _lines_from_end(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every whole line, the last one first, with the offset of its end."""
    with path.open("rb") as log:
        end = start = _end_of_whole_lines(log.fileno(), os.fstat(log.fileno()).st_size)
        begun = b""
        while start > 0:
            # A line longer than a block doubles the next block, so that the time to join them stays linear.
            size = min(max(_BLOCK, len(begun)), start)
            start -= size
            lines = (os.pread(log.fileno(), size, start) + begun).split(b"\n")[:-1]
            for line in reversed(lines[1:] if start else lines):
                yield end, line
                end -= len(line) + 1
            begun = lines[0] + b"\n"


def _end_of_whole_lines(fd: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
