"""What torch.save writes: a zip file with a pickle, which says what there is, and a file for each storage of numbers.

The pickle is read but never run (see `pickles`), and stays as it is: only numbers in storages change.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pumasi.models.archive import check, offset_of, rewrite
from pumasi.models.arithmetic import STORED, Array
from pumasi.models.model import Blocks, Model, Tensor, fill
from pumasi.models.pickles import Strided, tensors_in

_LONGEST_PICKLE = 64 << 20
_ALIGNMENT = 64
_PICKLE = "/data.pkl"


class _Place(NamedTuple):
    """Where a tensor has its numbers: `start` and `strides` count bytes within the entry of its storage."""

    entry: str
    tensor: Tensor
    start: int
    strides: tuple[int, ...]

    def of(self, storage: Array) -> Array:
        numbers = storage[self.start :]
        numbers = numbers[: numbers.size // self.tensor.stored.itemsize * self.tensor.stored.itemsize]
        return as_strided(numbers.view(self.tensor.stored), self.tensor.shape, self.strides)


class Torch(Model):
    format = "PyTorch"

    def _open(self) -> None:
        if self.file.read(1) == b"\x80":
            raise ValueError(
                "it is a bare pickle, as PyTorch wrote before 1.6; load it in PyTorch and save it again: "
                "torch.save(torch.load(file), file)"
            )
        self._archive = ZipFile(self.file)
        check(self._archive)
        self._entries = {entry.filename: entry for entry in self._archive.infolist()}
        root = self._root()
        big = f"{root}/byteorder" in self._entries and self._archive.read(f"{root}/byteorder") == b"big"
        self._places: dict[str, list[_Place]] = {}
        for name, strided in tensors_in(self._archive.read(f"{root}{_PICKLE}")):
            self._add_strided(name, strided, f"{root}/data/{strided.storage.key}", ">" if big else "<")
        for places in self._places.values():
            for place in places if len(places) > 1 else ():
                self.shared[place.tensor.name] = (places[0].tensor.name, place.start, place.strides)

    def _root(self) -> str:
        """The folder in the archive that everything is in."""
        pickles = [name for name in self._entries if name.endswith(_PICKLE) and name.count("/") == 1]
        if len(pickles) != 1:
            raise ValueError("it has no data.pkl, which torch.save writes")
        root = pickles[0].removesuffix(_PICKLE)
        if f"{root}/constants.pkl" in self._entries:
            raise ValueError("it is a TorchScript program; save its weights alone: torch.save(model.state_dict(), …)")
        if self._entries[pickles[0]].file_size > _LONGEST_PICKLE:
            raise ValueError("its pickle is larger than weights need")
        return root

    def _add_strided(self, name: str, strided: Strided, entry: str, order: Literal["<", ">"]) -> None:
        """A tensor that repeats numbers (a stride of 0) is taken without the repetitions: they are one in memory."""
        if entry not in self._entries:
            raise ValueError(f"it has no storage for {name[:80]!r}")
        stored = np.dtype(STORED.get(strided.dtype, "V1")).newbyteorder(order)
        at, held = offset_of(self.file, self._entries[entry]), self._entries[entry].file_size
        if at is None:
            raise ValueError(f"{entry!r} is compressed, which PyTorch never does")
        pairs = zip(strided.shape, strided.strides, strict=True)
        repeats = 0 in strided.strides and 0 not in strided.shape
        shape = tuple(1 if stride == 0 else length for length, stride in pairs) if repeats else strided.shape
        size: int = prod(shape)
        last = sum((length - 1) * stride for length, stride in zip(shape, strided.strides, strict=True))
        first = strided.offset * stored.itemsize
        if min((first, *shape, *strided.strides)) < 0 or (
            size and max(size, strided.offset + last + 1) * stored.itemsize > held
        ):
            raise ValueError(f"{name[:80]!r} lies outside its storage")
        tensor = Tensor(name, strided.dtype, shape, stored, at + first if _is_plain(shape, strided.strides) else None)
        self._add(tensor)
        strides = tuple(stride * stored.itemsize for stride in strided.strides)
        self._places.setdefault(entry, []).append(_Place(entry, tensor, first, strides))

    def _storage(self, entry: str) -> Array:
        return np.frombuffer(bytearray(self._archive.read(entry)), np.uint8)

    def _load(self, tensor: Tensor) -> Array:
        (place,) = (each for places in self._places.values() for each in places if each.tensor is tensor)
        return place.of(self._storage(place.entry)).reshape(-1)

    def _write(self, path: Path, blocks: Blocks) -> None:
        def content(places: list[_Place]) -> Iterable[Any]:
            entry, tensor, *_ = places[0]
            if len(places) == 1 and tensor.offset is not None and tensor.nbytes == self._entries[entry].file_size:
                for block in blocks(tensor):
                    yield block.astype(tensor.stored, copy=False).data
                return
            storage = self._storage(entry)
            # Tied weights are one tensor with several names.
            for place in {(each.start, each.tensor.shape, each.strides): each for each in places}.values():
                fill(place.of(storage), blocks(place.tensor))
            yield storage.data

        contents = {entry: partial(content, places) for entry, places in self._places.items()}
        rewrite(self._archive, path, contents, _ALIGNMENT)


def _is_plain(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether its numbers stand one after the other, in C order."""
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True
