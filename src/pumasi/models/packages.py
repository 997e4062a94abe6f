"""Packages that only some formats need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pumasi.errors import UsageError


def package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UsageError(
            f"Reading this model needs the package {name}, which this Python does not have.",
            f"pip install {name}, or all that models need: pip install 'pumasi[models]'",
        ) from None
