""".npz: several arrays of the same length, in a zip file whose members are .npy files, compressed or not."""

from __future__ import annotations

import lzma
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pumasi.data.files import BLOCK, Tick
from pumasi.data.formats.base import Classes, Source, damaged, unknown_key
from pumasi.data.formats.npy import ArrayStream, read_header
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError)
_SUFFIX = ".npy"


def open_source(path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
    try:
        with zipfile.ZipFile(path) as archive:
            streams = [_Member(path, archive, info, scratch) for info in archive.infolist()]
    except _BROKEN:
        raise damaged(path, "is no .npz file, or a damaged one") from None
    if not streams:
        raise UsageError(f"{path} has no arrays.", "Save some: np.savez(FILE, x=…, y=…).")
    if len({stream.header.rows for stream in streams}) > 1:
        lengths = ", ".join(f"{stream.name} {stream.header.rows:,}" for stream in streams)
        raise UsageError(
            f"The arrays of {path} have different numbers of rows: {lengths}.",
            "Keep those together that have a row for each example, and save the others elsewhere.",
        )
    rows = streams[0].header.rows
    return Source(rows, streams, None if key is None else _classes(path, streams, key, tick))


def _classes(path: Path, streams: list[_Member], key: str, tick: Tick) -> Any:
    """Those of one-hot rows too: a class is whatever bytes a row has."""
    stream = next((stream for stream in streams if stream.name == key), None)
    if stream is None:
        raise unknown_key(path, key, "array", (stream.name for stream in streams))
    classes, size = Classes(path, key), stream.header.row_bytes
    for chunk in stream.chunks():
        data = stream.pack(chunk)
        classes.add(data[start : start + size] for start in range(0, len(data), size))
        tick("looking at classes", len(classes.codes), stream.header.rows)
    return classes.codes


class _Member(ArrayStream):
    def __init__(self, path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, scratch: Path) -> None:
        self.name = info.filename.removesuffix(_SUFFIX)
        self._info = info
        self._scratch = scratch / f"array-{info.header_offset}"
        with archive.open(info) as file:
            super().__init__(path, read_header(path, file, self.name), self._open_member)

    def _open_member(self) -> IO[bytes]:
        """To seek in a compressed member means to read it from its start: one in Fortran's order is unpacked once."""
        if not self.header.by_columns:
            return zipfile.ZipFile(self.path).open(self._info)
        if not self._scratch.exists():
            with zipfile.ZipFile(self.path).open(self._info) as packed, self._scratch.open("xb") as file:
                shutil.copyfileobj(packed, file, BLOCK)
        return self._scratch.open("rb")

    def chunks(self) -> Iterator[NDArray[Any]]:
        try:
            yield from super().chunks()
        except _BROKEN as error:
            raise damaged(self.path, f"is damaged in its array {self.name}: {error}") from None

    def write(self, target: Path, chunks: Iterable[NDArray[Any]], rows: int) -> None:
        # A fixed time, so that the same rows are the same bytes.
        info = zipfile.ZipInfo(self._info.filename)
        info.compress_type = self._info.compress_type
        # Zip has to know beforehand whether it will be more than 2 GiB.
        info.file_size = rows * self.header.row_bytes + BLOCK
        with zipfile.ZipFile(target, "a") as archive, archive.open(info, "w") as file:
            self.write_to(file, chunks, rows)
