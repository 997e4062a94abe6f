"""What the formats share whose rows are texts: a row is the bytes that it has in the file, with its newline."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pumasi.data.files import Tick
from pumasi.data.formats.base import CHUNK, ROW_OVERHEAD, Stream, damaged

LONGEST_ROW = 64 << 20
"""Bytes. A row has to fit into memory; one that is longer is none: a quote or a newline is missing."""


class LineStream(Stream):
    """`read` gives the rows, from the first on; `head` stands in front of them in every part."""

    def __init__(self, path: Path, read: Callable[[], Iterator[bytes]], head: bytes = b"") -> None:
        self._path = path
        self._read = read
        self._head = head
        self._sizes = array("I")

    def survey(self, look: Callable[[int, list[bytes]], None], tick: Tick) -> int:
        """The number of rows. `look` is shown all of them, with the number of the first of each chunk."""
        done, total = 0, self._path.stat().st_size
        for chunk in self.chunks():
            look(len(self._sizes) + 1, chunk)
            self._sizes.extend(len(row) + ROW_OVERHEAD for row in chunk)
            done += sum(map(len, chunk))
            tick("looking at rows", done, total)
        return len(self._sizes)

    def chunks(self) -> Iterator[list[bytes]]:
        chunk, size = [], 0
        for row in self._read():
            chunk.append(row)
            size += len(row)
            if size >= CHUNK:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def write(self, target: Path, chunks: Iterable[list[bytes]], rows: int) -> None:
        with target.open("xb") as file:
            file.write(self._head)
            for chunk in chunks:
                file.writelines(chunk)

    def sizes(self) -> array[int]:
        return self._sizes


def lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Each ends in a newline, the last one too."""
    start = file.read(len(codecs.BOM_UTF8))
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise damaged(path, "is a text in UTF-16", "Save it as UTF-8.")
    if start != codecs.BOM_UTF8:
        file.seek(0)
    while line := file.readline(LONGEST_ROW):
        if not line.endswith(b"\n"):
            if len(line) == LONGEST_ROW:
                raise damaged(path, f"has a line of more than {LONGEST_ROW >> 20} MiB", "Put each row on a line.")
            line += b"\n"
        yield line
