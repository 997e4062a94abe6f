"""The journal that is kept in the cluster: complete, in order, small enough, and written by one manager at a time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from pumasi.core.flows import journal as entries
from pumasi.core.flows.journal import Entry
from pumasi.core.outcome import Outcome, Verdict, outcome_from
from pumasi.errors import RunBusy, Unreachable
from pumasi.pools.kubernetes import journal as journals
from pumasi.pools.kubernetes.journal import Journal
from pumasi.pools.kubernetes.manifests import KIND, RUN, Owner
from pumasi.pools.kubernetes.record import Record
from tests.fake_cluster import NAMESPACE, FakeApi
from tests.serving import asynchronous, until

RUN_ID = "train-abcde"
OWNER = Owner("ConfigMap", RUN_ID, "owner")
LIMIT = 1 << 20
"""Of what a cluster takes for one object."""


def journal(api: FakeApi, manager: str = "here/1") -> Journal:
    return Journal(api, NAMESPACE, RUN_ID, manager, lambda: OWNER)


def told(number: int, tail: str = "") -> list[Entry]:
    failed = Outcome(Verdict.FAILED, f"Rank 0 failed {tail}.", "Look.", rank=0, tail=(tail,), metrics={"loss": number})
    fields = {"attempt": number % 3, "first": number, "ranks": 1, "outcome": failed.told()}
    return [entries.offered(f"t-{number}"), entries.ended(f"t-{number}", fields)]


def outcomes(kept: list[Entry]) -> list[tuple[str, int, Verdict, float]]:
    found = [(entry, outcome_from(entry["outcome"])) for entry in kept if "ended" in entry]
    return [(entry["ended"], entry["attempt"], out.verdict, out.metrics["loss"]) for entry, out in found]


def writes(api: FakeApi) -> Counter[str]:
    return Counter(
        change for kind, change, thing in api.cluster.history if thing["metadata"]["name"].startswith(f"{RUN_ID}-j")
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "RAW", 2_000)
    monkeypatch.setattr(journals, "DETAILED", 2)


@asynchronous
async def test_what_was_added_is_read_back_in_its_order() -> None:
    api = FakeApi()
    kept = journal(api)
    for number in range(3):
        for entry in told(number):
            kept.add(entry)
        await kept.flush()
    assert await journal(api).read() == [entry for number in range(3) for entry in told(number)]
    (thing,) = [api.cluster.find("configmaps", name) for name in api.cluster.names("configmaps")]
    assert thing["metadata"]["labels"][RUN] == RUN_ID
    assert thing["metadata"]["labels"][KIND] == "journal"
    assert thing["metadata"]["ownerReferences"] == [OWNER.reference]


@asynchronous
async def test_many_tasks_are_few_writes_of_objects_below_the_limit() -> None:
    api = FakeApi()
    kept = journal(api)
    for number in range(20_000):
        for entry in told(number):
            kept.add(entry)
        if number % 500 == 0:
            await kept.flush()
            await kept.compact()
    await kept.flush()
    for _ in range(50):
        await kept.compact()
    things = [api.cluster.find("configmaps", name) for name in api.cluster.names("configmaps")]
    assert max(len(json.dumps(thing)) for thing in things) < LIMIT * 0.7
    assert len(things) < 2 * journals.DETAILED
    assert sum(writes(api).values()) < 300
    read = await journal(api).read()
    assert outcomes(read) == [(f"t-{number}", number % 3, Verdict.FAILED, number) for number in range(20_000)]
    assert [entry["offered"] for entry in read if "offered" in entry] == [f"t-{number}" for number in range(20_000)]


@asynchronous
async def test_of_the_oldest_the_details_go_and_the_outcome_stays(small: None) -> None:
    api = FakeApi()
    kept = journal(api)
    for number in range(60):
        for entry in told(number, "x" * 50):
            kept.add(entry)
        await kept.flush()
        await kept.compact()
    read = await journal(api).read()
    assert outcomes(read) == [(f"t-{number}", number % 3, Verdict.FAILED, number) for number in range(60)]
    tails = [outcome_from(entry["outcome"]).tail for entry in read if "ended" in entry]
    assert (tails[0], tails[-1]) == ((), ("x" * 50,))


@asynchronous
async def test_a_failure_in_the_middle_of_compacting_loses_and_doubles_nothing(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApi()
    kept = journal(api)

    async def fail(*_: Any, **__: Any) -> bool:
        raise Unreachable("The cluster can't be reached.")

    for number in range(40):
        for entry in told(number, "x" * 50):
            kept.add(entry)
        await kept.flush()
        with monkeypatch.context() as broken:
            broken.setattr(api, "delete", fail)
            try:
                await kept.compact()
            except Unreachable:
                assert len(outcomes(await journal(api).read())) == number + 1
    assert outcomes(await journal(api).read()) == [
        (f"t-{number}", number % 3, Verdict.FAILED, number) for number in range(40)
    ]


@asynchronous
async def test_what_could_not_be_written_is_written_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    kept = journal(api)
    kept.add(entries.offered("a"))
    await kept.flush()

    async def fail(*_: Any) -> Any:
        raise Unreachable("The cluster can't be reached.")

    with monkeypatch.context() as broken:
        broken.setattr(api, "patch", fail)
        kept.add(entries.offered("b"))
        with pytest.raises(Unreachable):
            await kept.flush()
    kept.add(entries.offered("c"))
    await kept.flush()
    assert [entry["offered"] for entry in await journal(api).read()] == ["a", "b", "c"]


@pytest.mark.parametrize("verb", ["create", "patch"])
@asynchronous
async def test_an_answer_that_was_lost_is_no_other_manager(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    kept = journal(api)
    if verb == "patch":
        kept.add(entries.offered("before"))
        await kept.flush()
    really = getattr(api, verb)

    async def lose(*words: Any) -> Any:
        await really(*words)
        raise Unreachable("The answer was lost.")

    with monkeypatch.context() as broken:
        broken.setattr(api, verb, lose)
        kept.add(entries.offered("a"))
        with pytest.raises(Unreachable):
            await kept.flush()
    kept.add(entries.offered("b"))
    await kept.flush()
    assert [entry["offered"] for entry in await journal(api).read()][-2:] == ["a", "b"]


@pytest.mark.parametrize("written", [0, 1, 30])
@asynchronous
async def test_who_was_replaced_can_add_nothing_any_more(written: int, small: None) -> None:
    api = FakeApi()
    old, new = journal(api), journal(api, "there/2")
    for number in range(written):
        old.add(entries.offered(f"t-{number}"))
    await old.flush()
    found = await new.take_over()
    assert [entry["offered"] for entry in found] == [f"t-{number}" for number in range(written)]
    old.add(entries.offered("late"))
    with pytest.raises(RunBusy):
        await old.flush()
    new.add(entries.offered("next"))
    await new.flush()
    assert [entry["offered"] for entry in await journal(api).read()] == [
        *(f"t-{number}" for number in range(written)),
        "next",
    ]


@asynchronous
async def test_what_the_one_before_writes_while_it_is_replaced_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    old, new = journal(api), journal(api, "there/2")
    old.add(entries.offered("a"))
    await old.flush()
    really, calls = api.list, [0]

    async def listed(*words: Any, **query: Any) -> Any:
        found = await really(*words, **query)
        calls[0] += 1
        if calls[0] == 1:
            old.add(entries.offered("b"))
            await old.flush()
        return found

    monkeypatch.setattr(api, "list", listed)
    assert [entry["offered"] for entry in await new.take_over()] == ["a", "b"]


@asynchronous
async def test_a_record_writes_the_journal_before_it_forgets_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a manager dies, each task is on its way or in the journal."""
    api = FakeApi()
    record = Record(api, NAMESPACE, RUN_ID, "here/1")
    await record.create({"spec": {}}, {"state": "running", "created": 1.0}, 600.0)
    tasks: dict[str, Any] = {"t-0": {"state": "running"}}
    record.update({"tasks": tasks})
    record.attend()
    try:
        await until(lambda: "t-0" in _state(api).get("tasks", {}))
        del tasks["t-0"]
        record.journal(told(0)[1])
        record.update({"tasks": tasks})
        await until(lambda: "t-0" not in _state(api)["tasks"])
    finally:
        await record.leave()
    order = [
        name
        for kind, _, thing in api.cluster.history
        if kind == "configmaps" and (name := thing["metadata"]["name"]) and _tells(name, thing)
    ]
    assert order[0] == f"{RUN_ID}-journal-0"


def _tells(name: str, thing: Any) -> bool:
    """Whether it is what has the task's end, or no longer the task."""
    if name != RUN_ID:
        return True
    return bool(json.loads(thing["data"]["state.json"]).get("tasks") == {})


def _state(api: FakeApi) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(api.cluster.find("configmaps", RUN_ID)["data"]["state.json"])
    return state


@asynchronous
async def test_a_record_that_changes_all_the_time_is_not_written_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    record = Record(api, NAMESPACE, RUN_ID, "here/1")
    pauses = [record._pause() for _ in range(60)]
    assert pauses[:15] == [0.0] * 15
    assert sum(pauses[30:]) > 0
    assert pauses[-1] > 1.0
