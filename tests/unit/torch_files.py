"""Writes what torch.save would, without PyTorch: the same zip file with the same pickle."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "bool": "Bool",
}


class Global:
    """A name in the pickle. It is called there with what follows it."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments


class View:
    """A tensor: numbers of a storage."""

    def __init__(self, storage: np.ndarray[Any, Any], offset: int, shape: Any, strides: Any) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides


def whole(storage: np.ndarray[Any, Any]) -> View:
    strides = tuple(stride // storage.itemsize for stride in storage.strides)
    return View(storage.reshape(-1), 0, storage.shape, strides)


_IN_PYTHON: Any = vars(pickle)["_Pickler"]


class _Pickler(_IN_PYTHON):  # type: ignore[misc]
    """Python's own, in Python: it lets us write names of what does not exist here."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 2)
        self.storages: list[np.ndarray[Any, Any]] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, View):
            obj = Global(
                "torch._utils _rebuild_tensor_v2",
                _Storage(obj.storage),
                obj.offset,
                obj.shape,
                obj.strides,
                False,
                Global("collections OrderedDict"),
            )
        if isinstance(obj, Global):
            self.write(b"c" + obj.name.replace(" ", "\n").encode() + b"\n")
            super().save(obj.arguments)
            self.write(b"R")
        elif isinstance(obj, _Storage):
            self._save_storage(obj.numbers)
        else:
            super().save(obj, save_persistent_id)

    def _save_storage(self, numbers: np.ndarray[Any, Any]) -> None:
        key = next((index for index, each in enumerate(self.storages) if each is numbers), len(self.storages))
        if key == len(self.storages):
            self.storages.append(numbers)
        self.write(b"(")
        super().save("storage")
        self.write(f"ctorch\n{NAMES[numbers.dtype.name]}Storage\n".encode())
        for each in (str(key), "cpu", numbers.size):
            super().save(each)
        self.write(b"tQ")


class _Storage:
    def __init__(self, numbers: np.ndarray[Any, Any]) -> None:
        self.numbers = numbers


def save_torch(path: Path, arrays: dict[str, Any]) -> None:
    save_object(
        path, {name: whole(np.ascontiguousarray(values).reshape(values.shape)) for name, values in arrays.items()}
    )


def save_object(path: Path, root: Any) -> None:
    text = io.BytesIO()
    pickler = _Pickler(text)
    pickler.dump(root)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", text.getvalue())
        archive.writestr("archive/byteorder", "little")
        for key, numbers in enumerate(pickler.storages):
            archive.writestr(f"archive/data/{key}", numbers.tobytes())
        archive.writestr("archive/version", "3\n")
