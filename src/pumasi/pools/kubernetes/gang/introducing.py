"""A gang whose agents wait to be called by the chief's, which has to be told where they are.

Pods have an address shortly before their agents listen. So the chief's agent is told when it has said that it listens,
or, should its log be slow, after a moment; and again after a pause, for as long as that is of use.
"""

from __future__ import annotations

from pumasi.pools.kubernetes.gang.actions import Introduce, OpenService, Tell
from pumasi.pools.kubernetes.gang.observations import Introduced, IntroductionFailed, ServiceOpened
from pumasi.pools.kubernetes.gang.state import GangState

MOMENT = 0.2
"""Seconds after which an agent of which nothing has been heard is told all the same."""
PAUSE, GROWTH, LONGEST_PAUSE = 0.03, 1.5, 0.5
PATIENCE = 3.0
"""Seconds after which the members are left to call by themselves."""


def introduce(state: GangState, at: float) -> GangState:
    """Once all pods have an address."""
    if not state.may_introduce:
        return state
    if state.introduce_at is None:
        if not all(_address(state, name) for name in state.names):
            return state
        state = state._replace(introduce_at=at if state.listens else at + MOMENT, introducing_since=at)
    return state if state.introduce_at is None or at < state.introduce_at else _tell(state)


def _tell(state: GangState) -> GangState:
    members = tuple((number, _address(state, name)) for number, name in enumerate(state.names) if number)
    return state._replace(introducing=True).does(Introduce(state.names[0], members))


def _address(state: GangState, name: str) -> str:
    member = state.members.get(name)
    return "" if member is None else str(member.pod.get("status", {}).get("podIP") or "")


def hear_listening(state: GangState, at: float) -> GangState:
    """From the chief's agent: now it can be told."""
    soon = None if state.introduce_at is None else min(at, state.introduce_at)
    return state._replace(listens=True, introduce_at=soon)


def hear(state: GangState, answer: Introduced | IntroductionFailed) -> GangState:
    state = state._replace(introducing=False)
    if isinstance(answer, Introduced):
        return state._replace(introduces=False)
    since = answer.at if state.introducing_since is None else state.introducing_since
    if answer.hopeless or answer.at - since >= PATIENCE:
        return state._replace(introduces=False).does(OpenService())
    pause = min(LONGEST_PAUSE, PAUSE * GROWTH**state.introductions)
    return state._replace(introduce_at=answer.at + pause, introductions=state.introductions + 1)


def hear_service(state: GangState, answer: ServiceOpened) -> GangState:
    return state.does(Tell(answer.trouble)) if answer.trouble else state
