"""Zip files: where an entry's bytes stand, and a copy in which some entries have other bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from pumasi.models.model import BLOCK, check_claim

_LOCAL_HEADER = 30
_ZIP64_EXTRA = 20
_ZIP64_FROM = 1 << 30
"""Sizes that the headers have 64 bits for. The zip format asks for it only from 4 GiB on; it may be done earlier."""

Contents = Mapping[str, Callable[[], Iterable[Any]]]


def check(archive: ZipFile) -> None:
    for entry in archive.infolist():
        if entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or entry.flag_bits & 1:
            raise ValueError(f"{entry.filename!r} is encrypted, or compressed in an unusual way")
        check_claim(entry.filename, entry.file_size, entry.compress_size)


def offset_of(file: BinaryIO, entry: ZipInfo) -> int | None:
    """Where the bytes of an entry stand in the file; None if they are compressed."""
    if entry.compress_type != ZIP_STORED:
        return None
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER)
    if header[:4] != b"PK\3\4":
        raise ValueError(f"{entry.filename!r} is not where the archive says")
    if entry.compress_size != entry.file_size:
        raise ValueError(f"{entry.filename!r} is not compressed, yet has two sizes")
    name, extra = struct.unpack("<HH", header[26:])
    offset: int = entry.header_offset + _LOCAL_HEADER + name + extra
    if offset + entry.file_size > file.seek(0, 2):
        raise ValueError(f"it ends before the end of {entry.filename!r}")
    return offset


class Window(RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._at = file, start, size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(offset + (0, self._at, self._size)[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(self._size - self._at, 0)]
        self._file.seek(self._start + self._at)
        got: int = self._file.readinto(view)  # type: ignore[attr-defined]
        self._at += got
        return got


def rewrite(template: ZipFile, path: Path, contents: Contents, align: int = 1) -> None:
    """A copy of an archive: the same entries in the same order, some with other bytes. The bytes of each begin at a
    multiple of `align`."""
    with ZipFile(path, "w") as archive:
        archive.comment = template.comment
        for old in template.infolist():
            entry = copy(old)
            is_large = entry.file_size >= _ZIP64_FROM
            entry.extra = _padding(archive, entry, align, _ZIP64_EXTRA if is_large else 0)
            with archive.open(entry, "w", force_zip64=is_large) as to:
                if old.filename in contents:
                    for piece in contents[old.filename]():
                        to.write(piece)
                else:
                    with template.open(old) as entry_file:
                        while piece := entry_file.read(BLOCK):
                            to.write(piece)


def _padding(archive: ZipFile, entry: ZipInfo, align: int, more: int) -> bytes:
    """An extra field that is skipped by who reads: the one that PyTorch writes."""
    if align == 1:
        return b""
    assert archive.fp is not None
    start = archive.fp.tell() + _LOCAL_HEADER + len(entry.filename.encode()) + 4 + more
    length = -start % align
    return struct.pack("<2sH", b"FB", length) + b"Z" * length
