"""What a format has to be able to do: read rows one after the other, and write some of them as a part.

Rows travel in chunks: anything that has a length and can be sliced. A source has one stream of rows or several (an .npz
has one for each array); a part is written stream by stream.
"""

from __future__ import annotations

import marshal
from abc import ABC, abstractmethod
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pumasi.data.files import Tick
from pumasi.data.partition import MOST_CLASSES
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 8 << 20
"""Bytes of a chunk, roughly: a row is never cut."""
ROW_OVERHEAD = 48
"""Bytes of memory that a row takes beside its own: a Python object, or the numbers by which it is sorted."""
DEFAULT_KEY = "y"


class Stream(ABC):
    @abstractmethod
    def chunks(self) -> Iterator[Any]:
        """All rows, from the first on, each time that it is asked; checked as far as reading them can tell."""

    @abstractmethod
    def write(self, target: Path, chunks: Iterable[Any], rows: int) -> None:
        """Write `rows` rows into the part `target`, or add them to what other streams have written there."""

    @abstractmethod
    def sizes(self) -> Sequence[int] | NDArray[Any]:
        """How many bytes of memory each row takes, roughly."""

    # What follows serves to rearrange rows, and is right for chunks that are lists of bytes or texts.

    def take(self, chunk: Any, rows: NDArray[Any]) -> Any:
        return [chunk[row] for row in rows.tolist()]

    def join(self, chunks: Iterable[Any]) -> Any:
        return list(chain.from_iterable(chunks))

    def pack(self, chunk: Any) -> bytes:
        return marshal.dumps(chunk)

    def unpack(self, data: bytes) -> Any:
        return marshal.loads(data)  # noqa: S302  (from a file that this process has just written)


class Source(NamedTuple):
    """`classes` has a number for each row, if classes were asked for."""

    rows: int
    streams: Sequence[Stream]
    classes: Sequence[int] | None = None


class OpenSource(Protocol):
    def __call__(self, path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
        """`key` says where the classes are, if they are wanted. `scratch` is a folder for files that are needed until
        the parts are written."""


class Classes:
    """Numbers for classes, in the order in which they first appear."""

    def __init__(self, path: Path, key: str) -> None:
        self.codes = array("I")
        self._known: dict[Hashable, int] = {}
        self._name = f"{key} of {path}"

    def add(self, values: Iterable[Hashable]) -> None:
        known = self._known
        self.codes.extend(known.setdefault(value, len(known)) for value in values)
        if len(known) > MOST_CLASSES:
            raise UsageError(
                f"{self._name} has more than {MOST_CLASSES:,} different values: these are no classes.",
                "Name what says the class: --stratify KEY.",
            )


def unknown_key(path: Path, key: str, what: str, known: Iterable[str]) -> UsageError:
    names = list(known)
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return UsageError(f"{path} has no {what} {key}.", f"It has {shown}: name one of them with --stratify KEY.")


def damaged(path: Path, fact: str, todo: str = "Make it, or fetch it, again.") -> UsageError:
    return UsageError(f"{path} {fact}.", todo)
