"""A run in a cluster, from the pool's side: what is told when something is not there, or is taken away."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pumasi.agent.links import proof, proves
from pumasi.catalogue import parse_spec
from pumasi.core.endings import Setting
from pumasi.core.events import Event, Note, kind_of, to_json
from pumasi.core.launch import Program
from pumasi.core.outcome import Verdict
from pumasi.core.planning import Node
from pumasi.core.spec import Spec
from pumasi.errors import ClusterTrouble, DoesNotFit, Forbidden, NotThere, PumasiError, Unreachable, UsageError
from pumasi.pools.base import Order, Request
from pumasi.pools.kubernetes import beginning as kubernetes
from pumasi.pools.kubernetes import manager_job, manifests
from pumasi.pools.kubernetes.manifests import DOMAIN, CodeObjects
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.record import Record, anchor_path, path_of, read
from pumasi.pools.kubernetes.rights import NAME as ACCOUNT
from pumasi.pools.kubernetes.runner import KubernetesRunner
from pumasi.pools.kubernetes.volumes import SHARED, SINGLE, claim
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store
from pumasi.testing.pools import Witness
from tests.fake_cluster import NAMESPACE, Cluster, FakeApi, Key, _pinned, _stamp
from tests.serving import asynchronous, until

RUN = "train-abcde"
OWNER = manifests.Owner("ConfigMap", RUN, "uid")
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

    def event(self, at: float, event: Event) -> None:
        self.told.append(f"{kind_of(event)} {to_json(event)}")


async def _begun(api: FakeApi, home: Path, events: Events, spec: Spec) -> tuple[asyncio.Task[Any], Record, Store]:
    store = Store.open(home)
    store.import_run(RUN, spec.dump(), 1000.0)
    record = Record(api, NAMESPACE, RUN, "here/1")
    pool = await kubernetes.make_run(api, Request(RUN, spec, PROGRAM, home, FIELDS), record)
    recorder = Recorder(store, RUN, events)
    recorder.copy = pool.copy
    return asyncio.ensure_future(Manager(RUN, "/tmp", spec, PROGRAM, pool, recorder).run()), record, store


@asynccontextmanager
async def managed(api: FakeApi, home: Path, events: Events, spec: Spec = SPEC) -> AsyncIterator[asyncio.Task[Any]]:
    """A run whose gang is whole, and its manager."""
    if not api.cluster.names("nodes"):
        api.cluster.create("nodes", "", NODE)
    running, record, store = await _begun(api, home, events, spec)
    await until(lambda: api.cluster.names("pods") not in ([], ["notebook"]))
    (pod,) = [name for name in api.cluster.names("pods") if name != "notebook"]
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
        # Where its pods were seen to go before its record was, there is nothing left to end.
        assert said.count("ending {'why': 'Somebody deleted it in the cluster.'}") <= 1

    story()


def test_who_stopped_it_is_how_it_ended(tmp_path: Path) -> None:
    @asynchronous
    async def story() -> None:
        api, events = FakeApi(), Events()
        async with managed(api, tmp_path, events) as running:
            notes = {DOMAIN + "stop": "soon", DOMAIN + "stopped-by": "lee as admin from desk"}
            api.cluster.change("configmaps", RUN, {"metadata": {"annotations": notes}})
            outcome = await running
        assert (outcome.verdict, outcome.reason) == (Verdict.STOPPED, "Stopped by lee as admin from desk.")

    story()


def test_who_stopped_it_cannot_steer_the_terminals_of_others(tmp_path: Path) -> None:
    @asynchronous
    async def story() -> None:
        api, events = FakeApi(), Events()
        async with managed(api, tmp_path, events) as running:
            notes = {DOMAIN + "stop": "soon", DOMAIN + "stopped-by": "lee\x1b[2J\r" + "x" * 1000}
            api.cluster.change("configmaps", RUN, {"metadata": {"annotations": notes}})
            outcome = await running
        assert outcome.reason.startswith("Stopped by lee [2J xxx")
        assert len(outcome.reason) < 80

    story()


@pytest.mark.parametrize(("user", "name"), [("admin", "kim as admin"), ("kim", "kim"), ("", "kim")])
def test_a_record_says_who_started_the_run_and_what_the_cluster_calls_them(
    tmp_path: Path, user: str, name: str
) -> None:
    api = FakeApi()
    api.user_name = user
    request = Request(RUN, SPEC, PROGRAM, tmp_path, {**FIELDS, "user": "kim", "host": "laptop"})
    signed = asyncio.run(kubernetes._signed(api, request))
    assert (signed["user"], signed["host"]) == (name, "laptop")


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


def test_who_may_not_make_secrets_is_told_so_too(tmp_path: Path) -> None:
    @asynchronous
    async def story() -> None:
        api = FakeApi(cluster := Cluster())
        cluster.create("nodes", "", NODE)
        api.forbidden.add(("create", "secrets"))
        record = Record(api, NAMESPACE, RUN, "here/1")
        pool = await kubernetes.make_run(api, Request(RUN, SPEC, PROGRAM, tmp_path, FIELDS), record)
        try:
            with pytest.raises(Forbidden) as caught:
                await pool.start_manager()
        finally:
            await pool.let_go()
        assert caught.value.hint.startswith("Runs need the right `edit` in the namespace team;")

    story()


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


# ---- a lost node


def nodes_of(api: FakeApi) -> dict[str, str]:
    """Where the pods are, or are to be."""
    pods = [api.cluster.find("pods", name) for name in api.cluster.names("pods")]
    return {pod["metadata"]["name"]: _pinned(pod) for pod in pods}


def lose_node(api: FakeApi, pod: str) -> str:
    """It dies, and the cluster marks its pod."""
    node = nodes_of(api)[pod]
    api.cluster.dead_nodes.add(node)
    conditions = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    api.cluster.change("pods", pod, {"status": {"conditions": conditions}})
    return node


def test_a_lost_node_is_avoided_also_by_a_manager_that_takes_over(tmp_path: Path) -> None:
    async def story() -> None:
        api, events = three_nodes(), Events()
        spec = parse_spec({**SPEC.dump(), "silence": 1})
        async with managed(api, tmp_path, events, spec):
            (pod,) = api.cluster.names("pods")
            lost = lose_node(api, pod)
            await until(lambda: api.cluster.names("pods") not in ([], [pod]))
            assert any(f"{lost} does not answer (NotReady)" in each for each in events.told)
            assert lost not in nodes_of(api).values()
            await until(lambda: '"lost_nodes"' in api.cluster.find("configmaps", RUN)["data"]["state.json"])
        record = Record(api, NAMESPACE, RUN, "there/2")
        pool = await kubernetes._take_over(api, Request(RUN, spec, PROGRAM, tmp_path, FIELDS), record)
        assert {node.name: node.free for node in await pool.nodes()}[lost] == 0

    asyncio.run(story())


# ---- a manager in the cluster


def see_manager(api: FakeApi, home: Path, state: dict[str, Any]) -> list[str]:
    """What is said of a manager whose container is in that state."""
    said: list[str] = []

    async def story() -> None:
        record = Record(api, NAMESPACE, RUN, "")
        pool = await kubernetes.make_run(api, Request(RUN, SPEC, PROGRAM, home, FIELDS), record)
        labels = {manifests.RUN: RUN, manifests.KIND: "manager"}
        spec = {"containers": [{"name": "manager", "image": SPEC[KubernetesOptions].image}]}
        api.cluster.create("pods", NAMESPACE, {"metadata": {"name": "m", "labels": labels}, "spec": spec})
        api.cluster.change("pods", "m", {"status": {"containerStatuses": [{"name": "manager", "state": state}]}})
        try:
            await pool.see_manager(said.append)
        finally:
            await pool.let_go()

    asyncio.run(story())
    return said


def waiting(message: str) -> dict[str, Any]:
    return {"waiting": {"reason": "ErrImagePull", "message": message}}


def test_a_detached_run_whose_image_is_not_there_is_told_so_at_once(tmp_path: Path) -> None:
    with pytest.raises(ClusterTrouble) as caught:
        see_manager(three_nodes(), tmp_path, waiting("manifest unknown"))
    assert caught.value.message.startswith("The run's manager can't start. The image python:3.12-slim can't be pulled")


def test_a_detached_run_whose_image_may_still_come_goes_on_and_says_so(tmp_path: Path) -> None:
    (said,) = see_manager(three_nodes(), tmp_path, waiting("connection reset"))
    assert said.startswith("The image python:3.12-slim can't be pulled: connection reset. The cluster tries again")


def test_a_manager_that_starts_is_not_spoken_of(tmp_path: Path) -> None:
    assert see_manager(three_nodes(), tmp_path, {"running": {}}) == []


def test_nobody_waits_for_a_manager_whose_image_a_node_has(tmp_path: Path) -> None:
    api = three_nodes()
    images = [{"names": ["docker.io/library/python:3.12-slim"]}]
    api.cluster.patch(Key("nodes", "", "node-1"), {"status": {"images": images}})
    assert see_manager(api, tmp_path, waiting("manifest unknown")) == []


def test_the_notes_of_a_detached_run_are_in_its_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, note = three_nodes(), "Left out, because they look like credentials: .env."
    account = {"metadata": {"name": ACCOUNT}}
    api.cluster.create("serviceaccounts", NAMESPACE, account)
    monkeypatch.setattr(manager_job, "MANAGER_SECONDS", 0.01)

    async def story() -> list[Any]:
        program = PROGRAM._replace(notes=(note,))
        await kubernetes.make_detached(Request(RUN, SPEC, program, tmp_path, FIELDS), api, NAMESPACE)
        return read(await api.get(path_of(NAMESPACE, RUN))).events

    assert [event for _, event in asyncio.run(story())] == [Note(text=note)]


# ---- quotas


def give_quota(api: FakeApi, **hard: str) -> None:
    thing = {"metadata": {"name": "few"}, "spec": {"hard": hard}, "status": {"hard": hard}}
    api.cluster.create("resourcequotas", NAMESPACE, thing)


def two_pods() -> Spec:
    return parse_spec({**SPEC.dump(), "slots": 2, "max_per_node": 1})


def left_of(api: FakeApi) -> list[str]:
    kinds = ("pods", "services", "secrets", "configmaps", "jobs")
    return [name for kind in kinds for name in api.cluster.names(kind)]


@pytest.mark.parametrize("blind", [False, True])
def test_a_quota_that_can_never_give_enough_is_told_at_once_and_nothing_is_left(tmp_path: Path, blind: bool) -> None:
    api = three_nodes()
    api.forbidden = {("list", "nodes")} if blind else set()
    give_quota(api, pods="1")
    with pytest.raises(DoesNotFit) as caught:
        in_a_cluster(two_pods(), tmp_path, api)
    assert caught.value.message == "The quota few does not allow it: requested pods=2 in all, limited to pods=1."
    assert f"kubectl -n {NAMESPACE} describe quota" in caught.value.hint
    assert left_of(api) == []


def test_a_quota_for_services_is_told_with_a_line_that_leads_to_the_cluster_and_the_namespace(
    tmp_path: Path,
) -> None:
    api = three_nodes()
    api.connection = api.connection._replace(named="my lab")

    def admit(thing: Any) -> None:
        if thing["kind"] == "Service":
            said = "exceeded quota: few, requested: services=1, used: services=0, limited: services=0"
            raise Forbidden("The cluster does not allow it.", said=said)

    api.cluster.admit = admit
    order = Order("main", 0, ["node-0", "node-1"], [{"slots": 1}, {"slots": 1}])
    sink = Witness(order)

    async def story() -> None:
        pool = await kubernetes.make_run(
            api, Request(RUN, two_pods(), PROGRAM, tmp_path, FIELDS), Record(api, NAMESPACE, RUN, "here/1")
        )
        await pool.launch(order, sink)
        await pool.let_go()

    asyncio.run(story())
    ((_, (_, hopeless, hint)),) = sink.seen
    assert hopeless
    assert hint.endswith(f": kubectl --context 'my lab' -n {NAMESPACE} describe quota")


def test_the_manager_of_a_detached_run_counts_too(tmp_path: Path) -> None:
    api = three_nodes()
    give_quota(api, pods="2")
    work = kubernetes.make_run(
        api, Request(RUN, two_pods(), PROGRAM, tmp_path, FIELDS), Record(api, NAMESPACE, RUN, "")
    )
    assert "requested pods=3 in all, limited to pods=2" in refused(work).message


def test_who_may_not_list_quotas_is_told_when_pods_are_refused(tmp_path: Path) -> None:
    api = three_nodes()
    api.forbidden = {("list", "resourcequotas")}
    assert len(in_a_cluster(two_pods(), tmp_path, api)) == 3


def test_a_gang_that_could_do_with_fewer_pods_may_wait_for_that(tmp_path: Path) -> None:
    """8 slots fit on one node that is empty, and on two that are not."""

    async def story() -> None:
        api, spec = three_nodes(), parse_spec({**SPEC.dump(), "slots": 8})
        pool = await kubernetes.make_run(
            api, Request(RUN, spec, PROGRAM, tmp_path, FIELDS), Record(api, NAMESPACE, RUN, "here/1")
        )
        halves = Order("main", 0, ["node-0", "node-1"], [{"slots": 4}, {"slots": 4}])
        assert pool._fit.least_needs(halves)["pods"] == 1
        await pool.let_go()

    asyncio.run(story())


def test_who_waits_for_a_quota_says_the_plan_once_and_makes_one_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others use one of two pods, for as long as it takes to ask for them four times."""
    monkeypatch.setattr("pumasi.core.manage.task._pause", lambda times, longest: 0.01)
    api, events = three_nodes(), Events()
    refusals: list[str] = []
    labels: list[dict[str, str]] = []

    def admit(thing: Any) -> None:
        if thing["kind"] == "Pod" and thing["metadata"]["name"].endswith("-1") and len(refusals) < 4:
            refusals.append(thing["metadata"]["name"])
            said = "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2"
            raise Forbidden("The cluster does not allow it.", said=said)

    api.cluster.admit = admit

    async def story() -> None:
        running, record, store = await _begun(api, tmp_path, events, two_pods())
        await until(lambda: any(name.endswith("-1") for name in api.cluster.names("pods")))
        labels.extend(api.cluster.find("pods", name)["metadata"]["labels"] for name in api.cluster.names("pods"))
        running.cancel()
        await record.leave()
        store.close()

    asyncio.run(story())
    assert len(refusals) == 4
    (service,) = api.cluster.names("services")
    chosen = api.cluster.find("services", service)["spec"]["selector"].items()
    assert [chosen <= each.items() for each in labels] == [True, False]
    assert len([each for each in events.told if each.startswith("planned")]) == 1
    assert len([each for each in events.told if each.startswith("waiting")]) == 1


def test_a_service_that_is_made_while_something_else_is_refused_is_left_to_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumasi.core.manage.task._pause", lambda times, longest: 0.01)
    api, events = three_nodes(), Events()
    refusals: list[str] = []
    create = api.create

    async def create_slowly(path: str, thing: Any) -> Any:
        """A Service takes longer than the refusal of the gang's Secret."""
        if thing["kind"] == "Service":
            await asyncio.sleep(0.05)
        elif thing["metadata"]["name"] == manifests.secret(RUN, OWNER, "")["metadata"]["name"] and len(refusals) < 3:
            refusals.append(path)
            raise Unreachable("The cluster can't be reached.")
        return await create(path, thing)

    monkeypatch.setattr(api, "create", create_slowly)

    async def story() -> None:
        running, record, store = await _begun(api, tmp_path, events, two_pods())
        await until(lambda: any(name.endswith("-1") for name in api.cluster.names("pods")))
        running.cancel()
        await record.leave()
        store.close()

    asyncio.run(story())
    assert len(refusals) == 3
    assert len(api.cluster.names("services")) == 1


# ---- how the agents of a gang meet


class Introductions:
    """What the chief's agent is told, behind the cluster's proxy."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.told: list[tuple[str, Any]] = []
        self.trouble: Callable[[], None] = lambda: None
        api.allowed.add(("create", "pods/proxy"))
        api.cluster.answer = self.answer

    def answer(self, path: str, query: Any, data: bytes) -> Any:
        words = json.loads(data)
        self.told.append((path, json.loads(words["members"])))
        self.trouble()
        secret = self.api.cluster.find("secrets", f"{RUN}-star")["stringData"]["secret"]
        mark = f"{RUN}.0.0.0"
        assert proves(words["proof"], secret, "members", mark, words["nonce"], words["members"])
        return {"proof": proof(secret, "told", mark, words["nonce"])}


async def gang_begins(
    api: FakeApi, home: Path, until_true: Callable[[], bool]
) -> tuple[manifests.Object, manifests.Object, list[str]]:
    """Two pods that run, and listen: the chief's, the other, and what is said of it."""
    events = Events()
    running, record, store = await _begun(api, home, events, two_pods())
    await until(lambda: len(api.cluster.names("pods")) == 2)
    for pod in api.cluster.names("pods"):
        api.cluster.start(pod)
    api.cluster.say(api.cluster.names("pods")[0], b'@{"event": "listening", "port": 7700}')
    await until(until_true)
    chief, member = (api.cluster.find("pods", name) for name in api.cluster.names("pods"))
    running.cancel()
    await record.leave()
    store.close()
    return chief, member, events.told


def config_of(pod: manifests.Object) -> Any:
    env = {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}
    return json.loads(zlib.decompress(base64.b64decode(env["PUMASI_BOOT_CONFIG"]["value"])))


def test_the_chiefs_agent_is_told_where_its_members_are_and_no_service_is_made(tmp_path: Path) -> None:
    api = three_nodes()
    seen = Introductions(api)
    chief, member, _ = asyncio.run(gang_begins(api, tmp_path, lambda: bool(seen.told)))
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{chief['metadata']['name']}:7701/proxy/members"
    assert seen.told == [(path, {"1": [member["status"]["podIP"], 7701]})]
    assert api.cluster.names("services") == []
    assert config_of(member)["door"] == ["", 7701]
    assert config_of(member)["call_after"] > 0


@pytest.mark.parametrize("trouble", [Forbidden("No.", said="no"), Unreachable("No way.")])
def test_where_the_chiefs_agent_cannot_be_told_members_find_a_service_by_its_name(
    tmp_path: Path, trouble: PumasiError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumasi.pools.kubernetes.gang.introducing.PATIENCE", 0.2)
    api = three_nodes()

    def refuse() -> None:
        raise trouble

    seen = Introductions(api)
    seen.trouble = refuse
    chief, member, said = asyncio.run(gang_begins(api, tmp_path, lambda: bool(api.cluster.names("services"))))
    (service,) = api.cluster.names("services")
    assert config_of(member)["hub"] == [service, 7700]
    chosen = api.cluster.find("services", service)["spec"]["selector"].items()
    assert [chosen <= pod["metadata"]["labels"].items() for pod in (chief, member)] == [True, False]
    assert not [each for each in said if "No" in each]


def test_who_may_not_use_the_proxy_makes_a_service_first_and_members_call_at_once(tmp_path: Path) -> None:
    api = three_nodes()
    _, member, _ = asyncio.run(gang_begins(api, tmp_path, lambda: bool(api.cluster.names("services"))))
    (service,) = api.cluster.names("services")
    assert config_of(member)["hub"] == [api.cluster.find("services", service)["spec"]["clusterIP"], 7700]
    assert "door" not in config_of(member)
    assert not [path for verb, path in api.requests if "proxy" in path]


def test_a_manager_that_may_not_read_the_secret_of_the_one_before_makes_a_service(tmp_path: Path) -> None:
    api = three_nodes()
    Introductions(api)
    api.forbidden.add(("get", "secrets"))
    api.cluster.create("secrets", NAMESPACE, manifests.secret(RUN, OWNER, "of another"))
    asyncio.run(gang_begins(api, tmp_path, lambda: bool(api.cluster.names("services"))))
    assert not [path for verb, path in api.requests if "proxy" in path]


# ---- waiting


def test_a_run_that_waits_starts_when_there_is_room_however_far_its_next_look_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says who holds what it needs."""
    monkeypatch.setattr("pumasi.core.manage.task._pause", lambda times, longest: 1000.0)

    @asynchronous
    async def story() -> None:
        api, events = FakeApi(), Events()
        whole = {"name": "main", "resources": {"requests": {"cpu": "8"}}}
        busy = {"metadata": {"name": "notebook"}, "spec": {"nodeName": "node-0", "containers": [whole]}}
        api.cluster.create("pods", NAMESPACE, busy)
        starting = asyncio.ensure_future(_enter(managed(api, tmp_path, events)))
        waiting = "waiting {'run': 'train-abcde', 'reason': 'for 1 slot: 8 CPUs in use by team/notebook"
        await until(lambda: any(each.startswith(waiting) for each in events.told))
        assert api.cluster.names("pods") == ["notebook"]
        api.cluster.finish("notebook", 0)
        leave = await starting
        await leave()

    story()


def test_a_run_that_is_stopped_while_it_waits_for_a_pod_to_leave_does_nothing_after_its_end(tmp_path: Path) -> None:
    @asynchronous
    async def story() -> None:
        api, events = FakeApi(), Events()
        api.cluster.create("nodes", "", NODE)
        whole = {"name": "main", "resources": {"requests": {"cpu": "8"}}}
        spec = {"nodeName": "node-0", "containers": [whole], "restartPolicy": "Never"}
        api.cluster.create("pods", NAMESPACE, {"metadata": {"name": "before"}, "spec": spec})
        ended = {"exitCode": 0, "finishedAt": _stamp(api.now)}
        api.cluster.set_state("before", "Running", {"terminated": ended})
        running, record, store = await _begun(api, tmp_path, events, SPEC)
        await until(lambda: ("watch", "/api/v1/pods") in api.requests)
        notes = {"annotations": {DOMAIN + "stop": "soon", DOMAIN + "stopped-by": "lee"}}
        api.cluster.change("configmaps", RUN, {"metadata": notes})
        assert (await running).verdict is Verdict.STOPPED
        assert [task for task in asyncio.all_tasks() if "Manager._" in repr(task)] == []
        assert events.told[-1].startswith("finished")
        await record.leave()
        store.close()

    story()


async def _enter(manager: AbstractAsyncContextManager[Any]) -> Callable[[], Awaitable[Any]]:
    await manager.__aenter__()
    return lambda: manager.__aexit__(None, None, None)


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


def test_nothing_is_made_for_data_with_links_that_lead_elsewhere(tmp_path: Path) -> None:
    api = three_nodes()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part").symlink_to("/etc/hostname")
    command = ["train.py", "{shard}", "{model}.npz"]
    spec = with_volume(command=command, strategy="average", copy="data", workdir=str(tmp_path))
    with pytest.raises(UsageError, match="links that lead out of it: part"):
        in_a_cluster(spec, tmp_path, api)
    assert left_of(api) == api.cluster.names("persistentvolumeclaims") == []


def test_no_volume_is_made_for_what_never_fits(tmp_path: Path) -> None:
    api = three_nodes()
    with pytest.raises(DoesNotFit):
        in_a_cluster(with_volume(slots=100), tmp_path, api)
    assert api.cluster.names("persistentvolumeclaims") == []


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"slots": 9}, "Each slot asks for 1 CPU (less with --cpus 0.5). --node-selector"),
        (
            {"slots": 9, "cpus": 2, "memory": "4Gi"},
            "Each slot asks for 2 CPUs (set by --cpus), 4Gi of memory (set by --memory). ",
        ),
        ({"slots": 9, "gpu": "required"}, "Each slot asks for 1 nvidia.com/gpu (another kind with --gpu-resource). "),
    ],
)
def test_what_never_fits_is_told_with_what_each_slot_asks_for(tmp_path: Path, asked: dict[str, Any], hint: str) -> None:
    api = FakeApi()
    api.cluster.create("nodes", "", NODE)
    spec = parse_spec({**SPEC.dump(), **asked})
    record = Record(api, NAMESPACE, RUN, "here/1")
    error = refused(kubernetes.make_run(api, Request(RUN, spec, PROGRAM, tmp_path, FIELDS), record))
    assert isinstance(error, DoesNotFit)
    assert error.message.startswith("Even if nobody else used the cluster: 9 slots do not fit")
    assert error.hint.startswith(hint)


def test_a_node_selector_that_no_node_matches_is_told_as_that(tmp_path: Path) -> None:
    api = FakeApi()
    api.cluster.create("nodes", "", NODE)
    spec = parse_spec({**SPEC.dump(), "node_selector": {"a": "b"}})
    record = Record(api, NAMESPACE, RUN, "here/1")
    error = refused(kubernetes.make_run(api, Request(RUN, spec, PROGRAM, tmp_path, FIELDS), record))
    assert isinstance(error, DoesNotFit)
    assert error.message == "No node has the label a=b."
    assert error.hint == "Check --node-selector: kubectl get nodes --show-labels"


def test_advice_knows_the_image_the_limit_and_whether_checkpoints_are_kept() -> None:
    def setting(**asked: Any) -> Setting:
        spec = parse_spec({**SPEC.dump(), **asked})
        record, code = Record(FakeApi(), NAMESPACE, RUN, "here/1"), CodeObjects("", 0, ())
        return KubernetesRunner(FakeApi(), spec, "none", record, code).setting

    assert setting(image="mine", memory="64Mi") == Setting("mine", ("64Mi", "128Mi"), keeps_checkpoints=False)
    assert not setting(mounts=["data:/data:ro"]).keeps_checkpoints
    assert setting(mounts=["data:/data"]).keeps_checkpoints
