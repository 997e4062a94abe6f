"""What a gang's state machine asks its edge to do."""

from __future__ import annotations

from typing import NamedTuple

from pumasi.pools.kubernetes.pod_facts import Facts, Refusal


class Wake(NamedTuple):
    """When to send a `Tick`. The newest replaces the others; an early tick does no harm."""

    at: float


# ---- requests to the cluster, each with an answer


class Create(NamedTuple):
    """`Created`, `CreateRefused` or `CreateFailed` is the answer."""

    pod: str


class Delete(NamedTuple):
    """All pods of the attempt, or all but those that have ended, which are kept for their logs. `Deleted` or
    `DeleteFailed` is the answer."""

    grace: int
    keep_ended: bool


class Force(NamedTuple):
    """Remove these pods from the API: nobody is there to end them. `Forced` or `ForceFailed` is the answer."""

    pods: tuple[str, ...]


class ReadInit(NamedTuple):
    """What this init container wrote, within a few seconds. `InitRead` is the answer."""

    pod: str
    container: str


class ListEvents(NamedTuple):
    """The warnings about this pod. `EventsListed` is the answer."""

    pod: str


class ListNodes(NamedTuple):
    """`NodesListed` is the answer."""


class Introduce(NamedTuple):
    """Tell the agent in the pod `chief` the addresses of the members, by their numbers. `Introduced` or
    `IntroductionFailed` is the answer."""

    chief: str
    members: tuple[tuple[int, str], ...]


class OpenService(NamedTuple):
    """By which members can call the chief's agent. `ServiceOpened` is the answer."""


# ---- logs


class ReadLog(NamedTuple):
    """Follow it until the container has ended. Frames go to the sink, the agent's words come back as `Heard`."""

    pod: str


class StopReading(NamedTuple):
    """A dead node does not answer the request for its log either."""

    pods: tuple[str, ...]


# ---- what others are told


class Say(NamedTuple):
    """To whoever follows the run: an agent's words, or a note."""

    words: Facts


class Tell(NamedTuple):
    """A sentence for the user about the cluster."""

    sentence: str


class Whole(NamedTuple):
    """All ranks run."""


class End(NamedTuple):
    """Nothing of the attempt is left: how it ended. The last action, unless `Refuse` is."""

    facts: Facts


class Refuse(NamedTuple):
    """There was no room after all, and nothing of the attempt is left. The last action, unless `End` is."""

    refusal: Refusal


Request = Create | Delete | Force | ReadInit | ListEvents | ListNodes | Introduce | OpenService
Action = Wake | Request | ReadLog | StopReading | Say | Tell | Whole | End | Refuse
Actions = tuple[Action, ...]
