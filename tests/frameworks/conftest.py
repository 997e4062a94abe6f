"""Training with real frameworks: under `pumasi run`, and under each framework's own launcher."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent.parent


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return _folder(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return _folder(tmp_path, "theirs")


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


@pytest.fixture
def small_python() -> Path:
    """Has JAX and Keras: the one that runs the tests."""
    return Path(sys.executable)


@pytest.fixture
def big_python() -> Path:
    return _environment("big")


@pytest.fixture
def horovod_python() -> Path:
    return _environment("horovod")


def _environment(name: str) -> Path:
    folder = CHECKOUT / f".venv-{name}"
    if not (folder / "pumasi-stamp").is_file():
        pytest.fail(f"{folder.name} is missing, or half made: make it with python -m tools.environments {name}")
    return folder / "bin" / "python"
