"""The formats, one a file. A new one is one more line in `_FORMATS`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pumasi.errors import UsageError
from pumasi.models.model import Model

_FORMATS = {
    "hdf5": ("Hdf5", (".h5", ".hdf5")),
    "keras": ("Keras", (".keras",)),
    "npz": ("Npz", (".npz",)),
    "safetensors": ("Safetensors", (".safetensors",)),
    "torch": ("Torch", (".pt", ".pth")),
}
"""Module ─► its class, and how the names of its files end."""

SUFFIXES = {suffix: module for module, (_, suffixes) in _FORMATS.items() for suffix in suffixes}


def format_of(path: Path) -> str:
    """The module of a file's format."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is no model that Pumasi can read.", f"It reads {', '.join(SUFFIXES)}.")
    return SUFFIXES[path.suffix.lower()]


def open_model(path: Path, like: Model | None = None) -> Model:
    module = format_of(path)
    model: Model = getattr(import_module(f"{__name__}.{module}"), _FORMATS[module][0])(path, like)
    return model
