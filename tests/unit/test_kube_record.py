"""A run's record in the cluster: who may write it, what others hear of it, and how it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from pumasi.core.events import Finished, Note, Starting, pack
from pumasi.errors import NotThere, PumasiError, RunBusy
from pumasi.pools.kubernetes import record as records
from pumasi.pools.kubernetes.kept_output import Archive
from pumasi.pools.kubernetes.kept_output import read as read_archive
from pumasi.pools.kubernetes.manifests import DOMAIN, KIND, RUN, WAITING
from pumasi.pools.kubernetes.record import (
    MOST_BYTES,
    MOST_EVENTS,
    PLACEMENT,
    STALE,
    WISH,
    Content,
    Record,
    Row,
    list_rows,
    path_of,
    read,
)
from tests.fake_cluster import NAMESPACE, Cluster, FakeApi, Object
from tests.serving import asynchronous, until

RUN_ID = "train-abcde"
ASKED = {"spec": {"command": ["train.py"]}, "program": {"framework": "torch"}, "code": {"boot": "train-abcde-code"}}
FIELDS = {"state": "queued", "created": 1000.5, "framework": "torch", "slots": 6, "command": "train.py"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "BEAT", 0.02)


class Manager:
    """A record, and what came through it."""

    def __init__(self, api: FakeApi, name: str = "here/1") -> None:
        self.api = api
        self.record = Record(api, NAMESPACE, RUN_ID, name)
        self.reasons: list[PumasiError] = []
        self.wishes: list[bool] = []
        self.wishers: list[str] = []
        self.record.dismissed = self.reasons.append
        self.record.stop = self._wish

    def _wish(self, force: bool, by: str) -> None:
        self.wishes.append(force)
        self.wishers.append(by)

    async def create(self, deadline: float = 600.0) -> Record:
        await self.record.create(ASKED, FIELDS, deadline)
        return self.record

    @asynccontextmanager
    async def attending(self) -> AsyncIterator[Record]:
        self.record.attend()
        try:
            yield self.record
        finally:
            await self.record.leave()


def the_record(cluster: Cluster) -> Object:
    return cluster.find("configmaps", RUN_ID)


def content(cluster: Cluster) -> Content:
    return read(the_record(cluster))


def notes(cluster: Cluster) -> dict[str, str]:
    annotations: dict[str, str] = the_record(cluster)["metadata"]["annotations"]
    return annotations


def anchor(cluster: Cluster) -> dict[str, Any]:
    spec: dict[str, Any] = cluster.find("jobs", RUN_ID)["spec"]
    return spec


def annotate(cluster: Cluster, **words: str) -> None:
    """As somebody with kubectl would."""
    cluster.change(
        "configmaps", RUN_ID, {"metadata": {"annotations": {DOMAIN + key: text for key, text in words.items()}}}
    )


def states(cluster: Cluster) -> list[str]:
    """The states that the record went through."""
    told = [
        json.loads(thing["data"]["state.json"])["state"]
        for kind, change, thing in cluster.history
        if kind == "configmaps" and change != "DELETED" and thing["metadata"]["name"] == RUN_ID
    ]
    return [state for place, state in enumerate(told) if place == 0 or told[place - 1] != state]


# ---- making and taking it


@asynchronous
async def test_a_new_record_is_owned_by_its_anchor_and_says_what_was_asked_for() -> None:
    api = FakeApi()
    record = await Manager(api).create(deadline=615.9)
    job = api.cluster.find("jobs", RUN_ID)
    assert job["spec"]["activeDeadlineSeconds"] == 615
    assert job["spec"]["ttlSecondsAfterFinished"] == 0
    made = the_record(api.cluster)
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])
    assert record.owner.uid == made["metadata"]["uid"]
    said = read(made)
    assert (said.run, said.namespace, said.manager) == (RUN_ID, NAMESPACE, "here/1")
    assert (said.spec, said.program, said.code) == (ASKED["spec"], ASKED["program"], ASKED["code"])
    assert said.state == FIELDS
    assert (said.events, said.stop) == ([], "")
    assert abs(said.beat - api.now) < STALE


@asynchronous
async def test_an_id_that_the_cluster_has_already_is_refused_and_the_other_run_left_alone() -> None:
    api = FakeApi()
    await Manager(api).create()
    before = the_record(api.cluster)
    second = Manager(api, "there/2")
    with pytest.raises(RunBusy, match="has a run train-abcde already"):
        await second.create()
    await second.record.remove()
    assert the_record(api.cluster) == before


@asynchronous
async def test_who_claims_it_finds_what_was_left_and_is_its_manager() -> None:
    cluster = Cluster()
    first = await Manager(FakeApi(cluster)).create()
    first.event(7.0, Starting(attempt=0))
    first.update({"state": "running", "attempt": 2})
    await first._write()
    second = Manager(FakeApi(cluster), "there/2")
    left = await second.record.claim()
    assert left.state["state"] == "running"
    assert left.events == [(7.0, Starting(attempt=0))]
    assert left.manager == "here/1"
    assert content(cluster).manager == "there/2"
    assert content(cluster).state == left.state
    assert content(cluster).events == left.events
    assert second.record.owner == first.owner


@asynchronous
async def test_a_record_that_is_not_there_can_not_be_claimed() -> None:
    with pytest.raises(NotThere):
        await Manager(FakeApi()).record.claim()


@asynchronous
async def test_a_claim_outlasts_what_others_write_meanwhile() -> None:
    cluster = Cluster()
    first = await Manager(FakeApi(cluster)).create()
    api = FakeApi(cluster)
    second = Manager(api, "there/2")
    written = iter(("a stop wish", "a last word of the old manager"))

    def meddle(verb: str, path: str) -> None:
        if verb == "patch" and (what := next(written, None)):
            if "stop" in what:
                annotate(cluster, stop="soon")
            else:
                cluster.change(
                    "configmaps", RUN_ID, {"data": {"state.json": json.dumps({**FIELDS, "state": "running"})}}
                )

    api.before = meddle
    left = await second.record.claim()
    assert left.state["state"] == "running"
    assert content(cluster).state["state"] == "running"
    assert content(cluster).manager == "there/2"
    assert content(cluster).stop == "soon"
    with pytest.raises(RunBusy):
        await first._write()


@asynchronous
async def test_of_two_that_claim_it_at_once_one_gets_it() -> None:
    cluster = Cluster()
    await Manager(FakeApi(cluster)).create()
    api = FakeApi(cluster)
    rival = Manager(FakeApi(cluster), "rival/3").record
    rival._version = the_record(cluster)["metadata"]["resourceVersion"]
    rival._fields = dict(FIELDS)

    def overtake(verb: str, path: str) -> None:
        if verb == "patch":
            api.before = lambda verb, path: None
            annotate(cluster, manager="rival/3")

    api.before = overtake
    with pytest.raises(RunBusy, match="taken over"):
        await Manager(api, "there/2").record.claim()
    assert content(cluster).manager == "rival/3"


# ---- who may write


@asynchronous
async def test_a_manager_that_was_replaced_steps_down_and_writes_nothing_over_the_other() -> None:
    cluster = Cluster()
    old, new = Manager(FakeApi(cluster)), Manager(FakeApi(cluster), "there/2")
    await old.create()
    async with old.attending() as record:
        await new.record.claim()
        new.record.update({"state": "running"})
        await new.record._write()
        before = the_record(cluster)
        record.update({"state": "failed"})
        record.event(1.0, Finished())
        await until(lambda: old.reasons)
    (reason,) = old.reasons
    assert isinstance(reason, RunBusy)
    assert "taken over" in reason.message
    assert the_record(cluster) == before


@asynchronous
async def test_a_manager_that_was_replaced_does_not_end_the_run_of_the_other() -> None:
    cluster = Cluster()
    old, new = Manager(FakeApi(cluster)), Manager(FakeApi(cluster), "there/2")
    await old.create()
    await new.record.claim()
    before = the_record(cluster)
    old.record.update({"state": "done", "ended": 5.0})
    await old.record.finish(60)
    assert the_record(cluster) == before
    assert anchor(cluster)["completions"] == 1


@asynchronous
async def test_what_somebody_else_notes_on_it_is_kept_and_dismisses_nobody() -> None:
    cluster = Cluster()
    manager = Manager(FakeApi(cluster))
    await manager.create()
    async with manager.attending() as record:
        annotate(cluster, remark="mine")
        record.update({"state": "running"})
        await until(lambda: content(cluster).state["state"] == "running")
        annotate(cluster, remark="mine too")
        record.update({"state": "ending"})
        await until(lambda: content(cluster).state["state"] == "ending")
    assert notes(cluster)[DOMAIN + "remark"] == "mine too"
    assert manager.reasons == []


@asynchronous
async def test_a_write_whose_answer_was_lost_is_no_rival() -> None:
    cluster = Cluster()
    api = FakeApi(cluster)
    manager = Manager(api)
    await manager.create()
    async with manager.attending() as record:
        api.losing = {"patch"}
        record.update({"state": "running"})
        await until(lambda: content(cluster).state["state"] == "running" and not api.losing)
        record.update({"state": "ending"})
        await until(lambda: content(cluster).state["state"] == "ending")
    assert manager.reasons == []


# ---- what is heard


@pytest.mark.parametrize(("word", "force"), [("soon", False), ("now", True)])
@asynchronous
async def test_a_wish_to_stop_is_heard_once(word: str, force: bool) -> None:
    cluster = Cluster()
    manager = Manager(FakeApi(cluster))
    await manager.create()
    async with manager.attending() as record:
        annotate(cluster, **{"stop": word, "stopped-by": "lee from desk"})
        await until(lambda: manager.wishes)
        record.update({"state": "ending"})
        await until(lambda: content(cluster).state["state"] == "ending")
        version = content(cluster).version
        await until(lambda: content(cluster).version != version)
    assert (manager.wishes, manager.wishers) == ([force], ["lee from desk"])
    assert content(cluster).stop == word


@asynchronous
async def test_who_is_in_a_greater_hurry_is_heard_as_well() -> None:
    cluster = Cluster()
    manager = Manager(FakeApi(cluster))
    await manager.create()
    async with manager.attending():
        annotate(cluster, stop="soon")
        await until(lambda: manager.wishes)
        annotate(cluster, stop="now")
        await until(lambda: len(manager.wishes) > 1)
    assert manager.wishes == [False, True]


@asynchronous
async def test_a_wish_from_before_its_time_is_heard_by_the_next_manager() -> None:
    cluster = Cluster()
    await Manager(FakeApi(cluster)).create()
    annotate(cluster, stop="soon")
    manager = Manager(FakeApi(cluster), "there/2")
    await manager.record.claim()
    async with manager.attending():
        await until(lambda: manager.wishes)
    assert manager.wishes == [False]


@asynchronous
async def test_that_the_run_was_deleted_is_heard() -> None:
    cluster = Cluster()
    api = FakeApi(cluster)
    manager = Manager(api)
    await manager.create()
    async with manager.attending():
        await FakeApi(cluster).delete(records.anchor_path(NAMESPACE, RUN_ID))
        await until(lambda: manager.reasons)
    assert all(isinstance(reason, NotThere) for reason in manager.reasons)
    assert cluster.names("configmaps") == []


@asynchronous
async def test_beats_go_on_without_any_change() -> None:
    cluster = Cluster()
    manager = Manager(FakeApi(cluster))
    await manager.create()
    cluster.ahead = 1000.0
    async with manager.attending():
        await until(lambda: content(cluster).beat > read(cluster.history[1][2]).beat + 900)
        for _ in range(2):
            version = content(cluster).version
            await until(partial(lambda before: content(cluster).version != before, version))
    assert states(cluster) == ["queued"]


# ---- trouble


@asynchronous
async def test_after_a_while_without_the_cluster_the_latest_state_is_written_and_none_before_it() -> None:
    cluster = Cluster()
    api = FakeApi(cluster)
    manager = Manager(api)
    await manager.create()
    async with manager.attending() as record:
        api.unreachable = True
        for state in ("starting", "running", "ending"):
            asked = api.calls
            record.update({"state": state})
            await until(partial(lambda before: api.calls > before, asked))
        record.event(3.0, Finished(verdict="done"))
        api.unreachable = False
        await until(lambda: content(cluster).state["state"] == "ending")
    assert states(cluster) == ["queued", "ending"]
    assert content(cluster).events == [(3.0, Finished(verdict="done"))]
    assert manager.reasons == []


@asynchronous
async def test_a_manager_that_may_not_write_any_more_is_told() -> None:
    api = FakeApi()
    manager = Manager(api)
    await manager.create()
    async with manager.attending() as record:
        api.forbidden = {("patch", "configmaps")}
        record.update({"state": "running"})
        await until(lambda: manager.reasons)
    assert "is forbidden" in manager.reasons[0].message


# ---- what is kept


@asynchronous
async def test_of_many_events_the_last_are_kept() -> None:
    cluster = Cluster()
    record = await Manager(FakeApi(cluster)).create()
    for number in range(MOST_EVENTS + 5):
        record.event(float(number), Note(text="x"))
    await record._write()
    kept = content(cluster).events
    assert len(kept) == MOST_EVENTS
    assert (kept[0][0], kept[-1][0]) == (5.0, MOST_EVENTS + 4.0)


@asynchronous
async def test_of_long_events_as_many_are_kept_as_a_config_map_can_hold() -> None:
    cluster = Cluster()
    record = await Manager(FakeApi(cluster)).create()
    for number in range(50):
        record.event(float(number), Note(text="x" * 30_000))
    await record._write()
    kept = content(cluster).events
    assert len(json.dumps([(at, *pack(event)) for at, event in kept])) <= MOST_BYTES
    assert [at for at, _ in kept] == [float(number) for number in range(50 - len(kept), 50)]
    assert len(kept) == MOST_BYTES // 30_100


@asynchronous
async def test_output_is_kept_where_there_is_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumasi.pools.kubernetes.kept_output.RAW", 50)
    api = FakeApi()
    manager = Manager(api)
    record = await manager.create()
    record.frames(0, b"0.1 1763240000123|nobody keeps this\n")
    record.archive = Archive(api, NAMESPACE, RUN_ID, record.owner)
    async with manager.attending():
        record.frames(0, b"0.2 1763240000123|" + b"x" * 50 + b"\n")
        await until(lambda: len(api.cluster.names("configmaps")) > 1)
    record.frames(1, b"0.1 1763240000123|short\n")
    await record.finish(60)
    kept = await read_archive(api, NAMESPACE, RUN_ID)
    assert [(attempt, frames[:3]) for attempt, frames in kept] == [(0, b"0.2"), (1, b"0.1")]


# ---- the anchor


@asynchronous
async def test_a_run_that_may_go_on_has_an_anchor_that_lets_it() -> None:
    cluster = Cluster()
    manager = Manager(FakeApi(cluster))
    await manager.create(deadline=10.0)
    cluster.ahead = 100.0
    async with manager.attending() as record:
        record.extend(3600.0, keep=86400.0)
        await until(lambda: anchor(cluster)["activeDeadlineSeconds"] > 10)
    assert 3690 <= anchor(cluster)["activeDeadlineSeconds"] <= 3800
    assert anchor(cluster)["ttlSecondsAfterFinished"] == 86400
    assert anchor(cluster)["completions"] == 1


@asynchronous
async def test_the_anchor_is_left_alone_while_at_least_half_of_the_time_is_left() -> None:
    cluster = Cluster()
    api = FakeApi(cluster)
    manager = Manager(api)
    await manager.create(deadline=1000.0)

    def patches() -> int:
        return api.requests.count(("patch", records.anchor_path(NAMESPACE, RUN_ID)))

    async def beats(count: int) -> None:
        asked = api.calls
        await until(lambda: api.calls >= asked + count)

    async with manager.attending() as record:
        record.update({"state": "running"})
        await until(lambda: not waiting(cluster))
        before = patches()
        record.extend(1000.0)
        await beats(4)
        assert patches() == before
        cluster.ahead = 600.0
        await until(lambda: patches() == before + 1)
        await beats(4)
        assert patches() == before + 1
        assert anchor(cluster)["activeDeadlineSeconds"] >= 1590


@asynchronous
async def test_who_claims_a_run_goes_by_the_clock_of_its_anchor() -> None:
    cluster = Cluster()
    await Manager(FakeApi(cluster)).create(deadline=600.0)
    cluster.ahead = 500.0
    manager = Manager(FakeApi(cluster), "there/2")
    await manager.record.claim()
    async with manager.attending() as record:
        record.extend(600.0)
        await until(lambda: anchor(cluster)["activeDeadlineSeconds"] > 600)
    assert 1090 <= anchor(cluster)["activeDeadlineSeconds"] <= 1200


@asynchronous
async def test_at_the_end_the_last_state_is_there_and_the_anchor_complete() -> None:
    cluster = Cluster()
    manager = Manager(FakeApi(cluster))
    record = await manager.create()
    assert not record.has_ended
    async with manager.attending():
        record.update({"state": "done", "ended": 2000.0, "exit_code": 0})
        record.event(2000.0, Finished(verdict="done"))
        assert record.has_ended
        await record.finish(7200.9)
    assert content(cluster).state["state"] == "done"
    assert content(cluster).events[-1][1] == Finished(verdict="done")
    assert (anchor(cluster)["completions"], anchor(cluster)["parallelism"]) == (0, 0)
    assert anchor(cluster)["ttlSecondsAfterFinished"] == 7200
    assert notes(cluster)[DOMAIN + "exit-code"] == "0"


@asynchronous
async def test_an_end_that_can_not_be_written_is_no_error_of_the_run() -> None:
    api = FakeApi()
    manager = Manager(api)
    record = await manager.create()
    record.update({"state": "done", "ended": 2000.0})
    api.unreachable = True
    await record.finish(60)
    assert manager.reasons == []


@asynchronous
async def test_where_somebody_has_deleted_the_record_the_anchor_goes_too() -> None:
    api = FakeApi()
    record = await Manager(api).create()
    record.update({"state": "lost", "ended": 2000.0})
    await api.delete(path_of(NAMESPACE, RUN_ID))
    await record.finish(60)
    assert api.cluster.things == {}


@asynchronous
async def test_to_remove_it_removes_all_that_it_owns() -> None:
    api = FakeApi()
    record = await Manager(api).create()
    pod = {"metadata": {"name": "p", "ownerReferences": [record.owner.reference]}, "spec": {}}
    await api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    await record.remove()
    assert api.cluster.things == {}


# ---- waiting


def waiting(cluster: Cluster) -> bool:
    """Whether other runs see that it waits, and for what."""
    metadata = cluster.find("jobs", RUN_ID)["metadata"]
    marked: bool = metadata["labels"].get(WAITING) == "yes"
    assert marked == (WISH in metadata["annotations"])
    return marked


@asynchronous
async def test_it_is_among_those_that_wait_until_it_runs_and_when_it_has_to_start_again() -> None:
    api = FakeApi()
    manager = Manager(api)
    manager.record.wish = "the moon"
    await manager.create()
    assert waiting(api.cluster)
    async with manager.attending() as record:

        async def become(state: str, waits: bool) -> None:
            record.update({"state": state})
            await until(lambda: content(api.cluster).state["state"] == state and waiting(api.cluster) is waits)

        for state, waits in (("starting", True), ("running", False), ("queued", True), ("ending", False)):
            await become(state, waits)
        record.waits = False
        await become("starting", False)
        record.waits = True
        await until(lambda: waiting(api.cluster))


@asynchronous
async def test_where_it_is_about_to_start_is_told_for_as_long_as_its_pods_may_be_missing() -> None:
    api = FakeApi()
    manager = Manager(api)
    await manager.create()

    def placement() -> str | None:
        found: str | None = api.cluster.find("jobs", RUN_ID)["metadata"]["annotations"].get(PLACEMENT)
        return found

    async with manager.attending() as record:
        record.update({"placement": {"n1": 3}})
        assert placement() is None
        record.update({"state": "starting"})
        await until(lambda: placement() == '{"n1": 3}')
        record.update({"state": "running"})
        await until(lambda: placement() is None)


@asynchronous
async def test_one_that_ended_while_it_waited_waits_no_more() -> None:
    api = FakeApi()
    record = await Manager(api).create()
    record.update({"state": "stopped", "ended": 2000.0})
    await record.finish(60)
    assert not waiting(api.cluster)


@asynchronous
async def test_to_look_for_room_again_and_again_writes_nothing() -> None:
    api = FakeApi()
    record = await Manager(api).create()
    record.extend(600)
    record._dirty.clear()
    for _ in range(3):
        record.waits = True
        record.extend(600)
    assert not record._dirty.is_set()


@asynchronous
async def test_that_it_waits_costs_no_request_of_its_own() -> None:
    api = FakeApi()
    manager = Manager(api)
    await manager.create()
    assert [verb for verb, _ in api.requests] == ["create", "create"]


@asynchronous
async def test_its_age_is_known_once_it_is_there_and_the_same_to_all() -> None:
    api = FakeApi()
    record = Record(api, NAMESPACE, RUN_ID, "here/1")
    assert record.age is None
    await record.create(ASKED, FIELDS, 600)
    assert record.age == (api.cluster.find("jobs", RUN_ID)["metadata"]["creationTimestamp"], 1000.5, RUN_ID)
    later = Record(api, NAMESPACE, RUN_ID, "there/2")
    await later.claim()
    assert later.age == record.age


# ---- lists


@asynchronous
async def test_a_list_has_the_newest_first_and_needs_no_contents() -> None:
    api = FakeApi()
    for name, namespace, created in (("old", "a", 1.0), ("new", "b", 3.0), ("middle", "a", 2.0)):
        await Record(api, namespace, name, "here/1").create(ASKED, {**FIELDS, "created": created}, 60)
    other = {"metadata": {"name": "other", "labels": {RUN: "new", KIND: "code"}}, "data": {"agent": "x"}}
    await api.create("/api/v1/namespaces/a/configmaps", other)
    assert [(row.run, row.namespace) for row in await list_rows(api, None)] == [
        ("new", "b"),
        ("middle", "a"),
        ("old", "a"),
    ]
    rows = await list_rows(api, "a")
    assert [row.run for row in rows] == ["middle", "old"]
    assert (rows[0].note("state"), rows[0].note("slots"), rows[0].note("ended")) == ("queued", "6", "")
    assert rows[0].created == 2.0


@pytest.mark.parametrize(
    ("words", "attended"),
    [
        ({"beat": "1000"}, True),
        ({"beat": str(1000 - STALE - 1)}, False),
        ({"beat": str(1000 - STALE - 1), "ended": "900"}, True),
        ({}, False),
    ],
)
def test_a_run_is_attended_while_it_beats_and_when_it_has_ended(words: dict[str, str], attended: bool) -> None:
    row = Row("r", "ns", {DOMAIN + name: value for name, value in words.items()})
    assert row.is_attended(1000.0) is attended


def test_a_run_whose_notes_somebody_has_changed_by_hand_is_listed_all_the_same() -> None:
    names = ("created", "beat", "ended", "slots")
    for junk in ("yesterday", "nan", "1e999", "[" * 10_000):
        row = Row("r", "ns", {DOMAIN + name: junk for name in names})
        assert (row.created, row.ended, row.number("slots"), row.state(1000.0)) == (0.0, None, None, "unattended")


def test_a_record_that_somebody_has_emptied_can_still_be_read() -> None:
    thing = {"metadata": {"name": "r", "namespace": "ns", "uid": "u", "resourceVersion": "1"}}
    said = read(thing)
    assert (said.manager, said.beat, said.state, said.events) == ("", 0.0, {}, [])


def test_its_path_is_that_of_a_config_map() -> None:
    assert path_of("ns", "r") == "/api/v1/namespaces/ns/configmaps/r"


def test_leaving_twice_is_fine() -> None:
    async def leave() -> None:
        manager = Manager(FakeApi())
        await manager.create()
        async with manager.attending():
            await manager.record.leave()

    asyncio.run(leave())
