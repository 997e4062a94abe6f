"""A folder of parts: whole or not there, never half; made once; checked before it is trained on."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pumasi.data import check, copy, split, workshop
from pumasi.errors import PumasiError, SystemTrouble, UsageError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(1000), y=np.arange(1000) % 3)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def child(program: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_manifest_tells_everything(data: Path) -> None:
    made = split(data, 3, seed=5, stratify="")
    told = json.loads((made.folder / "manifest.json").read_text())
    assert told == {
        "format": 1,
        "source": {
            "name": "data.npz",
            "bytes": data.stat().st_size,
            "sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
        },
        "mode": "split",
        "n": 3,
        "options": {"shuffle": True, "seed": 5, "stratify": "y"},
        "parts": [
            {
                "name": f"{part}.npz",
                "rows": rows,
                "bytes": (made.folder / f"{part}.npz").stat().st_size,
                "sha256": hashlib.sha256((made.folder / f"{part}.npz").read_bytes()).hexdigest(),
            }
            for part, rows in enumerate((334, 333, 333))
        ],
    }


def test_a_folders_checksum_is_that_of_what_sha256sum_says(tmp_path: Path) -> None:
    for name in ("b/1", "a/2", "a/1"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text(name)
    made = copy(tmp_path / "d", 1)
    listing = "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a/1", "a/2", "b/1"))
    assert made.parts[0][1:] == (3, 9, hashlib.sha256(listing.encode()).hexdigest())


def state_of(path: Path) -> tuple[int, int, int]:
    """Changes when somebody writes it, and not when somebody reads it."""
    about = path.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def test_the_second_time_there_is_nothing_to_do(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = split(data, 3)
    before = {path: state_of(path) for path in (first.folder, *first.folder.iterdir())}
    renamed = data.rename(data.with_name("renamed.npz"))
    monkeypatch.setattr("pumasi.data.making.workshop", None)
    again = split(renamed, 3, first.folder)
    assert (again.parts, again.made) == (first.parts, False)
    assert {path: state_of(path) for path in before} == before
    assert check(first.folder).parts == first.parts


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n": 4}, "it has 3 parts, not 4"),
        ({"seed": 1}, "its seed is none, not 1"),
        ({"stratify": ""}, "its classes are none, not y"),
    ],
)
def test_other_options_are_refused_and_named_until_forced(options: dict[str, Any], told: str, data: Path) -> None:
    first = split(data, 3, data.with_name("parts"))
    wanted = {"n": 3, **options}
    with pytest.raises(UsageError) as caught:
        split(data, to=first.folder, **wanted)
    assert told in caught.value.message
    assert "--force" in caught.value.hint
    assert check(first.folder).parts == first.parts
    assert split(data, to=first.folder, force=True, **wanted).made
    assert check(first.folder).parts != first.parts
    assert names(data.parent) == ["data.npz", "parts"]


def test_another_input_and_another_mode_are_refused(data: Path) -> None:
    first = split(data, 3)
    with pytest.raises(UsageError, match="made by split, not by copy"):
        copy(data, 3, first.folder)
    np.savez(data, x=np.arange(999))
    with pytest.raises(UsageError, match=r"made from another data\.npz"):
        split(data, 3)
    assert split(data, 3, force=True).made


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_of_somebody_else_is_never_touched(force: bool, data: Path) -> None:
    folder = data.with_name("data-3")
    folder.mkdir()
    (folder / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match="it stays as it is"):
        split(data, 3, force=force)
    (folder / "manifest.json").write_text('{"format": "mine"}')
    with pytest.raises(UsageError, match=r"manifest\.json"):
        split(data, 3, force=force)
    assert names(folder) == ["manifest.json", "thesis.txt"]
    other = data.with_name("file")
    other.write_text("a file")
    with pytest.raises(UsageError, match="it stays as it is"):
        split(data, 3, other, force=force)


def test_an_empty_folder_is_as_good_as_none(data: Path) -> None:
    data.with_name("data-3").mkdir()
    assert split(data, 3).made


def test_places_that_can_not_work_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        split(data, 3, data.parent / "no" / "where")
    with pytest.raises(UsageError, match="lies in"):
        split(data.parent, 1, data.parent / "in it")
    with pytest.raises(UsageError, match="a file system of its own"):
        split(data, 3, "/")
    for n in (0, 10**20):
        with pytest.raises(UsageError, match="make no sense"):
            copy(data, n)
    with pytest.raises(UsageError, match="A seed is"):
        split(data, 3, seed=-1)


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_damaged_part_is_noticed_and_made_anew_only_when_forced(damage: str, data: Path) -> None:
    made = split(data, 3)
    part = made.folder / "1.npz"
    whole = part.read_bytes()
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(whole[:-1] if damage == "shorter" else whole[:-1] + b"x")
    with pytest.raises(UsageError, match=r"1\.npz"):
        check(made.folder)
    with pytest.raises(UsageError, match=r"1\.npz") as caught:
        split(data, 3)
    assert "--force" in caught.value.hint
    assert split(data, 3, force=True).parts == made.parts
    assert check(made.folder).parts == made.parts


def test_a_damaged_part_that_is_a_folder_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in "abc":
        (tmp_path / "d" / name).write_text(name)
    made = split(tmp_path / "d", 2)
    (made.folder / "1" / "c").rename(made.folder / "1" / "d")
    with pytest.raises(UsageError, match="has changed since it was written"):
        check(made.folder)


def test_a_folder_that_is_no_set_of_parts_fails_the_check(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        check(tmp_path)
    with pytest.raises(UsageError, match=r"has no manifest\.json"):
        check(tmp_path / "nowhere")
    (tmp_path / "manifest.json").write_text('{"format": 1, "so')
    with pytest.raises(UsageError, match="damaged"):
        check(tmp_path)


class Boom(Exception):
    pass


def failing(what: str, error: BaseException) -> Any:
    def progress(doing: str, done: int, total: int) -> None:
        if doing == what:
            raise error

    return progress


@pytest.mark.parametrize("what", ["sorting", "writing", "checking"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), Boom()])
def test_an_interruption_leaves_what_was_there_and_nothing_else(what: str, error: BaseException, data: Path) -> None:
    with pytest.raises(type(error)):
        split(data, 3, seed=1, progress=failing(what, error))
    assert names(data.parent) == ["data.npz"]
    old = split(data, 3)
    with pytest.raises(type(error)):
        split(data, 3, seed=1, force=True, progress=failing(what, error))
    assert names(data.parent) == ["data-3", "data.npz"]
    assert check(old.folder).parts == old.parts


def test_a_full_disk_is_told_and_leaves_nothing(data: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(SystemTrouble, match="The disk is full") as caught:
        split(data, 3, progress=failing("writing", full))
    assert "--to" in caught.value.hint
    assert names(data.parent) == ["data.npz"]


def test_a_source_that_changes_meanwhile_is_told(data: Path) -> None:
    def progress(doing: str, done: int, total: int) -> None:
        if doing == "writing":
            os.utime(data, ns=(1, 1))

    with pytest.raises(UsageError, match="has changed while it was read"):
        split(data, 3, progress=progress)
    assert names(data.parent) == ["data.npz"]


def test_a_text_that_loses_rows_meanwhile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("1\n2\n3\n")

    def progress(doing: str, done: int, total: int) -> None:
        if doing == "looking at rows":
            path.write_text("1\n")

    with pytest.raises(UsageError, match="has changed while it was read"):
        split(path, 3, progress=progress)
    assert names(tmp_path) == ["d.jsonl"]


KILLED = """
import os, signal, sys
from pumasi.data import split
def progress(what, done, total):
    if what == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
split(sys.argv[1], 3, force=True, seed=1, progress=progress)
"""


def test_what_a_killed_one_leaves_is_removed_by_the_next(data: Path) -> None:
    old = split(data, 3)
    with child(KILLED, data) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert names(data.parent) == [".data-3.pumasi", "data-3", "data.npz"]
    assert check(old.folder).parts == old.parts
    assert split(data, 3, force=True, seed=2).made
    assert names(data.parent) == ["data-3", "data.npz"]


OTHER = """
import sys
from pumasi.data import split
made = split(sys.argv[1], 3, progress=lambda what, done, total: what.startswith("waiting") and print(what, flush=True))
print(made.made)
"""


def test_two_at_the_same_time_make_it_once(data: Path) -> None:
    others: list[subprocess.Popen[str]] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "writing" and not others:
            others.append(child(OTHER, data))
            assert others[0].stdout is not None
            assert others[0].stdout.readline() == "waiting for another pumasi\n"

    assert split(data, 3, progress=progress).made
    with others[0] as other:
        assert other.communicate()[0] == "False\n"
    assert names(data.parent) == ["data-3", "data.npz"]


def test_where_two_folders_can_not_be_exchanged_they_are_renamed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "_exchange", lambda one, other: False)
    first = split(data, 3)
    assert split(data, 3, seed=1, force=True).made
    assert check(first.folder).parts != first.parts
    assert names(data.parent) == ["data-3", "data.npz"]


BETWEEN = """
import os, signal, sys
from pathlib import Path
from pumasi.data import split, workshop
workshop._exchange = lambda one, other: False
rename = Path.rename
def dying(self, target):
    if self.name == "new":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(self, target)
Path.rename = dying
split(sys.argv[1], 3, seed=1, force=True)
"""


def test_one_killed_between_two_renames_costs_nothing(data: Path) -> None:
    first = split(data, 3)
    with child(BETWEEN, data) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert not first.folder.exists()
    with pytest.raises(PumasiError, match="its seed is none, not 2"):
        split(data, 3, seed=2)
    assert check(first.folder).parts == first.parts
    assert names(data.parent) == ["data-3", "data.npz"]


def test_a_lock_whose_folder_was_removed_is_taken_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, whoever had it may have tidied up."""
    flock = fcntl.flock
    removed: list[int] = []

    def late(fd: int, kind: int) -> None:
        if not removed:
            removed.append(fd)
            (data.parent / ".data-3.pumasi" / "lock").unlink()
            (data.parent / ".data-3.pumasi").rmdir()
        flock(fd, kind)

    monkeypatch.setattr("pumasi.data.workshop.fcntl.flock", late)
    assert split(data, 3).made
    assert removed
    assert names(data.parent) == ["data-3", "data.npz"]


def test_the_library_needs_nothing_but_numpy(data: Path) -> None:
    """So that it runs in any image."""
    program = """
import sys
import pumasi.data
assert "numpy" not in sys.modules
pumasi.data.check(pumasi.data.split(sys.argv[1], 3, seed=1).folder)
print(*sorted(name for name in sys.modules if name.startswith(("pumasi.", "pyarrow", "rich", "yaml"))))
"""
    loaded = subprocess.check_output([sys.executable, "-c", program, str(data)], text=True).split()
    assert [name for name in loaded if not name.startswith("pumasi.data")] == ["pumasi.errors"]
