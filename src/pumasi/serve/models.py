"""A file ─► a model that answers. Each framework is imported only when one of its files is loaded."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pumasi.errors import UsageError
from pumasi.serve.sources import KERAS, SAVE_SCRIPT, SAVE_WHOLE, WITHOUT_ARCHITECTURE, check

Numbers = NDArray[Any]
_SAFE_KERAS = (3, 11, 3)
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEAD = 4096
"""Bytes in which an HDF5 file says what it is: at the beginning, or behind a block of the user's."""
_BACKENDS = ("tensorflow", "jax", "torch")
"""In the order in which one is chosen where nobody says which."""


class Model(NamedTuple):
    """`shape` of one input and `dtype` are None where the file does not say; so is a length that may vary. `ids`: the
    inputs are ids below that, for an embedding. `caution`: what whoever serves it should know."""

    name: str
    framework: str
    shape: tuple[int | None, ...] | None
    dtype: str | None
    ids: int | None
    predict: Callable[[Numbers], Numbers]
    caution: str = ""


def load(path: Path) -> Model:
    check(path)
    return _load_keras(path) if path.suffix.lower() in KERAS else _load_torch(path)


def _load_keras(path: Path) -> Model:
    keras = _import_keras(path)
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # noqa: BLE001
        raise _not_loaded(path, error) from None
    inputs = getattr(model, "inputs", None) or []
    if len(inputs) > 1:
        raise UsageError(f"{path} takes {len(inputs)} inputs at once; only models with one can be served.")
    if len(getattr(model, "outputs", None) or [None]) > 1:
        raise UsageError(f"{path} has {len(model.outputs)} outputs; only models with one can be served.")

    def predict(rows: Numbers) -> Numbers:
        return np.asarray(model.predict_on_batch(rows))

    framework = f"Keras on {keras.backend.backend()}"
    caution = _caution(str(getattr(keras, "__version__", "")))
    if not inputs:
        return Model(path.name, framework, None, None, None, predict, caution)
    shape = tuple(inputs[0].shape[1:])
    return Model(path.name, framework, shape, str(inputs[0].dtype), _ids(keras, model), predict, caution)


def _caution(version: str) -> str:
    """Before, code in a file can get around `safe_mode` (CVE-2025-9905, CVE-2025-9906, CVE-2025-49655)."""
    if tuple(int(number) for number in re.findall(r"\d+", version)[:3]) >= _SAFE_KERAS:
        return ""
    wanted = ".".join(map(str, _SAFE_KERAS))
    return f"Keras {version} may run code that is in a model's file: serve only files that you trust, or take {wanted}."


def _import_keras(path: Path) -> Any:
    if "KERAS_BACKEND" not in os.environ:
        installed = next((name for name in _BACKENDS if find_spec(name)), None)
        if installed:
            os.environ["KERAS_BACKEND"] = installed
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        import keras
    except ImportError as error:
        raise UsageError(
            f"{path} needs Keras, which this Python does not have: {error}.",
            "pip install keras jax, or tensorflow or torch in place of jax.",
        ) from None
    return keras


def _ids(keras: Any, model: Any) -> int | None:
    """How many ids the embedding knows that the input goes into."""
    for layer in getattr(model, "layers", ()):
        with suppress(AttributeError, ValueError):
            if isinstance(layer, keras.layers.Embedding) and layer.input is model.inputs[0]:
                return int(layer.input_dim)
    return None


def _not_loaded(path: Path, error: Exception) -> UsageError:
    said = " ".join(str(error).split())
    if "model config" in said:
        return UsageError(f"{path} can't be served. {WITHOUT_ARCHITECTURE}", SAVE_WHOLE)
    if "safe_mode" in said or "unsafe" in said or "arbitrary code" in said:
        return UsageError(
            f"{path} has Python code in it (a Lambda layer), which is not run.",
            "Replace the Lambda by a layer of Keras, or by a registered class, and save the model again.",
        )
    if not _is_whole(path):
        kind = "zip archive" if path.suffix.lower() == ".keras" else "HDF5 file"
        again = f"Save it again: model.save('{path.name}')."
        return UsageError(f"{path} is no Keras model, or is damaged: it is no {kind}.", again)
    if isinstance(error, OSError):
        return UsageError(f"{path} is damaged, or no Keras model.", said[:200])
    return UsageError(f"Keras can't load {path}: {said[:300]}")


def _is_whole(path: Path) -> bool:
    if path.suffix.lower() == ".keras":
        return zipfile.is_zipfile(path)
    with path.open("rb") as file:
        return _HDF5 in file.read(_HEAD)


def _load_torch(path: Path) -> Model:
    if not zipfile.is_zipfile(path):
        raise UsageError(f"{path} is damaged, or no model of PyTorch.")
    with zipfile.ZipFile(path) as archive:
        if not any("/code/" in name for name in archive.namelist()):
            raise UsageError(f"{path} can't be served. {WITHOUT_ARCHITECTURE}", SAVE_SCRIPT)
    try:
        import torch
    except ImportError:
        raise UsageError(f"{path} needs PyTorch, which this Python does not have.", "pip install torch") from None
    try:
        with warnings.catch_warnings():
            # TorchScript is out of fashion, but files of it are there.
            warnings.simplefilter("ignore")
            module = torch.jit.load(str(path), map_location="cpu").eval()
    except Exception as error:  # noqa: BLE001
        raise UsageError(f"PyTorch can't load {path}: {' '.join(str(error).split())[:300]}") from None

    def predict(rows: Numbers) -> Numbers:
        with torch.inference_mode():
            found: Numbers = module(torch.from_numpy(rows)).numpy()
        return found

    return Model(path.name, "TorchScript", None, None, None, predict)
