"""What becomes of one task: it hears of itself, and its deadlines pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pumasi.core.flows.base import AGAIN
from pumasi.core.manage.actions import Abandon, End, Kill, Launch, Place, Restarting, Waiting
from pumasi.core.manage.events import EndAsked, Ended, Failing, Placed, Refused, Started, TaskEvent, TurnedAway
from pumasi.core.manage.state import LAUNCHED, UNLAUNCHED, UP, Phase, Policy, RunState, TaskState, TaskStep
from pumasi.core.outcome import Outcome, Verdict

FREE_RESTARTS = 100
"""How often a task starts again after what was nobody's failure: two runs that raced for the same room, say."""
LONGEST_PAUSE = 30.0
"""Seconds before what was nobody's failure starts again."""
LONGEST_WAIT = 10.0
"""Seconds before a run that waits for room looks again, if the pool does not say earlier that something has changed."""
TELL_AGAIN, TELL_SELDOM = 5.0, 60.0
"""Seconds between two sentences about who holds what a run waits for: at first, and when it has waited for long."""


def look_again(task: TaskState, at: float) -> TaskState:
    if task.phase is Phase.PLACING:
        return task._replace(outdated=True)
    return task._replace(due=at) if task.phase is Phase.QUEUED and task.for_room else task


def without(task: TaskState, ended: Collection[str], at: float) -> TaskState:
    if task.needs.isdisjoint(ended):
        return task
    needs = task.needs.difference(ended)
    return task._replace(needs=needs, due=None if needs else at)


def hear_of(state: RunState, task: TaskState, event: TaskEvent) -> TaskStep:
    match event:
        case Placed() if task.phase is Phase.PLACING:
            launching = task._replace(phase=Phase.LAUNCHING, due=event.at + state.policy.start_timeout)
            return launching, (Launch(task.name, task.attempt, event.placement),)
        case Refused() if task.phase is Phase.PLACING:
            return _wait_for_room(state, task, event)
        case TurnedAway() if task.phase is Phase.LAUNCHING:
            return _wait_for_room(state, task._replace(attempt=task.attempt + 1), event)
        case TurnedAway() if task.phase in (Phase.ENDING, Phase.KILLING):
            why = task.cause or Outcome(Verdict.FAILED, event.reason, event.hint)
            return _restart_or_end(state, task, why, event.at, spends=True)
        case Started() if task.phase is Phase.LAUNCHING:
            return task._replace(phase=Phase.RUNNING, due=None), ()
        case Failing() if task.phase in UP:
            cause = None if event.outcome.verdict is Verdict.DONE else event.outcome
            return task._replace(
                phase=Phase.ENDING, due=event.at + state.policy.grace + state.policy.confirm, cause=cause
            ), ()
        case Ended() if task.phase in LAUNCHED:
            return _restart_or_end(state, task, _outcome_of(task, event), event.at, event.spends_restart)
        case EndAsked() if task.phase in UP:
            return _end(state.policy, task, Outcome(Verdict.STOPPED, event.why), event.at)
        case EndAsked() if task.phase in UNLAUNCHED:
            return task.ended(Outcome(Verdict.STOPPED, event.why)), ()
    return task, ()


def _wait_for_room(state: RunState, task: TaskState, event: Refused | TurnedAway) -> TaskStep:
    """Who does not want to wait still waits for other tasks of the same run."""
    others = any(other.phase in UP for name, other in state.tasks.items() if name != task.name)
    if event.hopeless or not (state.policy.wait or others):
        return task.ended(Outcome(Verdict.FAILED, event.reason, event.hint)), ()
    if isinstance(event, TurnedAway):
        due = event.at + _pause(task.turned_away, LONGEST_WAIT) * event.patience
        task = task._replace(due=due, turned_away=task.turned_away + 1, for_room=False)
    else:
        due = event.at + (0.0 if task.outdated else _pause(task.refusals, LONGEST_WAIT))
        task = task._replace(due=due, refusals=task.refusals + 1, turned_away=0, for_room=True)
    return _tell_waiting(task._replace(phase=Phase.QUEUED), event)


def _tell_waiting(task: TaskState, event: Refused | TurnedAway) -> TaskStep:
    """Report why the task waits, if that has changed. Reports of who holds the resources are limited in rate; other
    reasons are reported at once and do not count against that limit."""
    text, gist = event.reason, event.reason
    if isinstance(event, Refused) and event.waiting:
        text, gist = event.waiting, event.gist
        pause = min(TELL_AGAIN * (1 + task.tellings // 10), TELL_SELDOM)
        if gist == task.waiting_for or (task.told_at is not None and event.at < task.told_at + pause):
            return task, ()
        task = task._replace(told_at=event.at, tellings=task.tellings + 1)
    if gist == task.waiting_for:
        return task, ()
    return task._replace(waiting_for=gist), (Waiting(task.name, task.attempt, text),)


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
    if outcome.verdict not in task.tries_again & AGAIN or not left:
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


def advance_task(state: RunState, task: TaskState, at: float) -> TaskStep:
    if state.closing and state.forced and task.phase in UP | {Phase.ENDING}:
        return _kill(state.policy, task, state.closing, "Asked to stop at once.", at)
    if state.closing and task.phase in UP:
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
    return task.ended(task.cause)._replace(abandoned=True), (Abandon(task.name, task.attempt),)


def _ask_for_room(policy: Policy, task: TaskState, at: float) -> TaskStep:
    placing = task._replace(phase=Phase.PLACING, due=at + policy.start_timeout, outdated=False)
    return placing, (Place(task.name, task.attempt),)


def _end(policy: Policy, task: TaskState, cause: Outcome, at: float) -> TaskStep:
    if policy.grace <= 0:
        return _kill(policy, task, cause, cause.reason, at)
    ending = task._replace(phase=Phase.ENDING, due=at + policy.grace, cause=cause)
    return ending, (End(task.name, task.attempt, policy.grace, cause.reason),)


def _kill(policy: Policy, task: TaskState, cause: Outcome, why: str, at: float) -> TaskStep:
    killing = task._replace(phase=Phase.KILLING, due=at + policy.confirm, cause=task.cause or cause)
    return killing, (Kill(task.name, task.attempt, why),)
