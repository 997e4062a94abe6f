"""Runs of the version before, and of a later one: they are adopted, or one sentence says why not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pumasi import __version__
from pumasi.catalogue import recorded_spec
from pumasi.core.events import kind_of
from pumasi.core.outcome import Verdict, outcome_from
from pumasi.errors import ClusterTrouble, StoreTooNew
from pumasi.pools.base import Request
from pumasi.pools.kubernetes import beginning, manifests, record
from pumasi.pools.kubernetes.manifests import ATTEMPT, INDEX, KIND, RUN, TASK
from pumasi.runs.adoption import left_behind
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store
from tests.fake_cluster import NAMESPACE, FakeApi, Object
from tests.serving import asynchronous, until

RECORDED = Path(__file__).parent.parent / "recorded" / "0.1.0"


def recorded(name: str) -> Object:
    thing: Object = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return {**thing, "metadata": {**thing["metadata"], "namespace": NAMESPACE}}


def changed(thing: Object, part: str, **fields: Any) -> Object:
    told = {**json.loads(thing["data"][part]), **fields}
    return {**thing, "data": {**thing["data"], part: json.dumps(told)}}


def cluster_with(thing: Object, *tasks: str) -> FakeApi:
    """The record with its anchor, and a pod for each of these tasks, which runs."""
    api, run = FakeApi(), thing["metadata"]["name"]
    api.cluster.create("jobs", NAMESPACE, manifests.anchor(run, 3600, 0, {}))
    api.cluster.create("configmaps", NAMESPACE, thing)
    api.cluster.create("nodes", "", node())
    for task in tasks:
        labels = {RUN: run, KIND: "rank", TASK: task, ATTEMPT: "0", INDEX: "0"}
        name = manifests.pod_name(run, task, 0, 0)
        spec = {"nodeName": "node-0", "containers": [{"name": "main", "image": "python:3.12-slim"}]}
        api.cluster.create("pods", NAMESPACE, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        api.cluster.start(name, "node-0")
    return api


def node() -> Object:
    room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "node-0"}, "spec": {}, "status": {"allocatable": room, "conditions": ready}}


class Adopted:
    """What a manager of this version makes of a run in the cluster."""

    def __init__(self, api: FakeApi, home: Path, thing: Object) -> None:
        self.api = api
        self.store = Store.open(home)
        self.record = record.Record(api, NAMESPACE, thing["metadata"]["name"], "here/2")
        self.content = record.read(api.cluster.find("configmaps", self.record.run))

    @contextlib.asynccontextmanager
    async def managed(self) -> AsyncIterator[asyncio.Task[Any]]:
        content, run = self.content, self.record.run
        self.store.import_run(run, content.spec, content.state["created"])
        for at, event in content.events:
            self.store.add_event(run, at, event)
        spec = recorded_spec({**content.spec, "namespace": NAMESPACE})
        request = Request(run, spec, beginning.recorded_program(content), self.store.home, content.state)
        hands = await beginning._take_over(self.api, request, self.record)
        recorder = Recorder(self.store, run, Unwatched())
        recorder.copy = hands.copy
        manager = Manager(run, "/volume/pumasi/" + run, spec, request.program, hands, recorder)
        running = asyncio.ensure_future(manager.run())
        try:
            yield running
        finally:
            running.cancel()
            await self.record.leave()
            self.store.close()

    def kinds(self) -> list[str]:
        return [kind_of(row.event) for row in self.store.events(self.record.run)]


def say_done(api: FakeApi, pod: str) -> None:
    api.cluster.say(pod, b'@{"event": "running", "ranks": []}', b'@{"event": "over", "outcome": {"cause": "done"}}')
    api.cluster.finish(pod, 0, json.dumps({"cause": "done"}))


@pytest.mark.parametrize("later", [False, True], ids=["before", "later"])
def test_a_gang_that_another_version_has_started_is_adopted(tmp_path: Path, later: bool) -> None:
    """A later version of the same form: with fields and an event that nobody knows here."""

    @asynchronous
    async def story() -> None:
        thing = recorded("together")
        if later:
            asked = json.loads(thing["data"]["spec.json"])
            thing = changed(thing, "spec.json", v=1, by="9.9", spec={**asked["spec"], "colour": "blue"}, mood="good")
            thing = changed(
                thing, "spec.json", program={**asked["program"], "warmth": 3}, code={**asked["code"], "x": 1}
            )
            thing = changed(thing, "state.json", shade="dark")
            told = json.loads(thing["data"]["events.json"])
            thing["data"]["events.json"] = json.dumps([*told, [told[-1][0] + 1, "moved", {"v": 1, "to": "mars"}]])
        api = cluster_with(thing, "main")
        adopted = Adopted(api, tmp_path, thing)
        async with adopted.managed() as running:
            say_done(api, "pair-q5prf-main-0-0")
            outcome = await asyncio.wait_for(running, 30)
        assert outcome.verdict is Verdict.DONE
        assert ("moved" in adopted.kinds()) is later
        assert adopted.kinds()[-1] == "finished"

    story()


def test_a_run_of_several_tasks_that_the_version_before_has_begun_goes_on(tmp_path: Path) -> None:
    @asynchronous
    async def story() -> None:
        thing = recorded("average")
        api = cluster_with(thing, "train-2-0", "train-2-1")
        claim = {
            "metadata": {"name": "files"},
            "spec": {"accessModes": ["ReadWriteMany"]},
            "status": {"phase": "Bound"},
        }
        api.cluster.create("persistentvolumeclaims", NAMESPACE, claim)
        adopted = Adopted(api, tmp_path, thing)
        async with adopted.managed() as running:
            for task in ("train-2-0", "train-2-1"):
                say_done(api, f"avg-rvih7-{task}-0-0")
            for task in ("average-2", "save"):
                pod = f"avg-rvih7-{task}-0-0"
                await until(lambda pod=pod: pod in api.cluster.names("pods"))  # type: ignore[misc]
                api.cluster.start(pod)
                say_done(api, pod)
            outcome = await asyncio.wait_for(running, 30)
        assert outcome.verdict is Verdict.DONE
        made = {pod["metadata"]["labels"][TASK] for pod in api.cluster.select("pods", NAMESPACE, {})}
        assert made == {"train-2-0", "train-2-1", "average-2", "save"}

    story()


def test_a_record_of_a_later_form_ends_in_a_sentence_that_names_both_versions(tmp_path: Path) -> None:
    @asynchronous
    async def story() -> None:
        thing = changed(recorded("together"), "spec.json", v=2, by="9.9")
        api = cluster_with(thing, "main")
        with pytest.raises(ClusterTrouble) as caught:
            await record.Record(api, NAMESPACE, "pair-q5prf", "here/2").claim()
        assert "Pumasi 9.9" in caught.value.message
        assert f"Pumasi {__version__}" in caught.value.message
        assert record.read(api.cluster.find("configmaps", "pair-q5prf")).manager == "desk/8144/f00ab3e8"

    story()


def test_a_record_says_its_form_and_who_wrote_it() -> None:
    @asynchronous
    async def story() -> None:
        api = FakeApi()
        await record.Record(api, NAMESPACE, "train-abcde", "here/1").create({"spec": {}}, {"state": "queued"}, 600)
        made = record.read(api.cluster.find("configmaps", "train-abcde"))
        assert (made.form, made.written_by) == (record.FORM, __version__)

    story()


def test_an_outcome_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    outcome = outcome_from({"verdict": "postponed", "reason": "It rains.", "weather": "bad"})
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "It rains.")


@pytest.fixture
def old_home(tmp_path: Path) -> Path:
    """A home as version 0.1.0 has left it: a run of two rounds, whose manager was killed in the second."""
    with contextlib.closing(sqlite3.connect(tmp_path / "pumasi.db")) as database:
        database.executescript((RECORDED / "store.sql").read_text(encoding="utf-8"))
    for name in ("deleted", "runs/here-3o4lx/logs", "runs/here-3o4lx/tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs" / "here-3o4lx" / "lock").touch()
    return tmp_path


def test_a_store_of_the_version_before_is_read_and_its_run_can_go_on(old_home: Path) -> None:
    store = Store.open(old_home)
    run = store.find("here")
    assert (run.state, run.spec["strategy"]) == ("running", "average")
    assert "planned" in {kind_of(row.event) for row in store.events(run.id)}
    assert recorded_spec(run.spec).command[0] == "train.py"
    found = left_behind(store, run)
    assert found is not None
    ended = {name for name, task in found.tasks.items() if task.outcome is not None}
    assert ended == {"train-1-0", "train-1-1", "average-1"}
    store.close()


def test_a_store_of_a_later_version_is_left_alone(old_home: Path) -> None:
    with contextlib.closing(sqlite3.connect(old_home / "pumasi.db")) as database:
        database.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreTooNew, match="999"):
        Store.open(old_home).runs()
