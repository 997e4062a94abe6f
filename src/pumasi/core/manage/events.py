"""What the manager is told. `at` is when it learned of it, in seconds of its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pumasi.core.flows.base import Task
from pumasi.core.outcome import Outcome, Verdict

STOPPED = Outcome(Verdict.STOPPED, "Stopped on request.")


class Begun(NamedTuple):
    """The manager is there. An adopted run has begun earlier: its timeout counts from then."""

    at: float
    since: float | None = None


class Tick(NamedTuple):
    """Time has passed: the answer to `Wake`."""

    at: float


class RoomChanged(NamedTuple):
    """What is free may have changed: tasks that were refused room look again. One that was turned away keeps its
    pause."""

    at: float


class StopAsked(NamedTuple):
    at: float
    force: bool = False  # at once, which asking a second time means too
    outcome: Outcome = STOPPED


class Offered(NamedTuple):
    """The flow's answer to `Pull`: one more task, or nothing for now."""

    at: float
    task: Task | None


class Heard(NamedTuple):
    """The flow's answer to `Over`: the run's outcome, once it has one."""

    at: float
    task: str
    attempt: int
    outcome: Outcome | None = None


class EndAsked(NamedTuple):
    """The flow wants a task to end early: it counts as stopped."""

    at: float
    task: str
    attempt: int
    why: str


class Placed(NamedTuple):
    at: float
    task: str
    attempt: int
    placement: Mapping[str, int]


class Refused(NamedTuple):
    """`waiting` is a sentence for those who wait, in place of the reason; `gist` is the part of it whose change is
    news."""

    at: float
    task: str
    attempt: int
    reason: str
    hopeless: bool = False  # there will never be room
    hint: str = ""
    waiting: str = ""
    gist: str = ""


class TurnedAway(NamedTuple):
    """There was no room after all for what was launched, and nothing of it is left. Two that were turned away at the
    same time should not ask again at the same time: `patience` stretches the pause."""

    at: float
    task: str
    attempt: int
    reason: str
    hopeless: bool = False
    hint: str = ""
    patience: float = 1.0


class Started(NamedTuple):
    """Every rank of the gang runs."""

    at: float
    task: str
    attempt: int


class Failing(NamedTuple):
    at: float
    task: str
    attempt: int
    outcome: Outcome  # who failed first. The gang ends itself because of it; processes may still be going


class Ended(NamedTuple):
    """Nothing of the attempt is left anywhere. A gang whose ranks obeyed a stop was not done, even if they exited 0."""

    at: float
    task: str
    attempt: int
    outcome: Outcome
    spends_restart: bool = True


TaskEvent = Heard | EndAsked | Placed | Refused | TurnedAway | Started | Failing | Ended
"""About one attempt of one task."""
Event = Begun | Tick | RoomChanged | StopAsked | Offered | TaskEvent
