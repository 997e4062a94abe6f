"""Lists of packages: what is understood of them, and every mistake that is told before anything starts."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from pumasi.catalogue import parse_spec
from pumasi.core.launch import Attempt, agent_configs, gang_of
from pumasi.core.requirements import from_pyproject, parse
from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.runs.packages import CONVERTED, find_setup, setup_files
from pumasi.runs.session import pack_program

LOCK = """
version = 1
requires-python = ">=3.10"

[[package]]
name = "project"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "tiny" }, { name = "other", marker = "sys_platform == 'win32'" }]

[package.metadata]
requires-dist = [{ name = "tiny" }, { name = "other", marker = "sys_platform == 'win32'" }]

[[package]]
name = "tiny"
version = "1.2.3"
source = { registry = "https://example.com/simple" }
wheels = [{ url = "https://example.com/tiny-1.2.3-py3-none-any.whl", hash = "HASH" }]

[[package]]
name = "other"
version = "2.0"
source = { registry = "https://example.com/simple" }
wheels = [{ url = "https://example.com/other-2.0-py3-none-any.whl", hash = "HASH" }]
""".replace("HASH", f"sha256:{0:064}")
PROJECT = """
[project]
name = "project"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = ["tiny", "other; sys_platform == 'win32'"]
"""


def spec(folder: Path, requirements: str | None, **fields: object) -> Spec:
    data = {"command": "train.py", "workdir": str(folder), "requirements": requirements, **fields}
    return parse_spec({name: value for name, value in data.items() if value is not None})


def wanted(folder: Path, name: str, **fields: object) -> dict[str, object]:
    found = find_setup(spec(folder, name, **fields), "python3")
    return {**found["requirements"], "key": found["key"], "cache": found["cache"]}


# ---- lines


@pytest.mark.parametrize(
    ("text", "packages", "is_plain"),
    [
        ("numpy", ["numpy"], True),
        ("numpy>=1.26,<3  # why", ["numpy>=1.26,<3"], True),
        ("# nothing\n\n  \n", [], True),
        ("torch==2.3.1+cpu ; python_version < '3.13'", ["torch==2.3.1+cpu ; python_version < '3.13'"], True),
        ("uvicorn[standard, extra]~=0.30", ["uvicorn[standard, extra]~=0.30"], True),
        ("keras (>=3)", ["keras (>=3)"], True),
        ("--index-url https://example.com/simple\nnumpy", ["numpy"], True),
        ("--index-url https://${TOKEN}@example.com/simple\nnumpy", ["numpy"], False),
        ("--index-url https://kim:secret@example.com/simple\nnumpy", ["numpy"], True),
        ("a-1.0-py3-none-any.whl", ["a-1.0-py3-none-any.whl"], False),
        ("-r https://example.com/common.txt\nnumpy", ["numpy"], False),
        ("numpy==1.26.0 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nrich", ["numpy==1.26.0", "rich"], False),
        ("--extra-index-url=https://example.com\n--pre\nnumpy", ["numpy"], False),
        ("lib @ git+https://example.com/lib.git@main", ["lib @ git+https://example.com/lib.git@main"], False),
        ("git+https://example.com/lib.git#egg=lib", ["git+https://example.com/lib.git#egg=lib"], False),
        (
            "./lib\n../lib[all]\nwheels/a-1.0-py3-none-any.whl",
            ["./lib", "../lib[all]", "wheels/a-1.0-py3-none-any.whl"],
            False,
        ),
        ("-e .\n-e./lib", [".", "./lib"], False),
    ],
)
def test_a_list_is_read_as_pip_reads_it(text: str, packages: list[str], is_plain: bool) -> None:
    lines = parse(text, "requirements.txt")
    assert [line.package for line in lines if line.package] == packages
    assert all(line.is_plain for line in lines) == is_plain


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("numpy\nfoo bar", 'requirements.txt, line 2: "foo bar" is not a package'),
        ("numpy=1.0", 'line 1: "numpy=1.0" is not a package'),
        (f"ray[{','.join(['default', 'tune', 'train', 'serve'] * 9)}]=2.9", "line 1: "),
        ("import numpy", 'line 1: "import numpy"'),
        ("\n\n--frobnicate\n", "line 3: --frobnicate is not an option"),
        ("-r\n", "line 1: -r names no file"),
        ("numpy \\\n  and more\nrich", "line 1: "),
    ],
)
def test_a_line_that_pip_would_not_take_is_named(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text, "requirements.txt")
    assert told in error.value.message
    assert error.value.hint


# ---- files


def test_files_that_a_list_includes_are_read_counted_and_travel(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text("-r more/base.txt\n-c limits.txt\nrich\n")
    (tmp_path / "more" / "base.txt").write_text("numpy\n-r ../requirements.txt\n")
    (tmp_path / "limits.txt").write_text("numpy<3\nrich<99\n")
    found = wanted(tmp_path, "requirements.txt")
    assert (found["file"], found["count"], found["is_plain"]) == ("requirements.txt", 2, True)
    assert sorted(setup_files(spec(tmp_path, "requirements.txt"))) == [
        "limits.txt",
        "more/base.txt",
        "requirements.txt",
    ]


def test_a_change_in_any_file_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-c limits.txt\nrich\n")
    (tmp_path / "limits.txt").write_text("rich<99\n")
    before = wanted(tmp_path, "requirements.txt")["key"]
    assert wanted(tmp_path, "requirements.txt")["key"] == before != ""
    (tmp_path / "limits.txt").write_text("rich<98\n")
    assert wanted(tmp_path, "requirements.txt")["key"] != before


def test_another_value_of_a_variable_in_the_list_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich==${VERSION}\n")
    keys = [wanted(tmp_path, "requirements.txt", env={"VERSION": version})["key"] for version in ("1", "2", "1")]
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize("line", ["a-1.0-py3-none-any.whl", "./lib", "-r https://example.com/common.txt"])
def test_what_may_change_under_the_same_name_is_no_environment_to_keep(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"{line}\n")
    assert find_setup(spec(tmp_path, "requirements.txt"), sys.executable)["key"] == ""


TOKEN = "ghp_0123456789"


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("requirements.txt", f"-i https://kim:{TOKEN}@example.com/simple\nrich\n", "requirements.txt"),
        ("requirements.txt", f"--extra-index-url=https://dl.cloudsmith.io/{TOKEN}/a/simple/\n", "requirements.txt"),
        ("pyproject.toml", f"[project]\ndependencies = ['x @ git+https://kim:{TOKEN}@example.com/x']\n", CONVERTED),
    ],
)
def test_what_may_hold_a_credential_travels_with_the_code_and_in_nothing_that_others_can_read(
    tmp_path: Path, name: str, text: str, place: str
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / name).write_text(text)
    asked = spec(tmp_path, name, on="k8s")
    program, packed = pack_program(asked, print)
    attempt = Attempt("run", 0, {"node": 1}, {}, "", "", "/pumasi", [""])
    configs = agent_configs(asked, program, attempt, gang_of(asked, program, attempt))
    assert TOKEN not in json.dumps([program, configs])
    assert program.setup["requirements"]["file"] == place
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        file = archive.extractfile(place)
        assert file is not None
        assert TOKEN in file.read().decode()


def test_a_hash_of_what_others_may_guess_is_not_told_in_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-i https://kim:secret@example.com/simple\nrich\n")
    assert wanted(tmp_path, "requirements.txt", on="k8s")["key"] == ""


def test_what_is_missing_is_named_with_the_line_that_wants_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n-r more.txt\n")
    with pytest.raises(UsageError, match=r"There is no more.txt in .*, which requirements.txt, line 2 includes\."):
        wanted(tmp_path, "requirements.txt")
    with pytest.raises(UsageError, match=r"There is no nothing.txt in"):
        wanted(tmp_path, "nothing.txt")
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(UsageError, match="is not an ordinary file"):
            wanted(tmp_path, name)


def test_in_a_cluster_lists_have_to_be_in_the_folder_that_travels(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "requirements.txt").write_text("rich\n")
    assert wanted(folder, "../requirements.txt")["count"] == 1
    with pytest.raises(UsageError, match="which is all that travels"):
        wanted(folder, "../requirements.txt", on="k8s")
    (folder / "requirements.txt").write_text("rich\n")
    assert wanted(folder, f"{folder}/requirements.txt", on="k8s")["file"] == "requirements.txt"


def test_downloads_are_kept_on_the_first_volume_that_can_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("rich\n")
    mounts = ["data:/data:ro", "files:/files"]
    assert wanted(tmp_path, "requirements.txt", on="k8s", mounts=mounts)["cache"] == "/files/pumasi/cache"
    assert wanted(tmp_path, "requirements.txt", on="k8s")["cache"] == ""


# ---- pyproject.toml and uv.lock


def test_the_dependencies_of_a_project_are_installed_and_not_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    found = wanted(tmp_path, "pyproject.toml")
    assert found["text"] == "tiny\nother; sys_platform == 'win32'\n"
    assert (found["file"], found["count"]) == ("", 2)
    assert setup_files(spec(tmp_path, "pyproject.toml")) == []


def test_a_lock_gives_exactly_its_versions(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text(LOCK)
    found = wanted(tmp_path, "uv.lock")
    assert found["text"] == "other==2.0 ; sys_platform == 'win32'\ntiny==1.2.3\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("pyproject.toml", "[project", "pyproject.toml is not TOML: "),
        ("pyproject.toml", "[tool.poetry]\n", "has no [project] table"),
        ("pyproject.toml", "[project]\ndynamic = ['dependencies']\n", "are dynamic"),
        ("pyproject.toml", "[project]\ndependencies = 'numpy'\n", "is not a list of texts"),
        ("pyproject.toml", "[project]\ndependencies = ['not this']\n", 'pyproject.toml: "not this"'),
        ("pyproject.toml", "[project]\ndynamic = 5\ndependencies = 5\n", "is not a list of texts"),
        ("uv.lock", "rubbish", "uv can't read uv.lock: "),
        ("other.toml", "", "other.toml is not a list of packages that Pumasi knows"),
    ],
)
def test_a_file_that_does_not_say_what_to_install_is_told(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        wanted(tmp_path, name)
    assert told in error.value.message
    assert error.value.hint


def test_paths_in_a_project_of_another_folder_are_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "lk").mkdir()
    (tmp_path / "lk" / "pyproject.toml").write_text("[project]\ndependencies = ['lib @ file:lib']\n")
    with pytest.raises(UsageError, match="by paths that begin in lk") as error:
        wanted(tmp_path, "lk/pyproject.toml")
    assert error.value.hint == "Run in that folder: --workdir lk --requirements pyproject.toml"
    assert wanted(tmp_path / "lk", "pyproject.toml")["count"] == 1


def test_without_uv_it_is_said_how_a_lock_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv.lock").write_text(LOCK)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(UsageError) as error:
        wanted(tmp_path, "uv.lock")
    assert "uv export" in error.value.hint


def test_a_project_without_dependencies_needs_nothing() -> None:
    assert from_pyproject({"project": {"name": "empty"}}, "pyproject.toml") == ""


# ---- what is asked for


def test_commands_are_lines_or_words(tmp_path: Path) -> None:
    given = parse_spec({"command": "train.py", "setup": ["sh -c 'echo a b'", ["python", "prepare.py"]]})
    assert given.setup == (("sh", "-c", "echo a b"), ("python", "prepare.py"))
    assert parse_spec(given.dump()) == given


def test_nothing_is_set_up_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert find_setup(spec(tmp_path, None), "python3") == {}
