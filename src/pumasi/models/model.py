"""What every format gives: a file of named tensors that can be read one by one, in blocks, and written anew.

A format is a subclass of `Model` in a file of its own under `formats/`, and a line in `formats/__init__.py`.
"""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np

from pumasi.errors import UsageError
from pumasi.models.arithmetic import STORED, Array

BLOCK = 1 << 20
"""How many bytes of a tensor are in memory at a time: few enough for a processor's cache, enough for a disk."""

_LONGEST_NAME = 1000
_MOST_SHRUNK = 1100
"""Deflate makes nothing smaller than that many times; who claims it lies about a size."""

_DAMAGE = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, OSError, RuntimeError),
    *(SyntaxError, TypeError, ValueError, struct.error, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error),
)
"""What parsers, ours and others', stumble with over bytes that are not what they should be."""

_NOT_THE_FILES = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO)
)
"""What stands in the way whatever the file has in it."""

_PAIRS = {"moving_variance": "moving_mean", "running_var": "running_mean"}
"""What Keras and PyTorch call the variance and the mean of a batch normalization."""


class Tensor(NamedTuple):
    """`stored` is its type in the file, byte order included. `offset` says where the file has its numbers, if there
    they stand one after the other as they are; None where they are compressed or scattered."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    offset: int | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.stored.itemsize


Blocks = Callable[[Tensor], Iterator[Array]]


class Model:
    """An opened file; `like` is one that is known, and saves work where the two are laid out alike. `means` pairs the
    variance of a batch normalization with its mean; `shared` says, of tensors that share memory, how; `framework` who
    wrote the file, as far as it tells."""

    format: ClassVar[str]

    def __init__(self, path: Path, like: Model | None = None) -> None:
        self.path = path
        self._like = like
        self.framework = ""
        self.tensors: dict[str, Tensor] = {}
        self.means: dict[str, str] = {}
        self.shared: dict[str, object] = {}
        if not path.is_file():
            raise UsageError(f"{path} is no file." if path.exists() else f"There is no file {path}.")
        self.file: BinaryIO = path.open("rb", buffering=0)
        try:
            with self._reading():
                self._open()
                self.means = dict(filter(self._is_pair, self._pairs()))
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        """Finds the tensors. What is wrong with the file is a ValueError."""
        raise NotImplementedError

    def _load(self, tensor: Tensor) -> Array:
        """All numbers of a tensor without an offset, as a block of the type in the file."""
        raise NotImplementedError

    def _write(self, path: Path, blocks: Blocks) -> None:
        """A copy of this file, with other numbers in its tensors."""
        raise NotImplementedError

    def write(self, path: Path, blocks: Blocks) -> None:
        with self._reading():
            self._write(path, blocks)

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def blocks(self, name: str) -> Iterator[Array]:
        """A tensor's numbers in C order, piece by piece."""
        tensor = self.tensors[name]
        step = max(BLOCK // max(tensor.stored.itemsize, 1), 1)
        # An unknown type is compared as it is, byte by byte.
        plain = np.dtype(STORED.get(tensor.dtype, tensor.stored))
        with self._reading():
            if tensor.offset is None:
                whole = self._load(tensor).astype(plain, copy=False)
                yield from (whole[start : start + step] for start in range(0, tensor.size, step))
            else:
                # None has a name here: while blocks of other models are read, this one's needs no memory.
                for start in range(0, tensor.size, step):
                    yield self._read(tensor, start, min(step, tensor.size - start)).astype(plain, copy=False)

    def _read(self, tensor: Tensor, start: int, count: int) -> Array:
        numbers = np.empty(count, tensor.stored)
        self._read_into(numbers.view(np.uint8).data, (tensor.offset or 0) + start * tensor.stored.itemsize)
        return numbers

    def _read_into(self, view: memoryview, start: int) -> None:
        self.file.seek(start)
        while view:
            got = self.file.readinto(view)  # type: ignore[attr-defined]
            if not got:
                raise EOFError("it ends too early")
            view = view[got:]

    def _add(self, tensor: Tensor) -> None:
        """What a file claims is believed only as far as it has bytes for it."""
        name = tensor.name
        if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_NAME:
            raise ValueError(f"a tensor has an impossible name: {name[:80]!r}")
        if name in self.tensors:
            raise ValueError(f"two of its tensors are called {name}")
        if any(length < 0 for length in tensor.shape) or tensor.size > 2**62:
            raise ValueError(f"{name} has an impossible shape")
        if tensor.offset is not None and not 0 <= tensor.offset <= self._length() - tensor.nbytes:
            raise ValueError(f"it ends before the end of {name}")
        self.tensors[name] = tensor

    def _length(self) -> int:
        return self.file.seek(0, 2)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Variances and their means."""
        for name in self.tensors:
            for variance, mean in _PAIRS.items():
                # Keras 2 adds a number: moving_variance:0
                head, found, tail = name.rpartition(variance)
                if found and tail in ("", ":0"):
                    yield name, f"{head}{mean}{tail}"

    def _is_pair(self, names: tuple[str, str]) -> bool:
        variance, mean = map(self.tensors.get, names)
        return bool(variance and mean and variance[1:3] == mean[1:3])

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            if isinstance(error, OSError) and error.errno in _NOT_THE_FILES:
                raise
            said = "".join(each if each.isprintable() else " " for each in str(error).strip().rstrip("."))
            raise UsageError(
                f"{self.path} can't be read as {self.format}: {said or type(error).__name__}.",
                "It may be damaged, not written to its end, or of another format than its name says.",
            ) from error


def check_claim(what: str, claimed: int, held: int) -> None:
    """For what is compressed."""
    if claimed > _MOST_SHRUNK * (held + 1):
        raise ValueError(f"{what} claims {claimed} bytes, but has only {held}, compressed")


def fill(view: Array, blocks: Iterator[Array]) -> None:
    """Puts the numbers, in C order, into an array of whatever order."""
    if view.flags.c_contiguous:
        flat, start = view.reshape(-1), 0
        for block in blocks:
            flat[start : start + block.size] = block
            start += block.size
    else:
        view[...] = np.concatenate([np.empty(0, view.dtype), *blocks]).reshape(view.shape)
