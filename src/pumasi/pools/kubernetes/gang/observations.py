"""What a gang's state machine is told. `at` is when the edge learned of it, in seconds of a clock that only rises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pumasi.pools.kubernetes.pod_facts import Facts, Object, Refusal


class Tick(NamedTuple):
    """Time has passed: the answer to `Wake`."""

    at: float


# ---- from the manager


class Begun(NamedTuple):
    """The watch of the pods begins. `adopted`: they were created by an earlier manager; `ran`: it saw all ranks run."""

    at: float
    adopted: bool = False
    ran: bool = False


class EndAsked(NamedTuple):
    at: float
    grace: float


# ---- from the watch


class Synced(NamedTuple):
    """All pods that existed when the watch began have been observed."""

    at: float


class PodSeen(NamedTuple):
    at: float
    pod: Object
    gone: bool = False  # deleted: `pod` is the last that was known of it


# ---- from the pods' logs


class Heard(NamedTuple):
    at: float
    pod: str  # by name
    words: Facts  # the agent's own


class StrangeLine(NamedTuple):
    at: float
    pod: str  # by name
    line: str  # of the log, but not the agent's


class LogEnded(NamedTuple):
    at: float
    pod: str  # by name
    trouble: str = ""  # why it could not be read to its end


class LogForbidden(NamedTuple):
    at: float
    pod: str  # by name
    failure: Facts


# ---- answers to requests


class Created(NamedTuple):
    at: float
    pod: str


class CreateRefused(NamedTuple):
    """By a quota, by admission, or for lack of rights."""

    at: float
    pod: str
    refusal: Refusal


class CreateFailed(NamedTuple):
    """The cluster did not answer as it should. The pod may exist."""

    at: float
    pod: str
    failure: Facts


class Deleted(NamedTuple):
    at: float
    grace: int


class DeleteFailed(NamedTuple):
    at: float
    message: str


class Forced(NamedTuple):
    at: float


class ForceFailed(NamedTuple):
    at: float
    message: str


class InitRead(NamedTuple):
    at: float
    lines: Sequence[str]


class EventsListed(NamedTuple):
    at: float
    events: Sequence[Object]


class NodesListed(NamedTuple):
    """`ready`: at least one node is; False also where nobody can tell."""

    at: float
    ready: bool
    allowed: bool = True


class Introduced(NamedTuple):
    at: float


class IntroductionFailed(NamedTuple):
    """`hopeless`: it is not allowed."""

    at: float
    hopeless: bool = False


class ServiceOpened(NamedTuple):
    at: float
    trouble: str = ""  # why it was not


LogObservation = Heard | StrangeLine | LogEnded | LogForbidden
Answer = (
    Created
    | CreateRefused
    | CreateFailed
    | Deleted
    | DeleteFailed
    | Forced
    | ForceFailed
    | InitRead
    | EventsListed
    | NodesListed
    | Introduced
    | IntroductionFailed
    | ServiceOpened
)
Observation = Tick | Begun | EndAsked | Synced | PodSeen | LogObservation | Answer
