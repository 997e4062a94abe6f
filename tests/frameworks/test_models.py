"""Models that the real frameworks save: their averages load there, and are right to the last bit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pumasi import models
from tests.frameworks.comparison import SCRIPTS
from tests.frameworks.reference import LIMIT, QUIET

KERAS_3 = (".keras", ".h5", ".weights.h5")


def call(python: Path, script: str, *words: str | Path, **env: str) -> str:
    environ = {**os.environ, **QUIET, **env}
    command = [python, SCRIPTS / script, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_keras(python: Path, folder: Path, flavour: str, suffixes: tuple[str, ...], **env: str) -> None:
    call(python, "models_keras.py", "save", folder, flavour, *suffixes, **env)
    for suffix in suffixes:
        done = models.average([folder / suffix], folder / f"final{suffix}")
        assert done.rules["pooled variance"] == 2
        assert "Keras" in models.show(folder / f"final{suffix}").framework
    told = call(python, "models_keras.py", "check", folder, flavour, *suffixes, **env)
    assert told.split("\n")[:-1] == [f"{suffix} is right" for suffix in suffixes]


def test_keras_on_jax(small_python: Path, tmp_path: Path) -> None:
    check_keras(small_python, tmp_path, "keras", KERAS_3, KERAS_BACKEND="jax")


@pytest.mark.big
def test_keras_on_tensorflow(big_python: Path, tmp_path: Path) -> None:
    check_keras(big_python, tmp_path, "keras", KERAS_3, KERAS_BACKEND="tensorflow")


@pytest.mark.big
def test_keras_2(big_python: Path, tmp_path: Path) -> None:
    check_keras(big_python, tmp_path, "tf_keras", (".h5",))


@pytest.mark.big
def test_pytorch_and_safetensors(big_python: Path, tmp_path: Path) -> None:
    call(big_python, "models_torch.py", "save", tmp_path)
    models.average([f"{tmp_path}/state-*.pt"], tmp_path / "final.pt")
    models.average([f"{tmp_path}/checkpoint-*.pth"], tmp_path / "final.pth")
    models.average([f"{tmp_path}/tensors-*.safetensors"], tmp_path / "final.safetensors")
    assert models.show(tmp_path / "final.safetensors").framework == "PyTorch"
    assert call(big_python, "models_torch.py", "check", tmp_path) == "all are right\n"
