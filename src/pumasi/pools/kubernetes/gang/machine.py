"""One step of a gang: what is observed is taken in, and then what follows from it is decided."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pumasi.pools.kubernetes import pod_facts
from pumasi.pools.kubernetes.gang import deciding, introducing
from pumasi.pools.kubernetes.gang.actions import (
    Actions,
    Create,
    ListEvents,
    ReadLog,
    Say,
    StopReading,
    Tell,
    Wake,
    Whole,
)
from pumasi.pools.kubernetes.gang.observations import (
    Answer,
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
    LogObservation,
    NodesListed,
    Observation,
    PodSeen,
    ServiceOpened,
    StrangeLine,
    Synced,
    Tick,
)
from pumasi.pools.kubernetes.gang.state import GangState, Member, Phase, observed
from pumasi.pools.kubernetes.pod_facts import Facts, Refusal, Seen

AT_ONCE = 20
"""Pods that are created at the same time."""
AGENT_SECONDS = 12
"""Seconds of a pod's grace beyond that of its ranks, in which its agent ends them and tells of it."""


def step(state: GangState, seen: Observation) -> tuple[GangState, Actions]:
    """The news is heard before deadlines are looked at: what comes just in time still counts."""
    if state.phase is Phase.OVER:
        return state, ()
    was_up = state.phase is Phase.UP
    state = _hear(state, seen)
    if state.phase is Phase.UP:
        changed = _changed(state, seen) if was_up else state.members.values()
        state = introducing.introduce(deciding.judge(state, seen.at, changed), seen.at)
    return _hand_over(_set_alarm(deciding.finish(state, seen.at)))


def _changed(state: GangState, seen: Observation) -> Iterable[Member]:
    member = state.members.get(seen.pod["metadata"]["name"]) if isinstance(seen, PodSeen) else None
    return () if member is None else (member,)


def _set_alarm(state: GangState) -> GangState:
    """First of all: whoever is told of the other actions may ask for something in turn."""
    if state.due is None or state.due == state.wake:
        return state
    return state._replace(wake=state.due, outbox=(Wake(state.due), *state.outbox))


def _hand_over(state: GangState) -> tuple[GangState, Actions]:
    return state._replace(outbox=()), state.outbox


def _hear(state: GangState, seen: Observation) -> GangState:
    match seen:
        case Tick():
            return state._replace(wake=None)
        case Begun() if state.phase is Phase.NEW:
            return state._replace(phase=Phase.SYNCING, adopted=seen.adopted, ran=seen.ran)
        case Synced() if state.phase is Phase.SYNCING:
            return _find_all(state, seen.at) if state.adopted else _begin_to_create(state, seen.at)
        case PodSeen():
            return _see(state, seen)
        case EndAsked():
            return _end(state, seen)
    if isinstance(seen, LogObservation):
        return _hear_log(state, seen)
    return _hear_answer(state, seen) if isinstance(seen, Answer) else state


def _hear_answer(state: GangState, answer: Answer) -> GangState:
    match answer:
        case Created() | CreateRefused() | CreateFailed():
            return _count_creation(state, answer)
        case Deleted() | DeleteFailed() if state.deletions:
            return _hear_deletion(state, answer)
        case Forced() | ForceFailed() if state.forcing:
            return _hear_force(state, answer)
        case Introduced() | IntroductionFailed() if state.introducing:
            return introducing.hear(state, answer)
        case ServiceOpened():
            return introducing.hear_service(state, answer)
        case InitRead() if state.init:
            return _hear_init(state, answer)
        case EventsListed() if state.ending_in is not None:
            return _name_late(state, answer, state.ending_in)
        case NodesListed() if state.asking_nodes:
            return _hear_nodes(state, answer)
    return state


# ---- from nothing to a gang


def _find_all(state: GangState, at: float) -> GangState:
    """A manager that was lost while it created the pods has left some, or none."""
    missing = [name for name in state.names if name not in state.members]
    state = state.without(missing)
    if missing and not state.ran:
        state = state._replace(refusal=Refusal("Its manager was lost before the gang was whole."))
    state = _be_up(state, at)
    if not state.is_all_over or state.is_decided:
        return state
    # All had ended before anybody looked: their pods are kept.
    return deciding.look_at_init(deciding.drain(state, at), state.members.values())


def _begin_to_create(state: GangState, at: float) -> GangState:
    return _create_more(state._replace(phase=Phase.CREATING, uncreated=state.names), at)


def _create_more(state: GangState, at: float) -> GangState:
    """As long as nothing speaks against it."""
    if state.is_decided:
        state = state.without(state.uncreated)._replace(uncreated=())
    next_ones = state.uncreated[: AT_ONCE - len(state.creating)]
    state = state._replace(uncreated=state.uncreated[len(next_ones) :], creating=state.creating.union(next_ones))
    state = state.does(*map(Create, next_ones))
    return state if state.creating else _be_up(state, at)


def _count_creation(state: GangState, answer: Created | CreateRefused | CreateFailed) -> GangState:
    if answer.pod not in state.creating:
        return state
    state = state._replace(creating=state.creating - {answer.pod})
    if isinstance(answer, CreateRefused):
        state = state.without([answer.pod])._replace(refusal=state.refusal or answer.refusal)
    elif isinstance(answer, CreateFailed):
        doubtful = state.doubtful.union({answer.pod}.difference(state.members))
        state = state._replace(failure=state.failure or answer.failure, doubtful=doubtful)
    return _create_more(state, answer.at)


def _be_up(state: GangState, at: float) -> GangState:
    state = state._replace(phase=Phase.UP)
    if state.refusal or state.failure:
        return deciding.take_down(state, at)
    # Again: what was on its way when the end was asked for is there only now.
    return deciding.delete(state, 1, keep_ended=True) if state.asked and not state.adopted else state


# ---- pods


def _see(state: GangState, seen: PodSeen) -> GangState:
    name = seen.pod["metadata"]["name"]
    if name not in state.names:
        return state
    member = observed(seen.pod, state.members.get(name))
    state = state._replace(members={**state.members, name: member}, doubtful=state.doubtful - {name})
    if seen.gone:
        state = state.without([name])
    if member.seen.ended:
        # An agent exits with 0 when the gang is done: it has run, whether or not that has been read by now.
        state = state._replace(live=state.live - {name}, shows_end=True, ran=state.ran or member.seen.code == 0)
    if member.seen.deleting:
        state = state._replace(shows_end=True)
    return _read(_mind_node(state, member.seen, seen.at), member.seen)


def _read(state: GangState, pod: Seen) -> GangState:
    if not pod.started or pod.name in state.read or state.phase is Phase.DRAINING:
        return state
    return state._replace(read=state.read | {pod.name}, reading=state.reading | {pod.name}).does(ReadLog(pod.name))


def _mind_node(state: GangState, pod: Seen, at: float) -> GangState:
    """A gang of several pods finds out by itself whether one is lost. Nobody else looks after a single pod: its node
    may be silent for as long as the agents of a gang may."""
    if pod.away is (pod.name in state.missed):
        return state
    others = {name: since for name, since in state.missed.items() if name != pod.name}
    state = state._replace(missed={**others, pod.name: at} if pod.away else others)
    if state.is_ending:
        return deciding.set_deadline(state, at) if state.is_alone else state
    return state._replace(deadline=None, asking_nodes=False).does(_note(_about_node(state, pod)))


def _about_node(state: GangState, pod: Seen) -> str:
    if not pod.away:
        return f"{pod.node} answers again; the run goes on."
    limit = f"; in {state.silence:g} s the run starts again elsewhere" if state.is_alone else ""
    return f"{pod.node} does not answer (NotReady){limit}."


def _note(text: str) -> Say:
    return Say({"event": "note", "text": text})


# ---- ends that are asked for


def _end(state: GangState, end: EndAsked) -> GangState:
    """Deleting a pod is the only way to reach its agent from here, which knows of one grace only: its own. Before the
    gang is whole nothing runs that would need it, and a Python that has just begun hears nothing yet. Pods that have
    ended are kept for their logs."""
    state = state._replace(asked=True)
    if state.phase is Phase.DRAINING:
        return state
    grace = end.grace if state.ran else min(end.grace, 1.0)
    seconds = max(1, math.ceil(grace) + (AGENT_SECONDS if grace >= state.grace else 0))
    state = deciding.set_deadline(state, end.at)
    if state.ending_in is not None:
        return state._replace(ending_in=min(state.ending_in, seconds))
    late = None if state.ran or state.late else _find_late(state)
    if late is None:
        return deciding.delete(state, seconds, keep_ended=True)
    return state._replace(ending_in=seconds, late_pod=late.name).does(ListEvents(late.name))


def _find_late(state: GangState) -> Seen | None:
    """Whom the gang is waiting for."""
    return next((pod for pod in state.seen if not pod.started and pod.name in state.present), None)


def _name_late(state: GangState, answer: EventsListed, seconds: int) -> GangState:
    member = state.members[state.late_pod]
    late = pod_facts.lateness(member.seen, member.pod, answer.events)
    return deciding.delete(state._replace(late=late, ending_in=None), seconds, keep_ended=True)


# ---- answers


def _hear_deletion(state: GangState, answer: Deleted | DeleteFailed) -> GangState:
    state = state._replace(deletions=state.deletions - 1)
    if isinstance(answer, DeleteFailed):
        return state._replace(nudge=answer.at + deciding.AGAIN).does(Tell(answer.message))
    if not (state.deletions or state.creating):
        state = state.without(state.doubtful)._replace(doubtful=frozenset())
    if state.killed_by is None:
        return state._replace(killed_by=answer.at + answer.grace)
    left = state.killed_by - answer.at
    if answer.grace > 1 or left <= deciding.MARGIN:
        return state
    # https://github.com/kubernetes/kubernetes/issues/83916
    sentence = "Kubernetes does not shorten a grace period that has begun: the pods end within {} s."
    return state.does(Tell(sentence.format(math.ceil(left))))


def _hear_force(state: GangState, answer: Forced | ForceFailed) -> GangState:
    if isinstance(answer, ForceFailed):
        return state._replace(forcing={}, deadline=answer.at + deciding.AGAIN).does(Tell(answer.message))
    pods = tuple(state.forcing)
    lost = state.lost_nodes.union(filter(None, state.forcing.values()))
    state = state.without(pods)._replace(forcing={}, lost_nodes=lost, deadline=None)
    return state._replace(reading=state.reading.difference(pods)).does(StopReading(pods))


def _hear_init(state: GangState, answer: InitRead) -> GangState:
    tail = {"tail": list(answer.lines[-deciding.TAIL :])} if answer.lines else {}
    state = state._replace(init="", failure={**(state.failure or {}), **tail})
    return deciding.take_down(state, answer.at) if state.phase is Phase.UP else state


def _hear_nodes(state: GangState, answer: NodesListed) -> GangState:
    """If the cluster reaches none of its nodes, it is the cluster that is cut off, and the pod may be well. Where
    nobody can tell, the pod is left to Kubernetes, which deletes it unless it is cut off itself."""
    state = state._replace(asking_nodes=False)
    if state.is_ending:
        return state
    if answer.ready:
        return deciding.force(state)
    state = state._replace(deadline=answer.at + deciding.AGAIN)
    if answer.allowed or state.is_left_to_cluster:
        return state
    note = _note("You may not list nodes: the run starts again when the cluster itself gives the pod up.")
    return state._replace(is_left_to_cluster=True).does(note)


# ---- logs


def _hear_log(state: GangState, seen: LogObservation) -> GangState:
    match seen:
        case Heard():
            return _hear_agent(state, seen)
        case StrangeLine():
            return state._replace(strange=(*state.strange, seen.line)[-deciding.TAIL :])
        case LogForbidden():
            return state._replace(reading=state.reading - {seen.pod}, unreadable=seen.failure)
        case LogEnded():
            state = state._replace(reading=state.reading - {seen.pod})
            told = f"The output of the pod {seen.pod} could not be read to its end: {seen.trouble}"
            return state.does(Tell(told)) if seen.trouble else state
    return state


def _hear_agent(state: GangState, heard: Heard) -> GangState:
    words, is_chief = heard.words, heard.pod == state.names[0]
    match words["event"]:
        case "listening" if is_chief:
            return introducing.hear_listening(state, heard.at)
        case "over" if state.told is None or is_chief:
            return state._replace(told=words["outcome"], shows_end=True)
        case "running":
            return state._replace(ran=True).does(Whole(), Say(words))
        case "exit" | "note":
            return state.does(Say(words))
        case "ending" if _is_certain(words["outcome"]):
            return state.does(Say(words))
    return state


def _is_certain(outcome: Facts) -> bool:
    """An agent that was told to stop does not know by whom: an eviction looks like a wish of the user's. Nor does it
    know why another one is silent. The pods tell, when they have ended."""
    return outcome["cause"] not in deciding.CAUSED_BY_SILENCE and outcome["cause"] != "stopped"
