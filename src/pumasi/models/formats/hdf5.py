"""HDF5, as Keras writes it: .h5 (Keras 2 and 3: whole models and weights) and .weights.h5 (Keras 3).

h5py says what is in the file and where, in a process of its own (see `guard`); the numbers are then read as they stand
there. A file that differs in nothing but these from one that is known needs no h5py. Only what is compressed, or of a
type that has to be converted, is read and written by h5py. Links that lead out of the file are not followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from pumasi.models.arithmetic import STORED, Array
from pumasi.models.guard import apart
from pumasi.models.model import BLOCK, Blocks, Model, Tensor, check_claim, fill
from pumasi.models.packages import package

_STRINGS = "string"
_NORMALIZATION = re.compile(r"(.*/)?batch_normalization(_\d+)?")


class Hdf5(Model):
    format = "HDF5"

    def _open(self) -> None:
        package("h5py")
        like = self._like
        self._scanned: bytes = like._scanned if self._is_laid_out_like(like) else apart(lambda: _scan(self.file))
        found = json.loads(self._scanned)
        self.framework = found["framework"]
        self._layers: dict[str, str] = found["layers"]
        for name, dtype, shape, stored, offset in found["tensors"]:
            self._add(Tensor(name, dtype, tuple(shape), np.dtype(stored), offset))
        self._plain = sorted(filter(_is_plain, self.tensors.values()), key=_offset)
        self._gaps = list(self._between())

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Keras 3 writes no names of variables but numbers: of a batch normalization's, two to four, the last ones are
        the mean and the variance. The layer is known by the group's name, which comes from its class, or by its own."""
        yield from super()._pairs()
        groups: dict[str, list[str]] = {}
        for name in self.tensors:
            group, _, number = name.rpartition("/")
            if group in self._layers and number.isdecimal():
                groups.setdefault(group, []).append(number)
        for group, numbers in groups.items():
            names = (group.removesuffix("/vars"), self._layers[group])
            if 2 <= len(numbers) <= 4 and any(map(_NORMALIZATION.fullmatch, names)):
                *_, mean, variance = sorted(numbers, key=int)
                yield f"{group}/{variance}", f"{group}/{mean}"

    def _load(self, tensor: Tensor) -> Array:
        return np.frombuffer(apart(lambda: _read(self.file, tensor), tensor.nbytes), tensor.stored)

    def _write(self, path: Path, blocks: Blocks) -> None:
        with path.open("wb") as to:
            to.writelines(self._pieces(blocks))
        self._convert(path, blocks)

    def _is_laid_out_like(self, other: Model | None) -> TypeGuard[Hdf5]:
        """Whether all bytes but the numbers of plain tensors are the same. Then the library would find the same."""
        if not isinstance(other, Hdf5) or self._length() != other._length():
            return False
        pairs = (zip(self._bytes(*gap), other._bytes(*gap), strict=True) for gap in other._gaps)
        return all(mine == theirs for mine, theirs in chain.from_iterable(pairs))

    def _between(self) -> Iterator[tuple[int, int]]:
        """Where plain tensors do not stand: before each, and after the last."""
        end = 0
        for tensor in self._plain:
            if _offset(tensor) < end:
                raise ValueError(f"{tensor.name} stands where another tensor does")
            yield end, _offset(tensor)
            end = _offset(tensor) + tensor.nbytes
        yield end, self._length()

    def _bytes(self, start: int, end: int) -> Iterator[bytearray]:
        for at in range(start, end, BLOCK):
            piece = bytearray(min(BLOCK, end - at))
            self._read_into(memoryview(piece), at)
            yield piece

    def _pieces(self, blocks: Blocks) -> Iterator[Any]:
        """The bytes of this file, with other numbers in its plain tensors."""
        *before, rest = self._gaps
        for gap, tensor in zip(before, self._plain, strict=True):
            yield from self._bytes(*gap)
            for block in blocks(tensor):
                yield block.astype(tensor.stored, copy=False).data
        yield from self._bytes(*rest)

    def _convert(self, path: Path, blocks: Blocks) -> None:
        """Puts the other tensors into what `_pieces` gave."""
        for tensor in self._converted():
            numbers = np.empty(tensor.shape, tensor.stored)
            fill(numbers, blocks(tensor))
            apart(partial(_replace, path, tensor.name, numbers), tensor.nbytes)

    def _converted(self) -> list[Tensor]:
        """The tensors that only h5py can read and write."""
        return [tensor for tensor in self.tensors.values() if not _is_plain(tensor)]


def _is_plain(tensor: Tensor) -> bool:
    return tensor.offset is not None


def _offset(tensor: Tensor) -> int:
    return tensor.offset or 0


def _scan(file: BinaryIO) -> bytes:
    h5py = package("h5py")
    tensors: list[tuple[object, ...]] = []
    layers: dict[str, str] = {}

    def visit(name: str, item: Any) -> None:
        if name.endswith("/vars"):
            layers[name] = _text(item.attrs.get("name", ""))
        # A dataset without a shape is empty on purpose.
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            tensors.append(_described(h5py, name, item))

    with h5py.File(file, "r") as contents:
        contents.visititems(visit)
        return json.dumps({"framework": _framework(contents), "layers": layers, "tensors": tensors}).encode()


def _described(h5py: Any, name: str, dataset: Any) -> tuple[object, ...]:
    """The fields of a `Tensor`."""
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{name!r} has its numbers in other files")
    stored, offset, held = dataset.dtype, dataset.id.get_offset(), dataset.id.get_storage_size()
    if offset is None:
        check_claim(name, dataset.nbytes, held)
    if stored.hasobject:
        check_claim(name, dataset.nbytes, held)
        return name, _STRINGS, (len(_strings(dataset)),), "u1", None
    dtype = stored.name if stored.name in STORED else str(stored)
    if stored.kind == "V" and stored.itemsize == 2 and dataset.attrs.get("dtype") == "bfloat16":
        dtype, stored = "bfloat16", np.dtype("<u2")
    elif stored.kind != "V" and h5py.h5t.py_create(stored, logical=True) != dataset.id.get_type():
        # What HDF5 has to convert is not what stands in the file.
        offset = None
    return name, dtype, dataset.shape, stored.str, offset


def _strings(dataset: Any) -> bytes:
    return repr(np.asarray(dataset[()]).tolist()).encode()


def _read(file: BinaryIO, tensor: Tensor) -> bytes:
    with package("h5py").File(file, "r") as contents:
        dataset = contents[tensor.name]
        return _strings(dataset) if tensor.dtype == _STRINGS else np.asarray(dataset[()]).tobytes()


def _replace(path: Path, name: str, numbers: Array) -> bytes:
    with package("h5py").File(path, "r+") as contents:
        dataset = contents[name]
        if not dataset.dtype.hasobject:
            dataset[...] = numbers.view(dataset.dtype)
    return b""


def _framework(contents: Any) -> str:
    version, backend = (_text(contents.attrs.get(name, "")) for name in ("keras_version", "backend"))
    if version:
        return f"Keras {version} on {backend}" if backend else f"Keras {version}"
    return "Keras 3" if "vars" in contents else ""


def _text(value: object) -> str:
    """An attribute: Keras 2 has bytes, Keras 3 strings."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
