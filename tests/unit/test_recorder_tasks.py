"""What is kept of the tasks of a run when one manager follows the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumasi.core.events import Event
from pumasi.core.outcome import Outcome, Verdict
from pumasi.pools.base import FoundTask, found_task, kept_task
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store

DONE = FoundTask("ended", 1, 1, {"node-0": 1}, 3, 1, Outcome(Verdict.DONE, metrics={"accuracy": 0.9}))
RUNNING = FoundTask("running", 0, 0, {"node-1": 1}, 4, 1)


class Copy:
    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def update(self, fields: Mapping[str, Any]) -> None:
        self.fields.update(fields)

    def event(self, at: float, event: Event) -> None: ...

    def frames(self, attempt: int, chunk: bytes) -> None: ...


def test_what_is_kept_of_a_task_is_found_again() -> None:
    assert [found_task(kept_task(task)) for task in (DONE, RUNNING)] == [DONE, RUNNING]


def test_a_manager_that_takes_over_keeps_what_it_found(tmp_path: Path) -> None:
    """In a store that has nothing of it yet."""
    store = Store.open(tmp_path)
    store.import_run("train-abcde", {}, 1000.0)
    recorder = Recorder(store, "train-abcde", Unwatched())
    recorder.copy = copy = Copy()
    recorder.take_over({"train-1-0": kept_task(DONE), "train-1-1": kept_task(RUNNING)})
    recorder.task(1.0, "train-1-1", state="ended")
    kept = {name: found_task(task) for name, task in copy.fields["tasks"].items()}
    assert kept == {"train-1-0": DONE, "train-1-1": RUNNING._replace(state="ended")}
    store.close()
