"""When the chief's agent is told where its members are, and what is done where it can't be."""

from __future__ import annotations

from typing import Any

from pumasi.pools.kubernetes.gang import GangState, begin, step
from pumasi.pools.kubernetes.gang.actions import Action, Introduce, OpenService, Wake
from pumasi.pools.kubernetes.gang.introducing import MOMENT, PATIENCE
from pumasi.pools.kubernetes.gang.observations import (
    Begun,
    EndAsked,
    Heard,
    Introduced,
    IntroductionFailed,
    Observation,
    PodSeen,
    Synced,
    Tick,
)
from pumasi.pools.kubernetes.manifests import INDEX

NAMES = ("run-main-0-0", "run-main-0-1", "run-main-0-2")
TOLD = Introduce(NAMES[0], ((1, "10.0.0.1"), (2, "10.0.0.2")))


def running(number: int, address: str | None = None) -> dict[str, Any]:
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    metadata = {"name": NAMES[number], "labels": {INDEX: str(number)}}
    address = f"10.0.0.{number}" if address is None else address
    spec = {"nodeName": f"node-{number}", "containers": [{"name": "main", "image": "python"}]}
    return {"metadata": metadata, "spec": spec, "status": {**status, "podIP": address}}


def listening(at: float, number: int = 0) -> Heard:
    return Heard(at, NAMES[number], {"event": "listening", "port": 7700})


def after(*observations: Observation, introduces: bool = True) -> tuple[GangState, list[Action]]:
    """What becomes of an adopted gang, and what is done when the last of these is observed."""
    state = begin(NAMES, 30.0, 15.0, introduces=introduces)
    actions: tuple[Action, ...] = ()
    first = [PodSeen(0.0, running(number, "")) for number in range(3)]
    for seen in (Begun(0.0, adopted=True), *first, Synced(0.0), *observations):
        state, actions = step(state, seen)
    return state, [action for action in actions if isinstance(action, Introduce | OpenService | Wake)]


ALL: tuple[Observation, ...] = tuple(PodSeen(1.0, running(number)) for number in range(3))


def test_members_are_introduced_when_all_have_an_address_and_the_chief_listens() -> None:
    assert after(*ALL[:2], listening(1.1))[1] == []
    assert TOLD in after(*ALL[:2], listening(1.1), ALL[2])[1]
    assert TOLD in after(*ALL, listening(1.1))[1]


def test_a_chief_whose_log_is_slow_is_told_after_a_moment_all_the_same() -> None:
    assert after(*ALL)[1] == [Wake(1.0 + MOMENT)]
    assert after(*ALL, Tick(1.0 + MOMENT))[1] == [TOLD]


def test_another_agent_that_listens_is_not_the_chief() -> None:
    assert after(*ALL, listening(1.1, 1))[1] == []


def test_nobody_is_told_twice() -> None:
    told: tuple[Observation, ...] = (*ALL, listening(1.1))
    assert after(*told, Tick(2.0))[1] == []
    assert after(*told, Introduced(1.2), Tick(9.0), *ALL)[1] == []


def test_what_fails_is_tried_again_soon_and_then_less_often() -> None:
    told: tuple[Observation, ...] = (*ALL, listening(1.1), IntroductionFailed(1.2))
    (wake,) = after(*told)[1]
    assert isinstance(wake, Wake)
    assert 1.2 < wake.at < 1.3
    again: tuple[Observation, ...] = (*told, Tick(wake.at))
    assert after(*again)[1] == [TOLD]
    (later,) = after(*again, IntroductionFailed(wake.at))[1]
    assert isinstance(later, Wake)
    assert later.at - wake.at > wake.at - 1.2


def test_a_service_is_opened_where_it_is_not_allowed_or_does_not_help_in_time() -> None:
    told: tuple[Observation, ...] = (*ALL, listening(1.1))
    assert after(*told, IntroductionFailed(1.2, hopeless=True))[1] == [OpenService()]
    assert after(*told, IntroductionFailed(1.1 + PATIENCE))[1] == [OpenService()]
    assert after(*told, IntroductionFailed(1.2, hopeless=True), Tick(2.0), *ALL)[1] == []


def test_a_gang_that_runs_or_ends_or_meets_otherwise_is_not_introduced() -> None:
    runs = Heard(0.5, NAMES[0], {"event": "running", "ranks": []})
    for observations in ((runs, *ALL), (EndAsked(0.5, 15.0), *ALL)):
        assert TOLD not in after(*observations, listening(1.1), Tick(5.0))[1]
    assert after(*ALL, listening(1.1), Tick(5.0), introduces=False)[1] == []
