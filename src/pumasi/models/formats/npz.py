"""NumPy's .npz: a zip file of .npy files, compressed or not. Arrays of Python objects are refused: they are pickles."""

from __future__ import annotations

import struct
from ast import literal_eval
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import numpy as np

from pumasi.models.archive import check, offset_of, rewrite
from pumasi.models.arithmetic import STORED, Array
from pumasi.models.model import Blocks, Model, Tensor, fill

_ENDING = ".npy"
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
"""As NumPy has it: what is longer may take the parser very long."""


class _Entry(NamedTuple):
    """`header` has the bytes before the numbers; `is_fortran`: these stand column by column."""

    name: str
    header: bytes
    is_fortran: bool


class Npz(Model):
    format = "npz"

    def _open(self) -> None:

        self._archive = ZipFile(self.file)
        self._entries: dict[str, _Entry] = {}
        check(self._archive)
        for info in self._archive.infolist():
            if not info.filename.endswith(_ENDING):
                continue
            name = info.filename.removesuffix(_ENDING)
            with self._archive.open(info) as file:
                header, about = _read_header(file)
            stored = np.dtype(about["descr"]) if isinstance(about["descr"], str) else np.dtype(object)
            if stored.hasobject:
                raise ValueError(f"{name!r} has Python objects instead of numbers")
            shape = tuple(map(int, about["shape"]))
            entry = _Entry(info.filename, header, bool(about["fortran_order"]) and len(shape) > 1)
            offset = None if entry.is_fortran else offset_of(self.file, info)
            dtype = stored.name if stored.name in STORED else str(stored)
            tensor = Tensor(name, dtype, shape, stored, None if offset is None else offset + len(header))
            if len(header) + tensor.nbytes != info.file_size:
                raise ValueError(f"{name!r} has {info.file_size - len(header)} bytes, which do not fit its shape")
            self._add(tensor)
            self._entries[name] = entry

    def _load(self, tensor: Tensor) -> Array:
        entry = self._entries[tensor.name]
        with self._archive.open(entry.name) as file:
            file.read(len(entry.header))
            numbers = np.frombuffer(file.read(), tensor.stored)
        return numbers.reshape(tensor.shape, order="F").reshape(-1) if entry.is_fortran else numbers

    def _write(self, path: Path, blocks: Blocks) -> None:
        def content(tensor: Tensor) -> Iterable[Any]:
            entry = self._entries[tensor.name]
            yield entry.header
            if entry.is_fortran:
                numbers = np.empty(tensor.shape, tensor.stored, order="F")
                fill(numbers, blocks(tensor))
                yield numbers.tobytes("F")
            else:
                for block in blocks(tensor):
                    yield block.astype(tensor.stored, copy=False).data

        contents = {self._entries[name].name: partial(content, tensor) for name, tensor in self.tensors.items()}
        rewrite(self._archive, path, contents)


def _read_header(file: IO[bytes]) -> tuple[bytes, dict[str, Any]]:
    start = file.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC:
        raise ValueError("one of its entries is no array")
    width = "<H" if start[len(_MAGIC)] == 1 else "<I"
    start += file.read(struct.calcsize(width))
    (length,) = struct.unpack(width, start[len(_MAGIC) + 2 :])
    if length > _LONGEST_HEADER:
        raise ValueError(f"the header of an array claims {length} bytes")
    header = file.read(length)
    about: dict[str, Any] = literal_eval(header.decode("utf-8" if start[len(_MAGIC)] == 3 else "latin-1"))
    return start + header, about
