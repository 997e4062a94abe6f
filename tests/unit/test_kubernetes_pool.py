"""A run in a cluster, from the pool's side: what is told when something is not there, or is taken away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pumasi.core.launch import Program
from pumasi.core.outcome import Verdict
from pumasi.core.planner import Node
from pumasi.core.spec import Spec, parse_spec
from pumasi.errors import DoesNotFit, NotThere, PumasiError, UsageError
from pumasi.kube.record import Record, anchor_path, path_of
from pumasi.kube.volumes import SHARED, SINGLE, claim
from pumasi.manager import Manager
from pumasi.pools import kubernetes
from pumasi.pools.base import Request
from pumasi.recorder import Recorder, Unwatched
from pumasi.store import Store
from tests.fake_cluster import NAMESPACE, FakeApi
from tests.serving import asynchronous, until

RUN = "train-abcde"
SPEC = parse_spec({"command": ["train.py"], "on": "k8s", "namespace": NAMESPACE})
PROGRAM = Program(("python3", "train.py"), "none", "", {})
FIELDS = {"state": "queued", "created": 1000.0, "framework": "none"}
NODE = {
    "metadata": {"name": "node-0", "labels": {}},
    "spec": {},
    "status": {
        "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "100"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


class Events(Unwatched):
    def __init__(self) -> None:
        self.told: list[str] = []

    def event(self, at: float, kind: str, data: Any) -> None:
        self.told.append(f"{kind} {dict(data)}")


@asynccontextmanager
async def managed(api: FakeApi, home: Path, events: Events) -> AsyncIterator[asyncio.Task[Any]]:
    """A run whose gang is whole, and its manager."""
    api.cluster.create("nodes", "", NODE)
    store = Store.open(home)
    store.import_run(RUN, SPEC.dump(), 1000.0)
    record = Record(api, NAMESPACE, RUN, "here/1")
    pool = await kubernetes.make_run(api, Request(RUN, SPEC, PROGRAM, home, FIELDS), record)
    recorder = Recorder(store, RUN, events)
    recorder.copy = pool.copy
    running = asyncio.ensure_future(Manager(RUN, "/tmp", SPEC, PROGRAM, pool, recorder).run())
    await until(lambda: api.cluster.names("pods"))
    (pod,) = api.cluster.names("pods")
    api.cluster.start(pod)
    api.cluster.say(pod, b'@{"event": "running", "ranks": []}')
    await until(lambda: any(each.startswith("running") for each in events.told))
    try:
        yield running
    finally:
        running.cancel()
        await record.leave()
        store.close()


@pytest.mark.parametrize("deleted", [anchor_path(NAMESPACE, RUN), path_of(NAMESPACE, RUN)])
def test_that_somebody_deleted_the_run_is_how_it_ended(tmp_path: Path, deleted: str) -> None:
    @asynchronous
    async def story() -> None:
        api, events = FakeApi(), Events()
        async with managed(api, tmp_path, events) as running:
            await api.delete(deleted)
            outcome = await running
        assert (outcome.verdict, outcome.reason) == (Verdict.LOST, "Somebody deleted it in the cluster.")
        said = "\n".join(events.told)
        assert "not found" not in said
        assert "on request" not in said
        assert said.count("ending {'why': 'Somebody deleted it in the cluster.'}") == 1

    story()


def no_namespace(api: FakeApi) -> None:
    def refuse(verb: str, path: str) -> None:
        if verb == "create":
            raise NotThere('The cluster answers: namespaces "nosuch" not found.')

    api.before = refuse


def refused(work: Any) -> PumasiError:
    with pytest.raises(PumasiError) as caught:
        asyncio.run(work)
    return caught.value


MAKE_IT = "`kubectl create namespace nosuch` makes it; --namespace names another one."


def test_a_namespace_that_is_not_there_is_told_with_how_to_make_it(tmp_path: Path) -> None:
    api = FakeApi()
    no_namespace(api)
    request = Request(RUN, SPEC, PROGRAM, tmp_path, FIELDS)
    error = refused(kubernetes.make_run(api, request, Record(api, "nosuch", RUN, "here/1")))
    assert (error.message, error.hint) == ("The cluster has no namespace nosuch.", MAKE_IT)


def test_who_may_not_make_runs_in_a_namespace_is_told_which_right_that_takes(tmp_path: Path) -> None:
    api = FakeApi()
    api.forbidden.add(("create", "jobs"))
    request = Request(RUN, SPEC, PROGRAM, tmp_path, FIELDS)
    error = refused(kubernetes.make_run(api, request, Record(api, "theirs", RUN, "here/1")))
    assert error.hint == "Runs need the right `edit` in the namespace theirs; --namespace names another one."


def test_a_detached_run_tells_a_missing_namespace_from_a_missing_account() -> None:
    api = FakeApi()
    error = refused(kubernetes._check_account(api, "nosuch"))
    assert (error.message, error.hint) == ("The cluster has no namespace nosuch.", MAKE_IT)
    api.cluster.create("namespaces", "", {"metadata": {"name": "team"}})
    for forbidden in (set(), {("get", "namespaces")}):
        api.forbidden = forbidden
        error = refused(kubernetes._check_account(api, "team"))
        assert isinstance(error, UsageError)
        assert "pumasi setup" in error.hint


# ---- a volume


def in_a_cluster(spec: Spec, home: Path, api: FakeApi) -> list[Node]:
    """The nodes that its first task may go to."""

    async def story() -> list[Node]:
        record = Record(api, NAMESPACE, RUN, "here/1")
        pool = await kubernetes.make_run(api, Request(RUN, spec, PROGRAM, home, FIELDS), record)
        pool.tell = lambda _: None
        try:
            return await pool.nodes()
        finally:
            await pool.let_go()

    return asyncio.run(story())


def three_nodes() -> FakeApi:
    api = FakeApi()
    for number in range(3):
        api.cluster.create("nodes", "", {**NODE, "metadata": {"name": f"node-{number}", "labels": {}}})
    return api


def with_volume(**fields: Any) -> Spec:
    asked = {"command": ["train.py"], "on": "k8s", "namespace": NAMESPACE, "volume": "files"}
    return parse_spec({**asked, "mounts": ["files:/volume"], **fields})


def hold(api: FakeApi, node: str) -> None:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "files"}}]
    spec = {"nodeName": node, "containers": [{"name": "main"}], "volumes": volumes}
    api.cluster.create(
        "pods", NAMESPACE, {"metadata": {"name": "holder"}, "spec": spec, "status": {"phase": "Running"}}
    )


@pytest.mark.parametrize(("mode", "names"), [(SINGLE, ["node-2"]), (SHARED, ["node-0", "node-1", "node-2"])])
def test_the_first_task_goes_where_its_volume_can_be_mounted(tmp_path: Path, mode: str, names: list[str]) -> None:
    api = three_nodes()
    api.cluster.create("persistentvolumeclaims", NAMESPACE, claim("files", 2**30, mode))
    hold(api, "node-2")
    assert [node.name for node in in_a_cluster(with_volume(), tmp_path, api)] == names


def test_no_volume_is_made_for_what_never_fits(tmp_path: Path) -> None:
    api = three_nodes()
    with pytest.raises(DoesNotFit):
        in_a_cluster(with_volume(slots=100), tmp_path, api)
    assert api.cluster.names("persistentvolumeclaims") == []
