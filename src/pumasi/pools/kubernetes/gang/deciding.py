"""What follows from what is known of a gang: refusal, failure, deadlines, deletions, and how the attempt ended."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pumasi.pools.kubernetes import pod_facts
from pumasi.pools.kubernetes.gang.actions import Delete, End, Force, ListNodes, ReadInit, Refuse
from pumasi.pools.kubernetes.gang.state import GangState, Member, Phase
from pumasi.pools.kubernetes.pod_facts import Facts

AGAIN = 2.0
"""Seconds after which a request that did not get there is repeated."""
DRAIN = 20.0
"""Seconds that the last lines of a container that has ended may take to arrive."""
MARGIN = 15.0
"""Seconds that an agent needs, beyond what it waits for, to end its ranks by force."""
TAIL = 20
"""Lines of a log that an outcome shows."""
CAUSED_BY_SILENCE = frozenset(("silent", "hub lost"))


def judge(state: GangState, at: float, changed: Iterable[Member]) -> GangState:
    """What is to be done now. Only the pods that have `changed` can be in trouble that was not there before."""
    state = _look_for_trouble(state, at, list(changed))
    return state if state.init or state.is_all_over else _keep_time(_expect_end(state, at), at)


# ---- trouble


def _look_for_trouble(state: GangState, at: float, changed: list[Member]) -> GangState:
    if state.is_decided:
        return state
    state = look_at_init(state, changed)
    if state.init:
        return state
    here = [member for member in changed if member.name in state.present]
    refusals = (pod_facts.refusal(member.pod, state.kubectl) for member in here)
    refusal = next(filter(None, refusals), None)
    failure = state.unreadable or next(filter(None, map(_why_stuck, here)), None)
    return take_down(state._replace(refusal=refusal, failure=failure), at) if refusal or failure else state


def _why_stuck(member: Member) -> Facts | None:
    return pod_facts.stuck(member.pod, member.pulls) or pod_facts.broken_start(member.pod)


def look_at_init(state: GangState, changed: Iterable[Member]) -> GangState:
    """An init container that failed has ended the gang, whatever becomes of the other pods; what it said last is read
    before its pod is deleted."""
    for member in changed:
        if facts := pod_facts.failed_init(member.pod):
            return state._replace(failure=facts, init=member.name).does(ReadInit(member.name, facts["init"]))
    return state


def take_down(state: GangState, at: float) -> GangState:
    return delete(set_deadline(state, at), 1, keep_ended=False)


def delete(state: GangState, grace: int, *, keep_ended: bool) -> GangState:
    return state._replace(deletions=state.deletions + 1).does(Delete(grace, keep_ended))


# ---- time


def set_deadline(state: GangState, at: float) -> GangState:
    """The pods end by themselves, if they can hear each other; `nudge` is when they are told to."""
    due = at + _longest_life(state, at) + (state.grace if state.asked else 0.0)
    earlier = None if state.is_alone else state.deadline
    return state._replace(deadline=due if earlier is None else min(earlier, due))


def _longest_life(state: GangState, at: float) -> float:
    """After this nothing of the gang lives anywhere, even on a node that nobody can reach: an agent that is cut off
    ends its ranks by itself. Whoever was silent has been so for long already. Nobody can know that of a single pod:
    should it live on behind a cut, it ends when its node returns."""
    if state.missed and state.is_alone:
        return max(0.0, min(state.missed.values()) + state.silence - at)
    silent = state.told is not None and state.told["cause"] in CAUSED_BY_SILENCE
    return (0.0 if silent else state.silence) + state.grace + MARGIN


def _expect_end(state: GangState, at: float) -> GangState:
    """A gang of several pods finds out by itself that one is lost; nobody else looks after a single pod."""
    if state.deadline is not None or state.waits_to_force:
        return state
    if state.missed and state.is_alone:
        return set_deadline(state, at)
    if state.shows_end:
        patience = state.grace + MARGIN / 3 if state.ran else 0.0
        return set_deadline(state, at)._replace(nudge=at + patience)
    return state


def _keep_time(state: GangState, at: float) -> GangState:
    if state.nudge is not None and at >= state.nudge:
        grace = math.ceil(state.grace) if state.ran else 1
        return delete(state._replace(nudge=None), grace, keep_ended=state.refusal is None)
    if state.deadline is None or at < state.deadline or state.waits_to_force:
        return state
    return force(state) if state.is_ending else state._replace(asking_nodes=True).does(ListNodes())


def force(state: GangState) -> GangState:
    """The API may list them still, but nobody is there to end them."""
    left = sorted(state.present if state.refusal else state.live, key=state.names.index)
    return state._replace(forcing={name: _node_to_lose(state, name) for name in left}).does(Force(tuple(left)))


def _node_to_lose(state: GangState, name: str) -> str:
    member = state.members.get(name)
    return "" if member is None or member.seen.ended else member.seen.node


# ---- the end


def finish(state: GangState, at: float) -> GangState:
    """When nothing of the gang is left, the rest of its output is waited for, and then its end is told."""
    if state.phase is Phase.UP and state.is_all_over and not (state.init or state.forcing or state.deletions):
        state = drain(state, at)
    if state.phase is not Phase.DRAINING or state.drained_by is None:
        return state
    return state if (state.reading or state.init) and at < state.drained_by else _report(state)


def drain(state: GangState, at: float) -> GangState:
    return state._replace(phase=Phase.DRAINING, drained_by=at + DRAIN)


def _report(state: GangState) -> GangState:
    lost = {pod.node for pod in state.seen if pod.node and pod.is_lost}
    state = state._replace(phase=Phase.OVER, lost_nodes=state.lost_nodes | lost)
    if state.failure is None and state.refusal is not None:
        return state.does(Refuse(state.refusal))
    return state.does(
        End(_explained(state, state.failure or pod_facts.verdict_on(state.seen, state.told, state.asked)))
    )


def _explained(state: GangState, facts: Facts) -> Facts:
    if state.late and facts["cause"] == "stopped":
        # Should it have been stopped for another reason than that: whoever stopped it knows.
        return {"cause": "late", "who": state.late, "hint": pod_facts.late_hint(state.late)}
    if facts["cause"] == "agent died":
        return {**facts, "tail": list(state.strange)}
    if facts["cause"] == "absent" and state.adopted:
        # Its manager died before it could tell the chief's agent where the others are: nobody's failure.
        who = "the manager that started it died before its agents knew of each other"
        return {**facts, "who": who, "spends": False}
    hint = _about_volumes(state, facts) if facts["cause"] == "exit" else ""
    return {**facts, "hint": hint} if hint else facts


def _about_volumes(state: GangState, facts: Facts) -> str:
    tail = facts.get("tail") or ()
    hints = (pod_facts.closed_volume(member.pod, tail) for member in state.members.values())
    return next(filter(None, hints), "")
