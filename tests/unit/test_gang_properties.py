"""Whatever becomes of the pods of a gang, in whatever order: what must hold for every attempt.

A simulated cluster creates, starts, loses and deletes pods, and tells of it late, twice or not at all, as a string of
bytes tells it; when the bytes are used up it becomes a good cluster, so that every story has an end. A witness keeps
its own books, from observations and actions alone.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.pools.kubernetes.gang import MARGIN, GangState, Phase, begin, step
from pumasi.pools.kubernetes.gang.actions import (
    Action,
    Create,
    Delete,
    End,
    Force,
    Introduce,
    ListEvents,
    ListNodes,
    OpenService,
    ReadInit,
    ReadLog,
    Refuse,
    StopReading,
    Wake,
)
from pumasi.pools.kubernetes.gang.deciding import AGAIN, DRAIN
from pumasi.pools.kubernetes.gang.machine import AT_ONCE
from pumasi.pools.kubernetes.gang.observations import (
    Begun,
    Created,
    CreateFailed,
    CreateRefused,
    Deleted,
    DeleteFailed,
    EndAsked,
    EventsListed,
    Forced,
    ForceFailed,
    Heard,
    InitRead,
    Introduced,
    IntroductionFailed,
    LogEnded,
    LogForbidden,
    NodesListed,
    Observation,
    PodSeen,
    ServiceOpened,
    StrangeLine,
    Synced,
    Tick,
)
from pumasi.pools.kubernetes.manifests import INDEX
from pumasi.pools.kubernetes.pod_facts import Refusal

SILENCE, GRACE = 10.0, 15.0
DONE = {"cause": "done"}
FAILED = {"cause": "exit", "rank": 0, "node": 0, "code": 3, "tail": ["ValueError"]}
STOPPED = {"cause": "stopped"}
TROUBLE = {"cause": "cluster", "verdict": "failed", "reason": "No answer.", "hint": ""}
QUOTA = Refusal("The quota does not allow it.")
RUNNING = {"running": {"startedAt": "2026-11-16T10:00:00Z"}}
LIVED_BEHIND_A_CUT = SILENCE + GRACE
"""Seconds after which an agent that is cut off has ended its ranks."""

Object = dict[str, Any]


def name_of(number: int) -> str:
    return f"train-main-0-{number}"


def an_object(number: int, node: str = "") -> Object:
    container = {"name": "main", "image": "python:3.12-slim"}
    return {
        "metadata": {"name": name_of(number), "labels": {INDEX: str(number)}},
        "spec": {"containers": [container], **({"nodeName": node} if node else {})},
        "status": {"phase": "Pending"},
    }


def in_state(pod: Object, phase: str, state: Object, **status: Any) -> Object:
    containers = [{"name": "main", "state": state}]
    return {**pod, "status": {**pod["status"], "phase": phase, "containerStatuses": containers, **status}}


def terminated(pod: Object, code: int, words: Mapping[str, Any] | None = None) -> Object:
    state = {"exitCode": code, "reason": "Error" if code else "Completed"}
    state |= {"message": json.dumps(words)} if words else {}
    return in_state(pod, "Failed" if code else "Succeeded", {"terminated": state})


def with_condition(pod: Object, *conditions: Object) -> Object:
    return {**pod, "status": {**pod["status"], "conditions": list(conditions)}}


def unschedulable(pod: Object) -> Object:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes."}
    return with_condition(pod, condition)


def turned_away(pod: Object) -> Object:
    return {**pod, "status": {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough."}}


def without_image(pod: Object) -> Object:
    return in_state(pod, "Pending", {"waiting": {"reason": "ErrImagePull", "message": "manifest not found"}})


def with_failed_init(pod: Object) -> Object:
    init = {"name": "a", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    return in_state(pod, "Failed", {"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=[init])


def ready(pod: Object, is_ready: bool) -> Object:
    conditions = {"type": "Ready", "status": str(is_ready)}, {"type": "ContainersReady", "status": "True"}
    return with_condition(pod, *conditions)


def deleting(pod: Object) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-11-16T10:00:00Z"}}


def has_ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


@dataclass
class Pod:
    """As it really is. `thing` is its object; None when it is gone."""

    number: int
    thing: Object | None
    last: Object
    running: bool = False
    shown: bool = False
    is_over: bool = False
    told_until: float = 0.0
    words: list[Mapping[str, Any]] | None = None
    """What nobody has read yet; None when its log is being read."""

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def node(self) -> str:
        return f"node-{self.number}"

    @property
    def is_sentenced(self) -> bool:
        return self.thing is not None and "deletionTimestamp" in self.thing["metadata"]


class Cluster:
    """Where pods really live and die, and from where news of it comes as it likes."""

    def __init__(self, size: int, whims: bytes) -> None:
        self.size = size
        self.whims = iter(whims)
        self.order = count()
        self.due: list[tuple[float, int, Observation | Callable[[], None]]] = []
        self.now = 0.0
        self.pods: dict[str, Pod] = {}
        self.dead: set[str] = set()
        self.reading: set[str] = set()
        self.unanswered: set[str] = set()
        self.alarm: float | None = None
        self.waited = 0.0
        """Seconds that answers to requests took, in all."""
        self.failures = 0
        self.is_started = self.is_done = False
        self.is_watched = True

    def whim(self, choices: int) -> int:
        """Which of them; 0 is the good one."""
        return next(self.whims, 0) % choices

    def after(self, *delays: float) -> float:
        return delays[self.whim(len(delays))]

    def send(self, delay: float, event: Observation | Callable[[], None]) -> None:
        at = self.now + delay
        event = event._replace(at=at) if isinstance(event, Observation) else event
        heapq.heappush(self.due, (at, next(self.order), event))

    # ---- what a watch shows

    def change(self, pod: Pod, thing: Object | None) -> None:
        """In order for each pod: late, twice, or only when the pods are listed anew."""
        pod.thing, pod.last = thing, thing or pod.last
        if not self.is_watched:
            return
        if self.whim(5) == 4:
            self.send(40.0, lambda: self.show(pod))
            return
        for _ in range(1 + (self.whim(5) == 4)):
            pod.told_until = max(pod.told_until, self.now + self.after(0.0, 0.1, 3.0, 40.0))
            self.show(pod, pod.told_until - self.now)

    def list_all(self) -> None:
        self.is_watched = True
        for pod in self.pods.values():
            self.show(pod)
        self.send(0.0, Synced(0))

    def show(self, pod: Pod, delay: float = 0.0) -> None:
        if pod.thing is not None or pod.shown:  # What came and went while nobody looked was never there.
            pod.shown = True
            self.send(max(delay, pod.told_until - self.now), PodSeen(0, deepcopy(pod.last), gone=pod.thing is None))

    # ---- what becomes of pods

    def create(self, number: int) -> Pod:
        pod = self.pods[name_of(number)] = Pod(number, None, {}, words=[])
        self.change(pod, an_object(number))
        troubles = (unschedulable, turned_away, without_image, with_failed_init)
        fates = [self.start] * 10 + [lambda pod: None] + [partial(self.be_in_trouble, made) for made in troubles]
        self.send(self.after(0.5, 0.0, 50.0), partial(fates[self.whim(len(fates))], pod))
        return pod

    def be_in_trouble(self, made: Callable[[Object], Object], pod: Pod) -> None:
        if pod.thing is not None and not pod.is_sentenced:
            self.change(pod, made(pod.thing))

    def start(self, pod: Pod) -> None:
        if pod.thing is None or pod.is_sentenced or pod.node in self.dead:
            return
        pod.running = True
        self.change(pod, in_state(an_object(pod.number, pod.node), "Running", RUNNING, podIP=f"10.0.0.{pod.number}"))
        if pod.number == 0 and self.whim(3):
            self.send(self.after(0.05, 3.0), lambda: self.say(pod, {"event": "listening", "port": 7700}))
        if len(self.pods) == self.size and all(each.running for each in self.pods.values()) and not self.is_started:
            self.is_started = True
            self.send(0.2, self.be_whole)

    def be_whole(self) -> None:
        self.say(self.pods[name_of(0)], {"event": "running"})
        fates = (self.be_done, self.fail, self.lose_node, self.delete_one, self.evict, self.die, lambda: None)
        self.send(self.after(5.0, 0.0, 60.0), fates[self.whim(len(fates))])

    def be_done(self) -> None:
        self.is_done = all(pod.running for pod in self.pods.values())
        self.say(self.pods[name_of(0)], {"event": "over", "outcome": DONE})
        for pod in self.pods.values():
            self.send(self.after(0.0, 2.0), partial(self.finish, pod, 0, None if pod.number else DONE))

    def fail(self) -> None:
        """Some members may not hear of it."""
        self.end_all(FAILED, deaf=True)

    def end_all(self, words: Mapping[str, Any], *, deaf: bool = False, teller: int = 0) -> None:
        self.say(self.pods[name_of(teller)], {"event": "ending", "outcome": words})
        self.say(self.pods[name_of(teller)], {"event": "over", "outcome": words})
        for pod in self.pods.values():
            if pod.number == teller or not (deaf and self.whim(4) == 3):
                told = words if pod.number == teller else None
                self.send(self.after(0.5, 10.0), partial(self.finish, pod, 1, told))

    def die(self) -> None:
        """The chief, without a word."""
        self.finish(self.pods[name_of(0)], 137)
        for pod in list(self.pods.values())[1:]:
            self.say(pod, {"event": "over", "outcome": {"cause": "hub lost"}})
            self.send(1.0, partial(self.finish, pod, 1, {"cause": "hub lost"}))

    def lose_node(self) -> None:
        lost = self.pods[name_of(self.whim(self.size))]
        self.dead.add(lost.node)
        self.send(LIVED_BEHIND_A_CUT, lambda: self.fall_silent(lost))
        self.send(40.0, lambda: self.mark(lost, False))
        self.send(self.after(70.0, 45.0), lambda: self.sentence(lost) if self.whim(2) == 0 else None)
        if self.size > 1:
            cause = {"cause": "silent", "node": lost.number} if lost.number else {"cause": "hub lost"}
            self.send(SILENCE, lambda: self.end_all(cause, teller=0 if lost.number else 1))
        if self.whim(3) == 2:
            self.send(self.after(41.0, 100.0, 1.0), lambda: self.revive(lost))

    def fall_silent(self, pod: Pod) -> None:
        if self.size > 1:
            pod.running = False

    def mark(self, pod: Pod, is_ready: bool) -> None:
        if pod.thing is not None and not has_ended(pod.thing) and is_ready is (pod.node not in self.dead):
            self.change(pod, ready(pod.thing, is_ready))

    def revive(self, pod: Pod) -> None:
        self.dead.discard(pod.node)
        if pod.is_sentenced:
            self.finish(pod, 1)
            self.remove(pod)
        elif pod.thing is not None and not pod.running and not has_ended(pod.thing):
            self.change(pod, terminated(pod.thing, 1, {"cause": "hub lost"}))
        else:
            self.mark(pod, True)

    def delete_one(self) -> None:
        self.sentence(self.pods[name_of(self.whim(self.size))])

    def evict(self) -> None:
        pod = self.pods[name_of(self.whim(self.size))]
        if pod.thing is not None:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            self.change(pod, with_condition(pod.thing, condition))
            self.sentence(pod)

    def finish(self, pod: Pod, code: int, words: Mapping[str, Any] | None = None) -> None:
        if not pod.running:
            return
        if pod.node in self.dead:
            return
        pod.running = False
        if pod.thing is not None:
            self.change(pod, terminated(pod.thing, code, words))
        self.end_log(pod)

    def sentence(self, pod: Pod, grace: float = 30.0) -> None:
        if pod.thing is None:
            return
        if not pod.running and pod.node not in self.dead:
            self.remove(pod)
        elif not pod.is_sentenced:
            self.change(pod, deleting(pod.thing))
            if pod.node not in self.dead:
                self.send(self.after(min(0.5, grace), grace), lambda: self.stop(pod))

    def stop(self, pod: Pod) -> None:
        """An agent that is told to stop tells all the others."""
        if pod.node in self.dead:
            return
        if pod.running and self.is_started:
            self.end_all(STOPPED)
        self.finish(pod, 143, STOPPED)
        self.remove(pod)

    def remove(self, pod: Pod) -> None:
        """A kubelet kills what it should no longer have."""
        if pod.node not in self.dead and pod.running:
            pod.running = False
            self.end_log(pod)
        if pod.thing is not None:
            self.change(pod, None)

    # ---- logs

    def say(self, pod: Pod, words: Mapping[str, Any]) -> None:
        if pod.node in self.dead or not pod.running or pod.is_over:
            return
        pod.is_over = words["event"] == "over"
        if pod.words is not None:
            pod.words.append(words)
        else:
            self.tell_log(pod, Heard(0, pod.name, words))

    def read(self, name: str) -> None:
        pod = self.pods[name]
        self.reading.add(name)
        words, pod.words = pod.words or [], None
        if self.whim(20) == 19:
            self.send(self.after(0.1, 2.0), LogForbidden(0, name, TROUBLE))
            self.reading.discard(name)
            return
        for said in words:
            self.tell_log(pod, Heard(0, name, said))
        if not pod.running:
            self.end_log(pod)

    def tell_log(self, pod: Pod, event: Observation) -> None:
        if pod.name in self.reading:
            self.send(self.after(0.01, 0.01, 5.0), event)

    def end_log(self, pod: Pod) -> None:
        """Seldom it never does, or breaks off."""
        if pod.name in self.reading and pod.words is None and (fate := self.whim(6)) != 5:
            self.send(6.0, LogEnded(0, pod.name, "It broke." if fate == 4 else ""))

    # ---- requests

    def obey(self, action: Action) -> None:
        match action:
            case Wake():
                self.alarm = action.at
            case ReadLog():
                self.read(action.pod)
            case StopReading():
                self.reading.difference_update(action.pods)
            case Create() | Delete() | Force() | ReadInit() | ListEvents() | ListNodes():
                delay = self.after(0.05, 0.05, 1.0, 25.0)
                self.waited += delay + AGAIN
                self.send(delay, lambda: self.answer(action))
            case Introduce() | OpenService():
                self.send(self.after(0.02, 0.5), lambda: self.answer(action))

    def answer(self, action: Action) -> None:
        match action:
            case Create():
                self.send(0.0, self.created(action.pod))
            case Delete():
                self.send(self.after(0.0, 3.0), self.deleted(action))
            case Force():
                self.send(self.after(0.0, 3.0), self.forced(action))
            case Introduce():
                fate = self.whim(4)
                self.send(0.0, Introduced(0) if fate < 2 else IntroductionFailed(0, hopeless=fate == 3))
            case OpenService():
                self.send(0.0, ServiceOpened(0, "No." * self.whim(2)))
            case ReadInit():
                self.send(0.0, InitRead(0, ("no such bucket",) * self.whim(2)))
            case ListEvents():
                self.send(0.0, EventsListed(0, ()))
            case ListNodes():
                self.send(
                    0.0, (NodesListed(0, True), NodesListed(0, False), NodesListed(0, False, False))[self.whim(3)]
                )

    def created(self, name: str) -> Observation:
        number = int(name.rpartition("-")[2])
        match self.whim(16):
            case 13:
                return CreateRefused(0, name, QUOTA)
            case 14:
                return CreateFailed(0, name, TROUBLE)
            case 15:
                self.unanswered.add(name)
                self.create(number)
                return CreateFailed(0, name, TROUBLE)
        self.create(number)
        return Created(0, name)

    def deleted(self, action: Delete) -> Observation:
        fate = self.whim(5)
        if fate != 3:
            for pod in self.pods.values():
                if pod.thing is not None and not (action.keep_ended and has_ended(pod.thing)):
                    self.sentence(pod, action.grace)
        self.failures += fate >= 3
        return DeleteFailed(0, "The cluster can't be reached.") if fate >= 3 else Deleted(0, action.grace)

    def forced(self, action: Force) -> Observation:
        fails = self.whim(4) == 3
        self.failures += fails
        for name in action.pods[: len(action.pods) // 2] if fails else action.pods:
            if name in self.pods:
                self.remove(self.pods[name])
        return ForceFailed(0, "The cluster can't be reached.") if fails else Forced(0)


class Witness:
    """Keeps books and objects."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.first_sign: float | None = None
        self.away_since: float | None = None
        self.asked: float | None = None
        self.told_silent = self.told_done = False
        self.refused = False
        self.once: set[tuple[type[Action], str]] = set()
        self.creating: set[str] = set()
        self.pods: dict[str, Object] = {}
        self.forcing: set[str] = set()
        self.lost: set[str] = set()
        self.taken_down = False
        self.repeated_by: float | None = None
        self.end: End | Refuse | None = None
        self.introducing = self.introduced = self.opened = False

    def hears(self, seen: Observation) -> None:
        if self.end is not None:
            return
        if self.first_sign is None and self.is_sign(seen):
            self.first_sign = seen.at
        self.introducing &= not isinstance(seen, Introduced | IntroductionFailed)
        self.introduced |= isinstance(seen, Introduced)
        match seen:
            case EndAsked():
                self.asked = seen.at if self.asked is None else self.asked
            case Heard() if seen.words["event"] == "over":
                self.told_silent |= seen.words["outcome"]["cause"] in ("silent", "hub lost")
                self.told_done |= seen.words["outcome"] == DONE
            case PodSeen():
                self.pods[seen.pod["metadata"]["name"]] = dict(seen.pod)
                if "conditions" in seen.pod["status"] and self.away_since is None:
                    self.away_since = seen.at
            case Forced():
                self.lost |= self.forcing
            case DeleteFailed():
                self.repeated_by = seen.at + AGAIN
            case Created() | CreateRefused() | CreateFailed():
                self.creating.discard(seen.pod)
                self.refused |= not isinstance(seen, Created)

    def is_sign(self, seen: Observation) -> bool:
        """Of an end, or of trouble that leads to one."""
        if isinstance(seen, PodSeen):
            status = seen.pod["status"]
            in_trouble = (
                status["phase"] in ("Failed", "Succeeded") or "conditions" in status or "waiting" in str(status)
            )
            return seen.gone or "deletionTimestamp" in seen.pod["metadata"] or in_trouble
        is_last_word = isinstance(seen, Heard) and seen.words["event"] == "over"
        return is_last_word or isinstance(seen, EndAsked | CreateRefused | CreateFailed | LogForbidden | Synced)

    def sees(self, now: float, action: Action) -> None:
        assert self.end is None, "nothing is done after the end"
        match action:
            case Create():
                assert not self.refused, "all or nothing"
                assert self.asked is None, "nothing new after an end was asked for"
                self.creating.add(action.pod)
                assert len(self.creating) <= AT_ONCE
                self.sees_once(action)
            case ReadLog():
                self.sees_once(action)
            case Introduce():
                assert not self.introducing, "one request at a time"
                self.introducing = True
                self.sees_introduction(action)
            case OpenService():
                assert not self.introduced, "a Service is made only where nobody could be told"
                assert not self.opened, "once is enough"
                self.opened = True
            case Delete():
                self.taken_down |= not action.keep_ended
                self.repeated_by = None
            case Force():
                self.sees_force(now, action)
            case End() | Refuse():
                self.end = action
                self.sees_end()

    def sees_introduction(self, action: Introduce) -> None:
        assert not self.introduced, "once is enough"
        assert self.asked is None, "nobody is introduced after an end was asked for"
        known = {int(name.rpartition("-")[2]): pod["status"].get("podIP") for name, pod in self.pods.items()}
        assert dict(action.members) == {number: address for number, address in known.items() if number}

    def sees_once(self, action: Create | ReadLog) -> None:
        assert (type(action), action.pod) not in self.once, "each pod is created once, and each log is read once"
        self.once.add((type(action), action.pod))

    def sees_force(self, now: float, action: Force) -> None:
        assert action.pods
        known = [pod for name, pod in self.pods.items() if name in action.pods]
        self.forcing = {pod["spec"]["nodeName"] for pod in known if "nodeName" in pod["spec"] and not has_ended(pod)}
        patience = GRACE + MARGIN + (0.0 if self.told_silent else SILENCE)
        is_due = self.first_sign is not None and now >= self.first_sign + patience
        is_alone = self.cluster.size == 1
        is_lost = is_alone and self.away_since is not None and now >= self.away_since + SILENCE
        assert is_due or is_lost, "nothing is forced before its time"

    def sees_end(self) -> None:
        left = [pod for pod in self.cluster.pods.values() if pod.thing is not None and not pod.is_sentenced]
        if isinstance(self.end, Refuse):
            assert left == [], "all or nothing"
        if self.taken_down and not self.cluster.failures:
            assert left == [], "all or nothing"
        assert all(pod.thing is not None and has_ended(pod.thing) for pod in left), "what is left has ended"
        if self.cluster.size > 1 and not self.cluster.failures:
            running = {pod.name for pod in self.cluster.pods.values() if pod.running} - self.cluster.unanswered
            assert running == set(), "nothing runs any more, even on a node that nobody reaches"

    def checks_end(self, state: GangState) -> None:
        assert self.end is not None
        facts = self.end.facts if isinstance(self.end, End) else None
        if self.cluster.is_done and self.told_done and not (state.failure or state.refusal):
            assert facts == DONE, "a gang that was done is told as that"
        assert (facts == DONE) <= (self.told_done or self.cluster.is_done), "what is said is what happened"
        if self.refused and facts is not None:
            assert facts == TROUBLE or self.asked is not None

    def checks_deadline(self, now: float, state: GangState) -> None:
        if state.phase is Phase.DRAINING:
            assert state.due is not None
        if state.phase is Phase.UP and state.is_ending:
            is_answer_due = state.forcing or state.init or state.deletions or state.ending_in is not None
            assert state.due is not None or is_answer_due, "every end has a deadline"
            is_left = not (state.is_all_over or state.init or state.forcing)
            assert not is_left or self.repeated_by is None or now < self.repeated_by, (
                "a deletion that failed is repeated"
            )
        if self.asked is not None and self.end is None:
            longest = 2 * (SILENCE + 2 * GRACE + MARGIN) + DRAIN
            assert now <= self.asked + longest + self.cluster.waited + 60.0, "an end that was asked for comes"


def live(cluster: Cluster, witness: Witness) -> GangState:
    """A gang from its beginning to the last word about it, long after its end."""
    names = [name_of(number) for number in range(cluster.size)]
    state = begin(names, SILENCE, GRACE, introduces=cluster.size > 1)
    for _ in range(5000):
        if cluster.alarm is not None and (not cluster.due or cluster.alarm <= cluster.due[0][0]):
            early = cluster.alarm - 0.01 if cluster.whim(4) == 3 else cluster.alarm
            cluster.now = max(cluster.now, early)
            cluster.alarm = None
            state = happen(state, Tick(cluster.now), cluster, witness)
        elif cluster.due:
            cluster.now, _, event = heapq.heappop(cluster.due)
            if isinstance(event, Observation):
                state = happen(state, event, cluster, witness)
            else:
                event()
        elif state.phase is Phase.OVER:
            return state
        else:
            assert state.phase is Phase.UP, "only the cluster's answers are waited for without a deadline"
            assert not state.is_ending, "only a gang that does not end has no deadline"
            cluster.send(1.0, EndAsked(0, GRACE))
    raise AssertionError("the gang goes round in circles")


def happen(state: GangState, seen: Observation, cluster: Cluster, witness: Witness) -> GangState:
    witness.hears(seen)
    after, actions = step(state, seen)
    assert [type(action) for action in actions].count(Wake) <= 1
    for action in actions:
        witness.sees(seen.at, action)
        cluster.obey(action)
    witness.checks_deadline(seen.at, after)
    return after


def check(cluster: Cluster, ends: Sequence[float]) -> None:
    witness = Witness(cluster)
    for at in ends:
        cluster.send(at, EndAsked(0, GRACE if at < 30.0 else 0.0))
    state = live(cluster, witness)
    assert isinstance(witness.end, End | Refuse)
    assert (state.refusal is not None and state.failure is None) is isinstance(witness.end, Refuse)
    witness.checks_end(state)
    assert witness.lost <= state.lost_nodes, "lost nodes are told"


ends = st.lists(st.sampled_from([0.0, 0.04, 0.3, 1.0, 6.0, 31.0, 50.0, 90.0]), max_size=2)
whims = st.binary(min_size=150, max_size=150)


@settings(max_examples=1500, database=None)
@given(st.sampled_from([1, 2, 3, 25]), ends, whims)
def test_every_gang_comes_to_one_true_end_whatever_the_cluster_does(
    size: int, asked: list[float], whims: bytes
) -> None:
    cluster = Cluster(size, whims)
    cluster.send(0.0, Begun(0))
    cluster.send(cluster.after(0.01, 5.0), Synced(0))
    check(cluster, asked)


@settings(max_examples=1000, database=None)
@given(st.integers(1, 3), st.booleans(), ends, whims)
def test_every_gang_that_is_adopted_comes_to_one_true_end(
    size: int, ran: bool, asked: list[float], whims: bytes
) -> None:
    cluster = Cluster(size, whims)
    cluster.is_watched = False
    cluster.send(0.0, Begun(0, adopted=True, ran=ran))
    for number in range(size):
        if cluster.whim(6) != 5:
            cluster.create(number)
    cluster.send(cluster.after(60.0, 0.01, 3.0), cluster.list_all)
    check(cluster, asked)


things = [
    an_object(0),
    *(
        made(an_object(number, f"node-{number}"))
        for number in range(2)
        for made in (
            unschedulable,
            turned_away,
            without_image,
            with_failed_init,
            deleting,
            lambda pod: in_state(pod, "Running", RUNNING),
            lambda pod: ready(in_state(pod, "Running", RUNNING), False),
            lambda pod: terminated(pod, 0, DONE),
            lambda pod: terminated(pod, 1),
        )
    ),
    an_object(7),
]
times = st.sampled_from([0.0, 1.0, 2.0, 3.0, 30.0, 45.0, 60.0, 700.0])
names = st.sampled_from([name_of(0), name_of(1), "stranger"])
words = st.sampled_from(
    [
        {"event": "running"},
        {"event": "exit", "rank": 1, "code": 0},
        {"event": "ending", "outcome": FAILED},
        *({"event": "over", "outcome": outcome} for outcome in (DONE, FAILED, STOPPED, {"cause": "silent", "node": 1})),
        {"event": "listening", "port": 7700},
        {"event": "unheard of"},
    ]
)
observations = st.one_of(
    st.builds(Begun, times, st.booleans(), st.booleans()),
    st.builds(Synced, times),
    st.builds(Tick, times),
    st.builds(EndAsked, times, st.sampled_from([0.0, 15.0])),
    st.builds(PodSeen, times, st.sampled_from(things), st.booleans()),
    st.builds(PodSeen, times, st.sampled_from(things), st.booleans()),
    st.builds(Heard, times, names, words),
    st.builds(StrangeLine, times, names, st.just("Fatal")),
    st.builds(LogEnded, times, names, st.sampled_from(["", "It broke."])),
    st.builds(LogForbidden, times, names, st.just(TROUBLE)),
    st.builds(Created, times, names),
    st.builds(CreateRefused, times, names, st.just(QUOTA)),
    st.builds(CreateFailed, times, names, st.just(TROUBLE)),
    st.builds(Deleted, times, st.sampled_from([1, 27])),
    st.builds(DeleteFailed, times, st.just("No.")),
    st.builds(Forced, times),
    st.builds(ForceFailed, times, st.just("No.")),
    st.builds(InitRead, times, st.sampled_from([(), ("no such bucket",)])),
    st.builds(EventsListed, times, st.just(())),
    st.builds(NodesListed, times, st.booleans(), st.booleans()),
    st.builds(Introduced, times),
    st.builds(IntroductionFailed, times, st.booleans()),
    st.builds(ServiceOpened, times, st.sampled_from(["", "No."])),
)


@settings(max_examples=1000, database=None)
@given(st.integers(1, 2), st.booleans(), st.lists(observations, min_size=8, max_size=40))
def test_senseless_observations_in_any_order_never_raise_and_never_end_twice(
    size: int, adopted: bool, senseless: list[Observation]
) -> None:
    state, ends = begin([name_of(number) for number in range(size)], SILENCE, GRACE, introduces=size > 1), 0
    for seen in [Begun(0.0, adopted), Synced(0.0), *senseless]:
        assert step(state, seen) == step(state, seen), "the same comes of the same"
        state, actions = step(state, seen)
        assert not (ends and actions)
        ends += sum(isinstance(action, End | Refuse) for action in actions)
        assert (ends == 1) == (state.phase is Phase.OVER)
        assert state.outbox == ()
