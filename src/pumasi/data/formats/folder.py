"""A folder of files: a file is a row. A part is a folder with its share of them, at the same relative paths.

The classes are the folders right below: cats/1.png is of the class cats.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from pumasi.data.files import Tick, copy_file, walk
from pumasi.data.formats.base import Classes, Source, Stream
from pumasi.errors import UsageError

KEY = "folder"
_AT_ONCE = 100


def open_source(path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
    names = walk(path)
    return Source(len(names), [_Files(path, names)], None if key is None else _classes(path, names, key))


def _classes(path: Path, names: list[str], key: str) -> array[int]:
    if key != KEY:
        raise UsageError(
            f"{path} is a folder: its classes are the folders in it, not {key}.", "Write --stratify alone."
        )
    stray = next((name for name in names if "/" not in name), None)
    if stray is not None:
        raise UsageError(f"{path / stray} lies in no folder, and so has no class.", "Move it into its class's folder.")
    classes = Classes(path, key)
    classes.add(name.partition("/")[0] for name in names)
    return classes.codes


class _Files(Stream):
    def __init__(self, path: Path, names: list[str]) -> None:
        self._path = path
        self._names = names

    def chunks(self) -> Iterator[list[str]]:
        return (self._names[start : start + _AT_ONCE] for start in range(0, len(self._names), _AT_ONCE))

    def write(self, target: Path, chunks: Iterable[list[str]], rows: int) -> None:
        target.mkdir()
        for chunk in chunks:
            for name in chunk:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                copy_file(self._path / name, target / name)

    def sizes(self) -> list[int]:
        return [len(name) for name in self._names]
