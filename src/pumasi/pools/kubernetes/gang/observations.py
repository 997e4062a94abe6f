"""What a gang's state machine is told. `at` is when the edge learned of it, in seconds of a clock that only rises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumasi.pools.kubernetes.pod_facts import Facts, Object, Refusal


@dataclass(frozen=True)
class Observation:
    at: float


@dataclass(frozen=True)
class Tick(Observation):
    """Time has passed: the answer to `Wake`."""


# ---- from the manager


@dataclass(frozen=True)
class Begun(Observation):
    """The watch of the pods begins. `adopted`: they were created by an earlier manager; `ran`: it saw all ranks run."""

    adopted: bool = False
    ran: bool = False


@dataclass(frozen=True)
class EndAsked(Observation):
    grace: float


# ---- from the watch


@dataclass(frozen=True)
class Synced(Observation):
    """All pods that existed when the watch began have been observed."""


@dataclass(frozen=True)
class PodSeen(Observation):
    pod: Object
    gone: bool = False  # deleted: `pod` is the last that was known of it


# ---- from the pods' logs


@dataclass(frozen=True)
class LogObservation(Observation):
    pod: str  # by name


@dataclass(frozen=True)
class Heard(LogObservation):
    words: Facts  # the agent's own


@dataclass(frozen=True)
class StrangeLine(LogObservation):
    line: str  # of the log, but not the agent's


@dataclass(frozen=True)
class LogEnded(LogObservation):
    trouble: str = ""  # why it could not be read to its end


@dataclass(frozen=True)
class LogForbidden(LogObservation):
    failure: Facts


# ---- answers to requests


@dataclass(frozen=True)
class Answer(Observation):
    pass


@dataclass(frozen=True)
class Created(Answer):
    pod: str


@dataclass(frozen=True)
class CreateRefused(Answer):
    """By a quota, by admission, or for lack of rights."""

    pod: str
    refusal: Refusal


@dataclass(frozen=True)
class CreateFailed(Answer):
    """The cluster did not answer as it should. The pod may exist."""

    pod: str
    failure: Facts


@dataclass(frozen=True)
class Deleted(Answer):
    grace: int


@dataclass(frozen=True)
class DeleteFailed(Answer):
    message: str


@dataclass(frozen=True)
class Forced(Answer):
    pass


@dataclass(frozen=True)
class ForceFailed(Answer):
    message: str


@dataclass(frozen=True)
class InitRead(Answer):
    lines: Sequence[str]


@dataclass(frozen=True)
class EventsListed(Answer):
    events: Sequence[Object]


@dataclass(frozen=True)
class NodesListed(Answer):
    """`ready`: at least one node is; False also where nobody can tell."""

    ready: bool
    allowed: bool = True


@dataclass(frozen=True)
class Introduced(Answer):
    pass


@dataclass(frozen=True)
class IntroductionFailed(Answer):
    """`hopeless`: it is not allowed."""

    hopeless: bool = False


@dataclass(frozen=True)
class ServiceOpened(Answer):
    trouble: str = ""  # why it was not
