"""What a gang's state machine asks its edge to do."""

from __future__ import annotations

from dataclasses import dataclass

from pumasi.pools.kubernetes.pod_facts import Facts, Refusal


@dataclass(frozen=True)
class Wake:
    """When to send a `Tick`. The newest replaces the others; an early tick does no harm."""

    at: float


# ---- requests to the cluster, each with an answer


@dataclass(frozen=True)
class Create:
    """`Created`, `CreateRefused` or `CreateFailed` is the answer."""

    pod: str


@dataclass(frozen=True)
class Delete:
    """All pods of the attempt, or all but those that have ended, which are kept for their logs. `Deleted` or
    `DeleteFailed` is the answer."""

    grace: int
    keep_ended: bool


@dataclass(frozen=True)
class Force:
    """Remove these pods from the API: nobody is there to end them. `Forced` or `ForceFailed` is the answer."""

    pods: tuple[str, ...]


@dataclass(frozen=True)
class ReadInit:
    """What this init container wrote, within a few seconds. `InitRead` is the answer."""

    pod: str
    container: str


@dataclass(frozen=True)
class ListEvents:
    """The warnings about this pod. `EventsListed` is the answer."""

    pod: str


@dataclass(frozen=True)
class ListNodes:
    """`NodesListed` is the answer."""


@dataclass(frozen=True)
class Introduce:
    """Tell the agent in the pod `chief` the addresses of the members, by their numbers. `Introduced` or
    `IntroductionFailed` is the answer."""

    chief: str
    members: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class OpenService:
    """By which members can call the chief's agent. `ServiceOpened` is the answer."""


# ---- logs


@dataclass(frozen=True)
class ReadLog:
    """Follow it until the container has ended. Frames go to the sink, the agent's words come back as `Heard`."""

    pod: str


@dataclass(frozen=True)
class StopReading:
    """A dead node does not answer the request for its log either."""

    pods: tuple[str, ...]


# ---- what others are told


@dataclass(frozen=True)
class Say:
    """To whoever follows the run: an agent's words, or a note."""

    words: Facts


@dataclass(frozen=True)
class Tell:
    """A sentence for the user about the cluster."""

    sentence: str


@dataclass(frozen=True)
class Whole:
    """All ranks run."""


@dataclass(frozen=True)
class End:
    """Nothing of the attempt is left: how it ended. The last action, unless `Refuse` is."""

    facts: Facts


@dataclass(frozen=True)
class Refuse:
    """There was no room after all, and nothing of the attempt is left. The last action, unless `End` is."""

    refusal: Refusal


Request = Create | Delete | Force | ReadInit | ListEvents | ListNodes | Introduce | OpenService
Action = Wake | Request | ReadLog | StopReading | Say | Tell | Whole | End | Refuse
Actions = tuple[Action, ...]
