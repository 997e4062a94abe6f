"""A manager dies, wherever it is, and another goes on: every task is started once, ends once, and counts once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pumasi import registry
from pumasi.core.flows import MAIN, Flow, FlowType, Task
from pumasi.core.flows.journal import is_history
from pumasi.core.launch import Program
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.spec import Spec
from pumasi.errors import SystemTrouble
from pumasi.pools.base import Found, FoundTask, found_task, kept_task
from pumasi.runs.adoption import left_behind
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import RunRecord, Store
from pumasi.testing.memory import MemoryPool, World
from tests.serving import asynchronous

SLOTS = 3
PROGRAM = Program(command=("train",), framework="none", because="", files={})


class Search(Flow):
    """Tasks whose names depend on what has ended before, in which order: who goes on has to repeat it exactly. One
    that tells a loss of 9 is ended early."""

    title = "a search"

    def __init__(self, count: int) -> None:
        self.count = count
        self.given = 0
        self.heard: list[str] = []
        self.outcomes: dict[str, Outcome] = {}

    def next(self) -> Task | None:
        if self.given == self.count:
            return None
        self.given += 1
        return Task(f"t{self.given}-{len(self.heard)}-{sum(map(len, self.heard)) % 7}", slots=1)

    def measured(self, name: str, values: Mapping[str, float]) -> str:
        return "It leads nowhere." if values.get("loss") == 9 else ""

    def ended(self, name: str, outcome: Outcome) -> None:
        self.heard.append(name)
        self.outcomes[name] = outcome

    def outcome(self) -> Outcome | None:
        return Outcome(Verdict.DONE) if len(self.heard) == self.count else None


class Redone(Search):
    """Its first task is done once more after a break."""

    def next(self) -> Task | None:
        if self.given and not self.heard:
            return None
        return super().next()

    def resumed(self) -> Iterable[Task]:
        if self.heard:
            yield Task(self.heard[0], slots=1)


class SearchType(FlowType):
    name, summary = "search", "a search"

    def __init__(self, kind: type[Search], count: int) -> None:
        self.kind, self.count = kind, count

    def open(self, spec: Spec, folder: str) -> Flow:
        return self.kind(self.count)


FLOW: FlowType = SearchType(Search, 1)


class Killed(BaseException):
    """The process is gone: nothing of it goes on."""


class Mortal(Store):
    """Writes so many times, and then never again."""

    left = 10**9

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def add_to_journal(self, *words: Any) -> None:
        self._live()
        super().add_to_journal(*words)
        self._live()

    def add_event(self, *words: Any) -> None:
        self._live()
        super().add_event(*words)


class Place:
    """A run in a pool that outlives its managers."""

    def __init__(self, home: Path, kind: type[Search] = Search, count: int = 1) -> None:
        global FLOW
        FLOW = SearchType(kind, count)
        self.home = home
        self.world = World()
        self.spec = Spec(command=("train",), strategy="search", slots=SLOTS)
        self.store = Mortal(home)
        self.record = self.store.create_run("train", self.spec.dump(), 1000.0)

    def manager(self, found: Found | None = None) -> Manager:
        self.pool = MemoryPool(SLOTS, self.world)
        self.pool.found = found
        recorder = Recorder(self.store, self.record.id, Unwatched())
        return Manager(self.record.id, str(self.home), self.spec, PROGRAM, self.pool, recorder)

    def left(self) -> Found:
        """What a manager that comes after finds, where gangs go on by themselves."""
        kept = {name: found_task(task) for name, task in self.store.tasks(self.record.id).items()}
        live = {name: task for name, task in kept.items() if task.state != "ended"}
        history = [entry for entry in self.store.journal(self.record.id) if is_history(entry)]
        return Found(1000.0, None, live, history)

    async def live(self, manager: Manager, writes: int, turns: int) -> bool:
        """Until it is done, or dies at that write, or after so many turns of the loop; False: it died."""
        self.store.left = writes
        task = asyncio.ensure_future(manager.run())
        for _ in range(turns):
            if task.done():
                break
            await asyncio.sleep(0)
        self.store.left = self.store.left if task.done() else 0
        task.cancel()
        died = (Killed, asyncio.CancelledError)
        with contextlib.suppress(*died):
            await task
            return True
        return False


@pytest.fixture(autouse=True)
def _search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._FLOWS, "search", f"{__name__}:FLOW")
    monkeypatch.setattr(MemoryPool, "close", MemoryPool.let_go)  # A process that dies ends nothing elsewhere.


@pytest.mark.parametrize("seed", range(8))
@asynchronous
async def test_wherever_managers_die_every_task_is_started_and_counted_once(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    place = Place(tmp_path, count=30)
    found, managers = None, 0
    while True:
        managers += 1
        assert managers < 200
        manager = place.manager(found)
        writes, turns = (dice.randint(1, 60), 10**6) if dice.random() < 0.7 else (10**9, dice.randint(1, 40))
        if await place.live(manager, writes, turns):
            break
        place.store.left = 10**9
        found = place.left()
    assert managers > 1
    flow = manager._flow
    assert isinstance(flow, Search)
    assert Counter(flow.heard) == Counter(place.world.starts) == Counter(set(flow.heard))
    assert len(flow.heard) == 30
    assert {outcome.verdict for outcome in flow.outcomes.values()} == {Verdict.DONE}
    assert place.store.run(place.record.id).state == "done"
    place.store.close()


@asynchronous
async def test_a_manager_remembers_nothing_of_tasks_that_have_ended(tmp_path: Path) -> None:
    place = Place(tmp_path, count=50)
    place.world.output = {f"t{number}-0-0": ["loss: 1.5"] for number in range(60)}
    manager = place.manager()
    assert (await manager.run()).verdict is Verdict.DONE
    known = manager._lives.by_name, manager._lives.speakers, manager._recorder.last, manager._recorder._tasks
    assert known == ({}, {}, {}, {})
    place.store.close()


@asynchronous
async def test_a_task_that_its_flow_has_enough_of_is_ended_and_counts_as_stopped(tmp_path: Path) -> None:
    place = Place(tmp_path, count=4)
    place.world.holds = True
    place.world.output = {"t2-0-0": ["loss: 9"], "t1-0-0": ["loss: 3"]}
    manager = place.manager()
    running = asyncio.ensure_future(manager.run())
    while not running.done():
        for key in [key for key in place.world.alive if key[0] != "t2-0-0"]:
            place.world.finish(key)
        place.pool.look()
        await asyncio.sleep(0)
    flow = manager._flow
    assert isinstance(flow, Search)
    stopped = flow.outcomes.pop("t2-0-0")
    assert (stopped.verdict, stopped.reason) == (Verdict.STOPPED, "It leads nowhere.")
    assert stopped.metrics == {"loss": 9}
    assert {outcome.verdict for outcome in flow.outcomes.values()} == {Verdict.DONE}
    assert place.world.starts["t2-0-0"] == 1
    place.store.close()


@asynchronous
async def test_after_a_break_what_had_not_ended_waits_for_what_is_done_once_more(tmp_path: Path) -> None:
    place = Place(tmp_path, Redone, count=6)
    assert not await place.live(place.manager(), 10**9, 14)
    place.store.left = 10**9
    found = left_behind(place.store, place.record)
    assert found is not None
    assert found.broken
    place.world = World()
    manager = place.manager(found)
    assert (await manager.run()).verdict is Verdict.DONE
    first, *others = place.world.starts
    assert first.startswith("t1-")
    assert others
    assert set(place.world.starts.values()) == {1}
    place.store.close()


def kept_without_journal(place: Place, tasks: Mapping[str, FoundTask]) -> None:
    """As the version before this one did."""
    with place.store._db.transaction() as db:
        number = place.store._number(place.record.id)
        rows = [(number, name, json.dumps(kept_task(task))) for name, task in tasks.items()]
        db.executemany("INSERT INTO tasks (run, name, fields) VALUES (?, ?, ?)", rows)


class Fan(Search):
    """Names that do not depend on anything, as the flows of earlier versions had them."""

    def next(self) -> Task | None:
        self.given += self.given < self.count
        return Task(f"part-{self.given}", slots=1) if self.given <= self.count and self._is_new() else None

    def _is_new(self) -> bool:
        before, self.last = getattr(self, "last", 0), self.given
        return before != self.given


@asynchronous
async def test_a_run_that_a_version_without_a_journal_has_begun_goes_on(tmp_path: Path) -> None:
    place = Place(tmp_path, Fan, count=5)
    done = FoundTask("ended", 0, 0, {"memory": 1}, 0, 1, Outcome(Verdict.DONE))
    failed = done._replace(outcome=Outcome(Verdict.FAILED, "It failed."), first=1)
    kept_without_journal(
        place, {"part-2": failed, "part-1": done, "part-3": FoundTask("running", 0, 0, {"memory": 1}, 2, 1)}
    )
    found = left_behind(place.store, place.record)
    manager = place.manager(found)
    assert (await manager.run()).verdict is Verdict.DONE
    assert place.world.starts == Counter({"part-3": 1, "part-4": 1, "part-5": 1})
    flow = manager._flow
    assert isinstance(flow, Fan)
    assert flow.outcomes["part-2"].reason == "It failed."
    assert sorted(entry["ended"] for entry in place.store.journal(place.record.id) if "ended" in entry) == [
        f"part-{number}" for number in range(1, 6)
    ]
    place.store.close()


@asynchronous
async def test_a_journal_that_does_not_fit_the_flow_ends_in_a_sentence_and_starts_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, count=3)
    manager = place.manager(Found(1000.0, None, {}, [{"v": 1, "offered": "other"}]))
    with pytest.raises(SystemTrouble, match="has the task other where its flow has t1-0-0"):
        await manager.run()
    assert not place.world.starts
    place.store.close()


@asynchronous
async def test_a_run_of_one_task_has_no_journal(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.spec = Spec(command=("train",))
    assert (await place.manager().run()).verdict is Verdict.DONE
    assert place.world.starts == Counter({MAIN: 1})
    assert place.store.journal(place.record.id) == []
    record: RunRecord = place.store.run(place.record.id)
    assert record.placement == {"memory": 1}
    place.store.close()
