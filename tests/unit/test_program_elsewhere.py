"""A program whose folder travels to an image: what is looked for here, and what there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.program import find_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "tools").mkdir(parents=True)
    (folder / "train.py").write_text("print()")
    (folder / "tools" / "go").write_text("#!/bin/sh\n")
    return folder


def command(folder: Path, *words: str, **fields: str) -> tuple[str, ...]:
    return find_program(Spec(command=words, workdir=str(folder), on="k8s", **fields), {}).command  # type: ignore[arg-type]


def test_a_script_runs_with_the_images_python(folder: Path) -> None:
    assert command(folder, "train.py", "--lr", "1") == ("python3", "train.py", "--lr", "1")


def test_a_python_that_is_named_is_one_of_the_images(folder: Path) -> None:
    assert command(folder, "train.py", python="/opt/conda/bin/python") == ("/opt/conda/bin/python", "train.py")


def test_a_script_by_its_whole_path_is_found_where_the_folder_has_travelled_to(folder: Path) -> None:
    assert command(folder, str(folder / "train.py")) == ("python3", "train.py")


def test_a_program_of_the_folder_is_run_from_there(folder: Path) -> None:
    assert command(folder, "tools/go", "1") == ("./tools/go", "1")
    assert command(folder, "./tools/go") == ("./tools/go",)


def test_a_program_that_is_only_named_is_the_images(folder: Path) -> None:
    assert command(folder, "torchrun", "train.py") == ("torchrun", "train.py")


@pytest.mark.parametrize("path", ["/usr/bin/env", "/opt/there/only", "/opt/there/only.py"])
def test_a_whole_path_outside_of_the_folder_is_the_images(folder: Path, path: str) -> None:
    assert command(folder, path)[-1] == path


def test_a_script_that_is_here_but_not_in_the_folder_does_not_go_along(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("")
    for name in (str(other), "../other.py"):
        with pytest.raises(UsageError, match="all that travels"):
            command(folder, name)


def test_a_script_that_is_nowhere_is_told_here(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no tran\.py"):
        command(folder, "tran.py")
