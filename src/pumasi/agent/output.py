"""What the ranks print becomes numbered frames on the agent's standard output, which is its only channel upwards."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time

from pumasi.agent.links import parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from pumasi.agent.links import Message

PIECE = 4096
"""Longest text in a frame: log readers on Kubernetes tear longer lines."""
TAIL = 8192
TAIL_LINES = 20


def stamp() -> bytes:
    """The time in a frame: 13 digits, even where the clock was never set."""
    return b"%013d" % (time.time() * 1000)


class Output:
    """Our standard output. Never blocks: the star has to go on when nobody reads."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.queue: list[bytes] = []
        self.head = memoryview(b"")
        self.size = 0
        self.broken = False
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if data and not self.broken:
            self.queue.append(data)
            self.size += len(data)

    def say(self, **words: Any) -> None:
        self.write(b"@" + json.dumps(words).encode() + b"\n")

    def pump(self) -> None:
        """Write what fits."""
        while self.size and not self.broken:
            if not self.head:
                self.head = memoryview(b"".join(self.queue))
                self.queue = []
            try:
                written = os.write(self.fd, self.head[: 1 << 20])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self.queue, self.size = [], 0
                return
            self.head = self.head[written:]
            self.size -= written


class Voice:
    """Whose output it is: a rank's, or that of one of MPI's daemons (no rank), of which only the end is kept. In a run
    of several tasks the ranks of this one are numbered from `first` on."""

    first = 0

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.seq = 0
        self.tail = b""

    def last_lines(self) -> list[str]:
        text = self.tail.decode("utf-8", "replace")
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        if len(self.tail) == TAIL and len(lines) > 1:
            lines = lines[1:]
        return [line for line in lines if line.strip()][-TAIL_LINES:]


class Stream:
    """One pipe of one rank, cut into frames. `rest` is the unfinished line; it began at `begun` and grew at `heard`."""

    def __init__(self, voice: Voice, fd: int, kinds: tuple[bytes, bytes, bytes]) -> None:
        self.voice = voice
        self.fd = fd
        self.line, self.piece, self.progress = kinds
        self.rest = b""
        self.begun = 0.0
        self.heard = 0.0
        self.timed = False
        self.done = False
        os.set_blocking(fd, False)

    def close(self) -> None:
        self.done = True
        os.close(self.fd)

    def feed(self, data: bytes) -> bytes:
        """Frames for `data`; the unfinished end is kept."""
        voice = self.voice
        voice.tail = (voice.tail + data)[-TAIL:]
        if voice.rank is None:
            return b""
        now = stamp()
        text = self.rest + data
        lines = text.split(b"\n")
        self.rest = lines.pop()
        if b"\r" in text:
            frames = b"".join([self.split(line, now, self.line) for line in lines])
        else:
            frames = self.frames(lines, now, self.line)
        if len(self.rest) > PIECE or b"\r" in self.rest:
            frames += self.shorten(now)
        return frames

    def shorten(self, now: bytes) -> bytes:
        """Pass on what is certain of the unfinished line: whole pieces, and all up to its last carriage return."""
        cut = self.rest.rfind(b"\r", 0, -1) + 1
        if len(self.rest) - cut > PIECE:
            cut = len(self.rest) - (len(self.rest) - cut) % PIECE
        certain, self.rest = self.rest[:cut], self.rest[cut:]
        return self.unfinished(certain, now)

    def flush(self) -> bytes:
        """What is left without a newline."""
        rest, self.rest = self.rest, b""
        return self.unfinished(rest, stamp())

    def unfinished(self, text: bytes, now: bytes) -> bytes:
        if not text:
            return b""
        if text.endswith(b"\r"):
            return self.split(text[:-1], now, self.progress)
        return self.split(text, now, self.piece)

    def split(self, line: bytes, now: bytes, kind: bytes) -> bytes:
        """Frames for a line with carriage returns; one before the newline belongs to the line."""
        ended = line.endswith(b"\r") and kind == self.line
        parts = (line[:-1] if ended else line).split(b"\r")
        if ended:
            parts[-1] += b"\r"
        return self.frames(parts[:-1], now, self.progress) + self.frames(parts[-1:], now, kind)

    def frames(self, texts: list[bytes], now: bytes, kind: bytes) -> bytes:
        """A frame for each text: all at once where none has to be cut, since there may be a million a second."""
        if max(map(len, texts), default=0) > PIECE:
            return b"".join([self.cut(text, now, kind) for text in texts])
        form = b"%d.%%d %b%b%%b\n" % (Voice.first + (self.voice.rank or 0), now, kind)
        words = tuple(itertools.chain.from_iterable(enumerate(texts, self.voice.seq + 1)))
        self.voice.seq += len(texts)
        return form * len(texts) % words

    def cut(self, text: bytes, now: bytes, kind: bytes) -> bytes:
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)] or [b""]
        return self.frames(pieces[:-1], now, self.piece) + self.frames(pieces[-1:], now, kind)


class Words(Stream):
    """What the installer says to us, one JSON object a line. The Python that runs it may print lines of its own."""

    def __init__(self, fd: int, hear: Callable[[Message], None]) -> None:
        super().__init__(Voice(None), fd, (b"", b"", b""))
        self.hear = hear

    def feed(self, data: bytes) -> bytes:
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            with contextlib.suppress(ValueError):
                self.hear(parse(line))
        return b""

    def flush(self) -> bytes:
        return b""
