"""A program on this machine: what the user is told about it before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumasi.catalogue import make_spec
from pumasi.runs.locate import find_program
from tests.unit.test_detect import TORCH_ALONE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TORCH_ALONE)
    return tmp_path


def notes(folder: Path, **fields: object) -> str:
    words = ("train.py", "{model}", "{init}")
    spec = make_spec(command=words, workdir=str(folder), slots=2, **fields)
    return "\n".join(find_program(spec, {}).notes)


def test_to_train_apart_is_a_trap_only_for_those_who_want_one_model_together(folder: Path) -> None:
    assert "2 copies will train apart" in notes(folder)
    assert notes(folder, strategy="average", rounds=2) == ""


def test_what_is_likely_to_be_poor_is_told(folder: Path) -> None:
    assert "likely to be poor" in notes(folder, strategy="average")
    (folder / "start.h5").touch()
    assert notes(folder, strategy="average", init="start.h5") == ""
