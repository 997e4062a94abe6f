""".keras, as Keras 3 writes it: a zip file with the configuration, the weights as HDF5, and assets (vocabularies)."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import ZipFile

import numpy as np

from pumasi.models.archive import Window, check, offset_of, rewrite
from pumasi.models.arithmetic import Array
from pumasi.models.formats.hdf5 import Hdf5
from pumasi.models.model import BLOCK, Blocks, Tensor

_WEIGHTS = "model.weights.h5"
_ASSETS = "assets/"


class Keras(Hdf5):
    format = "a Keras model"

    def _open(self) -> None:
        self._archive = ZipFile(self.file)
        check(self._archive)
        weights = self._archive.getinfo(_WEIGHTS)
        self._whole, start = self.file, offset_of(self.file, weights)
        if start is not None:
            self.file = cast("BinaryIO", Window(self._whole, start, weights.file_size))
        else:
            self.file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115
            with self._archive.open(weights) as packed:
                shutil.copyfileobj(packed, self.file, BLOCK)
        super()._open()
        version = json.loads(self._archive.read("metadata.json"))["keras_version"]
        self.framework = f"Keras {version}"
        self._assets: set[str] = set()
        for entry in self._archive.infolist():
            if entry.filename.startswith(_ASSETS) and not entry.is_dir():
                self._add(Tensor(entry.filename, "bytes", (entry.file_size,), np.dtype("u1")))
                self._assets.add(entry.filename)

    def _load(self, tensor: Tensor) -> Array:
        if tensor.name in self._assets:
            return np.frombuffer(self._archive.read(tensor.name), tensor.stored)
        return super()._load(tensor)

    def _converted(self) -> list[Tensor]:
        return [tensor for tensor in super()._converted() if tensor.name not in self._assets]

    def _write(self, path: Path, blocks: Blocks) -> None:
        kept = {name: partial(blocks, self.tensors[name]) for name in self._assets}
        if not self._converted():
            rewrite(self._archive, path, {_WEIGHTS: lambda: self._pieces(blocks), **kept})
            return
        unpacked = path.with_name(f"{path.name}.{_WEIGHTS}")

        def weights() -> Iterable[Any]:
            with unpacked.open("rb") as file:
                while piece := file.read(BLOCK):
                    yield piece

        try:
            super()._write(unpacked, blocks)
            rewrite(self._archive, path, {_WEIGHTS: weights, **kept})
        finally:
            unpacked.unlink(missing_ok=True)

    def close(self) -> None:
        super().close()
        if hasattr(self, "_whole"):
            self._whole.close()
