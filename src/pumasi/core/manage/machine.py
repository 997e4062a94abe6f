"""What becomes of the run: its limits, its flow, its tasks as they come and go."""

from __future__ import annotations

from dataclasses import replace

from pumasi.core.manage.actions import Finish, Over, Pull, Wake
from pumasi.core.manage.events import Begun, Event, Heard, Offered, RoomChanged, StopAsked, TaskEvent, Tick
from pumasi.core.manage.state import UNLAUNCHED, Phase, RunState, Step, TaskState, task_state
from pumasi.core.manage.task import advance_task, hear_of, look_again, without
from pumasi.core.outcome import Outcome, Verdict

_UNKNOWN = Outcome(Verdict.LOST, "Nobody knows how it ended.")
_NOT_NEEDED = Outcome(Verdict.STOPPED, "The run was decided before it started.")


def step(state: RunState, event: Event) -> Step:
    """The news is heard before deadlines are looked at: what comes just in time still counts."""
    if state.outcome is not None:
        return state, ()
    if isinstance(event, Begun) and state.begun is None:
        state = state._replace(begun=event.at if event.since is None else event.since)
    elif isinstance(event, Tick):
        state = state._replace(wake=None)
    state, heard = _hear(_close(state, event), event)
    state, ordered = _advance(state, event.at)
    state, over = _dismiss(state, event.at)
    state, asked = _ask_flow(state)
    state, last = _finish_or_wait(state)
    return state, heard + ordered + over + asked + last


def _close(state: RunState, event: Event) -> RunState:
    """Stop and timeout: whichever comes first names the outcome. What was not launched yet is over with it."""
    if isinstance(event, StopAsked):
        state = state._replace(stop_asked=True, forced=state.forced or event.force or state.stop_asked)
        closing = state.closing or event.outcome
    elif state.time_limit is not None and event.at >= state.time_limit:
        reason = f"The run was not done within its timeout of {state.policy.timeout:g} s."
        closing = Outcome(Verdict.TIMED_OUT, reason, "A longer --timeout gives it more time.")
    else:
        return state
    return _without_unlaunched(state, closing)._replace(closing=closing)


def _hear(state: RunState, event: Event) -> Step:
    match event:
        case RoomChanged():
            looking = {name: look_again(task, event.at) for name, task in state.tasks.items()}
            return state._replace(tasks=looking), ()
        case Offered():
            return _take(state, event), ()
        case Heard() if event.task in state.untold:
            return _decide(state._replace(untold=state.untold - {event.task}), event.outcome), ()
    if not isinstance(event, TaskEvent):
        return state, ()
    task = state.tasks.get(event.task)
    if task is None or event.attempt != task.attempt:
        return state, ()
    after, actions = hear_of(state, task, event)
    return (state if after is task else _with(state, after)), actions


def _decide(state: RunState, outcome: Outcome | None) -> RunState:
    """The flow has named the outcome of the run: what was not launched yet is not needed any more."""
    if outcome is None or state.decided is not None:
        return state
    return _without_unlaunched(state, _NOT_NEEDED)._replace(decided=outcome)


def _without_unlaunched(state: RunState, outcome: Outcome) -> RunState:
    tasks = {name: task.ended(outcome) if task.phase in UNLAUNCHED else task for name, task in state.tasks.items()}
    return state._replace(tasks=tasks)


def _with(state: RunState, *tasks: TaskState) -> RunState:
    return state._replace(tasks={**state.tasks, **{task.name: task for task in tasks}})


def _take(state: RunState, event: Offered) -> RunState:
    """A task that nobody asked for is not taken."""
    if not state.asked:
        return state
    task = event.task
    is_new = task is not None and task.name not in state.tasks
    state = state._replace(asked=False, idle=not is_new)
    if task is None or not is_new or state.closing is not None or state.decided is not None:
        return state
    needs = frozenset(task.needs) & (set(state.tasks) | state.untold)
    return _with(state, task_state(task, due=None if needs else event.at, needs=needs))


def _advance(state: RunState, at: float) -> Step:
    moved = [
        advance_task(state, task, at)
        for task in state.tasks.values()
        if task.phase is not Phase.ENDED and (state.closing is not None or (task.due is not None and at >= task.due))
    ]
    if not moved:
        return state, ()
    return _with(state, *(task for task, _ in moved)), tuple(action for _, actions in moved for action in actions)


def _dismiss(state: RunState, at: float) -> Step:
    """Tasks that have ended leave; what needed them alone may start."""
    over = [task for task in state.tasks.values() if task.phase is Phase.ENDED]
    if not over:
        return state, ()
    names = {task.name for task in over}
    left = {name: without(task, names, at) for name, task in state.tasks.items() if name not in names}
    doubtful = tuple(f"attempt {task.attempt} of {task.name}" for task in over if task.abandoned)
    told = tuple(Over(task.name, task.attempt, task.outcome or _UNKNOWN) for task in over)
    state = state._replace(tasks=left, untold=state.untold | names, abandoned=state.abandoned + doubtful, idle=False)
    state, ordered = _advance(state, at)
    return state, told + ordered


def _ask_flow(state: RunState) -> Step:
    """One task at a time: the flow may say otherwise when it has heard of an end."""
    closed = state.begun is None or state.closing is not None or state.decided is not None
    if closed or state.asked or state.idle or state.untold:
        return state, ()
    waiting = sum(task.phase in UNLAUNCHED for task in state.tasks.values())
    if waiting >= state.policy.most_waiting:
        return state, ()
    return state._replace(asked=True), (Pull(),)


def _finish_or_wait(state: RunState) -> Step:
    begun = state.begun is not None or state.closing is not None
    closed = state.closing is not None or state.decided is not None or state.idle
    if begun and closed and not state.tasks and not state.untold:
        outcome = _final_outcome(state)
        return state._replace(outcome=outcome, wake=None), (Finish(outcome),)
    limits = [state.time_limit, *(task.due for task in state.tasks.values())]
    wake = min((limit for limit in limits if limit is not None), default=None)
    if wake == state.wake:
        return state, ()
    return state._replace(wake=wake), () if wake is None else (Wake(wake),)


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
