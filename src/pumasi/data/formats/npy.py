""".npy: one array, whose rows are those of its first dimension. Rows travel as numpy arrays of opaque bytes."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pumasi.data.files import Tick
from pumasi.data.formats.base import CHUNK, ROW_OVERHEAD, Source, Stream, damaged
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 20
_ALIGNMENT = 64


def open_source(path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
    if key is not None:
        raise UsageError(
            f"{path} has no classes: a .npy file has one array only.",
            "Put examples and classes into an .npz: np.savez(FILE, x=…, y=…).",
        )
    with path.open("rb") as file:
        header = read_header(path, file)
    return Source(header.rows, [ArrayStream(path, header, lambda: path.open("rb"))])


class Header(NamedTuple):
    """`descr` is the type of an item as the file spells it. With `fortran` the first dimension varies the fastest."""

    version: int
    descr: Any
    fortran: bool
    shape: tuple[int, ...]
    itemsize: int

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def items(self) -> int:
        """Of one row."""
        return math.prod(self.shape[1:])

    @property
    def by_columns(self) -> bool:
        return self.fortran and self.items > 1

    @property
    def row_bytes(self) -> int:
        return self.items * self.itemsize

    @property
    def row_memory(self) -> int:
        return self.row_bytes + ROW_OVERHEAD


def read_header(path: Path, file: IO[bytes], name: str = "") -> Header:
    """numpy itself has no public function that reads all versions."""
    import numpy as np

    shown = f"the array {name} of {path}" if name else str(path)
    start = file.read(8)
    if len(start) < 8 or start[:6] != _MAGIC or start[6] not in (1, 2, 3):
        raise damaged(path, f"holds {name}, which is no array" if name else "is no .npy file, or a damaged one")
    version = start[6]
    length = int.from_bytes(file.read(2 if version == 1 else 4), "little")
    text = file.read(min(length, _LONGEST_HEADER))
    try:
        fields = ast.literal_eval(text.decode("utf-8" if version == 3 else "latin-1").strip())
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        header = Header(version, fields["descr"], fields["fortran_order"], tuple(fields["shape"]), dtype.itemsize)
    except (ValueError, SyntaxError, KeyError, TypeError):
        raise damaged(path, f"has a damaged header{f' in {name}' if name else ''}") from None
    if dtype.hasobject:
        raise UsageError(
            f"{shown[0].upper()}{shown[1:]} holds Python objects, which only pickle reads; that may run any program.",
            "Save it as numbers or texts: np.array(…, dtype=float) or dtype=str.",
        )
    if not header.shape or not header.row_bytes:
        raise UsageError(
            f"{shown[0].upper()}{shown[1:]} has no rows: its shape is {header.shape}.",
            "Parts are made of rows: save arrays that have one row an example.",
        )
    return header


def write_header(file: IO[bytes], header: Header, rows: int) -> None:
    """Rows are written one after the other, so the order is C's, whatever that of the source."""
    fields = {"descr": header.descr, "fortran_order": False, "shape": (rows, *header.shape[1:])}
    text = repr(fields).encode("utf-8" if header.version == 3 else "latin-1")
    width = 2 if header.version == 1 else 4
    padding = -(len(_MAGIC) + 2 + width + len(text) + 1) % _ALIGNMENT
    text += b" " * padding + b"\n"
    file.write(_MAGIC + bytes((header.version, 0)) + len(text).to_bytes(width, "little") + text)


class ArrayStream(Stream):
    """`open_file` gives the file from its start; where the header says `by_columns`, it must be cheap to seek in."""

    def __init__(self, path: Path, header: Header, open_file: Callable[[], IO[bytes]]) -> None:
        self.path = path
        self.header = header
        self._open = open_file

    def chunks(self) -> Iterator[NDArray[Any]]:
        with self._open() as file:
            read_header(self.path, file)
            read = self._read_columns if self.header.by_columns else self._read
            start = file.tell()
            step = max(1, CHUNK // self.header.row_memory)
            for first in range(0, self.header.rows, step):
                yield self.unpack(read(file, start, first, min(step, self.header.rows - first)))
            file.seek(start + self.header.rows * self.header.row_bytes)
            if file.read(1):
                raise damaged(self.path, "has more bytes than its header says")

    def _read(self, file: IO[bytes], start: int, first: int, rows: int) -> bytes:
        return self._exactly(file, rows * self.header.row_bytes)

    def _read_columns(self, file: IO[bytes], start: int, first: int, rows: int) -> bytes:
        import numpy as np

        size = self.header.itemsize
        columns = bytearray()
        for column in range(self.header.items):
            file.seek(start + (column * self.header.rows + first) * size)
            columns += self._exactly(file, rows * size)
        return np.frombuffer(columns, f"V{size}").reshape(*self.header.shape[:0:-1], rows).T.tobytes()

    def _exactly(self, file: IO[bytes], size: int) -> bytes:
        data = file.read(size)
        if len(data) < size:
            raise damaged(self.path, "is cut off: it has fewer bytes than its header says")
        return data

    def write(self, target: Path, chunks: Iterable[NDArray[Any]], rows: int) -> None:
        with target.open("xb") as file:
            self.write_to(file, chunks, rows)

    def write_to(self, file: IO[bytes], chunks: Iterable[NDArray[Any]], rows: int) -> None:
        write_header(file, self.header, rows)
        for chunk in chunks:
            file.write(self.pack(chunk))

    def sizes(self) -> NDArray[Any]:
        import numpy as np

        return np.broadcast_to(np.uint64(self.header.row_memory), (self.header.rows,))

    def take(self, chunk: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        return chunk.take(rows)

    def join(self, chunks: Iterable[NDArray[Any]]) -> NDArray[Any]:
        import numpy as np

        return np.concatenate(list(chunks))

    def pack(self, chunk: NDArray[Any]) -> bytes:
        return chunk.tobytes()

    def unpack(self, data: bytes) -> NDArray[Any]:
        import numpy as np

        return np.frombuffer(data, f"V{self.header.row_bytes}")
