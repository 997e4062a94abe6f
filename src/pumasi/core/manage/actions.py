"""What the manager is to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pumasi.core.outcome import Outcome


class Place(NamedTuple):
    """Look for room; `Placed` or `Refused` is the answer."""

    task: str
    attempt: int


class Launch(NamedTuple):
    task: str
    attempt: int
    placement: Mapping[str, int]


class End(NamedTuple):
    task: str
    attempt: int
    grace: float
    why: str


class Kill(NamedTuple):
    task: str
    attempt: int
    why: str


class Abandon(NamedTuple):
    """Nobody waits for this attempt any longer, though the pool never said that it is gone."""

    task: str
    attempt: int


class Waiting(NamedTuple):
    task: str
    attempt: int
    reason: str  # told again only when it changes


class Restarting(NamedTuple):
    task: str
    attempt: int
    reason: str  # what ended the attempt before this one
    spent: int = 0  # restarts so far, without those that cost nothing


class Over(NamedTuple):
    """The task has ended for good: tell the flow. `Heard` is the answer."""

    task: str
    attempt: int
    outcome: Outcome


class Pull(NamedTuple):
    """There is room for one more task: ask the flow. `Offered` is the answer."""


class Wake(NamedTuple):
    at: float  # when to send a `Tick`. The newest replaces the others; an early tick does no harm


class Finish(NamedTuple):
    outcome: Outcome


TaskAction = Place | Launch | End | Kill | Abandon | Waiting | Restarting | Over
"""About one attempt of one task."""
Action = TaskAction | Pull | Wake | Finish
Actions = tuple[Action, ...]
