"""A gang whose agents wait to be called by the chief's, which has to be told where they are."""

from __future__ import annotations

from dataclasses import replace

from pumasi.pools.kubernetes.gang.actions import Introduce, OpenService, Tell
from pumasi.pools.kubernetes.gang.observations import Introduced, IntroductionFailed, ServiceOpened
from pumasi.pools.kubernetes.gang.state import GangState

FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.03, 1.5, 0.5
"""Seconds after which the chief's agent is told again. Pods have an address shortly before their agents listen."""
PATIENCE = 3.0
"""Seconds after which the members are left to call by themselves."""


def introduce(state: GangState, at: float) -> GangState:
    """Once all pods have an address."""
    if not state.may_introduce or (state.introduce_at is not None and at < state.introduce_at):
        return state
    addresses = [_address(state, name) for name in state.names]
    if not all(addresses):
        return state
    members = tuple((number, address) for number, address in enumerate(addresses) if number)
    began = at if state.introducing_since is None else state.introducing_since
    state = replace(state, introducing=True, introduce_at=None, introducing_since=began)
    return state.does(Introduce(state.names[0], members))


def _address(state: GangState, name: str) -> str:
    member = state.members.get(name)
    return "" if member is None else str(member.pod.get("status", {}).get("podIP") or "")


def hear(state: GangState, answer: Introduced | IntroductionFailed) -> GangState:
    state = replace(state, introducing=False)
    if isinstance(answer, Introduced):
        return replace(state, introduces=False)
    since = answer.at if state.introducing_since is None else state.introducing_since
    if answer.hopeless or answer.at - since >= PATIENCE:
        return replace(state, introduces=False).does(OpenService())
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * GROWTH**state.introductions)
    return replace(state, introduce_at=answer.at + pause, introductions=state.introductions + 1)


def hear_service(state: GangState, answer: ServiceOpened) -> GangState:
    return state.does(Tell(answer.trouble)) if answer.trouble else state
