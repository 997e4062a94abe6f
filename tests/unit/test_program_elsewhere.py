"""A program whose folder travels to an image: what is looked for here, and what there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumasi.catalogue import make_spec
from pumasi.errors import UsageError
from pumasi.runs import folder as code
from pumasi.runs.locate import find_program
from pumasi.runs.session import prepare


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "tools").mkdir(parents=True)
    (folder / "train.py").write_text("print()")
    (folder / "tools" / "go").write_text("#!/bin/sh\n")
    return folder


def command(folder: Path, *words: str, **fields: str) -> tuple[str, ...]:
    return find_program(make_spec(command=words, workdir=str(folder), on="k8s", **fields), {}).command


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print((1, 2)\n", "train.py, line 1: '(' was never closed\n    print((1, 2)\n         ^"),
        ("def main(:\n    pass\n", "train.py, line 1: invalid syntax\n    def main(:\n             ^"),
        ("if x:\nprint(f'{x}')\n", "train.py, line 2: expected an indented block after 'if' statement on line 1"),
    ],
)
def test_a_syntax_error_is_found_before_anything_travels(folder: Path, text: str, message: str) -> None:
    (folder / "train.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        command(folder, "train.py")
    assert caught.value.message.startswith(message)
    assert "--python python3" in caught.value.hint


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "type Pair[T] = what follows in a newer Python\n"),
        ({}, "def first[T](x): what comes after 3.99\n"),
        ({}, "try:\n    pass\nexcept KeyError, ValueError:\n    what follows\n"),
        ({}, "x = t'{1}' and what follows\n"),
        ({"python": "python3.99"}, "what comes after 3.99\n"),
    ],
)
def test_what_a_newer_python_may_accept_is_only_mentioned(folder: Path, fields: dict[str, str], text: str) -> None:
    (folder / "train.py").write_text(f"import torch\n{text}")
    found = find_program(make_spec(command=("train.py",), workdir=str(folder), on="k8s", **fields), {})
    assert found.framework == "torch"
    assert found.notes[0].startswith("train.py, line ")
    assert found.notes[0].endswith(" here. The Python of the run may accept it.")


def test_whoever_starts_a_run_learns_what_stays_here_and_what_takes_long(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    user = {"name": "u", "user": {"token": "t"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"current-context": "c", "contexts": [context], "clusters": [cluster], "users": [user]}
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(code, "LARGE", 1000)
    (folder / "kubeconfig").write_text(json.dumps(config))
    (folder / "zeros.bin").write_bytes(bytes(2000))
    said: list[str] = []
    spec = make_spec(command=("train.py",), workdir=str(folder), on="k8s", env={"LR": "1", "API_KEY": "sk"})
    _, program, packed = prepare(spec, tmp_path, said.append)
    assert program.notes[-2].startswith("Left out, because they look like credentials: kubeconfig. ")
    assert program.notes[-1] == (
        "Who may read the run in the cluster can read API_KEY. "
        "A reference keeps the value in a Secret: --env-from-secret API_KEY=SECRET/KEY"
    )
    assert [line.partition(",")[0] for line in said] == ["Packing 2.0 KiB in 3 files"]
    assert packed
