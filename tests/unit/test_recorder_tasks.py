"""What is kept of the tasks of a run when one manager follows the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pumasi.core.events import Event
from pumasi.core.flows import journal
from pumasi.core.outcome import Outcome, Verdict
from pumasi.errors import SystemTrouble
from pumasi.pools.base import FoundTask, found_task, kept_task
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store

DONE = FoundTask("ended", 1, 1, {"node-0": 1}, 3, 1, Outcome(Verdict.DONE, metrics={"accuracy": 0.9}))
RUNNING = FoundTask("running", 0, 0, {"node-1": 1}, 4, 1)


class Copy:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.entries: list[dict[str, Any]] = []

    def update(self, fields: Mapping[str, Any]) -> None:
        self.fields.update(fields)

    def event(self, at: float, event: Event) -> None: ...

    def journal(self, entry: dict[str, Any]) -> None:
        self.entries.append(entry)

    def frames(self, attempt: int, chunk: bytes) -> None: ...


def test_what_is_kept_of_a_task_is_found_again() -> None:
    assert [found_task(kept_task(task)) for task in (DONE, RUNNING)] == [DONE, RUNNING]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """One that has nothing yet of a run that goes on elsewhere."""
    store = Store.open(tmp_path)
    store.import_run("train-abcde", {}, 1000.0)
    yield store
    store.close()


@pytest.fixture
def recorder(store: Store) -> Recorder:
    recorder = Recorder(store, "train-abcde", Unwatched())
    recorder.copy = Copy()
    return recorder


def kept(recorder: Recorder) -> dict[str, FoundTask]:
    assert isinstance(recorder.copy, Copy)
    return {name: found_task(task) for name, task in recorder.copy.fields["tasks"].items()}


def test_a_manager_that_takes_over_keeps_what_it_found(recorder: Recorder) -> None:
    recorder.take_over({"train-1-0": kept_task(RUNNING), "train-1-1": kept_task(RUNNING)})
    recorder.task(1.0, "train-1-1", state="ending")
    assert kept(recorder) == {"train-1-0": RUNNING, "train-1-1": RUNNING._replace(state="ending")}


def test_a_task_that_has_ended_is_in_the_journal_and_nowhere_else(store: Store, recorder: Recorder) -> None:
    assert DONE.outcome is not None
    recorder.offered(1.0, "train-1-0")
    recorder.task(1.0, "train-1-0", state="running", placement={"node-0": 1}, first=3, ranks=1)
    recorder.last[3] = {"accuracy": 0.9}
    recorder.end_task(2.0, "train-1-0", attempt=1, restarts=1, outcome=DONE.outcome.told())
    assert (kept(recorder), recorder.last) == ({}, {})
    assert isinstance(recorder.copy, Copy)
    offered, ended = recorder.copy.entries
    assert offered == {"v": 1, "offered": "train-1-0"}
    assert (ended["v"], ended["ended"], ended["first"], ended["ranks"]) == (1, "train-1-0", 3, 1)
    assert found_task(store.tasks("train-abcde")["train-1-0"]) == DONE


def test_what_a_version_without_a_journal_has_kept_is_found(store: Store) -> None:
    with store._db.transaction() as db:
        row = (store._number("train-abcde"), "train-1-0", json.dumps(kept_task(DONE)))
        db.execute("INSERT INTO tasks (run, name, fields) VALUES (?, ?, ?)", row)
    assert {name: found_task(task) for name, task in store.tasks("train-abcde").items()} == {"train-1-0": DONE}


def test_entries_that_could_not_be_written_are_written_with_the_next_in_their_order(
    store: Store, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SystemTrouble("The disk is full.")

    with monkeypatch.context() as full:
        full.setattr(store, "add_to_journal", fail)
        recorder.offered(1.0, "a")
        recorder.offered(1.0, "b")
    recorder.offered(1.0, "c")
    assert [entry["offered"] for entry in store.journal("train-abcde")] == ["a", "b", "c"]


def test_entries_and_fields_of_a_later_version_are_passed_over() -> None:
    later = [{"v": 2, "paused": "a"}, {"v": 2, "offered": "a", "why": "new"}, {"v": 2, "ended": "a", "new": 1}]
    assert journal.tasks(later) == {"a": {"state": "ended", "attempt": 0, "new": 1}}
