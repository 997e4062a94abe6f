"""What a user and the manager may rely on in the store, also with many processes at once."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumasi.core.events import Note, Planned, Starting, unpack
from pumasi.core.frames import Frame
from pumasi.errors import NotFound, RunBusy, StoreTooNew, SystemTrouble, UsageError
from pumasi.store import MetricRow, Store, default_home
from pumasi.store import database as database_module
from pumasi.store import schema as schema_module
from pumasi.store import store as store_module

SPEC: dict[str, object] = {"command": ["train.py", "--epochs", "3"], "slots": 2, "env": {"A": "ü\n\x00"}}

VERSION_1 = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, spec TEXT NOT NULL,
    created REAL NOT NULL, started REAL, ended REAL, attempt INTEGER NOT NULL, pid INTEGER, placement TEXT NOT NULL,
    framework TEXT NOT NULL, ranks INTEGER NOT NULL, outcome TEXT, exit_code INTEGER, detached INTEGER NOT NULL
);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX events_of_run ON events (run);
CREATE TABLE metrics (
    seq INTEGER PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
    step INTEGER, epoch INTEGER, name TEXT NOT NULL, value REAL
);
CREATE INDEX metrics_of_run ON metrics (run);
CREATE TABLE last_metrics (
    run INTEGER NOT NULL, rank INTEGER NOT NULL, name TEXT NOT NULL, attempt INTEGER NOT NULL, value REAL,
    PRIMARY KEY (run, rank, name)
) WITHOUT ROWID;
INSERT INTO runs VALUES (7, 'imdb-x7k2p', 'failed', '{"command": ["imdb.py"], "slots": 6}', 1763240000.5, 1763240001.0,
    1763240009.0, 1, 4711, '{"here": 6}', 'tensorflow', 6, '{"verdict": "failed", "reason": "Rank 3 failed."}', 1, 1);
INSERT INTO events VALUES (1, 7, 1763240000.6, 'planned', '{"placement": {"here": 6}}');
INSERT INTO metrics VALUES (1, 7, 1763240002.0, 1, 0, 10, 1, 'loss', 0.25);
INSERT INTO metrics VALUES (2, 7, 1763240003.0, 1, 0, 20, 1, 'loss', NULL);
INSERT INTO last_metrics VALUES (7, 0, 'loss', 1, NULL);
PRAGMA user_version = 1;
"""
"""A store as version 1 wrote it. Never to be edited: homes out there look like this."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    store = Store.open(home)
    yield store
    store.close()


def new_run(store: Store, name: str = "train") -> str:
    return store.create_run(name, SPEC, 100.0).id


def line(rank: int, seq: int, text: bytes = b"hello", kind: bytes = b"|", ms: int = 1763240000000) -> bytes:
    return b"%d.%d %d%s%s\n" % (rank, seq, ms + seq, kind, text)


def texts(frames: list[Frame]) -> list[bytes]:
    return [frame.text for frame in frames]


PRELUDE = """
import os, sys
from pathlib import Path
from pumasi.core.events import unpack
from pumasi.store import *

def ready():
    print("ready", flush=True)
    input()

"""


def start(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PRELUDE + code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def go(*processes: subprocess.Popen[bytes]) -> list[bytes]:
    """Let them all loose at once, when all are `ready()`; what each printed then."""
    assert [first_line(process) for process in processes] == [b"ready"] * len(processes)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    ended = [(process, *process.communicate(timeout=120)) for process in processes]
    assert [(process.returncode, error) for process, _, error in ended] == [(0, b"")] * len(processes)
    return [output for _, output, _ in ended]


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Home


def test_the_home_is_what_the_user_says_else_the_state_folder() -> None:
    environ = {"PUMASI_HOME": "/p", "XDG_STATE_HOME": "/x", "HOME": "/h"}
    assert default_home(environ) == Path("/p")
    assert default_home({**environ, "PUMASI_HOME": ""}) == Path("/x/pumasi")
    assert default_home({"HOME": "/h"}) == Path("/h/.local/state/pumasi")
    assert default_home({"HOME": "/h", "XDG_STATE_HOME": "not/absolute"}) == Path("/h/.local/state/pumasi")


def test_a_relative_home_stays_the_same_after_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_home({"PUMASI_HOME": "here"}) == tmp_path / "here"


def test_only_its_owner_may_look_into_a_new_home(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    store = Store.open(home)
    new_run(store)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home, *home.glob("pumasi.db*"))}
    assert modes == {"home": 0o700, "pumasi.db": 0o600, "pumasi.db-wal": 0o600, "pumasi.db-shm": 0o600}


def test_a_home_that_is_a_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(SystemTrouble, match="not a folder") as trouble:
            Store.open(home)
        assert "PUMASI_HOME" in trouble.value.hint


# Runs


def test_a_new_run_has_an_id_of_its_name_and_its_folders(store: Store) -> None:
    run = store.create_run("imdb", SPEC, 12.5, detached=True, ranks=2)
    name, _, letters = run.id.rpartition("-")
    assert name == "imdb"
    assert len(letters) == 5
    assert (run.state, run.spec, run.created, run.detached, run.ranks) == ("queued", SPEC, 12.5, True, 2)
    assert sorted(path.name for path in store.folder(run.id).iterdir()) == ["checkpoints", "lock", "logs", "tmp"]


def test_a_record_comes_back_as_it_was_written(store: Store) -> None:
    run_id = new_run(store)
    store.update_run(
        run_id,
        state="failed",
        started=1.25,
        ended=2.5,
        attempt=3,
        pid=42,
        placement={"b": 5, "a": 1},
        framework="torch",
        outcome={"verdict": "failed", "tail": ["x"]},
        exit_code=1,
    )
    run = store.run(run_id)
    assert run == store.runs()[0] == store.find(run_id)
    assert (run.state, run.started, run.ended, run.attempt, run.pid) == ("failed", 1.25, 2.5, 3, 42)
    assert (run.framework, run.exit_code) == ("torch", 1)
    assert run.outcome == {"verdict": "failed", "tail": ["x"]}
    assert list(run.placement.items()) == [("b", 5), ("a", 1)]


def test_an_id_that_is_taken_is_not_given_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter(["aaaaa", "aaaaa", "bbbbb"])
    monkeypatch.setattr(store_module, "_random_letters", lambda: next(letters))
    assert [new_run(store), new_run(store)] == ["train-aaaaa", "train-bbbbb"]


def test_a_folder_whose_record_was_lost_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter(["aaaaa", "bbbbb"])
    monkeypatch.setattr(store_module, "_random_letters", lambda: next(letters))
    precious = store.folder("train-aaaaa") / "model"
    precious.parent.mkdir()
    precious.write_text("weights")
    assert new_run(store) == "train-bbbbb"
    assert [run.id for run in store.runs()] == ["train-bbbbb"]
    assert precious.read_text() == "weights"


def test_the_newest_run_comes_first_also_when_the_clock_went_back(store: Store) -> None:
    ids = [store.create_run("train", SPEC, created).id for created in (30.0, 20.0, 10.0)]
    assert [run.id for run in store.runs()] == ids[::-1]
    assert [run.id for run in store.runs(limit=2)] == ids[:0:-1]
    assert store.find(None).id == ids[-1]


def test_a_field_that_no_run_has_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="colour"):
        store.update_run(new_run(store), colour="red")


def test_what_is_asked_of_a_run_that_is_not_there_is_not_found(store: Store) -> None:
    questions: list[Callable[[], object]] = [
        lambda: store.run("no-aaaaa"),
        lambda: store.update_run("no-aaaaa", state="done"),
        lambda: store.add_event("no-aaaaa", 1.0, Note()),
        lambda: store.add_metrics("no-aaaaa", [MetricRow(1.0, 0, 0, 1, None, "loss", 0.5)]),
        lambda: store.delete_run("no-aaaaa"),
        lambda: store.lock("no-aaaaa"),
    ]
    for ask in questions:
        with pytest.raises(NotFound, match="no-aaaaa"):
            ask()
    assert store.manager_pid("no-aaaaa") is None


def test_a_run_is_found_by_any_unambiguous_prefix(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter(["aaaaa", "aabbb", "ccccc"])
    monkeypatch.setattr(store_module, "_random_letters", lambda: next(letters))
    for name in ("train", "train", "train-aaaaa"):
        new_run(store, name)
    assert store.find("train-aab").id == "train-aabbb"
    assert store.find("train-aaaaa").id == "train-aaaaa", "an exact id wins over longer ones"
    assert store.find("train-aaaaa-").id == "train-aaaaa-ccccc"
    with pytest.raises(UsageError, match=r"may mean train-aaaaa-ccccc, train-aabbb or train-aaaaa\."):
        store.find("tr")


def test_a_prefix_of_several_runs_means_the_only_one_that_goes_on(store: Store) -> None:
    over, going_on = new_run(store), new_run(store)
    store.update_run(over, state="done", ended=2.0)
    assert store.find("train", running_first=True).id == going_on
    new_run(store)
    with pytest.raises(UsageError, match="may mean"):
        store.find("train", running_first=True)


def test_what_is_done_to_a_run_of_others_needs_its_whole_name(store: Store) -> None:
    store.import_run("train-aaaaa", {"on": "k8s"}, 5.0)
    assert store.find("train").id == "train-aaaaa"
    with pytest.raises(UsageError, match=r"train-aaaaa was not started from here\."):
        store.find("train", careful=True)
    assert store.find("train-aaaaa", careful=True).id == "train-aaaaa"


def test_the_last_run_is_the_last_that_was_started_here(store: Store) -> None:
    own = new_run(store)
    store.import_run("train-aaaaa", {"on": "k8s"}, 5.0)
    assert store.find(None).id == own
    assert store.own() == {own}


@pytest.mark.parametrize("prefix", ["train-xxxxx", "%", "_", "*", "ü", "\udcff", "\x00", "../train"])
def test_what_is_no_prefix_of_a_run_is_not_found(store: Store, prefix: str) -> None:
    new_run(store)
    with pytest.raises(NotFound) as missing:
        store.find(prefix)
    assert missing.value.hint


def test_a_slip_of_the_finger_is_answered_with_the_run_that_was_meant(store: Store) -> None:
    run_id = new_run(store, "cifar")
    with pytest.raises(NotFound) as missing:
        store.find(run_id.replace("cifar", "cfiar"))
    assert missing.value.hint == f"Did you mean {run_id}?"


def test_a_prefix_of_very_many_runs_names_a_few_of_them(store: Store) -> None:
    for _ in range(9):
        new_run(store)
    with pytest.raises(UsageError, match="or 3 more"):
        store.find("train")


def test_without_any_run_the_user_is_told_how_to_make_one(store: Store) -> None:
    for prefix, told in ((None, "no run yet"), ("train", "no run train")):
        with pytest.raises(NotFound, match=told) as missing:
            store.find(prefix)
        assert "pumasi run train.py" in missing.value.hint


def test_an_empty_name_is_not_taken_for_the_only_run(store: Store) -> None:
    new_run(store)
    with pytest.raises(UsageError, match="empty"):
        store.find("")


# Events and metrics


def test_events_come_in_order_and_after_the_one_last_seen(store: Store) -> None:
    run_id, other = new_run(store), new_run(store)
    store.add_event(run_id, 1.0, unpack("starting", {"attempt": 0}))
    store.add_event(other, 1.5, unpack("note", {}))
    store.add_event(run_id, 2.0, unpack("finished", {"value": float("inf"), "tail": ["\udcff"]}))
    first, second = store.events(run_id)
    assert (first.at, first.event) == (1.0, Starting(attempt=0))
    assert second.event == unpack("finished", {"value": float("inf"), "tail": ["\udcff"]})
    assert store.events(run_id, after=first.seq) == [second]


def test_values_that_are_no_numbers_survive(store: Store) -> None:
    run_id = new_run(store)
    values = [0.1, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 3.0]
    store.add_metrics(run_id, [MetricRow(1.0, 0, 0, i, None, "loss", value) for i, value in enumerate(values)])
    assert repr([row.value for row in store.metrics(run_id)]) == repr(values)
    store.add_metrics(run_id, [MetricRow(2.0, 0, 0, 9, None, "loss", math.nan)])
    assert math.isnan(store.last_metrics(run_id)[0]["loss"])


def test_numbers_and_names_beyond_what_sqlite_holds_lose_themselves_only(store: Store) -> None:
    run_id = new_run(store)
    rows = [
        MetricRow(1.0, 0, 0, 1, 1, "loss", 0.5),
        MetricRow(1.0, 0, 0, 10**30, -(10**30), "loss", 0.25),
        MetricRow(1.0, 0, 0, 2**63 - 1, None, "l\udcffss", 10**300),
    ]
    store.add_metrics(run_id, rows)
    assert [(row.step, row.epoch, row.name, row.value) for row in store.metrics(run_id)] == [
        (1, 1, "loss", 0.5),
        (None, None, "loss", 0.25),
        (2**63 - 1, None, "l?ss", 1e300),
    ]


def test_metrics_are_filtered_and_paged(store: Store) -> None:
    run_id = new_run(store)
    rows = [MetricRow(1.0, 0, rank, step, None, name, step) for step in range(3) for rank in (0, 1) for name in "ab"]
    store.add_metrics(run_id, rows)
    assert [row._replace(seq=0) for row in store.metrics(run_id)] == rows
    assert [row.step for row in store.metrics(run_id, rank=1, name="b")] == [0, 1, 2]
    page = store.metrics(run_id, limit=5)
    assert page + store.metrics(run_id, after=page[-1].seq) == store.metrics(run_id)


def test_the_last_metrics_are_those_of_the_attempt_that_the_run_is_at(store: Store) -> None:
    run_id = new_run(store)
    store.add_metrics(run_id, [MetricRow(1.0, 0, 0, i, None, "loss", 1.0 - i / 10) for i in range(3)])
    store.add_metrics(run_id, [MetricRow(1.0, 0, 1, 0, None, "acc", 0.5)])
    assert store.last_metrics(run_id) == {0: {"loss": 0.8}, 1: {"acc": 0.5}}
    store.update_run(run_id, attempt=1)
    assert store.last_metrics(run_id) == {}
    store.add_metrics(run_id, [MetricRow(2.0, 1, 0, 0, None, "loss", 0.9)])
    assert store.last_metrics(run_id) == {0: {"loss": 0.9}}


def test_metrics_are_added_all_or_none(store: Store) -> None:
    run_id = new_run(store)
    broken: list[MetricRow] = [
        MetricRow(1.0, 0, 0, 1, None, "loss", 0.5),
        MetricRow(1.0, 0, 0, 2, None, None, 0.5),  # type: ignore[arg-type]
    ]
    with pytest.raises(sqlite3.IntegrityError):
        store.add_metrics(run_id, broken)
    assert store.metrics(run_id) == []
    store.add_metrics(run_id, broken[:1])
    assert len(store.metrics(run_id)) == 1


# Logs


def test_a_log_is_read_attempt_by_attempt(store: Store) -> None:
    run_id = new_run(store)
    for attempt in (0, 1, 2, 10):
        store.append_log(run_id, attempt, line(0, 1, b"attempt %d" % attempt) + line(1, 1, b"rank 1"))
    assert texts(list(store.read_log(run_id, ranks=[0]))) == [b"attempt 0", b"attempt 1", b"attempt 2", b"attempt 10"]
    assert store.log_path(run_id, 10).read_bytes() == line(0, 1, b"attempt 10") + line(1, 1, b"rank 1")


def test_a_log_is_read_by_rank_and_by_time(store: Store) -> None:
    run_id = new_run(store)
    store.append_log(run_id, 0, b"".join(line(rank, seq, b"%d" % seq) for seq in range(4) for rank in (1, 11)))
    assert [frame.rank for frame in store.read_log(run_id, ranks=[1])] == [1] * 4
    assert texts(list(store.read_log(run_id, ranks=[11], since_ms=1763240000002))) == [b"2", b"3"]


def test_lines_in_a_log_that_are_no_frames_are_passed_over(store: Store) -> None:
    run_id = new_run(store)
    rubbish = b'@{"agent": 1}\n\n\x00\xff rubbish\n'
    store.append_log(run_id, 0, rubbish + line(0, 1, b"\xff\x00\r") + rubbish + line(0, 2))
    assert texts(list(store.read_log(run_id))) == [b"\xff\x00\r", b"hello"]
    assert texts(list(store.read_log(run_id, tail=1))) == [b"hello"]


def test_a_run_without_a_log_has_no_lines(store: Store) -> None:
    run_id = new_run(store)
    assert list(store.read_log(run_id)) == list(store.read_log(run_id, tail=5)) == []
    assert store.follow_log(run_id, tail=5).read() == []


def test_half_a_line_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="whole lines"):
        store.append_log(new_run(store), 0, b"0.1 1763240000000|torn")


def test_a_progress_bar_is_part_of_the_line_that_it_ends_in(store: Store) -> None:
    run_id = new_run(store)
    bar = b"".join(line(0, seq, b"%d%%" % seq, b"~") for seq in range(2, 99))
    store.append_log(run_id, 0, line(0, 1, b"first") + bar + line(0, 99, b"100%") + line(0, 100, b"1%", b"~"))
    last = texts(list(store.read_log(run_id, tail=1)))
    assert (last[0], last[-2], last[-1], len(last)) == (b"2%", b"100%", b"1%", 99)


frames_of_a_log = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from([b"|", b":", b">", b"~"]), st.integers(0, 12)), max_size=30
)


@given(
    logs=st.lists(frames_of_a_log, max_size=3), tail=st.integers(0, 8), ranks=st.sampled_from([(), (0,), (1,), (0, 1)])
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_tail_is_the_end_of_the_log_whatever_the_size_of_blocks(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[list[tuple[int, bytes, int]]],
    tail: int,
    ranks: tuple[int, ...],
) -> None:
    monkeypatch.setattr("pumasi.store.logs._BLOCK", 7)
    run_id = new_run(store)
    for attempt, frames in enumerate(logs):
        chunk = b"".join(line(r, seq, b"x" * size, kind) for seq, (r, kind, size) in enumerate(frames))
        if chunk:
            store.append_log(run_id, attempt, chunk)
    everything = list(store.read_log(run_id, ranks=ranks))
    ends = [i for i, frame in enumerate(everything) if frame.end == b"\n"]
    first = ends[-tail - 1] + 1 if len(ends) > tail else 0
    assert list(store.read_log(run_id, ranks=ranks, tail=tail)) == everything[first:]
    follower, followed = store.follow_log(run_id, ranks=ranks, tail=tail), list[Frame]()
    while new := follower.read():
        followed += new
    assert followed == everything[first:]


def test_a_long_log_is_read_from_its_end_without_the_rest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = new_run(store)
    store.append_log(run_id, 0, b"".join(line(0, seq, b"x" * 1000) for seq in range(5000)))
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        read.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert [frame.seq for frame in store.read_log(run_id, tail=3)] == [4997, 4998, 4999]
    assert sum(read) <= 1 << 19


def test_a_line_far_longer_than_a_block_is_read_from_both_ends(store: Store) -> None:
    run_id = new_run(store)
    store.append_log(run_id, 0, line(0, 1, b"before") + line(0, 2, b"x" * 5_000_000) + line(0, 3, b"after"))
    assert [len(text) for text in texts(list(store.read_log(run_id, tail=2)))] == [5_000_000, 5]
    follower = store.follow_log(run_id)
    assert [len(text) for text in texts(follower.read() + follower.read())] == [6, 5_000_000, 5]


def test_a_follower_sees_each_line_once_from_one_attempt_to_the_next(store: Store) -> None:
    run_id = new_run(store)
    follower = store.follow_log(run_id, ranks=[0])
    assert follower.read() == []
    store.append_log(run_id, 0, line(0, 1, b"one") + line(1, 1))
    assert texts(follower.read()) == [b"one"]
    assert follower.read() == []
    store.append_log(run_id, 0, line(0, 2, b"two"))
    store.append_log(run_id, 2, line(1, 1) + line(0, 1, b"three"))
    assert texts(follower.read()) == [b"two"]
    assert texts(follower.read()) == [b"three"]
    assert follower.read() == []


def test_a_follower_gets_a_long_log_in_pieces(store: Store) -> None:
    run_id = new_run(store)
    store.append_log(run_id, 0, b"".join(line(0, seq, b"x" * 1000) for seq in range(2000)))
    follower, sizes = store.follow_log(run_id), list[int]()
    while frames := follower.read():
        sizes.append(len(frames))
    assert sum(sizes) == 2000
    assert max(sizes) < 500


def test_a_line_that_is_being_written_is_not_shown_before_it_is_whole(store: Store) -> None:
    run_id = new_run(store)
    follower = store.follow_log(run_id)
    whole = line(0, 1, b"loss: 0.31")
    with store.log_path(run_id, 0).open("ab", buffering=0) as log:
        log.write(whole[:-3])
        assert (follower.read(), list(store.read_log(run_id)), list(store.read_log(run_id, tail=1))) == ([], [], [])
        log.write(whole[-3:])
    assert texts(follower.read()) == texts(list(store.read_log(run_id))) == [b"loss: 0.31"]


def test_a_torn_last_line_does_not_stick_to_the_next_one(store: Store, home: Path) -> None:
    run_id = new_run(store)
    store.append_log(run_id, 0, line(0, 1, b"one"))
    follower = store.follow_log(run_id)
    assert texts(follower.read()) == [b"one"]
    with store.log_path(run_id, 0).open("ab") as log:
        log.write(b"0.2 1763240000000|loss: 0.3")
    adopted = Store.open(home)
    adopted.append_log(run_id, 0, line(0, 3, b"three"))
    assert texts(follower.read()) == [b"three"]
    assert store.log_path(run_id, 0).read_bytes() == line(0, 1, b"one") + line(0, 3, b"three")


def test_following_a_run_that_is_deleted_meanwhile_gives_nothing_more(store: Store) -> None:
    run_id = new_run(store)
    store.append_log(run_id, 0, line(0, 1))
    follower = store.follow_log(run_id)
    store.delete_run(run_id)
    assert follower.read() == []


# The lock


def test_a_run_is_steered_by_one_manager_at_a_time(store: Store, home: Path) -> None:
    run_id = new_run(store)
    assert store.manager_pid(run_id) is None
    with store.lock(run_id):
        assert store.manager_pid(run_id) == os.getpid()
        with pytest.raises(RunBusy, match=str(os.getpid())) as busy:
            Store.open(home).lock(run_id)
        assert f"pumasi attach {run_id}" in busy.value.hint
    assert store.manager_pid(run_id) is None
    store.lock(run_id).release()


def test_a_manager_that_is_killed_steers_no_more(store: Store, home: Path) -> None:
    run_id = new_run(store)
    manager = start(
        "l = Store.open(Path(sys.argv[1])).lock(sys.argv[2])\nprint('held', flush=True)\ninput()", home, run_id
    )
    assert first_line(manager) == b"held"
    assert store.manager_pid(run_id) == manager.pid
    with pytest.raises(RunBusy, match=str(manager.pid)):
        store.lock(run_id)
    manager.kill()
    manager.communicate()
    assert store.manager_pid(run_id) is None
    with store.lock(run_id):
        assert store.manager_pid(run_id) == os.getpid()


def test_a_forked_manager_goes_on_holding_the_lock_after_its_parent(store: Store, home: Path) -> None:
    run_id = new_run(store)
    code = """
store = Store.open(Path(sys.argv[1]))
with store.lock(sys.argv[2]) as lock:
    if os.fork() == 0:
        lock.claim()
        store.add_event(sys.argv[2], 1.0, unpack("note", {"text": "child"}))
        print(os.getpid(), flush=True)
        os.read(0, 1)
        os._exit(0)
"""
    parent = start(code, home, run_id)
    child = int(first_line(parent))
    parent.wait()
    assert store.manager_pid(run_id) == child
    with pytest.raises(RunBusy, match=str(child)):
        store.lock(run_id)
    parent.communicate(b"\n")
    eventually(lambda: store.manager_pid(run_id) is None)


def test_programs_that_a_manager_starts_do_not_hold_its_lock(store: Store) -> None:
    run_id = new_run(store)
    lock = store.lock(run_id)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as program:
        lock.release()
        held = store.manager_pid(run_id)
        program.kill()
    assert held is None


def test_those_who_look_never_keep_a_manager_from_its_lock(store: Store, home: Path) -> None:
    run_id = new_run(store)
    code = "s = Store.open(Path(sys.argv[1]))\nprint('looking', flush=True)\nwhile True: s.manager_pid(sys.argv[2])"
    lookers = [start(code, home, run_id) for _ in range(3)]
    try:
        assert [first_line(looker) for looker in lookers] == [b"looking"] * 3
        for _ in range(100):
            store.lock(run_id).release()
    finally:
        for looker in lookers:
            looker.kill()
            looker.communicate()


# Deleting


def test_a_deleted_run_leaves_nothing(store: Store, home: Path, tmp_path: Path) -> None:
    run_id, other = new_run(store), new_run(store)
    for each in (run_id, other):
        store.add_event(each, 1.0, unpack("note", {}))
        store.add_metrics(each, [MetricRow(1.0, 0, 0, 1, None, "loss", 0.5)])
        store.append_log(each, 0, line(0, 1))
        (store.folder(each) / "checkpoints" / "deep").mkdir()
        (store.folder(each) / "checkpoints" / "deep" / "model").write_text("weights")
    outside = tmp_path / "outside"
    outside.mkdir()
    (store.folder(run_id) / "linked").symlink_to(outside)
    store.delete_run(run_id)
    assert [run.id for run in store.runs()] == [other]
    assert list((home / "runs").iterdir()) == [home / "runs" / other]
    assert list((home / "deleted").iterdir()) == []
    assert outside.exists()
    assert (store.events(run_id), store.metrics(run_id), store.last_metrics(run_id)) == ([], [], {})
    assert (len(store.events(other)), len(store.metrics(other)), len(list(store.read_log(other)))) == (1, 1, 1)


def test_a_run_that_is_steered_is_not_deleted(store: Store) -> None:
    run_id = new_run(store)
    with store.lock(run_id):
        with pytest.raises(RunBusy):
            store.delete_run(run_id)
        assert store.folder(run_id).exists()
    store.delete_run(run_id)
    with pytest.raises(NotFound):
        store.run(run_id)


def test_a_run_whose_folder_is_gone_can_be_deleted(store: Store) -> None:
    run_id = new_run(store)
    subprocess.run(["rm", "-r", store.folder(run_id)], check=True)
    store.delete_run(run_id)
    assert store.runs() == []


@pytest.mark.parametrize(
    "point", ["shutil.rmtree", "pumasi.store.store.Store._delete_rows", "pathlib.Path.unlink", "pathlib.Path.rmdir"]
)
def test_a_deletion_that_crashes_is_finished_by_the_next_to_open_the_store(
    home: Path, store: Store, point: str
) -> None:
    run_id, other = new_run(store), new_run(store)
    store.append_log(run_id, 0, line(0, 1))
    code = """
from unittest import mock
import pumasi.store.removal
store = Store.open(Path(sys.argv[1]))
with mock.patch(sys.argv[3], lambda *_, **__: os._exit(7)):
    store.delete_run(sys.argv[2])
"""
    crashing = start(code, home, run_id, point)
    crashing.communicate()
    assert crashing.returncode == 7
    assert len(list((home / "deleted").iterdir())) == 1
    again = Store.open(home)
    assert [run.id for run in again.runs()] == [other]
    assert list((home / "deleted").iterdir()) == []
    assert list((home / "runs").iterdir()) == [home / "runs" / other]


def test_whoever_opens_the_store_leaves_a_deletion_at_work_alone(store: Store, home: Path) -> None:
    run_id = new_run(store)
    code = """
from unittest import mock
import pumasi.store.removal
store = Store.open(Path(sys.argv[1]))
def rmtree(path, rmtree=pumasi.store.removal.shutil.rmtree):
    print("deleting", flush=True)
    input()
    rmtree(path)
with mock.patch("shutil.rmtree", rmtree):
    store.delete_run(sys.argv[2])
"""
    deleting = start(code, home, run_id)
    assert first_line(deleting) == b"deleting"
    assert [run.id for run in Store.open(home).runs()] == [run_id]
    assert deleting.stdin is not None
    deleting.communicate(b"go\ngo\ngo\n", timeout=60)
    assert deleting.returncode == 0
    assert store.runs() == []


# Many processes at once


def test_many_processes_write_and_read_at_once_and_all_of_it_is_there(store: Store, home: Path) -> None:
    shared = new_run(store)
    code = """
home, shared = Path(sys.argv[1]), sys.argv[2]
ready()
store = Store.open(home)
own = store.create_run("own", {}, 0.0).id
for i in range(200):
    store.add_event(shared, i, unpack("note", {"i": i, "pid": os.getpid()}))
    store.add_metrics(own, [MetricRow(float(i), 0, r, i, None, "loss", i / 2) for r in range(3)])
    if i % 20 == 0:
        store.runs(), store.find(own), store.events(shared), store.update_run(own, attempt=i)
    if i % 50 == 0:
        store.close()
        store = Store.open(home)
"""
    go(*(start(code, home, shared) for _ in range(8)))
    events: dict[object, list[object]] = {}
    for row in store.events(shared):
        told = row.event.others
        events.setdefault(told["pid"], []).append(told["i"])
    assert list(events.values()) == [list(range(200))] * 8
    assert [len(store.metrics(run.id)) for run in store.runs() if run.id != shared] == [600] * 8


def test_many_processes_may_make_the_same_home_at_once(tmp_path: Path) -> None:
    code = "ready()\nprint(Store.open(Path(sys.argv[1])).create_run('train', {}, 0.0).id)"
    for attempt in range(3):
        home = tmp_path / f"home-{attempt}"
        made = go(*(start(code, home) for _ in range(8)))
        assert sorted(run.id for run in Store.open(home).runs()) == sorted(output.decode().strip() for output in made)


def test_many_processes_that_open_and_close_do_not_disturb_each_other(store: Store, home: Path) -> None:
    store.close()  # nobody holds the store open all the time: each close may be the last, and tidies up
    code = """
ready()
for i in range(40):
    store = Store.open(Path(sys.argv[1]))
    run = store.create_run("train", {}, 0.0)
    store.run(run.id)
    if i % 2:
        store.delete_run(run.id)
    store.close()
"""
    go(*(start(code, home) for _ in range(6)))
    assert len(store.runs()) == 6 * 20


def test_a_store_that_stays_locked_is_told_in_a_sentence(
    store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "PATIENCE", 0.05)
    impatient = Store.open(home)
    run_id = new_run(impatient)
    other = sqlite3.connect(home / "pumasi.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SystemTrouble, match="busy"):
        impatient.add_event(run_id, 1.0, unpack("note", {}))
    assert impatient.run(run_id).id == run_id, "reading goes on"
    other.execute("ROLLBACK")
    impatient.add_event(run_id, 1.0, unpack("note", {}))


def test_a_writer_that_is_killed_leaves_whole_transactions_only(store: Store, home: Path) -> None:
    run_id = new_run(store)
    code = """
store, i = Store.open(Path(sys.argv[1])), 0
while True:
    store.add_metrics(sys.argv[2], [MetricRow(0.0, 0, r, i, None, "loss", 0.5) for r in range(50)])
    i += 1
"""
    for _ in range(3):
        before = len(store.metrics(run_id))
        writer = start(code, home, run_id)
        eventually(lambda before=before: len(store.metrics(run_id)) > before + 500)  # type: ignore[misc]
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert len(store.metrics(run_id)) % 50 == 0
    store.add_event(run_id, 1.0, unpack("note", {}))


def test_a_child_and_its_parent_use_the_store_apart_after_a_fork(store: Store, home: Path) -> None:
    run_id = new_run(store)
    code = """
ready()
store = Store.open(Path(sys.argv[1]))
store.add_event(sys.argv[2], 0.0, unpack("note", {}))
child = os.fork()
if child == 0 and sys.argv[3] == "explicitly":
    store.close()
for i in range(100):
    store.add_event(sys.argv[2], float(i), unpack("note", {}))
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    go(*(start(code, home, run_id, how) for how in ("explicitly", "by itself")))
    assert len(store.events(run_id)) == 2 * (1 + 2 * 100)
    assert sqlite3.connect(home / "pumasi.db").execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_closed_store_opens_itself_again(store: Store) -> None:
    run_id = new_run(store)
    store.close()
    assert store.run(run_id).id == run_id
    store.close()
    store.close()


def test_threads_of_one_process_may_share_a_store(store: Store) -> None:
    run_id = new_run(store)

    def write(thread: int) -> None:
        for i in range(50):
            store.add_event(run_id, float(i), unpack("note", {"thread": thread}))
            store.events(run_id)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    assert len(store.events(run_id)) == 4 * 50


# Migration


def old_home(home: Path, script: str) -> Path:
    home.mkdir()
    db = sqlite3.connect(home / "pumasi.db")
    db.executescript(script)
    db.close()
    return home


def version(home: Path) -> int:
    return int(sqlite3.connect(home / "pumasi.db").execute("PRAGMA user_version").fetchone()[0])


NEXT_STEP = ("ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT 'none'", "CREATE TABLE extra (x)")


def check_version_1_is_all_there(store: Store) -> None:
    run = store.find("imdb")
    assert (run.id, run.state, run.spec) == ("imdb-x7k2p", "failed", {"command": ["imdb.py"], "slots": 6})
    assert (run.created, run.started, run.ended) == (1763240000.5, 1763240001.0, 1763240009.0)
    assert (run.attempt, run.pid, run.placement, run.framework, run.ranks) == (1, 4711, {"here": 6}, "tensorflow", 6)
    assert (run.outcome, run.exit_code) == ({"verdict": "failed", "reason": "Rank 3 failed."}, 1)
    assert run.detached is True
    assert [row.event for row in store.events(run.id)] == [Planned(placement={"here": 6})]
    assert [(row.step, repr(row.value)) for row in store.metrics(run.id)] == [(10, "0.25"), (20, "nan")]
    assert repr(store.last_metrics(run.id)) == "{0: {'loss': nan}}"


def test_a_store_of_version_1_is_read_and_written_by_this_version(home: Path) -> None:
    store = Store.open(old_home(home, VERSION_1))
    check_version_1_is_all_there(store)
    assert version(home) == len(schema_module.MIGRATIONS)
    run = store.create_run("train", SPEC, 1.0)
    assert store.find(None) == run


def test_what_may_be_a_copy_of_somebody_elses_run_in_an_old_store_is_nobodys_last_run(home: Path) -> None:
    """Until then nothing told them from one's own that have a manager in the cluster."""
    there = """UPDATE runs SET spec = '{"command": ["imdb.py"], "on": "k8s"}', pid = NULL;"""
    store = Store.open(old_home(home, VERSION_1 + there))
    assert not store.run("imdb-x7k2p").started_here
    own = store.create_run("train", SPEC, 1.0)
    assert store.find(None) == own


def test_the_frozen_version_1_is_what_this_version_makes_in_its_first_step(home: Path, tmp_path: Path) -> None:
    """Otherwise the fixture would prove nothing about real homes."""

    def tables(path: Path) -> list[tuple[str, ...]]:
        db = sqlite3.connect(path)
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master ORDER BY name")]
        return [(name, *map(str, db.execute(f"PRAGMA table_info({name})").fetchall())) for name in names]

    old_home(home, VERSION_1)
    made = sqlite3.connect(tmp_path / "made.db")
    for statement in schema_module.MIGRATIONS[0]:
        made.execute(statement)
    made.close()
    assert tables(home / "pumasi.db") == tables(tmp_path / "made.db")


@contextmanager
def one_more_step(*statements: str) -> Iterator[None]:
    """As if this were the Pumasi of tomorrow."""
    schema_module.MIGRATIONS.append(statements)
    try:
        yield
    finally:
        schema_module.MIGRATIONS.pop()


def test_an_older_store_goes_through_the_steps_that_it_lacks(home: Path) -> None:
    with one_more_step(*NEXT_STEP):
        check_version_1_is_all_there(Store.open(old_home(home, VERSION_1)))
        assert version(home) == len(schema_module.MIGRATIONS)
        check_version_1_is_all_there(Store.open(home))
    assert sqlite3.connect(home / "pumasi.db").execute("SELECT note FROM runs").fetchall() == [("none",)]


def test_a_migration_that_fails_leaves_the_store_as_it_was(home: Path) -> None:
    old_home(home, VERSION_1)
    with one_more_step(*NEXT_STEP, "CREATE TABLE extra (x)"), pytest.raises(sqlite3.OperationalError, match="exists"):
        Store.open(home)
    assert version(home) == 1
    check_version_1_is_all_there(Store.open(home))


def test_many_processes_may_migrate_the_same_store_at_once(home: Path) -> None:
    code = """
from pumasi.store import schema
schema.MIGRATIONS.append(("ALTER TABLE runs ADD COLUMN note TEXT", "CREATE TABLE extra (x)"))
ready()
print(Store.open(Path(sys.argv[1])).find("imdb").id)
"""
    old_home(home, VERSION_1)
    assert go(*(start(code, home) for _ in range(8))) == [b"imdb-x7k2p\n"] * 8
    assert version(home) == len(schema_module.MIGRATIONS) + 1


def test_a_store_of_a_newer_pumasi_is_left_alone(home: Path) -> None:
    old_home(home, "CREATE TABLE runs (something TEXT); PRAGMA user_version = 99;")
    content = (home / "pumasi.db").read_bytes()
    with pytest.raises(StoreTooNew, match=rf"version 99, this Pumasi knows {len(schema_module.MIGRATIONS)}") as newer:
        Store.open(home)
    assert "Upgrade" in newer.value.hint
    assert "PUMASI_HOME" in newer.value.hint
    assert (home / "pumasi.db").read_bytes() == content
