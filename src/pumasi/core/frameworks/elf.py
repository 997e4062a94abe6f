"""The shared libraries that a program names, as its ELF file tells them to the loader: bytes in, names out.

Whatever the bytes are, the answer comes quickly: nothing is followed further than a real program would need.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mmap import mmap

_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29
_MOST_SEGMENTS = 256
_MOST_ENTRIES = 4096
_LONGEST_NAME = 4096


class Linked(NamedTuple):
    """`rpath` are folders that the loader searches before LD_LIBRARY_PATH, `runpath` those that it searches after."""

    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()


class _Layout(NamedTuple):
    """Where the two kinds of ELF files, for 32 and for 64 bits, have what is read here."""

    headers: tuple[str, int]
    counts: int
    segment: str
    """Type, offset, address, size."""
    entry: str


_LAYOUTS = {
    1: _Layout(("I", 28), 42, "IIIxxxxI", "II"),
    2: _Layout(("Q", 32), 54, "IxxxxQQxxxxxxxxQ", "QQ"),
}


def read_linked(data: bytes | mmap) -> Linked | None:
    """None for what is no ELF file, or a broken one."""
    if data[:4] != b"\x7fELF" or len(data) < 64:
        return None
    layout, order = _LAYOUTS.get(data[4]), {1: "<", 2: ">"}.get(data[5])
    if layout is None or order is None:
        return None
    try:
        return _read(data, layout, order)
    except (struct.error, OverflowError):
        return None


def _read(data: bytes | mmap, layout: _Layout, order: str) -> Linked:
    kind, at = layout.headers
    (start,) = struct.unpack_from(order + kind, data, at)
    size, count = struct.unpack_from(f"{order}HH", data, layout.counts)
    places = (start + number * size for number in range(min(count, _MOST_SEGMENTS)))
    segments = [struct.unpack_from(order + layout.segment, data, place) for place in places]
    dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC), None)
    if dynamic is None:
        return Linked()
    entries = _entries(data, order + layout.entry, dynamic[1], dynamic[3])
    table = next((_offset(value, segments) for tag, value in entries if tag == _STRINGS), 0)
    return Linked(
        needed=tuple(_text(data, table + value) for tag, value in entries if tag == _NEEDED),
        rpath=_folders(data, table, [value for tag, value in entries if tag == _RPATH]),
        runpath=_folders(data, table, [value for tag, value in entries if tag == _RUNPATH]),
    )


def _entries(data: bytes | mmap, form: str, start: int, size: int) -> list[tuple[int, int]]:
    step = struct.calcsize(form)
    found: list[tuple[int, int]] = []
    for number in range(min(size // step, _MOST_ENTRIES)):
        tag, value = struct.unpack_from(form, data, start + number * step)
        if tag == 0:
            break
        found.append((tag, value))
    return found


def _offset(address: int, segments: list[tuple[int, ...]]) -> int:
    """Where in the file lies what will lie at `address` in memory."""
    for kind, offset, start, size in segments:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise struct.error("an address outside of the file")


def _text(data: bytes | mmap, start: int) -> str:
    end = data.find(b"\0", start, start + _LONGEST_NAME)
    if end < 0:
        raise struct.error("a name without an end")
    return data[start:end].decode("utf-8", "surrogateescape")


def _folders(data: bytes | mmap, table: int, values: list[int]) -> tuple[str, ...]:
    return tuple(folder for value in values for folder in _text(data, table + value).split(":") if folder)
