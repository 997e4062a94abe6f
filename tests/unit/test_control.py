"""What other processes do to a run, in the moments in which its manager comes, goes or is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pumasi.catalogue import make_spec
from pumasi.core.events import kind_of
from pumasi.core.flows import journal
from pumasi.errors import SystemTrouble
from pumasi.runs import control, session
from pumasi.store import RunRecord, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "home")


def new_run(store: Store, age: float = 0.0) -> RunRecord:
    return store.create_run("train", {"command": ["train.py"]}, time.time() - age)


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """It happens when somebody waits."""
    monkeypatch.setattr("pumasi.runs.control.time.sleep", lambda _: happens())


def say_nothing(text: str) -> None:
    pass


def test_a_run_whose_manager_is_about_to_go_can_be_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record = new_run(store)
    lock = store.lock(record.id)
    store.update_run(record.id, state="done", ended=time.time(), exit_code=0)
    meanwhile(monkeypatch, lock.release)
    control.delete(store, store.run(record.id), force=False, tell=say_nothing)
    assert store.runs() == []


def test_a_stop_waits_for_a_manager_that_is_about_to_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record = new_run(store)
    end = {"state": "done", "ended": time.time(), "exit_code": 0}
    meanwhile(monkeypatch, lambda: store.update_run(record.id, **end))
    assert control.stop(store, record, force=False, tell=say_nothing).state == "done"


def test_a_run_whose_end_cannot_be_written_down_hides_no_other_and_can_be_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, other = new_run(store, age=1000), new_run(store)

    def find_no_room(*_: object) -> None:
        raise SystemTrouble("The disk is full.")

    monkeypatch.setattr(store, "add_event", find_no_room)
    assert control.find(store, None).id == other.id
    with pytest.raises(SystemTrouble, match="full"):
        control.wait(store, orphan.id)
    control.delete(store, control.find(store, orphan.id), force=False, tell=say_nothing)
    assert [record.id for record in store.runs()] == [other.id]


def test_who_sees_that_a_run_has_ended_finds_out_how(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = new_run(store, age=1000)
    update, seen = store.update_run, list[str]()

    def watch(run_id: str, **fields: object) -> None:
        seen.extend(kind_of(row.event) for row in store.events(run_id))
        update(run_id, **fields)

    monkeypatch.setattr(store, "update_run", watch)
    assert control.wait(store, orphan.id, timeout=0.0).state == "lost"
    assert seen == ["finished"]


def test_the_same_command_goes_on_with_a_run_of_ones_own_only(store: Store) -> None:
    spec = make_spec(command=("train.py",), strategy="average", slots=2)
    store.import_run("theirs-aaaaa", spec.dump(), time.time())
    store.add_to_journal("theirs-aaaaa", [journal.offered("train-0")])
    assert session.interrupted(store, spec) is None
    own = store.create_run("own", spec.dump(), time.time())
    store.add_to_journal(own.id, [journal.offered("train-0")])
    assert session.interrupted(store, spec) == store.run(own.id)
