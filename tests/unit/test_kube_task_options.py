"""A task of a run in a cluster may ask for something else than the run does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pumasi import registry
from pumasi.core.flows import Flow, FlowType, Task
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.spec import Spec
from pumasi.pools.base import Request
from pumasi.pools.kubernetes import beginning as kubernetes
from pumasi.pools.kubernetes.record import Record
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store
from tests.fake_cluster import NAMESPACE, FakeApi, Object
from tests.serving import asynchronous, until
from tests.unit.test_kubernetes_pool import FIELDS, NODE, PROGRAM, RUN, SPEC


class Steps(Flow):
    """`big` has its own image, and leaves no room for `late`."""

    title = "three steps"

    def __init__(self) -> None:
        self.tasks = [
            Task("big", slots=1, options={"image": "other:1", "cpus": 5.0, "labels": {"step": "big"}, "unknown": 1}),
            Task("plain", slots=1),
            Task("late", slots=1, options={"cpus": 4.0}),
        ]
        self.left = {"big", "plain", "late"}

    def next(self) -> Task | None:
        return self.tasks.pop(0) if self.tasks else None

    def ended(self, name: str, outcome: Outcome) -> None:
        self.left.discard(name)

    def outcome(self) -> Outcome | None:
        return None if self.left else Outcome(Verdict.DONE)


class StepsType(FlowType):
    name, summary = "steps", "three steps"

    def open(self, spec: Spec, folder: str) -> Flow:
        return Steps()


FLOW = StepsType()


def pods(api: FakeApi) -> dict[str, Object]:
    found = [api.cluster.find("pods", name) for name in api.cluster.names("pods")]
    return {pod["metadata"]["name"].removeprefix(f"{RUN}-").partition("-")[0]: pod for pod in found}


def finish(api: FakeApi, pod: Object) -> None:
    name = pod["metadata"]["name"]
    api.cluster.start(name)
    api.cluster.say(name, b'@{"event": "running", "ranks": []}', b'@{"event": "over", "outcome": {"cause": "done"}}')
    api.cluster.finish(name, 0)


@asynchronous
async def test_its_pods_are_made_and_placed_by_what_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._FLOWS, "steps", f"{__name__}:FLOW")
    api = FakeApi()
    api.cluster.create("nodes", "", NODE)
    spec = SPEC.changed({"strategy": "steps"})
    store = Store.open(tmp_path)
    store.import_run(RUN, spec.dump(), 1000.0)
    record = Record(api, NAMESPACE, RUN, "here/1")
    pool = await kubernetes.make_run(api, Request(RUN, spec, PROGRAM, tmp_path, FIELDS), record)
    recorder = Recorder(store, RUN, Unwatched())
    recorder.copy = pool.copy
    manager = asyncio.ensure_future(Manager(RUN, "/tmp", spec, PROGRAM, pool, recorder).run())
    try:
        await until(lambda: {"big", "plain"} <= set(pods(api)))
        big, plain = (pods(api)[name] for name in ("big", "plain"))
        assert big["spec"]["containers"][0]["image"] == "other:1"
        assert plain["spec"]["containers"][0]["image"] != "other:1"
        asked = [pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] for pod in (big, plain)]
        assert float(asked[0].removesuffix("m")) / (1000 if asked[0].endswith("m") else 1) == 5
        assert asked[0] != asked[1]
        assert big["metadata"]["labels"]["step"] == "big"
        assert "late" not in pods(api)
        finish(api, plain)
        finish(api, big)
        await until(lambda: "late" in pods(api))
    finally:
        manager.cancel()
        await record.leave()
        store.close()
