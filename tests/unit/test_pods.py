"""A gang as pods: all of them or none, told once how it ended, and nothing left that nobody knows of."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from pumasi.catalogue import parse_spec
from pumasi.core.endings import outcome_of
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.outcome import Verdict
from pumasi.errors import Forbidden, Rejected, Unreachable
from pumasi.pools.base import Order
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes import pods as pods_module
from pumasi.pools.kubernetes.gang import deciding, machine
from pumasi.pools.kubernetes.manifests import CodeObjects, GangSpec, Owner
from pumasi.pools.kubernetes.pods import PodGang
from tests.fake_cluster import NAMESPACE, Cluster, FakeApi, Key, Object
from tests.serving import asynchronous, until

RUN = "train-abcde"
DONE = {"cause": "done"}
FAILED = {"cause": "exit", "rank": 0, "node": 0, "code": 3, "tail": ["ValueError"]}
QUOTA = 'pods "x" is forbidden: exceeded quota: few, requested: pods=1, used: pods={0}, limited: pods={0}'


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumasi.kube.watching._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("pumasi.kube.logs._GLANCE", 0.002)
    monkeypatch.setattr(deciding, "DRAIN", 2.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever does not end by itself is ended by force, soon."""
    monkeypatch.setattr(deciding, "MARGIN", 0.15)


class Sink:
    def __init__(self) -> None:
        self.output = b""
        self.words: list[Mapping[str, Any]] = []
        self.ends: list[Mapping[str, Any]] = []
        self.refusals: list[tuple[str, bool, str]] = []

    def frames(self, order: Order, chunk: bytes) -> None:
        self.output += chunk

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        self.words.append(words)

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        self.ends.append(facts)

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        self.refusals.append((reason, hopeless, hint))

    @property
    def end(self) -> Mapping[str, Any]:
        """The only one."""
        assert self.refusals == []
        (end,) = self.ends
        return end

    @property
    def refusal(self) -> tuple[str, bool, str]:
        assert self.ends == []
        (refusal,) = self.refusals
        return refusal


def an_order(nodes: int, grace: float) -> tuple[Order, list[Object]]:
    """A slot on each node, node-0 the chief's; and the pods for it."""
    spec = parse_spec({"command": ["train.py"], "on": "k8s", "slots": nodes})
    program = Program(("python3", "train.py"), "none", "", {})
    placement = {f"node-{number}": 1 for number in range(nodes)}
    attempt = Attempt(RUN, 0, placement, {}, "", "0", "/tmp", [""] * nodes)
    configs = agent_configs(spec, program, attempt, gang_of(spec, program, attempt))
    gang = GangSpec(
        RUN, "main", 0, Owner("ConfigMap", RUN, "owner"), "", True, "", "none", CodeObjects(f"{RUN}-code", 0, ())
    )
    pods = [manifests.pod(spec, gang, index, name, configs[index]) for index, name in enumerate(placement)]
    quick = [{**config, "silence": 0.05, "grace": grace} for config in configs]
    return Order("main", 0, list(placement), quick), pods


class Scene:
    """A gang in a cluster, from the moment that it is asked for."""

    def __init__(self, api: FakeApi, nodes: int, grace: float) -> None:
        self.api = api
        self.cluster: Cluster = api.cluster
        self.order, self.pods = an_order(nodes, grace)
        self.names = [pod["metadata"]["name"] for pod in self.pods]
        self.sink = Sink()
        self.wholes = 0
        self.away: list[str] = []
        self.gang = PodGang(api, NAMESPACE, RUN, self.order, self.sink, self._be_whole, self.away.append)

    def _be_whole(self) -> None:
        self.wholes += 1

    def be_patient(self) -> None:
        self.gang.state = self.gang.state._replace(silence=60.0)

    def begin(self) -> None:
        self.task = asyncio.ensure_future(self.gang.run(self.pods))

    def adopt(self, heard: Mapping[int, int] = {}, *, ran: bool = True) -> None:
        self.task = asyncio.ensure_future(self.gang.run((), heard, ran=ran))

    async def created(self) -> None:
        await until(lambda: self.task.done() or set(self.names) <= set(self.cluster.names("pods")))

    async def whole(self) -> None:
        """All run, and the chief has said so."""
        for name in self.names:
            self.cluster.start(name)
        self.cluster.say(self.names[0], word("running"))
        await until(lambda: self.wholes)
        await until(lambda: len(self.gang.state.read) == len(self.names))

    async def over(self) -> None:
        await self.task
        assert self.gang.over

    def ends_with(self, outcome: Mapping[str, Any], code: int, index: int = 0) -> None:
        """As an agent does: in its log, and in what it leaves behind."""
        self.cluster.say(self.names[index], word("over", outcome=outcome))
        self.cluster.finish(self.names[index], code, json.dumps(outcome))

    def all_done(self) -> None:
        self.ends_with(DONE, 0)
        for name in self.names[1:]:
            self.cluster.finish(name, 0)

    def put(self, *started: str) -> None:
        """The pods, as a manager before us has made them; these have started."""
        for pod in self.pods:
            self.cluster.create("pods", NAMESPACE, pod)
        for name in started:
            self.cluster.start(name)


@asynccontextmanager
async def scene(nodes: int = 2, api: FakeApi | None = None, grace: float = 0.05) -> AsyncIterator[Scene]:
    made = Scene(api or FakeApi(), nodes, grace)
    try:
        yield made
    finally:
        made.task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await made.task


@asynccontextmanager
async def begun(nodes: int = 2, api: FakeApi | None = None, grace: float = 0.05) -> AsyncIterator[Scene]:
    """Its pods are made."""
    async with scene(nodes, api, grace) as made:
        made.begin()
        await made.created()
        yield made


@asynccontextmanager
async def running(nodes: int = 2, api: FakeApi | None = None) -> AsyncIterator[Scene]:
    async with begun(nodes, api) as made:
        await made.whole()
        yield made


def word(event: str, **more: Any) -> bytes:
    return b"@" + json.dumps({"event": event, **more}).encode()


def frame(rank: int, seq: int) -> bytes:
    return b"%d.%d 1763240000123|line %d" % (rank, seq, seq)


# ---- a gang that runs


@asynchronous
async def test_a_gang_that_is_done_was_whole_has_said_all_and_leaves_its_pods_for_their_logs() -> None:
    async with running() as play:
        play.cluster.say(play.names[0], frame(0, 1), frame(0, 2))
        play.cluster.say(play.names[1], frame(1, 1), word("exit", rank=1, code=0))
        play.all_done()
        await play.over()
        assert play.sink.end == DONE
        assert sorted(play.sink.output.splitlines()) == [frame(0, 1), frame(0, 2), frame(1, 1)]
        assert [said["event"] for said in play.sink.words] == ["running", "exit"]
        assert play.wholes == 1
        assert play.cluster.names("pods") == play.names
        assert play.gang.lost_nodes == set()


@asynchronous
async def test_a_program_that_fails_is_told_as_its_agent_tells_it() -> None:
    outcome = {"cause": "exit", "rank": 1, "node": 1, "code": 3, "tail": ["ValueError"]}
    async with running() as play:
        play.cluster.say(play.names[0], word("ending", outcome=outcome))
        play.ends_with(outcome, 1)
        play.cluster.finish(play.names[1], 1)
        await play.over()
        assert play.sink.end == outcome
        assert [said["event"] for said in play.sink.words] == ["running", "ending"]


@asynchronous
async def test_a_program_that_may_not_write_to_its_volume_is_told_what_to_do() -> None:
    outcome = {**FAILED, "tail": ["PermissionError: [Errno 13] Permission denied: '/volume/x'"]}
    async with begun(1) as play:
        change = {
            "containers": [{"name": "main", "image": "a", "volumeMounts": [{"name": "files", "mountPath": "/volume"}]}],
            "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": "files"}}],
        }
        play.cluster.change("pods", play.names[0], {"spec": change})
        await play.whole()
        play.ends_with(outcome, 1)
        await play.over()
        ended = outcome_of(play.sink.end, play.order.nodes, 1)
        assert ended.reason == "The program on node-0 failed, with exit code 3."
        assert "fsGroup" in ended.hint


@asynchronous
async def test_the_chiefs_words_outrank_those_of_a_member() -> None:
    async with running() as play:
        play.ends_with({"cause": "hub lost"}, 1, index=1)
        await until(lambda: play.gang.state.told)
        play.ends_with(FAILED, 1)
        await play.over()
        assert play.sink.end == FAILED


@asynchronous
async def test_that_an_agent_was_told_to_stop_is_not_told_before_it_is_known_by_whom() -> None:
    async with running() as play:
        play.cluster.say(play.names[0], word("ending", outcome={"cause": "stopped"}))
        play.cluster.say(play.names[0], word("ending", outcome={"cause": "silent", "node": 1}), frame(0, 1))
        await until(lambda: play.sink.output)
        assert [said["event"] for said in play.sink.words] == ["running"]


@asynchronous
async def test_what_is_missing_in_the_output_is_told_in_numbers() -> None:
    async with running(1) as play:
        play.cluster.say(play.names[0], frame(0, 1), frame(0, 5))
        play.all_done()
        await play.over()
        assert play.sink.words[-1] == {"event": "gap", "rank": 0, "lines": 3}
        assert play.sink.end == DONE


@asynchronous
async def test_an_agent_that_died_without_a_word_leaves_the_lines_that_are_nobodys() -> None:
    async with running(1) as play:
        play.cluster.say(play.names[0], b"Fatal Python error: out of luck")
        play.cluster.finish(play.names[0], 134)
        await play.over()
        assert play.sink.end["cause"] == "agent died"
        assert (play.sink.end["code"], play.sink.end["tail"]) == (134, ["Fatal Python error: out of luck"])


@asynchronous
async def test_a_pod_whose_memory_ran_out_is_told_as_that() -> None:
    async with running() as play:
        play.cluster.finish(play.names[1], 137, reason="OOMKilled")
        play.ends_with({"cause": "silent", "node": 1}, 1)
        await play.over()
        assert play.sink.end == {"cause": "oom", "node": 1}


# ---- init containers


def fail_init(play: Scene, index: int, code: int = 3) -> None:
    """As a kubelet shows it: our container waits for ever."""
    name = play.names[index]
    play.cluster.change("pods", name, {"spec": {"nodeName": f"node-{index}"}})
    init = {"name": "a", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    play.cluster.logs[f"{name}/a"] = [b"no such bucket"]
    play.cluster.set_state(name, "Failed", waiting, initContainerStatuses=[init])


@pytest.mark.parametrize("nodes", [1, 2])
@asynchronous
async def test_an_init_container_that_fails_is_the_runs_failure_with_what_it_said_last(nodes: int) -> None:
    async with begun(nodes) as play:
        fail_init(play, nodes - 1)
        await play.over()
        ended = outcome_of(play.sink.end, play.order.nodes, nodes)
        assert ended.verdict is Verdict.FAILED
        assert ended.reason == f"The init container a of the pod on node-{nodes - 1} failed, with exit code 3."
        assert list(ended.tail) == ["no such bucket"]
        assert play.sink.end.get("spends", True)


@asynchronous
async def test_an_init_container_that_failed_before_its_run_was_adopted_is_told_as_that() -> None:
    async with scene() as play:
        play.put()
        for index in range(2):
            fail_init(play, index)
        play.adopt(ran=False)
        await play.over()
        assert play.sink.end["reason"] == "The init container a of the pod on node-0 failed, with exit code 3."


# ---- all or nothing


def unschedulable(play: Scene, index: int, message: str = "0/3 nodes are available: 3 Insufficient cpu.") -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    play.cluster.change("pods", play.names[index], {"status": {"conditions": [condition]}})


@asynchronous
async def test_one_pod_that_finds_no_place_takes_all_of_them_back() -> None:
    async with begun(3) as play:
        play.cluster.start(play.names[0])
        unschedulable(play, 2)
        await play.over()
        reason, hopeless, _ = play.sink.refusal
        assert reason == "The cluster's scheduler has no place for it: of 3 nodes, 3 have too little cpu free."
        assert not hopeless
        assert play.cluster.names("pods") == []
        assert set(play.api.graces) == {1}


@asynchronous
async def test_a_node_that_turns_a_pod_away_refuses_the_gang() -> None:
    async with begun() as play:
        away = {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough resource"}
        play.cluster.change("pods", play.names[1], {"spec": {"nodeName": "node-1"}, "status": away})
        await play.over()
        assert play.sink.refusal[0] == "Node node-1 turned it away: Node didn't have enough resource."
        assert play.cluster.names("pods") == []


@pytest.mark.parametrize(
    ("limit", "reason", "hopeless"),
    [
        (5, "The quota few does not allow it: requested pods=1, limited to pods=5.", False),
        (4, "The quota few does not allow it: requested pods=5 in all, limited to pods=4.", True),
    ],
)
@asynchronous
async def test_a_quota_that_ends_in_the_middle_of_the_gang_refuses_all_of_it(
    monkeypatch: pytest.MonkeyPatch, limit: int, reason: str, hopeless: bool
) -> None:
    monkeypatch.setattr(machine, "AT_ONCE", 1)
    api = FakeApi()
    asked: list[str] = []

    def admit(pod: Object) -> None:
        asked.append(pod["metadata"]["name"])
        if len(asked) == 3:
            raise Forbidden("The cluster does not allow it.", said=QUOTA.format(limit))

    api.cluster.admit = admit
    async with scene(5, api) as play:
        play.gang.needs = {"pods": 5}
        play.begin()
        await play.over()
        assert play.sink.refusal[:2] == (reason, hopeless)
        assert asked == play.names[:3]
        assert play.cluster.names("pods") == []


@asynchronous
async def test_pods_that_the_cluster_will_never_take_are_told_as_hopeless() -> None:
    api = FakeApi()
    api.forbidden = {("create", "pods")}
    async with scene(2, api) as play:
        play.begin()
        await play.over()
        reason, hopeless, hint = play.sink.refusal
        assert hopeless
        assert 'User "kim" cannot create resource "pods"' in reason
        assert "administrator" in hint


@asynchronous
async def test_a_cluster_that_is_gone_while_pods_are_made_fails_the_attempt_and_takes_them_back() -> None:
    api = FakeApi()
    left = iter(range(1))

    def fail_later(verb: str, path: str) -> None:
        if verb == "create" and next(left, None) is None:
            raise Unreachable("The cluster can't be reached.")

    api.before = fail_later
    async with scene(3, api) as play:
        play.begin()
        await play.over()
        end = play.sink.end
        assert (end["cause"], end["verdict"], end["reason"]) == ("cluster", "failed", "The cluster can't be reached.")
        assert play.cluster.names("pods") == []


@asynchronous
async def test_a_pod_whose_creation_had_no_answer_is_ours() -> None:
    api = FakeApi()
    api.losing = {"create"}
    async with running(2, api) as play:
        play.all_done()
        await play.over()
        assert play.sink.end == DONE


@pytest.mark.usefixtures("impatient")
@asynchronous
async def test_a_refused_gang_is_gone_even_where_a_node_does_not_answer() -> None:
    async with begun(2) as play:
        play.cluster.dead_nodes = {"node-0"}
        play.cluster.change("pods", play.names[0], {"spec": {"nodeName": "node-0"}})
        unschedulable(play, 1)
        await play.over()
        assert play.sink.refusals
        assert play.cluster.names("pods") == []
        assert play.gang.lost_nodes == {"node-0"}


# ---- containers that do not start


def waits(play: Scene, index: int, reason: str, message: str) -> None:
    play.cluster.set_state(play.names[index], "Pending", {"waiting": {"reason": reason, "message": message}})


@asynchronous
async def test_an_image_that_is_not_there_fails_the_gang_at_once() -> None:
    async with begun() as play:
        waits(play, 1, "ErrImagePull", "manifest for nothing:1 not found")
        await play.over()
        end = play.sink.end
        assert (end["cause"], end["verdict"], end["node"]) == ("cluster", "failed", 1)
        assert end["reason"].startswith("The image python:3.12-slim can't be pulled: manifest for nothing:1 not found")
        assert play.cluster.names("pods") == []


@asynchronous
async def test_an_image_may_fail_to_come_once() -> None:
    async with begun(1) as play:
        waits(play, 0, "ErrImagePull", "TLS handshake timeout")
        waits(play, 0, "ImagePullBackOff", "Back-off pulling image")
        await until(lambda: any(member.pulls for member in play.gang.state.members.values()))
        await play.whole()
        play.all_done()
        await play.over()
        assert play.sink.end == DONE


@asynchronous
async def test_an_image_that_does_not_come_twice_fails_the_gang() -> None:
    async with begun(1) as play:
        waits(play, 0, "ErrImagePull", "TLS handshake timeout")
        waits(play, 0, "ImagePullBackOff", "Back-off pulling image")
        waits(play, 0, "ErrImagePull", "TLS handshake timeout")
        await play.over()
        assert "can't be pulled" in play.sink.end["reason"]


@asynchronous
async def test_an_image_without_python_is_told_as_that() -> None:
    message = 'failed to create containerd task: exec: "python3": executable file not found in $PATH: unknown'
    async with begun(1) as play:
        play.cluster.finish(play.names[0], 128, message, reason="StartError")
        await play.over()
        assert play.sink.end["reason"] == "The image python:3.12-slim has no python3."
        assert "--image" in play.sink.end["hint"]


# ---- ends that are asked for


@asynchronous
async def test_a_gang_that_is_stopped_ends_itself_and_is_told_as_stopped() -> None:
    async with running() as play:

        def sentenced(name: str) -> None:
            play.ends_with({"cause": "stopped"}, 143, play.names.index(name))

        play.cluster.sentenced = sentenced
        play.gang.end(15.0)
        await play.over()
        assert play.sink.end == {"cause": "stopped"}
        assert play.api.graces == [27]
        play.gang.end(15.0)
        assert play.api.graces == [27]


@asynchronous
async def test_that_kubernetes_does_not_hurry_is_told() -> None:
    async with begun(grace=100.0) as play:
        await play.whole()
        play.cluster.dead_nodes |= set(play.order.nodes)  # or such that take their time
        play.gang.end(100.0)
        await until(lambda: play.gang.state.killed_by)
        play.gang.end(0)
        await until(lambda: play.away)
        assert play.api.graces == [112, 1]
        (said,) = play.away
        assert said.startswith("Kubernetes does not shorten a grace period that has begun: the pods end within ")
        play.all_done()
        await play.over()


@asynchronous
async def test_a_stop_leaves_alone_what_has_ended() -> None:
    async with running() as play:
        play.ends_with(DONE, 0, index=1)
        await until(lambda: play.names[1] not in play.gang.state.live)
        play.gang.end(0)
        await play.over()
        assert play.cluster.names("pods") == [play.names[1]]
        assert play.api.graces == [1]


@asynchronous
async def test_who_is_late_is_named_when_the_gang_is_ended_before_it_was_whole() -> None:
    async with begun(grace=15.0) as play:
        play.cluster.start(play.names[0])
        play.cluster.change("pods", play.names[1], {"spec": {"nodeName": "node-1"}})
        waits(play, 1, "ContainerCreating", "")
        about = {"involvedObject": {"name": play.names[1]}, "type": "Warning", "message": "MountVolume failed."}
        play.cluster.create("events", NAMESPACE, {"metadata": {"name": "a"}, **about})
        play.cluster.create("events", NAMESPACE, {"metadata": {"name": "b"}, **about, "type": "Normal"})
        await until(lambda: len(play.gang.state.read) == 1)
        await until(lambda: play.gang.state.members[play.names[1]].seen.node)
        play.gang.end(15.0)
        await play.over()
        said = "the pod on node-1 did not start: MountVolume failed"
        assert play.sink.end == {"cause": "late", "who": said, "hint": ""}
        assert play.api.graces == [1]
        assert play.cluster.names("pods") == []


@asynchronous
async def test_a_stop_while_pods_are_made_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "AT_ONCE", 1)
    async with scene(4) as play:
        play.cluster.admit = lambda pod: play.gang.end(15.0) if pod["metadata"]["name"] == play.names[1] else None
        play.begin()
        await play.over()
        assert play.sink.end["cause"] in ("stopped", "late")
        assert play.cluster.names("pods") == []


# ---- what others do to pods


@asynchronous
async def test_a_pod_that_somebody_deletes_is_told_as_that() -> None:
    async with running() as play:

        def sentenced(name: str) -> None:
            """The agent that is told to stop tells the chief, and all end."""
            play.ends_with({"cause": "stopped"}, 143, index=1)
            play.ends_with({"cause": "stopped"}, 1)

        play.cluster.sentenced = sentenced
        play.cluster.delete(Key("pods", NAMESPACE, play.names[1]), None)
        await play.over()
        end = play.sink.end
        assert (end["verdict"], end["reason"]) == ("lost", "The pod on node-1 was deleted by somebody.")
        assert end["spends"] is False


@asynchronous
async def test_a_pod_that_was_evicted_is_told_as_that_whatever_its_agents_say() -> None:
    async with running() as play:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Drain",
        }
        play.cluster.change("pods", play.names[1], {"status": {"conditions": [condition]}})
        play.cluster.finish(play.names[1], 143, json.dumps({"cause": "stopped"}))
        play.ends_with({"cause": "stopped"}, 1)
        await play.over()
        assert play.sink.end["reason"] == "The pod on node-1 was evicted: Drain."


@pytest.mark.usefixtures("impatient")
@asynchronous
async def test_a_pod_on_a_lost_node_is_given_up_when_nothing_of_it_can_live_any_more() -> None:
    async with running(3) as play:
        play.cluster.dead_nodes = {"node-1"}
        play.ends_with({"cause": "silent", "node": 1}, 1)
        play.ends_with({"cause": "silent", "node": 1}, 1, index=2)
        await play.over()
        assert play.sink.end["reason"] == "The pod on node-1 was lost: its node does not answer."
        assert play.sink.end["spends"] is False
        assert play.gang.lost_nodes == {"node-1"}
        assert play.api.graces[-1] == 0
        assert play.cluster.names("pods") == [play.names[0], play.names[2]]


def set_ready(play: Scene, index: int, *, node: bool) -> None:
    """As the cluster marks a pod whose node does not answer, or does again."""
    conditions = [{"type": "Ready", "status": str(node)}, {"type": "ContainersReady", "status": "True"}]
    play.cluster.change("pods", play.names[index], {"status": {"conditions": conditions}})


def notes(play: Scene) -> list[str]:
    return [said["text"] for said in play.sink.words if said["event"] == "note"]


@asynchronous
async def test_a_single_pod_whose_node_does_not_answer_is_given_up_after_its_silence() -> None:
    """Though its end would take a grace and a margin more, if anybody could hear of it."""
    async with running(1) as play:
        play.cluster.dead_nodes = {"node-0"}
        set_ready(play, 0, node=False)
        await play.over()
        assert notes(play) == ["node-0 does not answer (NotReady); in 0.05 s the run starts again elsewhere."]
        assert play.sink.end["reason"] == "The pod on node-0 was lost: its node does not answer."
        assert play.sink.end["spends"] is False
        assert play.gang.lost_nodes == {"node-0"}
        assert play.api.graces == [0]


@asynchronous
async def test_a_single_pod_whose_node_answers_again_in_time_goes_on() -> None:
    async with running(1) as play:
        play.be_patient()
        set_ready(play, 0, node=False)
        await until(lambda: notes(play))
        set_ready(play, 0, node=True)
        await until(lambda: len(notes(play)) == 2)
        assert notes(play)[1] == "node-0 answers again; the run goes on."
        play.all_done()
        await play.over()
        assert play.sink.end == DONE
        assert play.gang.lost_nodes == set()
        assert play.api.graces == []


@asynchronous
async def test_a_gang_of_several_pods_decides_by_itself_whether_a_node_is_lost() -> None:
    async with running(2) as play:
        set_ready(play, 1, node=False)
        await until(lambda: notes(play))
        assert notes(play) == ["node-1 does not answer (NotReady)."]
        play.all_done()
        await play.over()
        assert play.sink.end == DONE


@asynchronous
async def test_a_cluster_that_reaches_none_of_its_nodes_costs_no_single_pod_its_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the cluster that is cut off: Kubernetes itself deletes nothing then."""
    monkeypatch.setattr(deciding, "AGAIN", 0.01)
    async with running(1) as play:
        asked: list[str] = []

        async def all_are_away(path: str, **_: Any) -> list[Object]:
            asked.append(path)
            return [
                {"metadata": {"name": "node-0"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
            ]

        monkeypatch.setattr(play.api, "list", all_are_away)
        set_ready(play, 0, node=False)
        await until(lambda: len(asked) >= 3)
        set_ready(play, 0, node=True)
        await until(lambda: len(notes(play)) == 2)
        play.all_done()
        await play.over()
        assert play.sink.end == DONE
        assert play.api.graces == []


@pytest.mark.parametrize("trouble", ["forbidden", "unreachable"])
@asynchronous
async def test_a_single_pod_is_left_to_kubernetes_where_nobody_can_tell_whether_any_node_is_ready(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """It deletes the pod when the node stays away, unless it is cut off from all of them."""
    monkeypatch.setattr(deciding, "AGAIN", 0.01)
    async with running(1) as play:
        refusal = Forbidden("no") if trouble == "forbidden" else Unreachable("no")

        def refuse(verb: str, path: str) -> None:
            if (verb, path) == ("list", "/api/v1/nodes"):
                raise refusal

        play.api.before = refuse
        play.cluster.dead_nodes = {"node-0"}
        set_ready(play, 0, node=False)
        await until(lambda: play.api.requests.count(("list", "/api/v1/nodes")) >= 3)
        assert (play.api.graces, play.task.done()) == ([], False)
        assert len(notes(play)) == (2 if trouble == "forbidden" else 1)
        play.cluster.delete(Key("pods", NAMESPACE, play.names[0]), 30)
        await play.over()
        assert play.sink.end["reason"] == "The pod on node-0 was lost: its node does not answer."
        assert play.gang.lost_nodes == {"node-0"}
        assert play.api.graces == [0]


@pytest.mark.usefixtures("impatient")
@asynchronous
async def test_a_node_that_is_marked_late_does_not_put_the_end_of_a_gang_off() -> None:
    async with running(2) as play:
        play.cluster.dead_nodes = {"node-1"}
        play.ends_with({"cause": "silent", "node": 1}, 1)
        await until(lambda: play.gang.state.deadline is not None)
        before = play.gang.state.deadline
        set_ready(play, 1, node=False)
        await until(lambda: play.gang.state.missed)
        assert play.gang.state.deadline in (before, None)
        await play.over()
        assert play.gang.lost_nodes == {"node-1"}


@asynchronous
async def test_a_node_is_avoided_whoever_removed_the_pod_that_was_lost_there() -> None:
    async with running(1) as play:
        play.be_patient()
        set_ready(play, 0, node=False)
        await until(lambda: notes(play))
        play.cluster.delete(Key("pods", NAMESPACE, play.names[0]), 0)
        await play.over()
        assert play.gang.lost_nodes == {"node-0"}


@asynchronous
async def test_a_dead_node_does_not_hold_the_end_up_with_the_rest_of_its_output() -> None:
    async with begun(1) as play:

        async def never_ends(*_: Any, **__: Any) -> AsyncIterator[bytes]:
            yield b"2026-11-16T10:00:00.000000001Z " + word("running") + b"\n"
            await asyncio.Event().wait()

        play.api.log = never_ends  # type: ignore[method-assign,assignment]
        await play.whole()
        play.cluster.dead_nodes = {"node-0"}
        set_ready(play, 0, node=False)
        await asyncio.wait_for(play.over(), deciding.DRAIN / 2)
        assert play.sink.end["spends"] is False


@pytest.mark.usefixtures("impatient")
@asynchronous
async def test_members_that_do_not_hear_of_the_end_are_told_by_deleting_their_pods() -> None:
    async with running() as play:
        play.ends_with(FAILED, 1)
        await play.over()
        assert play.sink.end == FAILED
        assert play.cluster.names("pods") == [play.names[0]]
        assert play.gang.lost_nodes == set()


# ---- trouble with the cluster


@asynchronous
async def test_output_that_may_not_be_read_fails_the_gang() -> None:
    api = FakeApi()
    api.forbidden = {("get", "pods/log")}
    async with begun(2, api) as play:
        for name in play.names:
            play.cluster.start(name)
        await play.over()
        end = play.sink.end
        assert (end["cause"], end["verdict"]) == ("cluster", "failed")
        assert "pods/log" in end["reason"]
        assert play.cluster.names("pods") == []


@asynchronous
async def test_a_cluster_that_is_away_for_a_while_is_told_and_forgotten() -> None:
    async with running() as play:
        play.api.unreachable = True
        await until(lambda: play.away)
        play.all_done()
        play.api.unreachable = False
        await play.over()
        assert play.away == ["The cluster at https://fake can't be reached: connection refused.", ""]
        assert play.sink.end == DONE


@asynchronous
async def test_a_cluster_that_stays_away_is_the_managers_trouble_and_the_gang_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pods_module, "PATIENCE", 0.05)
    async with running() as play:
        play.api.unreachable = True
        with pytest.raises(Unreachable):
            await play.task
        assert play.sink.ends == []
        assert play.cluster.names("pods") == play.names
        assert play.api.graces == []


@asynchronous
async def test_output_that_can_not_be_read_to_its_end_is_told() -> None:
    async with begun(1) as play:

        async def breaks_off(*_: Any, **__: Any) -> AsyncIterator[bytes]:
            yield b"2026-11-16T10:00:00.000000001Z " + word("running") + b"\n"
            raise Rejected("It is not valid.", said='container main is not valid for pod "x"')

        play.api.log = breaks_off  # type: ignore[method-assign,assignment]
        await play.whole()
        play.all_done()
        await play.over()
        assert play.away == [f"The output of the pod {play.names[0]} could not be read to its end: It is not valid."]
        assert play.sink.end == DONE


@asynchronous
async def test_who_lets_go_of_a_gang_leaves_it_alone() -> None:
    others = asyncio.all_tasks()
    async with running() as play:
        play.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await play.task
        await until(lambda: asyncio.all_tasks() == others)
        play.gang.end(0)
        assert asyncio.all_tasks() == others
        assert (play.sink.ends, play.sink.refusals, play.api.graces) == ([], [], [])
        assert play.cluster.names("pods") == play.names


@asynchronous
async def test_trouble_of_whoever_listens_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as play:

        def fail(order: Order, chunk: bytes) -> None:
            raise OSError("The disk is full.")

        monkeypatch.setattr(play.sink, "frames", fail)
        play.cluster.say(play.names[0], frame(0, 1))
        with pytest.raises(OSError, match="full"):
            await play.task


@asynchronous
async def test_an_end_that_is_asked_for_before_anything_was_made_makes_nothing() -> None:
    async with scene() as play:
        play.gang.end(0)
        play.begin()
        await play.over()
        assert play.sink.end == {"cause": "stopped"}
        assert ("create", f"/api/v1/namespaces/{NAMESPACE}/pods") not in play.api.requests


# ---- adoption


@asynchronous
async def test_who_adopts_a_gang_hears_what_is_new() -> None:
    async with scene() as play:
        play.put(*play.names)
        play.cluster.say(play.names[0], word("running"), frame(0, 1), frame(0, 2), frame(0, 3))
        play.cluster.say(play.names[1], frame(1, 1))
        play.adopt({0: 2, 1: 1})
        await until(lambda: play.sink.output)
        play.cluster.say(play.names[1], frame(1, 2))
        play.all_done()
        await play.over()
        assert sorted(play.sink.output.splitlines()) == [frame(0, 3), frame(1, 2)]
        assert play.sink.end == DONE
        assert ("create", f"/api/v1/namespaces/{NAMESPACE}/pods") not in play.api.requests


@asynchronous
async def test_who_adopts_a_gang_that_has_ended_hears_how() -> None:
    async with scene(1) as play:
        play.put(play.names[0])
        play.ends_with(FAILED, 1)
        play.adopt()
        await play.over()
        assert play.sink.end == FAILED


def lost(play: Scene) -> str:
    """Why the run lost it."""
    outcome = outcome_of(play.sink.end, play.order.nodes, len(play.names))
    assert outcome.verdict is Verdict.LOST
    return outcome.reason


@asynchronous
async def test_a_gang_of_which_nothing_is_left_was_lost() -> None:
    async with scene() as play:
        play.adopt()
        await play.over()
        assert lost(play) == "The chief's pod is gone: somebody deleted it."
        assert play.sink.end["spends"] is False


@asynchronous
async def test_a_gang_that_ended_itself_because_a_pod_went_was_lost() -> None:
    async with scene() as play:
        play.put(*play.names)
        play.cluster.delete(Key("pods", NAMESPACE, play.names[1]), 0)
        play.ends_with({"cause": "silent", "node": 1}, 1)
        play.adopt()
        await play.over()
        assert lost(play) == "Node node-1 was lost: its agent fell silent."


@pytest.mark.usefixtures("impatient")
@asynchronous
async def test_what_is_left_of_a_gang_is_ended() -> None:
    async with scene(3) as play:
        play.put(*play.names)
        play.cluster.delete(Key("pods", NAMESPACE, play.names[1]), 0)
        play.adopt()
        await play.over()
        assert lost(play)
        assert play.cluster.names("pods") == []


@asynchronous
async def test_a_gang_that_was_never_made_as_a_whole_is_taken_back_and_may_be_made_anew() -> None:
    async with scene(3) as play:
        play.put(play.names[0])
        play.cluster.delete(Key("pods", NAMESPACE, play.names[2]), 0)
        play.adopt(ran=False)
        await play.over()
        reason, hopeless, _ = play.sink.refusal
        assert reason == "Its manager was lost before the gang was whole."
        assert not hopeless
        assert play.cluster.names("pods") == []
