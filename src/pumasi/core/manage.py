"""What the manager does next: a state and an event go in, the new state and actions come out.

    queued ─► placing ─► launching ─► running ─► ending ─► killing ─► ended        (a task's phases)
       ▲         │           └───────────┴──────────┴─────────┤
       └─────────┴──── no room: ask again · restart ──────────┘

Restarts, timeouts and stops are races between what the user wants and what the pool tells. They are decided here, where
they can be tested by the thousand without a process, a clock or a wait. The flow is asked, never called: `Pull` asks it
for one more task, as long as few enough wait for room, and `Over` tells it that one has ended for good; `Offered` and
`Heard` are its answers. The state has the tasks that are on their way and no others: what a step costs does not depend
on how many have ended. These rules hold it together:

- An event counts only while it is waited for. Late, repeated, reordered or foreign ones change nothing.
- Whatever decided first that an attempt ends is its cause, and the outcome tells it. Only a gang that says it was done
  is believed over a cause: it had finished before the stop reached it.
- Every phase but running has a deadline. The last one gives the attempt up: something of it may still be alive, so it
  is never restarted, and the run's outcome says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from pumasi.core.flows.base import AGAIN, Task
from pumasi.core.outcome import Outcome, Verdict

CONFIRM = 10.0
"""Seconds beyond its grace in which a gang must be gone, and after a kill in which the pool must say that it is; some
pools need more."""
FREE_RESTARTS = 100
"""How often a task starts again after what was nobody's failure: two runs that raced for the same room, say."""
LONGEST_PAUSE = 30.0
"""Seconds before what was nobody's failure starts again."""
LONGEST_WAIT = 10.0
"""Seconds before a run that waits for room looks again, if the pool does not say earlier that something has changed."""
TELL_AGAIN, TELL_SELDOM = 5.0, 60.0
"""Seconds between two sentences about who holds what a run waits for: at first, and when it has waited for long."""
MOST_WAITING = 16
"""Tasks of a run that wait for room, or for others, at the same time: so many are known before they can start."""
STOPPED = Outcome(Verdict.STOPPED, "Stopped on request.")


class Policy(NamedTuple):
    """What the user asked for. `timeout` counts from the beginning of the run, over waiting and all attempts."""

    restarts: int = 0
    timeout: float | None = None
    start_timeout: float = 600.0
    grace: float = 15.0
    wait: bool = True
    confirm: float = CONFIRM
    most_waiting: int = MOST_WAITING


@dataclass(frozen=True)
class Event:
    at: float  # the manager's own clock, in seconds, when it learned of the event


@dataclass(frozen=True)
class Begun(Event):
    """The manager is there. An adopted run has begun earlier: its timeout counts from then."""

    since: float | None = None


@dataclass(frozen=True)
class Tick(Event):
    """Time has passed: the answer to `Wake`."""


@dataclass(frozen=True)
class RoomChanged(Event):
    """What is free may have changed: tasks that were refused room look again. One that was turned away keeps its
    pause."""


@dataclass(frozen=True)
class StopAsked(Event):
    force: bool = False  # at once, which asking a second time means too
    outcome: Outcome = STOPPED


@dataclass(frozen=True)
class Offered(Event):
    """The flow's answer to `Pull`: one more task, or nothing for now."""

    task: Task | None


@dataclass(frozen=True)
class TaskEvent(Event):
    task: str
    attempt: int


@dataclass(frozen=True)
class Heard(TaskEvent):
    """The flow's answer to `Over`: the run's outcome, once it has one."""

    outcome: Outcome | None = None


@dataclass(frozen=True)
class EndAsked(TaskEvent):
    """The flow wants a task to end early: it counts as stopped."""

    why: str


@dataclass(frozen=True)
class Placed(TaskEvent):
    placement: Mapping[str, int]


@dataclass(frozen=True)
class Refused(TaskEvent):
    """`waiting` is a sentence for those who wait, in place of the reason; `gist` is the part of it whose change is
    news."""

    reason: str
    hopeless: bool = False  # there will never be room
    hint: str = ""
    waiting: str = ""
    gist: str = ""


@dataclass(frozen=True)
class TurnedAway(TaskEvent):
    """There was no room after all for what was launched, and nothing of it is left. Two that were turned away at the
    same time should not ask again at the same time: `patience` stretches the pause."""

    reason: str
    hopeless: bool = False
    hint: str = ""
    patience: float = 1.0


@dataclass(frozen=True)
class Started(TaskEvent):
    """Every rank of the gang runs."""


@dataclass(frozen=True)
class Failing(TaskEvent):
    outcome: Outcome  # who failed first. The gang ends itself because of it; processes may still be going


@dataclass(frozen=True)
class Ended(TaskEvent):
    """Nothing of the attempt is left anywhere. A gang whose ranks obeyed a stop was not done, even if they exited 0."""

    outcome: Outcome
    spends_restart: bool = True


@dataclass(frozen=True)
class TaskAction:
    task: str
    attempt: int


@dataclass(frozen=True)
class Place(TaskAction):
    """Look for room; `Placed` or `Refused` is the answer."""


@dataclass(frozen=True)
class Launch(TaskAction):
    placement: Mapping[str, int]


@dataclass(frozen=True)
class End(TaskAction):
    grace: float
    why: str


@dataclass(frozen=True)
class Kill(TaskAction):
    why: str


@dataclass(frozen=True)
class Abandon(TaskAction):
    """Nobody waits for this attempt any longer, though the pool never said that it is gone."""


@dataclass(frozen=True)
class Waiting(TaskAction):
    reason: str  # told again only when it changes


@dataclass(frozen=True)
class Restarting(TaskAction):
    reason: str  # what ended the attempt before this one
    spent: int = field(default=0, compare=False)  # restarts so far, without those that cost nothing


@dataclass(frozen=True)
class Over(TaskAction):
    """The task has ended for good: tell the flow. `Heard` is the answer."""

    outcome: Outcome


@dataclass(frozen=True)
class Pull:
    """There is room for one more task: ask the flow. `Offered` is the answer."""


@dataclass(frozen=True)
class Wake:
    at: float  # when to send a `Tick`. The newest replaces the others; an early tick does no harm


@dataclass(frozen=True)
class Finish:
    outcome: Outcome


Action = Place | Launch | End | Kill | Abandon | Waiting | Restarting | Over | Pull | Wake | Finish
Actions = tuple[Action, ...]


class Phase(str, Enum):
    QUEUED = "queued"
    PLACING = "placing"
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDING = "ending"
    KILLING = "killing"
    ENDED = "ended"


_UNLAUNCHED = frozenset((Phase.QUEUED, Phase.PLACING))
_UP = frozenset((Phase.LAUNCHING, Phase.RUNNING))
_RESTARTABLE = AGAIN
_UNKNOWN = Outcome(Verdict.LOST, "Nobody knows how it ended.")
# Of a run with several tasks, the first of these that one of them is in names the whole.
_WORDS = {Phase.RUNNING: "running", Phase.LAUNCHING: "starting", Phase.ENDING: "ending", Phase.KILLING: "ending"}


@dataclass(frozen=True)
class TaskState:
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
        return replace(self, phase=Phase.ENDED, due=None, outcome=outcome)


@dataclass(frozen=True)
class RunState:
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


def step(state: RunState, event: Event) -> Step:
    """The news is heard before deadlines are looked at: what comes just in time still counts."""
    if state.outcome is not None:
        return state, ()
    if isinstance(event, Begun) and state.begun is None:
        state = replace(state, begun=event.at if event.since is None else event.since)
    elif isinstance(event, Tick):
        state = replace(state, wake=None)
    state, heard = _hear(_close(state, event), event)
    state, ordered = _advance(state, event.at)
    state, over = _dismiss(state, event.at)
    state, asked = _ask_flow(state)
    state, last = _finish_or_wait(state)
    return state, heard + ordered + over + asked + last


def _close(state: RunState, event: Event) -> RunState:
    """Stop and timeout: whichever comes first names the outcome. What was not launched yet is over with it."""
    if isinstance(event, StopAsked):
        state = replace(state, stop_asked=True, forced=state.forced or event.force or state.stop_asked)
        closing = state.closing or event.outcome
    elif state.time_limit is not None and event.at >= state.time_limit:
        reason = f"The run was not done within its timeout of {state.policy.timeout:g} s."
        closing = Outcome(Verdict.TIMED_OUT, reason, "A longer --timeout gives it more time.")
    else:
        return state
    tasks = {name: task.ended(closing) if task.phase in _UNLAUNCHED else task for name, task in state.tasks.items()}
    return replace(state, closing=closing, tasks=tasks)


def _hear(state: RunState, event: Event) -> Step:
    match event:
        case RoomChanged():
            looking = {name: _look_again(task, event.at) for name, task in state.tasks.items()}
            return replace(state, tasks=looking), ()
        case Offered():
            return _take(state, event), ()
        case Heard() if event.task in state.untold:
            decided = state.decided or event.outcome
            return replace(state, untold=state.untold - {event.task}, decided=decided), ()
    task = state.tasks.get(event.task) if isinstance(event, TaskEvent) else None
    if task is None or not isinstance(event, TaskEvent) or event.attempt != task.attempt:
        return state, ()
    after, actions = _hear_of(state, task, event)
    return (state if after is task else _with(state, after)), actions


def _with(state: RunState, *tasks: TaskState) -> RunState:
    return replace(state, tasks={**state.tasks, **{task.name: task for task in tasks}})


def _take(state: RunState, event: Offered) -> RunState:
    """A task that nobody asked for is not taken."""
    if not state.asked:
        return state
    task = event.task
    is_new = task is not None and task.name not in state.tasks
    state = replace(state, asked=False, idle=not is_new)
    if task is None or not is_new or state.closing is not None or state.decided is not None:
        return state
    needs = frozenset(task.needs) & (set(state.tasks) | state.untold)
    return _with(state, task_state(task, due=None if needs else event.at, needs=needs))


def _look_again(task: TaskState, at: float) -> TaskState:
    if task.phase is Phase.PLACING:
        return replace(task, outdated=True)
    return replace(task, due=at) if task.phase is Phase.QUEUED and task.for_room else task


def _hear_of(state: RunState, task: TaskState, event: TaskEvent) -> TaskStep:
    match event:
        case Placed() if task.phase is Phase.PLACING:
            launching = replace(task, phase=Phase.LAUNCHING, due=event.at + state.policy.start_timeout)
            return launching, (Launch(task.name, task.attempt, event.placement),)
        case Refused() if task.phase is Phase.PLACING:
            return _wait_for_room(state, task, event)
        case TurnedAway() if task.phase is Phase.LAUNCHING:
            return _wait_for_room(state, replace(task, attempt=task.attempt + 1), event)
        case TurnedAway() if task.phase in (Phase.ENDING, Phase.KILLING):
            why = task.cause or Outcome(Verdict.FAILED, event.reason, event.hint)
            return _restart_or_end(state, task, why, event.at, spends=True)
        case Started() if task.phase is Phase.LAUNCHING:
            return replace(task, phase=Phase.RUNNING, due=None), ()
        case Failing() if task.phase in _UP:
            cause = None if event.outcome.verdict is Verdict.DONE else event.outcome
            return replace(
                task, phase=Phase.ENDING, due=event.at + state.policy.grace + state.policy.confirm, cause=cause
            ), ()
        case Ended() if task.phase not in _UNLAUNCHED:
            return _restart_or_end(state, task, _outcome_of(task, event), event.at, event.spends_restart)
        case EndAsked() if task.phase in _UP:
            return _end(state.policy, task, Outcome(Verdict.STOPPED, event.why), event.at)
        case EndAsked() if task.phase in _UNLAUNCHED:
            return task.ended(Outcome(Verdict.STOPPED, event.why)), ()
    return task, ()


def _wait_for_room(state: RunState, task: TaskState, event: Refused | TurnedAway) -> TaskStep:
    """Who does not want to wait still waits for other tasks of the same run."""
    others = any(other.phase in _UP for name, other in state.tasks.items() if name != task.name)
    if event.hopeless or not (state.policy.wait or others):
        return task.ended(Outcome(Verdict.FAILED, event.reason, event.hint)), ()
    if isinstance(event, TurnedAway):
        due = event.at + _pause(task.turned_away, LONGEST_WAIT) * event.patience
        task = replace(task, due=due, turned_away=task.turned_away + 1, for_room=False)
    else:
        due = event.at + (0.0 if task.outdated else _pause(task.refusals, LONGEST_WAIT))
        task = replace(task, due=due, refusals=task.refusals + 1, turned_away=0, for_room=True)
    return _tell_waiting(replace(task, phase=Phase.QUEUED), event)


def _tell_waiting(task: TaskState, event: Refused | TurnedAway) -> TaskStep:
    """Report why the task waits, if that has changed. Reports of who holds the resources are limited in rate; other
    reasons are reported at once and do not count against that limit."""
    text, gist = event.reason, event.reason
    if isinstance(event, Refused) and event.waiting:
        text, gist = event.waiting, event.gist
        pause = min(TELL_AGAIN * (1 + task.tellings // 10), TELL_SELDOM)
        if gist == task.waiting_for or (task.told_at is not None and event.at < task.told_at + pause):
            return task, ()
        task = replace(task, told_at=event.at, tellings=task.tellings + 1)
    if gist == task.waiting_for:
        return task, ()
    return replace(task, waiting_for=gist), (Waiting(task.name, task.attempt, text),)


def _pause(times: int, longest: float) -> float:
    """1, 2, 4 … seconds; the power is capped too, since a run may wait for weeks."""
    return min(2.0 ** min(times, 10), longest)


def _outcome_of(task: TaskState, event: Ended) -> Outcome:
    """The cause, unless the gang was done first, or tells of the same failure once more, with all that it knows now.
    Of a stop the cause knows more: who asked for it; and the gang, what it had measured by then."""
    told, cause = event.outcome, task.cause
    if cause is None or told.verdict is Verdict.DONE:
        return told
    if cause.verdict is Verdict.STOPPED:
        return replace(cause, metrics=told.metrics)
    same = told.reason and (told.verdict, told.rank, told.node) == (cause.verdict, cause.rank, cause.node)
    return told if same else cause


def _restart_or_end(state: RunState, task: TaskState, outcome: Outcome, at: float, spends: bool) -> TaskStep:
    most = max(state.policy.restarts, task.most_restarts)
    left = task.restarts < most if spends else task.free_restarts < FREE_RESTARTS
    if outcome.verdict not in task.tries_again & _RESTARTABLE or not left:
        return task.ended(outcome), ()
    if state.closing is not None:
        return task.ended(state.closing), ()
    due = at if spends else at + _pause(task.free_restarts, LONGEST_PAUSE)
    spent, free = task.restarts + spends, task.free_restarts + (not spends)
    fresh = TaskState(
        task.name,
        task.attempt + 1,
        due=due,
        restarts=spent,
        free_restarts=free,
        most_restarts=task.most_restarts,
        tries_again=task.tries_again,
    )
    return fresh, (Restarting(fresh.name, fresh.attempt, outcome.reason, spent),)


def _advance(state: RunState, at: float) -> Step:
    moved = [
        _advance_task(state, task, at)
        for task in state.tasks.values()
        if task.phase is not Phase.ENDED and (state.closing is not None or (task.due is not None and at >= task.due))
    ]
    if not moved:
        return state, ()
    return _with(state, *(task for task, _ in moved)), tuple(action for _, actions in moved for action in actions)


def _advance_task(state: RunState, task: TaskState, at: float) -> TaskStep:
    if state.closing and state.forced and task.phase in _UP | {Phase.ENDING}:
        return _kill(state.policy, task, state.closing, "Asked to stop at once.", at)
    if state.closing and task.phase in _UP:
        return _end(state.policy, task, state.closing, at)
    if task.due is None or at < task.due:
        return task, ()
    return _overdue(state, task, at)


def _overdue(state: RunState, task: TaskState, at: float) -> TaskStep:
    policy = state.policy
    match task.phase:
        case Phase.QUEUED:
            return _ask_for_room(policy, task, at)
        case Phase.PLACING:
            reason = f"The pool did not say within {policy.start_timeout:g} s whether there is room."
            return _restart_or_end(state, task, Outcome(Verdict.LOST, reason), at, spends=True)
        case Phase.LAUNCHING:
            reason = f"The gang was not whole within {policy.start_timeout:g} s."
            return _end(policy, task, Outcome(Verdict.LOST, reason, "A longer --start-timeout gives it more time."), at)
        case Phase.ENDING:
            why = f"It had not ended when its grace of {policy.grace:g} s was over."
            return _kill(policy, task, Outcome(Verdict.LOST, why), why, at)
    return replace(task.ended(task.cause), abandoned=True), (Abandon(task.name, task.attempt),)


def _ask_for_room(policy: Policy, task: TaskState, at: float) -> TaskStep:
    placing = replace(task, phase=Phase.PLACING, due=at + policy.start_timeout, outdated=False)
    return placing, (Place(task.name, task.attempt),)


def _end(policy: Policy, task: TaskState, cause: Outcome, at: float) -> TaskStep:
    if policy.grace <= 0:
        return _kill(policy, task, cause, cause.reason, at)
    ending = replace(task, phase=Phase.ENDING, due=at + policy.grace, cause=cause)
    return ending, (End(task.name, task.attempt, policy.grace, cause.reason),)


def _kill(policy: Policy, task: TaskState, cause: Outcome, why: str, at: float) -> TaskStep:
    killing = replace(task, phase=Phase.KILLING, due=at + policy.confirm, cause=task.cause or cause)
    return killing, (Kill(task.name, task.attempt, why),)


def _dismiss(state: RunState, at: float) -> Step:
    """Tasks that have ended leave; what needed them alone may start."""
    over = [task for task in state.tasks.values() if task.phase is Phase.ENDED]
    if not over:
        return state, ()
    names = {task.name for task in over}
    left = {name: _without(task, names, at) for name, task in state.tasks.items() if name not in names}
    doubtful = tuple(f"attempt {task.attempt} of {task.name}" for task in over if task.abandoned)
    told = tuple(Over(task.name, task.attempt, task.outcome or _UNKNOWN) for task in over)
    state = replace(state, tasks=left, untold=state.untold | names, abandoned=state.abandoned + doubtful, idle=False)
    state, ordered = _advance(state, at)
    return state, told + ordered


def _without(task: TaskState, ended: Collection[str], at: float) -> TaskState:
    if task.needs.isdisjoint(ended):
        return task
    needs = task.needs.difference(ended)
    return replace(task, needs=needs, due=None if needs else at)


def _ask_flow(state: RunState) -> Step:
    """One task at a time: the flow may say otherwise when it has heard of an end."""
    closed = state.begun is None or state.closing is not None or state.decided is not None
    if closed or state.asked or state.idle or state.untold:
        return state, ()
    waiting = sum(task.phase in _UNLAUNCHED for task in state.tasks.values())
    if waiting >= state.policy.most_waiting:
        return state, ()
    return replace(state, asked=True), (Pull(),)


def _finish_or_wait(state: RunState) -> Step:
    begun = state.begun is not None or state.closing is not None
    closed = state.closing is not None or state.decided is not None or state.idle
    if begun and closed and not state.tasks and not state.untold:
        outcome = _final_outcome(state)
        return replace(state, outcome=outcome, wake=None), (Finish(outcome),)
    limits = [state.time_limit, *(task.due for task in state.tasks.values())]
    wake = min((limit for limit in limits if limit is not None), default=None)
    if wake == state.wake:
        return state, ()
    return replace(state, wake=wake), () if wake is None else (Wake(wake),)


def _final_outcome(state: RunState) -> Outcome:
    """A stop that the pool could not confirm is still a stop: "lost" would invite to start the run again, beside what
    may still be going. So the verdict says why the run ended, and the reason says what nobody knows."""
    stuck = Outcome(Verdict.FAILED, "The flow has no task left to start, and no outcome either.")
    outcome = state.decided or state.closing or stuck
    if not state.abandoned:
        return outcome
    doubtful = " and ".join(state.abandoned)
    reason = f"{outcome.reason} Nobody confirmed the end of {doubtful}: it may still run.".lstrip()
    return replace(outcome, reason=reason, hint=outcome.hint or "Look for what is left before you start it again.")
