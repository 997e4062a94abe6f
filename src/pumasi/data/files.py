"""Files and folders as bytes: their checksums, their copies, and that they are really on the disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pumasi.errors import UsageError

Tick = Callable[[str, int, int], None]
"""Told what goes on, how much of it is done, and how much there is."""
BLOCK = 1 << 20


def counting(tick: Tick, what: str, total: int) -> Callable[[int], None]:
    """A function that is told of each step, and tells their sum."""
    done = 0

    def count(step: int) -> None:
        nonlocal done
        done += step
        tick(what, done, total)

    return count


class Digest(NamedTuple):
    bytes: int
    sha256: str


def digest(path: Path, count: Callable[[int], None] = lambda size: None) -> Digest:
    """That of a folder is the digest of what `sha256sum` says of its files, sorted by path. `count` is told how many
    bytes were read."""
    if not path.is_dir():
        return _file_digest(path, count)
    listing, size = hashlib.sha256(), 0
    for name in walk(path):
        one = _file_digest(path / name, count)
        listing.update(f"{one.sha256}  {name}\n".encode(errors="surrogateescape"))
        size += one.bytes
    return Digest(size, listing.hexdigest())


def _file_digest(path: Path, count: Callable[[int], None]) -> Digest:
    hasher, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            size += len(block)
            count(len(block))
    return Digest(size, hasher.hexdigest())


def total_bytes(path: Path) -> int:
    return sum((path / name).stat().st_size for name in walk(path)) if path.is_dir() else path.stat().st_size


def fingerprint(path: Path) -> tuple[int, int]:
    """Changes when a file does: cheap, and good enough to notice a writer who is at work meanwhile."""
    names = walk(path) if path.is_dir() else [""]
    stats = [(name, (path / name).stat()) for name in names]
    return len(stats), hash(tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def walk(folder: Path) -> list[str]:
    """The files below a folder, as sorted relative paths with slashes. Hidden ones (.DS_Store, …) are left out."""
    return sorted(_walk(str(folder), ""))


def _walk(folder: str, below: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, f"{below}{entry.name}/")
            elif entry.is_file():
                yield below + entry.name
            else:
                raise UsageError(
                    f"{entry.path} is neither a file nor a folder, but a link to a folder or something special.",
                    "Put a file or a folder in its place, or remove it.",
                )


def copy_file(source: Path, target: Path, count: Callable[[int], None] = lambda size: None) -> None:
    """A file of its own, no link: whoever writes into one copy changes no other."""
    with source.open("rb", buffering=0) as reading, target.open("xb", buffering=0) as writing:
        while block := reading.read(BLOCK):
            writing.write(block)
            count(len(block))


def sync_one(path: Path) -> None:
    """Returns when it is on the disk: a file, or the list of names that a folder is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
