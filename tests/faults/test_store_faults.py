"""Disks that are full or read-only, and files that are damaged: for real, not by a patch.

Those marked `root` mount a small file system of their own, and fail where that is not allowed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pumasi.core.events import unpack
from pumasi.errors import SystemTrouble
from pumasi.store import MetricRow, Store

ELSEWHERE = "Set PUMASI_HOME to a folder that you can write to."


class SmallDisk:
    """A disk of half a megabyte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "a home #1?%20"
        self._filling = folder / "filling"

    def fill(self) -> None:
        """To the last byte."""
        with self._filling.open("ab", buffering=0) as filling:
            while os.statvfs(self.folder).f_bavail:
                filling.write(b"x" * 4096)

    def free(self) -> None:
        self._filling.unlink()

    def set_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)

    def set_writable(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "pumasi-test", folder], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily, for a test that failed may have left a file open.
        subprocess.run(["umount", "--lazy", folder], check=True)


def line(seq: int, text: bytes = b"hello") -> bytes:
    return b"0.%d 1763240000000|%s\n" % (seq, text)


def a_run(home: Path) -> str:
    """In a store that nobody holds open afterwards."""
    with closing(Store.open(home)) as store:
        run_id = store.create_run("train", {"slots": 2}, 1.0).id
        store.add_event(run_id, 1.0, unpack("note", {"text": "hello"}))
        store.append_log(run_id, 0, line(1))
    return run_id


def writes(store: Store, run_id: str) -> list[Callable[[], object]]:
    many = [MetricRow(1.0, 0, rank, 1, None, "loss", 0.5) for rank in range(20_000)]
    return [
        lambda: store.create_run("train", {"text": "x" * 500_000}, 1.0),
        lambda: store.update_run(run_id, outcome={"text": "x" * 500_000}),
        lambda: store.add_event(run_id, 1.0, unpack("note", {"text": "x" * 500_000})),
        lambda: store.add_metrics(run_id, many),
        lambda: store.append_log(run_id, 1, line(1, b"x" * 500_000)),
    ]


# A full disk


@pytest.mark.root
def test_a_full_disk_is_told_in_a_sentence_and_forgotten_when_there_is_space(disk: SmallDisk) -> None:
    run_id = a_run(disk.home)
    with closing(Store.open(disk.home)) as store:
        store.add_event(run_id, 2.0, unpack("note", {}))
        disk.fill()
        for write in writes(store, run_id):
            with pytest.raises(SystemTrouble, match=r"^The disk under .* is full\.\n") as trouble:
                write()
            assert "Free some space" in trouble.value.hint
        assert ([run.id for run in store.runs()], len(store.events(run_id))) == ([run_id], 2)
        disk.free()
        store.add_event(run_id, 3.0, unpack("note", {}))
        store.add_metrics(run_id, [MetricRow(1.0, 0, 0, 1, None, "loss", 0.5)])
        store.append_log(run_id, 1, line(2))
        other = store.create_run("train", {}, 1.0).id
        assert [run.id for run in store.runs()] == [other, run_id]
        assert (len(store.events(run_id)), len(store.metrics(run_id))) == (3, 1)
        assert [frame.text for frame in store.read_log(run_id)] == [b"hello", b"hello"]


@pytest.mark.root
def test_what_is_there_can_be_read_while_the_disk_is_full(disk: SmallDisk) -> None:
    run_id = a_run(disk.home)
    disk.fill()
    with closing(Store.open(disk.home)) as store:
        assert store.find("train").id == run_id
        assert len(store.events(run_id)) == 1
        assert [frame.text for frame in store.read_log(run_id, tail=1)] == [b"hello"]
        assert store.manager_pid(run_id) is None
        with pytest.raises(SystemTrouble, match="is full"):
            store.add_event(run_id, 2.0, unpack("note", {}))
        disk.free()
        store.add_event(run_id, 2.0, unpack("note", {}))
        assert len(store.events(run_id)) == 2


@pytest.mark.root
def test_a_home_that_finds_no_room_is_told_in_a_sentence(disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(SystemTrouble, match="is full"):
        Store.open(disk.home)
    disk.free()
    a_run(disk.home)


@pytest.mark.root
def test_a_run_can_be_deleted_to_make_room_on_a_full_disk(disk: SmallDisk) -> None:
    run_id = a_run(disk.home)
    with (Store(disk.home).folder(run_id) / "checkpoints" / "model").open("wb") as model:
        model.write(b"x" * 200_000)
    disk.fill()
    with closing(Store.open(disk.home)) as store:
        store.delete_run(run_id)
        assert store.runs() == []
        a_run(disk.home)


@pytest.mark.root
def test_a_log_that_runs_out_of_space_ends_in_a_whole_line(disk: SmallDisk) -> None:
    run_id = a_run(disk.home)
    with closing(Store.open(disk.home)) as store:
        follower = store.follow_log(run_id)
        with pytest.raises(SystemTrouble, match="is full"):
            store.append_log(run_id, 0, b"".join(line(seq, b"x" * 997) for seq in range(2, 2000)))
        kept = [frame.seq for frame in store.read_log(run_id)]
        assert kept == list(range(1, len(kept) + 1))
        assert 100 < len(kept) < 600
        seen = []
        while frames := follower.read():
            seen += [frame.seq for frame in frames]
        assert seen == kept
        disk.fill()
        with pytest.raises(SystemTrouble, match="is full"):
            store.append_log(run_id, 0, line(2000, b"x" * 10_000))
        disk.free()
        store.append_log(run_id, 0, line(2001, b"after"))
        assert [frame.text for frame in follower.read()] == [b"after"]
        assert [frame.seq for frame in store.read_log(run_id)] == [*kept, 2001]


@pytest.mark.root
def test_a_run_with_a_file_that_can_not_be_removed_is_deleted_as_soon_as_it_can(
    disk: SmallDisk, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    run_id = a_run(home)
    store = Store.open(home)
    busy = home / "deleted" / "1" / "checkpoints" / "busy"
    (store.folder(run_id) / "checkpoints" / "busy").mkdir()
    subprocess.run(["mount", "--bind", disk.folder, store.folder(run_id) / "checkpoints" / "busy"], check=True)
    try:
        with pytest.raises(SystemTrouble, match=r"checkpoints can't be removed: Device or resource busy") as trouble:
            store.delete_run(run_id)
        assert "delete the run again" in trouble.value.hint
        assert [run.id for run in Store.open(home).runs()] == [run_id], "opening the store is not disturbed"
    finally:
        subprocess.run(["umount", busy], check=True)
    store.delete_run(run_id)
    assert (store.runs(), list((home / "deleted").iterdir()), list((home / "runs").iterdir())) == ([], [], [])


# A read-only home


@pytest.mark.root
@pytest.mark.parametrize("left_open", [False, True], ids=["closed before", "its writer was killed"])
def test_a_read_only_home_can_be_read_but_not_written(disk: SmallDisk, left_open: bool) -> None:
    run_id = a_run(disk.home)
    if left_open:
        code = "import sys, os, pathlib, pumasi.store as s; from pumasi.core.events import Note; "
        code += "t = s.Store.open(pathlib.Path(sys.argv[1])); "
        code += "t.add_event(sys.argv[2], 2.0, Note()); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-c", code, disk.home, run_id], check=False)
        assert (disk.home / "pumasi.db-wal").stat().st_size > 0
    disk.set_read_only()
    with closing(Store.open(disk.home)) as store:
        assert [run.id for run in store.runs()] == [run_id]
        assert store.find("train").spec == {"slots": 2}
        assert len(store.events(run_id)) == 1 + left_open
        assert [frame.text for frame in store.read_log(run_id)] == [b"hello"]
        assert store.manager_pid(run_id) is None
        refused: list[Callable[[], object]] = [lambda: store.delete_run(run_id), lambda: store.lock(run_id)]
        for write in writes(store, run_id) + refused:
            with pytest.raises(SystemTrouble, match="ead-only file system") as trouble:
                write()
            assert trouble.value.hint == ELSEWHERE
        disk.set_writable()
        store.add_event(run_id, 3.0, unpack("note", {}))
        assert len(store.events(run_id)) == 2 + left_open
        assert (store.folder(run_id) / "logs").exists()


@pytest.mark.root
def test_a_home_that_can_not_be_made_is_told_in_a_sentence(disk: SmallDisk) -> None:
    disk.set_read_only()
    with pytest.raises(SystemTrouble, match="can't be used: Read-only file system") as trouble:
        Store.open(disk.home)
    assert trouble.value.hint == ELSEWHERE


@pytest.mark.root
def test_a_read_only_store_that_would_have_to_recover_says_so_rather_than_tell_old_news(disk: SmallDisk) -> None:
    run_id = a_run(disk.home)
    store = Store.open(disk.home)
    store.add_event(run_id, 2.0, unpack("note", {}))
    copy = disk.folder / "copy"
    subprocess.run(["cp", "-r", disk.home, copy], check=True)
    (copy / "pumasi.db-shm").unlink()
    store.close()
    disk.set_read_only()
    with pytest.raises(SystemTrouble, match="can't be used: it is on a read-only"):
        Store.open(copy)


# Damaged files


@pytest.mark.parametrize("size", [60, 100, 4096, 6000, 12_288])
def test_a_truncated_store_is_told_in_a_sentence(tmp_path: Path, size: int) -> None:
    run_id = a_run(tmp_path)
    path = tmp_path / "pumasi.db"
    assert path.stat().st_size > size
    os.truncate(path, size)
    with pytest.raises(SystemTrouble, match="is damaged") as trouble:
        use_all(Store.open(tmp_path), run_id)
    assert f"move {path}* away" in trouble.value.hint
    for file in tmp_path.glob("pumasi.db*"):
        file.rename(tmp_path / f"old-{file.name}")
    assert Store.open(tmp_path).runs() == [], "as the hint says"
    assert (tmp_path / "runs" / run_id / "logs" / "0.log").read_bytes() == line(1)


@pytest.mark.parametrize("size", [60, 100, 5000, 1_000_000])
def test_a_store_that_is_no_database_is_told_in_a_sentence(tmp_path: Path, size: int) -> None:
    rubbish = random.Random(size).randbytes(size)
    (tmp_path / "pumasi.db").write_bytes(rubbish)
    with pytest.raises(SystemTrouble, match="is damaged"):
        Store.open(tmp_path)
    assert (tmp_path / "pumasi.db").read_bytes() == rubbish


@pytest.mark.parametrize("page", range(9))
def test_rubbish_in_any_page_of_a_store_is_told_in_a_sentence(tmp_path: Path, page: int) -> None:
    run_id = a_run(tmp_path)
    with (tmp_path / "pumasi.db").open("r+b") as store:
        store.seek(page * 4096 + (100 if page == 0 else 0))
        store.write(random.Random(page).randbytes(2000))
    with pytest.raises(SystemTrouble, match="is damaged"):
        use_all(Store.open(tmp_path), run_id)


def use_all(store: Store, run_id: str) -> None:
    store.runs()
    store.find(run_id)
    store.events(run_id)
    store.last_metrics(run_id)
    store.add_metrics(run_id, [MetricRow(1.0, 0, 0, 1, None, "loss", 0.5)])
    store.metrics(run_id)
    store.add_event(run_id, 1.0, unpack("note", {}))
    store.create_run("train", {}, 1.0)
    store.delete_run(run_id)


def test_a_folder_in_the_place_of_the_store_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pumasi.db").mkdir()
    with pytest.raises(SystemTrouble) as trouble:
        Store.open(tmp_path)
    assert trouble.value.hint == ELSEWHERE


def test_a_log_torn_at_any_byte_loses_that_line_only(tmp_path: Path) -> None:
    run_id = a_run(tmp_path)
    whole = line(1) + line(2, b"loss: 0.31") + line(3, b"\x00\xff")
    for cut in range(len(whole) + 1):
        with closing(Store.open(tmp_path)) as store:
            store.log_path(run_id, 0).write_bytes(whole[:cut])
            before = list(store.read_log(run_id))
            assert len(before) == whole[:cut].count(b"\n")
            store.append_log(run_id, 0, line(4, b"next"))
            after = list(store.read_log(run_id))
            assert after[:-1] == before
            assert after[-1].text == b"next"
