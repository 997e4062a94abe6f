"""The environments that runs share: who has them, and when they go."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from pumasi.agent import installer


def test_it_is_one_file_that_python_3_8_can_read_and_needs_the_standard_library_only() -> None:
    """The same holds as for the agent, which brings it along."""
    import ast
    import sys

    tree = ast.parse(Path(installer.__file__).read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def make(shared: Path, name: str, age: float = 0.0) -> Path:
    root = shared / name
    root.mkdir(parents=True)
    for path in (root / "complete", shared / f"{name}.lock", shared / f"{name}.use"):
        path.touch()
    os.utime(root / "complete", (time.time() - age,) * 2)
    return root


OLD, NEW = "0" * 16, "1" * 16


def test_what_nobody_has_used_for_a_month_is_removed_with_its_locks(tmp_path: Path) -> None:
    make(tmp_path, NEW)
    make(tmp_path, OLD, installer.UNUSED + 60)
    installer.sweep(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [NEW, f"{NEW}.lock", f"{NEW}.use"]


def test_what_others_have_put_among_the_environments_removes_none_of_them(tmp_path: Path) -> None:
    make(tmp_path, NEW)
    make(tmp_path, "notes", installer.UNUSED + 60)
    (tmp_path / ".DS_Store").touch()
    before = sorted(tmp_path.iterdir())
    os.utime(tmp_path, (time.time() - installer.UNUSED - 60,) * 2)
    installer.sweep(str(tmp_path))
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("ending", [".lock", ".use"])
def test_what_is_being_made_or_used_stays(tmp_path: Path, ending: str) -> None:
    root = make(tmp_path, OLD, installer.UNUSED + 60)
    holder = os.open(f"{root}{ending}", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_SH)
    try:
        installer.sweep(str(tmp_path))
    finally:
        os.close(holder)
    assert (root / "complete").exists()


def test_a_lock_on_a_file_that_was_removed_is_not_taken_for_one(tmp_path: Path) -> None:
    path = str(tmp_path / "a.lock")
    first = installer.take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert first is not None
    assert installer.take(path, fcntl.LOCK_EX | fcntl.LOCK_NB) is None
    Path(path).unlink()
    second = installer.take(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert second is not None
    os.close(first)
    os.close(second)


def test_settings_of_pip_are_read_and_a_variable_wins_over_a_file() -> None:
    lines = [
        ":env:.index-url='https://mirror'",
        "global.index-url='https://other'",
        "install.find-links='/a\\n/b'",
        "rubbish",
    ]
    assert installer.read_settings(lines) == {"index-url": "https://mirror", "find-links": "/a\n/b"}


def test_a_path_that_the_kernel_does_not_take_in_a_first_line_is_found_by_a_shell() -> None:
    assert installer.shebang("/a/python") == b"#!/a/python\n"
    assert installer.shebang("/with space/python").startswith(b"#!/bin/sh\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> installer.Packages:
    """Where pip has been told of a mirror."""
    told = {"index-url": "https://me:secret@mirror", "find-links": "/a\n/b", "no-index": "1"}
    monkeypatch.setattr(installer.Packages, "pip_settings", lambda self: told)
    wanted = {"name": "list.txt", "file": str(tmp_path / "list.txt"), "text": "", "count": 1, "is_plain": True}
    (tmp_path / "list.txt").write_text("tiny\n")
    return installer.Packages(
        {"requirements": wanted, "folder": str(tmp_path)}, installer.Environment(str(tmp_path / "environment")), {}
    )


def test_uv_is_told_of_the_index_of_pip_where_nobody_else_can_read_it(packages: installer.Packages) -> None:
    env, options = packages.uv_index()
    assert env == {"UV_INDEX_URL": "https://me:secret@mirror", "UV_FIND_LINKS": "/a,/b"}
    assert options == ["--no-index"]


def test_an_index_in_the_list_wins_and_one_that_uv_was_told_of_stays(packages: installer.Packages) -> None:
    packages.env["UV_DEFAULT_INDEX"] = "https://own"
    assert "UV_INDEX_URL" not in packages.uv_index()[0]
    Path(packages.path).write_text("--extra-index-url https://a\n-r more/list.txt\n")
    more = Path(packages.path).parent / "more"
    more.mkdir()
    (more / "list.txt").write_text("# -i https://no\n-r ../list.txt\n--extra-index-url=\\\nhttps://kim:b@b  # why\n")
    assert packages.uv_index()[0]["UV_EXTRA_INDEX_URL"] == "https://a https://kim:b@b"


def test_what_uv_leaves_of_a_package_is_not_taken_for_all_of_it(
    packages: installer.Packages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that was full for a moment."""
    environment = packages.environment
    half = Path(environment.root, "half of a package")

    def install(*_: object) -> None:
        half.touch()
        raise installer.Failure(2)

    environment.make()
    monkeypatch.setattr(packages, "find_uv", lambda: ["uv"])
    monkeypatch.setattr(packages, "ask_uv", lambda *_: {"tiny": "1.0"})
    monkeypatch.setattr(installer, "run", install)
    assert not packages.try_uv()
    assert not half.exists()
    assert Path(environment.python).exists()


def test_another_package_below_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there already was not installed; where it is not there any more, it has to be."""
    monkeypatch.syspath_prepend(str(tmp_path))
    order = {"key": "0", "shared": "/shared", "env": {}, "cache": ""}
    before = installer.place_of(order)
    assert installer.place_of(order) == before
    (tmp_path / "rich-14.0.dist-info").mkdir()
    assert installer.place_of(order) != before


def test_other_variables_of_pip_and_uv_are_another_environment_and_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = tmp_path / "limits.txt"
    limits.write_text("rich<14")

    def place(**env: str) -> str | None:
        return installer.place_of({"key": "0", "shared": "/shared", "env": env, "cache": ""})

    found = [place(), place(PIP_INDEX_URL="https://kim:secret@a"), place(UV_INDEX_URL="https://b")]
    found.append(place(PIP_CONSTRAINT=str(limits)))
    assert place(OTHER="1") == found[0]
    limits.write_text("rich<13.5")
    found.append(place(PIP_CONSTRAINT=str(limits)))
    assert len(set(found)) == 5
    assert None not in found
    assert "secret" not in "".join(map(str, found))


@pytest.mark.parametrize("value", ["wheels", "./wheels", "https://example.com wheels"])
def test_a_place_in_the_working_folder_makes_no_environment_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wheels").mkdir()
    order = {"key": "0", "shared": "/shared", "env": {"PIP_FIND_LINKS": value}, "cache": ""}
    assert installer.place_of(order) is None


def test_the_python_of_a_script_is_found_also_where_a_shell_starts_it(tmp_path: Path) -> None:
    for lines in (b"#!%s\n", b"#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n"):
        (tmp_path / "a").write_bytes(lines % os.fsencode(tmp_path / "python3") + b"body")
        assert installer.body_of_script(str(tmp_path / "a"), str(tmp_path)) == b"body"
        assert installer.body_of_script(str(tmp_path / "a"), "/usr/bin") is None
    spaced = "/with space/python"
    (tmp_path / "b").write_bytes(installer.shebang(spaced) + b"body")
    assert installer.body_of_script(str(tmp_path / "b"), "/with space") == b"body"


def test_a_warning_that_python_starts_with_is_no_part_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "nowhere.so"))
    environment = installer.Environment(str(tmp_path / "environment"))
    environment.make()
    assert Path(environment.python).exists()
