"""What stands on the command line ─► the files that are meant: files, patterns, or a folder."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from pumasi.errors import UsageError
from pumasi.models.formats import SUFFIXES, format_of


def find(words: Sequence[str | Path]) -> list[Path]:
    """In the order of the words, those of a folder or pattern by name. All of one format, none twice."""
    if not words:
        raise UsageError("There is nothing to average.", "Name files or a folder: pumasi models average runs/*.h5 …")
    paths = [path for word in words for path in _meant(word)]
    formats = {format_of(path): path for path in reversed(paths)}
    if len(formats) > 1:
        one, other, *_ = sorted(formats.values())
        raise UsageError(f"{one} and {other} are of different formats.", "Only models of one format can be averaged.")
    seen: set[tuple[int, int]] = set()
    for path in paths:
        about = path.stat()
        if (about.st_dev, about.st_ino) in seen:
            raise UsageError(f"{path} is given twice.", "To make it count more, use --weights.")
        seen.add((about.st_dev, about.st_ino))
    return paths


def _meant(word: str | Path) -> Iterable[Path]:
    path = Path(word)
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if _is_model(each))
        if not found:
            raise UsageError(f"The folder {path} has no models.", f"Models end in {', '.join(SUFFIXES)}.")
        return found
    if path.exists():
        return [path]
    if any(letter in str(word) for letter in "*?["):
        found = sorted(map(Path, glob.glob(str(word))))  # noqa: PTH207
        if not found:
            raise UsageError(f"No file matches {word}.")
        return found
    raise UsageError(f"There is no file {path}.")


def _is_model(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
