"""Older runs come first: what those that wait leave to the others, and what a pool makes of it."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.catalogue import parse_spec
from pumasi.core.launch import Program
from pumasi.core.manage import Placed, Pull, Refused, RoomChanged, TaskEvent
from pumasi.core.planning import plan
from pumasi.core.spec import Spec
from pumasi.errors import DoesNotFit, Forbidden
from pumasi.pools.base import Order, Request
from pumasi.pools.kubernetes import manifests, rooms
from pumasi.pools.kubernetes.beginning import make_run
from pumasi.pools.kubernetes.discovery import Room
from pumasi.pools.kubernetes.manifests import DOMAIN, RUN, WAITING
from pumasi.pools.kubernetes.queueing import Left, Waiter, ahead_of, leave_room, read_wish, wish_of, write_wish
from pumasi.pools.kubernetes.record import BEAT_NOTE, CREATED, STALE, WISH, Record
from pumasi.pools.kubernetes.runner import KubernetesRunner
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder
from tests.fake_cluster import NAMESPACE, FakeApi, Object
from tests.serving import asynchronous, until

GPU = "nvidia.com/gpu"
NOW = 10_000.0
PROGRAM = Program(("python3", "train.py"), "none", "", {})


def node(name: str, gpus: int, cpu: int = 64, zone: str = "a") -> Object:
    return {
        "metadata": {"name": name, "labels": {"zone": zone}},
        "spec": {},
        "status": {
            "allocatable": {GPU: str(gpus), "cpu": str(cpu), "memory": "64Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def spec(slots: int, **fields: Any) -> Spec:
    return parse_spec({"command": ["train.py"], "on": "k8s", "slots": slots, "gpu": "required", **fields})


def pods_of(run: str, asked: Spec, placement: dict[str, int]) -> list[Object]:
    """As the cluster keeps them: a limit without a request is a request too."""

    def pod(where: str, share: int) -> Object:
        resources = manifests.resources_of(asked, share)
        requests = {**resources.get("limits", {}), **resources.get("requests", {})}
        labels = {RUN: run}
        return {
            "metadata": {"namespace": NAMESPACE, "name": f"{run}-{where}", "labels": labels},
            "spec": {"nodeName": where, "containers": [{"name": "main", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"},
        }

    return [pod(where, share) for where, share in placement.items()]


def waiter(number: int, asked: Spec, **fields: Any) -> Waiter:
    return Waiter(("2026-11-16T10:00:00Z", float(number), f"run-{number}"), wish_of(asked), **fields)


def placed(rooms: Sequence[Room], asked: Spec) -> dict[str, int]:
    """As a manager does it; empty where it does not fit."""
    try:
        return plan([each.as_free for each in rooms], asked.slots, most_per_node=asked.place.most_per_node).placement
    except DoesNotFit:
        return {}


def free(left: Left) -> list[int]:
    return [each.free for each in left.rooms]


# ---- what is left


TWO_NODES = [node("n1", 4), node("n2", 2)]


def test_who_is_the_first_gets_all_there_is() -> None:
    assert leave_room(TWO_NODES, [], wish_of(spec(6)), []) == Left([Room("n1", 4, 4, ""), Room("n2", 2, 2, "")])


def test_what_an_older_run_can_take_now_is_kept_for_it_and_the_rest_is_free() -> None:
    left = leave_room(TWO_NODES, [], wish_of(spec(1)), [waiter(0, spec(4))])
    assert (free(left), len(left.fitting)) == ([0, 2], 1)
    assert [each.total for each in left.rooms] == [4, 2]


def test_what_other_tasks_of_the_same_run_are_about_to_take_is_not_free() -> None:
    left = leave_room(TWO_NODES, [], wish_of(spec(1)), [], own=[{"n1": 3}, {"n2": 1}])
    assert (free(left), len(left.fitting)) == ([1, 1], 0)


def test_an_older_run_that_does_not_fit_now_keeps_nobody_waiting() -> None:
    busy = pods_of("other", spec(1), {"n1": 1})
    left = leave_room(TWO_NODES, busy, wish_of(spec(1)), [waiter(0, spec(6))])
    assert (free(left), len(left.fitting)) == ([3, 2], 0)


def test_one_that_is_passed_over_is_known_to_fit_and_keeps_nothing() -> None:
    older = waiter(0, spec(4))
    left = leave_room(TWO_NODES, [], wish_of(spec(1)), [older], passed={older.age})
    assert (free(left), left.fitting) == ([4, 2], (older.age,))


def test_one_that_is_starting_keeps_its_place_until_its_pods_have_it() -> None:
    older = waiter(0, spec(3), placement={"n1": 2, "n2": 1})
    assert free(leave_room(TWO_NODES, [], wish_of(spec(1)), [older])) == [2, 1]
    half = pods_of("run-0", spec(3), {"n1": 2})
    left = leave_room(TWO_NODES, half, wish_of(spec(1)), [older])
    assert (free(left), len(left.fitting)) == ([2, 1], 1)
    whole = pods_of("run-0", spec(3), {"n1": 2, "n2": 1})
    left = leave_room(TWO_NODES, whole, wish_of(spec(1)), [older])
    assert (free(left), len(left.fitting)) == ([2, 1], 0)


def test_one_that_the_cluster_places_has_no_place_to_keep() -> None:
    older = waiter(0, spec(2), placement={"pod-0": 1, "pod-1": 1})
    assert free(leave_room(TWO_NODES, [], wish_of(spec(1)), [older])) == [4, 2]


def test_who_needs_other_things_is_not_kept_from_them() -> None:
    cores = spec(3, gpu="none", cpus=1)
    assert free(leave_room(TWO_NODES, [], wish_of(cores), [waiter(0, spec(6))])) == [64, 64]
    assert free(leave_room(TWO_NODES, [], wish_of(cores), [waiter(0, spec(6, cpus=2))])) == [56, 60]


def test_everybody_is_planned_as_it_was_asked_for() -> None:
    nodes = [node("n1", 4, zone="a"), node("n2", 4, zone="b"), node("n3", 4, zone="b")]
    nodes[0]["spec"] = {"taints": [{"key": "only", "value": "me", "effect": "NoSchedule"}]}

    def left(**fields: Any) -> list[int]:
        wish = wish_of(spec(1, tolerations=["only=me:NoSchedule"]))
        return free(leave_room(nodes, [], wish, [waiter(0, spec(4, **fields))]))

    assert left(node_selector={"zone": "b"}) in ([4, 0, 4], [4, 4, 0])
    assert left(node_selector={"zone": "a"}) == [4, 4, 4]
    assert left(node_selector={"zone": "a"}, tolerations=["only=me:NoSchedule"]) == [0, 4, 4]
    assert left(max_per_node=2) == [4, 2, 2]
    assert left(topology=["zone"], max_per_node=2, tolerations=["only=me:NoSchedule"]) == [4, 2, 2]


# ---- whatever the cluster and the runs are


asked_for = st.builds(
    spec,
    st.integers(1, 7),
    gpu=st.sampled_from(["required", "required", "none"]),
    cpus=st.sampled_from([None, 0.5, 2]),
    max_per_node=st.none() | st.integers(1, 3),
    node_selector=st.sampled_from([{}, {}, {"zone": "a"}]),
    topology=st.sampled_from([[], ["zone"]]),
)
clusters = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 8), st.sampled_from("ab")), min_size=1, max_size=4).map(
    lambda rows: [node(f"n{number}", *row) for number, row in enumerate(rows)]
)


@settings(max_examples=200)
@given(clusters, st.lists(asked_for, min_size=1, max_size=5))
def test_the_younger_sees_what_would_be_left_if_each_older_one_that_fits_had_started(
    nodes: list[Object], runs: list[Spec]
) -> None:
    """So nobody gets what an older one could use now, and one that does not fit hinders nobody."""
    started: list[Object] = []
    count = 0
    for place, asked in enumerate(runs):
        ahead = [waiter(number, each) for number, each in enumerate(runs[:place])]
        seen = leave_room(nodes, [], wish_of(asked), ahead)
        assert (seen.rooms, len(seen.fitting)) == (leave_room(nodes, started, wish_of(asked), []).rooms, count)
        placement = placed(seen.rooms, asked)
        started += pods_of(f"run-{place}", asked, placement)
        count += bool(placement)


@settings(max_examples=200)
@given(clusters, st.lists(asked_for, min_size=2, max_size=5))
def test_the_first_that_fits_still_does_when_the_youngest_was_faster(nodes: list[Object], runs: list[Spec]) -> None:
    *older, youngest = runs
    ahead = [waiter(number, each) for number, each in enumerate(older)]
    taken = pods_of("youngest", youngest, placed(leave_room(nodes, [], wish_of(youngest), ahead).rooms, youngest))
    fitting = [each for each in older if placed(leave_room(nodes, [], wish_of(each), []).rooms, each)]
    for first in fitting[:1]:
        assert placed(leave_room(nodes, taken, wish_of(first), []).rooms, first)


# ---- who is before whom


def anchor(
    run: str, *, made: str = "2026-11-16T10:00:00Z", created: float = 1.0, beat: float = NOW, **notes: str
) -> Object:
    told = {WISH: write_wish(wish_of(spec(4))), CREATED: str(created), BEAT_NOTE: f"{beat:.0f}"}
    metadata = {"name": run, "namespace": NAMESPACE, "creationTimestamp": made, "labels": {WAITING: "yes"}}
    return {"metadata": {**metadata, "annotations": {**told, **{DOMAIN + name: text for name, text in notes.items()}}}}


def names(waiters: Sequence[Waiter]) -> list[str]:
    return [each.run for each in waiters]


def test_the_cluster_says_who_is_older_and_of_one_second_the_runs_themselves() -> None:
    late, early = "2026-11-16T10:00:01Z", "2026-11-16T10:00:00Z"
    records = [
        anchor("a", made=late, created=1.0),
        anchor("d", made=early, created=9.0),
        anchor("c", made=early, created=8.0),
        anchor("b", made=early, created=8.0),
    ]
    assert names(ahead_of(None, records, NOW)) == ["b", "c", "d", "a"]
    assert names(ahead_of((early, 9.0, "d"), records, NOW)) == ["b", "c"]
    assert names(ahead_of((early, 8.0, "b"), records, NOW)) == []


def test_who_has_no_manager_that_lives_is_before_nobody() -> None:
    records = [anchor("dead", beat=NOW - STALE), anchor("alive", beat=NOW - STALE + 1)]
    assert names(ahead_of(None, records, NOW)) == ["alive"]


def test_only_one_that_is_about_to_start_has_a_place_already() -> None:
    first, second = ahead_of(None, [anchor("a"), anchor("b", placement='{"n1": 4}')], NOW)
    assert (first.placement, second.placement) == ({}, {"n1": 4})
    assert first.wish == wish_of(spec(4))


@given(asked_for)
def test_a_wish_is_read_as_it_was_written(asked: Spec) -> None:
    wish = wish_of(asked.changed({"tolerations": ("only=me:NoSchedule", "gpu")}))
    assert read_wish(write_wish(wish)) == wish


def test_an_anchor_that_is_not_understood_hinders_nobody() -> None:
    wish = json.loads(write_wish(wish_of(spec(4))))
    no_needs: list[Any] = [{}, {GPU: 0}, {GPU: "NaN"}, {GPU: -1.0}, [], "x", {GPU: 1e-320}, {GPU: 1e300}]
    strange: list[Any] = [
        *({**wish, "slots": slots} for slots in ("many", 0, -1, None, 1e400, 10**400)),
        *({**wish, "needs": needs} for needs in no_needs),
        *({**wish, "most_per_node": most} for most in (0, "x")),
        *({**wish, "tolerations": these} for these in (3, ["x"])),
        {},
        [],
    ]
    anchors = [anchor(f"s{number}", wish=json.dumps(each)) for number, each in enumerate(strange)]
    anchors += [anchor("a", wish="{"), anchor("b", placement="[1]"), anchor("c", placement='{"n1": "x"}')]
    anchors += [anchor("deep", wish="[" * 100_000), anchor("deeper", placement="[" * 100_000)]
    anchors += [anchor(f"p{share}", placement=json.dumps({"n1": share})) for share in (-100, 0, 10**400)]
    anchors += [anchor("d", beat=0.0), anchor("e", created=float("nan")), {"metadata": {}}]
    del anchors[0]["metadata"]["annotations"]
    assert names(ahead_of(None, [*anchors, anchor("fine")], NOW)) == ["fine"]


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_each_is_before_those_that_are_younger(order: list[int], dead: set[int]) -> None:
    records = [anchor(f"r{n}", created=n, beat=NOW - STALE * (n in dead)) for n in order]
    lines = [names(ahead_of(("2026-11-16T10:00:00Z", n, f"r{n}"), records, NOW)) for n in range(5)]
    assert lines == [[f"r{n}" for n in range(place) if n not in dead] for place in range(5)]
    assert all(set(shorter) <= set(longer) for shorter, longer in pairwise(lines))


# ---- in a cluster


class Team:
    """Runs of one namespace, as each of its managers sees it."""

    def __init__(self, *nodes: Object) -> None:
        self.api = FakeApi()
        for each in nodes:
            self.api.cluster.create("nodes", "", each)
        self.records: list[Record] = []

    async def run(self, name: str, asked: Spec, namespace: str = NAMESPACE) -> KubernetesRunner:
        record = Record(self.api, namespace, name, f"manager/{name}")
        fields = {"state": "queued", "created": float(len(self.records))}
        request = Request(name, asked, PROGRAM, Path(), fields)
        self.records.append(record)
        pool = await make_run(self.api, request, record)
        pool.tell = pytest.fail
        return pool

    async def free(self, pool: KubernetesRunner) -> list[int]:
        return [each.free for each in await pool.nodes()]

    def label(self, run: str) -> str | None:
        labels: dict[str, str] = self.api.cluster.find("jobs", run)["metadata"]["labels"]
        return labels.get(WAITING)


@asynchronous
async def test_the_younger_leaves_room_and_says_for_how_many() -> None:
    team = Team(node("n1", 4), node("n2", 2))
    first, second, third = [await team.run(name, spec(slots)) for name, slots in (("z", 4), ("y", 1), ("x", 2))]
    assert [await team.free(pool) for pool in (third, second, first)] == [[0, 1], [0, 2], [4, 2]]
    assert [pool.shortage(9).waiting for pool in (first, second, third)] == [
        "for 9 GPUs (6 free).",
        "for 9 GPUs (2 free): 4 kept for older runs; 1 run before this one.",
        "for 9 GPUs (1 free): 5 kept for older runs; 2 runs before this one.",
    ]


def unheard() -> Recorder:
    """Writes nothing down."""
    return cast("Recorder", SimpleNamespace(offered=lambda at, name: None))


@asynchronous
async def test_who_has_to_wait_because_of_that_is_told() -> None:
    team = Team(node("n1", 4))
    await team.run("a", spec(4))
    manager = Manager("b", "", spec(4), PROGRAM, await team.run("b", spec(4)), unheard())
    manager._ask(Pull())
    await manager._placing.place("main", 0)
    refused = manager._events.get_nowait()
    assert isinstance(refused, Refused)
    assert refused.reason == (
        "4 slots do not fit: 0 are free on 1 node, so 4 are missing. 4 kept for older runs; 1 run before this one."
    )
    assert refused.waiting == "for 4 GPUs: 4 kept for older runs; 1 run before this one."
    assert not refused.hopeless


@asynchronous
async def test_tasks_that_wait_to_ask_need_no_look_of_their_own() -> None:
    """What one sees holds for all of them; and who waits hears what changes, without a request."""
    team = Team(node("n1", 4))
    older = await team.run("a", spec(4))
    apart = spec(50).changed({"strategy": "average", "volume": "files", "command": ("train.py", "{model}")})
    manager = Manager("b", "", apart, PROGRAM, await team.run("b", spec(1)), unheard())
    names = [f"train-1-{index}" for index in range(50)]
    for _ in names:
        manager._ask(Pull())

    async def ask() -> tuple[int, list[str]]:
        team.api.requests.clear()
        await asyncio.gather(*(manager._placing.place(name, 0) for name in names))
        heard = [manager._events.get_nowait() for _ in range(manager._events.qsize())]
        answers = [each for each in heard if isinstance(each, TaskEvent)]
        assert [(each.task, each.attempt) for each in answers] == [(n, 0) for n in names]
        placed = [each.task for each in answers if isinstance(each, Placed)]
        return team.api.requests.count(("list", "/api/v1/nodes")), placed

    await older.nodes()
    assert await ask() == (0, [])
    await team.records[0].remove()
    await until(lambda: not manager._events.empty())
    assert isinstance(manager._events.get_nowait(), RoomChanged)
    assert await ask() == (0, names[:4])


@asynchronous
async def test_a_later_look_goes_by_what_is_then() -> None:
    team = Team(node("n1", 4))
    first, second = await team.run("a", spec(4)), await team.run("b", spec(4))
    for pool in (first, second):
        await pool.nodes()
    assert await team.free(second) == [0]
    await team.records[0].remove()
    assert (await team.free(second), second.shortage(9).remark) == ([4], "")


@asynchronous
async def test_a_first_look_lists_four_things_and_no_more() -> None:
    team = Team(node("n1", 4))
    pool = await team.run("a", spec(4))
    await pool.nodes()
    looks = [path for verb, path in team.api.requests if verb == "list"]
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    assert looks == ["/api/v1/nodes", "/api/v1/pods", "/apis/batch/v1/jobs", quotas]


@asynchronous
async def test_who_may_not_list_anchors_sees_no_order() -> None:
    team = Team(node("n1", 4))
    await team.run("a", spec(4))
    team.api.forbidden.add(("list", "jobs"))
    second = await team.run("b", spec(4))
    assert (await team.free(second), second.is_blind, second.shortage(9).remark) == ([4], False, "")


@asynchronous
async def test_the_older_comes_first_whatever_its_namespace() -> None:
    team = Team(node("n1", 4))
    await team.run("a", spec(4), namespace="other")
    second = await team.run("b", spec(4))
    assert await team.free(second) == [0]
    assert second.shortage(4).waiting == "for 4 GPUs: 4 kept for older runs; 1 run before this one."


@asynchronous
async def test_to_wait_costs_no_requests_however_many_others_do() -> None:
    team = Team(node("n1", 4))
    pools = [await team.run(f"r{number}", spec(4)) for number in range(12)]
    heard: list[int] = []
    for number, pool in enumerate(pools):
        pool.changed = lambda number=number: heard.append(number)  # type: ignore[misc]
        await pool.nodes()
        pool.shortage(4)
    await until(lambda: sum(verb == "watch" for verb, _ in team.api.requests) == 36)
    team.api.requests.clear()
    for number, record in enumerate(team.records[:-1]):
        heard.clear()
        await record.remove()
        await until(lambda number=number: set(heard) >= set(range(number + 1, 12)))  # type: ignore[misc]
        frees = [await team.free(pool) for pool in pools[number + 1 :]]
        assert frees == [[4], *[[0]] * (10 - number)]
    assert {verb for verb, _ in team.api.requests} == {"delete"}
    for pool in pools:
        await pool.let_go()


def test_room_that_an_older_run_does_not_take_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that only it knows of may be in its way, or somebody has written what is no run."""

    @asynchronous
    async def story() -> None:
        team = Team(node("n1", 4))
        await team.run("a", spec(4), namespace="other")
        second = await team.run("b", spec(4))
        assert await team.free(second) == [0]
        monkeypatch.setattr(rooms, "KEPT", 0.0)
        assert await team.free(second) == [4]
        assert await team.free(second) == [4]
        assert await second.reserve("main", {"n1": 4}) is not None

    story()


# ---- pods that have just ended


def ended(pod: str) -> Object:
    """Its container has terminated; its phase says so a second later."""
    when = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    state = {"terminated": {"exitCode": 0, "finishedAt": when}}
    return {"status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]}}


def hold(team: Team, run: str, placement: dict[str, int]) -> list[str]:
    """A run that is there already, of somebody else."""
    pods = pods_of(run, spec(1), placement)
    for pod in pods:
        team.api.cluster.create("pods", NAMESPACE, {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}})
    return [pod["metadata"]["name"] for pod in pods]


@asynchronous
async def test_what_has_just_ended_is_planned_with_and_waited_for() -> None:
    team = Team(node("n1", 5), node("n2", 3), node("n3", 2))
    for pod in hold(team, "before", {"n1": 5, "n2": 1}):
        team.api.cluster.change("pods", pod, ended(pod))
    pool = await team.run("a", spec(6))
    assert await team.free(pool) == [5, 3, 2]
    reserving = asyncio.ensure_future(pool.reserve("main", {"n1": 5, "n2": 1}))
    await until(lambda: ("watch", "/api/v1/pods") in team.api.requests)
    assert not reserving.done()
    team.api.cluster.finish("before-n2", 0)
    team.api.cluster.finish("before-n1", 0)
    assert await reserving == {"n1": ["0", "1", "2", "3", "4"], "n2": ["0"]}
    await pool.let_go()


@asynchronous
async def test_what_an_older_run_may_have_gone_for_a_moment_ago_is_left_to_it() -> None:
    """With what is leaving there is room for both; without, only for the older one, which may have begun by then."""
    team = Team(node("n1", 5), node("n2", 5))
    (pod,) = hold(team, "before", {"n1": 5})
    team.api.cluster.change("pods", pod, ended(pod))
    await team.run("a", spec(5))
    younger = await team.run("b", spec(5))
    assert await team.free(younger) == [0, 5]
    reserving = asyncio.ensure_future(younger.reserve("main", {"n2": 5}))
    await until(lambda: ("watch", "/api/v1/pods") in team.api.requests)
    assert not reserving.done()
    team.api.cluster.finish(pod, 0)
    assert await reserving is not None
    await younger.let_go()


@asynchronous
async def test_what_is_free_already_is_not_waited_for() -> None:
    team = Team(node("n1", 5), node("n2", 3))
    (pod,) = hold(team, "before", {"n1": 5})
    team.api.cluster.change("pods", pod, ended(pod))
    pool = await team.run("a", spec(3))
    await pool.nodes()
    assert await pool.reserve("main", {"n2": 3}) is not None
    assert ("watch", "/api/v1/pods") not in team.api.requests


def test_one_that_stays_for_longer_is_told_and_then_planned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "SETTLE", 4.0)

    @asynchronous
    async def story() -> None:
        team = Team(node("n1", 5))
        (pod,) = hold(team, "before", {"n1": 5})
        team.api.cluster.change("pods", pod, ended(pod))
        pool = await team.run("a", spec(5))
        told: list[str] = []
        pool.tell = told.append
        await pool.nodes()
        assert await pool.reserve("main", {"n1": 5}) is None
        assert told == ["Waiting for the GPUs of before: it has just ended."]
        await pool.let_go()

    story()


@asynchronous
async def test_a_run_that_starts_again_does_not_plan_around_its_own_pods() -> None:
    """It knows that they have ended before the cluster shows it."""
    team = Team(node("n1", 5), node("n2", 3), node("n3", 2))
    pool = await team.run("a", spec(6))
    await pool.nodes()
    order = Order("main", 0, ["n1"], [{"slots": 5, "silence": 0.05, "grace": 0.05, "ranks": [], "first": 0}])
    sink = Sink()
    await pool.launch(order, sink)  # type: ignore[arg-type]
    await until(lambda: team.api.cluster.names("pods"))
    (pod,) = team.api.cluster.names("pods")
    team.api.cluster.start(pod)
    seen = copy.deepcopy(team.api.cluster.find("pods", pod))
    team.api.cluster.finish(pod, 1)
    await until(lambda: not pool._gangs)
    pool.release("main")
    team.api.cluster.change("pods", pod, {"status": seen["status"]})
    assert await team.free(pool) == [5, 3, 2]


class Sink:
    def __init__(self) -> None:
        self.refusals: list[str] = []

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        self.refusals.append(reason)

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None: ...


@asynchronous
async def test_one_that_was_turned_away_keeps_nobody_waiting_until_it_asks_again() -> None:
    """A quota may be in its way, or a volume: nobody knows for how long."""
    team = Team(node("n1", 4))
    first, second = await team.run("a", spec(4)), await team.run("b", spec(4))
    for pool in (first, second):
        await pool.nodes()
    assert await team.free(second) == [0]
    team.api.cluster.admit = refuse_pods
    sink = Sink()
    config = {"slots": 4, "silence": 0.05, "grace": 0.05, "ranks": []}
    team.records[0].attend()
    await first.launch(Order("main", 0, ["n1"], [config]), sink)  # type: ignore[arg-type]
    await until(lambda: sink.refusals and not first._gangs)
    team.records[0].update({"state": "queued"})
    await until(lambda: team.label("a") is None)
    assert await team.free(second) == [4]
    await first.nodes()
    await until(lambda: team.label("a") == "yes")
    assert await team.free(second) == [0]
    await team.records[0].leave()


def refuse_pods(thing: Object) -> None:
    if thing["kind"] == "Pod":
        raise Forbidden("no", said="exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2")
