"""What is known of a run and of its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from pumasi.core.flows.base import AGAIN, Task
from pumasi.core.manage.actions import Actions
from pumasi.core.outcome import Outcome, Verdict

CONFIRM = 10.0
"""Seconds beyond its grace in which a gang must be gone, and after a kill in which the pool must say that it is; some
pools need more."""
MOST_WAITING = 16
"""Tasks of a run that wait for room, or for others, at the same time: so many are known before they can start."""


class Policy(NamedTuple):
    """What the user asked for. `timeout` counts from the beginning of the run, over waiting and all attempts."""

    restarts: int = 0
    timeout: float | None = None
    start_timeout: float = 600.0
    grace: float = 15.0
    wait: bool = True
    confirm: float = CONFIRM
    most_waiting: int = MOST_WAITING


class Phase(str, Enum):
    QUEUED = "queued"
    PLACING = "placing"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDING = "ending"
    KILLING = "killing"
    ENDED = "ended"


UNLAUNCHED = frozenset((Phase.QUEUED, Phase.PLACING))
UP = frozenset((Phase.LAUNCHING, Phase.RUNNING))
LAUNCHED = UP | {Phase.ENDING, Phase.KILLING}
# Of a run with several tasks, the first of these that one of them is in names the whole.
_WORDS = {Phase.RUNNING: "running", Phase.LAUNCHING: "starting", Phase.ENDING: "ending", Phase.KILLING: "ending"}


class TaskState(NamedTuple):
    """`due` is when this phase is over at the latest; `cause` is why the attempt is being ended. `for_room`: it is
    queued because there was no room, and looks again when that changes; `outdated`: it has changed since it began to
    look. `needs` are tasks that it waits for; `most_restarts` and `tries_again` say how often and after what it may
    start again."""

    name: str
    attempt: int = 0
    phase: Phase = Phase.QUEUED
    due: float | None = None
    restarts: int = 0
    free_restarts: int = 0
    refusals: int = 0
    turned_away: int = 0
    for_room: bool = False
    outdated: bool = False
    waiting_for: str = ""
    told_at: float | None = None
    tellings: int = 0
    cause: Outcome | None = None
    outcome: Outcome | None = None
    abandoned: bool = False
    needs: frozenset[str] = frozenset()
    most_restarts: int = 0
    tries_again: frozenset[Verdict] = AGAIN

    def ended(self, outcome: Outcome | None) -> TaskState:
        return self._replace(phase=Phase.ENDED, due=None, outcome=outcome)


class RunState(NamedTuple):
    """`tasks` are those that have not ended. `closing` is how the run ends because it was stopped or ran out of time;
    `decided` is how it ends because its flow says so; `outcome` is there once it is over. `untold` are tasks of whose
    end the flow has not heard yet; `asked`: it has a `Pull` to answer; `idle`: it had nothing, and nothing has ended
    since. `abandoned` are attempts whose end nobody has confirmed."""

    policy: Policy
    tasks: Mapping[str, TaskState]
    begun: float | None = None
    closing: Outcome | None = None
    decided: Outcome | None = None
    stop_asked: bool = False
    forced: bool = False
    asked: bool = False
    idle: bool = False
    untold: frozenset[str] = frozenset()
    abandoned: tuple[str, ...] = ()
    wake: float | None = None
    outcome: Outcome | None = None

    @property
    def summary(self) -> str:
        if self.outcome is not None:
            return self.outcome.verdict.value
        if self.closing:
            return "ending"
        phases = {task.phase for task in self.tasks.values()}
        return next((_WORDS[phase] for phase in _WORDS if phase in phases), "queued")

    @property
    def time_limit(self) -> float | None:
        if self.begun is None or self.policy.timeout is None or self.closing is not None:
            return None
        return self.begun + self.policy.timeout


Step = tuple[RunState, Actions]
TaskStep = tuple[TaskState, Actions]


def begin(policy: Policy, found: Iterable[TaskState] = (), decided: Outcome | None = None) -> RunState:
    """`found` are the tasks that a new manager finds and adopts, in the phase that they are in; `decided` is the flow's
    outcome, where it had one already."""
    return RunState(policy, {task.name: task for task in found}, decided=decided)


def task_state(task: Task, attempt: int = 0, phase: Phase = Phase.QUEUED, **known: Any) -> TaskState:
    """Of one that the flow has given."""
    again = {"most_restarts": task.restarts, "tries_again": task.tries_again}
    return TaskState(task.name, attempt, phase, **{**again, **known})
