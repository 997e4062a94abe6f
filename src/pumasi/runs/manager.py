"""The loop that joins flow, planner, pool and store: events go through `core.manage`, and what it answers is done.

`lives` has the tasks that are on their way, `placing` finds room for them, `listener` hears what their gangs tell.
Records tell the time of day; deadlines go by the clock that nobody sets.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pumasi.core import events, manage
from pumasi.core.flows import MAIN, Flow, log_of
from pumasi.core.launch import Program
from pumasi.core.outcome import Outcome, Verdict
from pumasi.errors import ClusterTrouble, RunBusy
from pumasi.pools.base import Found, FoundTask, Runner, kept_task
from pumasi.registry import FLOWS
from pumasi.runs.adoption import Adopted, repeat
from pumasi.runs.listener import Listener
from pumasi.runs.lives import Lives, about
from pumasi.runs.placing import Placing
from pumasi.runs.recorder import Recorder
from pumasi.waiting import end_task

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_STATES = {
    manage.Phase.QUEUED: "queued",
    manage.Phase.PLACING: "queued",
    manage.Phase.LAUNCHING: "starting",
    manage.Phase.RUNNING: "running",
    manage.Phase.ENDING: "ending",
    manage.Phase.KILLING: "ending",
}
_PHASES = {"starting": manage.Phase.LAUNCHING, "running": manage.Phase.RUNNING, "ending": manage.Phase.RUNNING}
_LINES, _LINE = 5, 200
"""What the record of a run keeps of the last words of each of its tasks: lines, and letters of each."""
_LAST = 5.0
"""Seconds that what goes on in the background has to end, when the run has."""


class Manager:
    """Steers one run from its plan to its outcome."""

    def __init__(
        self, run_id: str, folder: str, spec: Spec, program: Program, pool: Runner, recorder: Recorder
    ) -> None:
        self._run_id = run_id
        self._folder = folder
        self._spec = spec
        self._program = program
        self._flow: Flow = FLOWS.get(spec.strategy).open(spec, folder)
        self._pool = pool
        self._recorder = recorder
        self._events: asyncio.Queue[manage.Event | BaseException] = asyncio.Queue()
        self._lives = Lives(run_id, folder, spec, program, self._flow, pool)
        self._placing = Placing(self._lives, pool, self._post)
        self._listener = Listener(self._lives, self._flow, program.framework, pool, recorder, self._post)
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        recorder.measured = self._measure
        pool.tell = self._note
        pool.fail = self._events.put_nowait
        pool.stop = lambda force, by: self.stop(force=force, by=by)
        pool.lose = self._lose
        pool.changed = lambda: self._post(manage.RoomChanged(time.monotonic()))

    async def run(self) -> Outcome:
        """Trouble with the cluster, or another manager, ends this one and not the run."""
        asyncio.get_running_loop().set_exception_handler(self._fail)
        self._pool.attend()
        try:
            outcome = await self._steer(self._begin(self._pool.found))
        except (ClusterTrouble, RunBusy):
            await self._pool.let_go()
            raise
        except BaseException:
            await self._pool.close()
            raise
        await self._pool.close()
        return self._finish(outcome)

    async def _steer(self, state: manage.RunState) -> Outcome:
        try:
            return await self._go_through(state)
        finally:
            await self._end_tasks()

    async def _go_through(self, state: manage.RunState) -> Outcome:
        while state.outcome is None:
            state = self._step(state, await self._next())
        return state.outcome

    def _step(self, state: manage.RunState, event: manage.Event) -> manage.RunState:
        """With what the flow says to it, before anything else is heard."""
        heard = deque([event])
        while heard:
            before = state
            state, actions = manage.step(state, heard.popleft())
            self._keep_tasks(before.tasks, state.tasks)
            summary = state.summary
            if summary != before.summary and state.outcome is None:
                self._recorder.update(time.time(), state=summary)
            for action in actions:
                answer = self._ask(action)
                if answer is not None:
                    heard.append(answer)
                else:
                    self._do(action, summary)
        return state

    def _ask(self, action: manage.Action) -> manage.Event | None:
        """The flow, if the action is for it."""
        if isinstance(action, manage.Pull):
            task = self._flow.next()
            if task is not None:
                self._lives.begin(task)
                if task.name != MAIN:
                    self._recorder.offered(time.time(), task.name)
            return manage.Offered(time.monotonic(), task)
        if isinstance(action, manage.Over):
            self._end_life(action)
            self._flow.ended(action.task, action.outcome)
            return manage.Heard(time.monotonic(), action.task, action.attempt, self._flow.outcome())
        return None

    def _end_life(self, over: manage.Over) -> None:
        life = self._lives.by_name.get(over.task)
        if life is not None and over.attempt not in life.gangs:
            self._pool.release(over.task)  # It may have been placed, and was not launched.
        self._lives.end(over.task)
        if over.task == MAIN:
            return
        now = time.time()
        self._recorder.event(now, events.TaskEnded(**{**over.outcome.told(), "task": over.task}))
        outcome = _shortened(over.outcome).told()
        self._recorder.end_task(now, over.task, attempt=over.attempt, outcome=outcome)

    async def _end_tasks(self) -> None:
        """What still looks for room would ask a pool that is closed, and tell of a run that has ended."""
        ending = [asyncio.ensure_future(end_task(task)) for task in self._tasks]
        if ending:
            done, late = await asyncio.wait(ending, timeout=_LAST)
            for each in late:
                each.cancel()
            for each in done:
                each.exception()  # `_collect` has seen it.

    def _begin(self, found: Found | None) -> manage.RunState:
        spec = self._spec
        policy = manage.Policy(
            spec.restarts, spec.timeout, spec.start_timeout, spec.grace, spec.wait, self._pool.confirm
        )
        now = time.monotonic()
        if found is None:
            for note in self._program.notes:
                self._note(note)
            if self._flow.title:
                told: dict[str, Any] = {"framework": self._program.framework, "because": self._program.because}
                self._recorder.event(
                    time.time(), events.FlowBegun(run=self._run_id, title=self._flow.title, on=spec.on, **told)
                )
            self._post(manage.Begun(now))
            return manage.begin(policy)
        self._post(manage.Begun(now, since=now - (time.time() - found.created)))
        self._listener.started = found.started
        return manage.begin(policy, self._take_over(found, now), self._flow.outcome())

    def _take_over(self, found: Found, now: float) -> list[manage.TaskState]:
        """What was asked and told before is repeated; what is on its way is gone on with."""
        adopted = repeat(self._flow, found, self._recorder)
        for task, _ in adopted.tasks.values():
            self._lives.begin(task)
        self._lives.next_number = adopted.next_number
        self._pool.found = found._replace(history=(), tasks={name: kept for name, (_, kept) in adopted.tasks.items()})
        if self._flow.title:
            self._recorder.take_over({name: kept_task(kept) for name, (_, kept) in adopted.tasks.items()})
            self._note(f"{self._run_id} goes on: {adopted.ended} of its tasks are done already.")
        running = [kept.first for _, kept in adopted.tasks.values() if kept.placement]
        self._recorder.recall(running)
        logs = {log_of(name, kept.attempt) for name, (_, kept) in adopted.tasks.items() if kept.placement}
        heard = {log: self._recorder.heard(log) for log in logs}
        return [self._go_on(name, adopted, now, heard) for name in adopted.tasks]

    def _go_on(
        self, name: str, adopted: Adopted, now: float, heard: Mapping[int, Mapping[int, int]]
    ) -> manage.TaskState:
        """With what another manager has left of it."""
        task, found = adopted.tasks[name]
        phase = _PHASES.get(found.state, manage.Phase.QUEUED) if found.placement else manage.Phase.QUEUED
        needs = adopted.redone if phase is manage.Phase.QUEUED and name not in adopted.redone else frozenset()
        state = manage.task_state(task, found.attempt, phase, restarts=found.restarts, needs=needs)
        if phase is not manage.Phase.QUEUED:
            self._adopt(name, found, heard[log_of(name, found.attempt)])
        limit = self._spec.start_timeout if phase is manage.Phase.LAUNCHING else 0.0
        return state if phase is manage.Phase.RUNNING or needs else state._replace(due=now + limit)

    def _adopt(self, name: str, found: FoundTask, heard: Mapping[int, int]) -> None:
        order = self._lives.order(name, found.attempt, found.placement, found.first)
        life = self._lives.by_name[name]
        life.adopted = found.attempt
        if name != MAIN:
            self._lives.give_numbers(life, found.first)
        self._pool.adopt(order, self._listener, heard)
        if last := self._recorder.last.get(found.first):
            self._measure(found.first, last)

    def _keep_tasks(self, before: Mapping[str, manage.TaskState], after: Mapping[str, manage.TaskState]) -> None:
        """What the next manager needs to go on, should this one be lost."""
        for name, task in after.items():
            old = before.get(name)
            if task is old or name == MAIN or _kept(task) == _kept(old):
                continue
            told = {"state": _STATES[task.phase], "attempt": task.attempt, "restarts": task.restarts}
            self._recorder.task(time.time(), name, **told)

    def _measure(self, number: int, values: Mapping[str, float]) -> None:
        """The flow hears what the first process of a task has told, and may have enough of it."""
        life = self._lives.speaker(number)
        if life is not None and (why := self._flow.measured(life.task.name, values)):
            self._post(manage.EndAsked(time.monotonic(), life.task.name, life.attempt, why))

    def stop(self, *, force: bool = False, by: str = "") -> None:
        """`by`: who asked for it, where that was not at the run's own terminal."""
        outcome = Outcome(Verdict.STOPPED, f"Stopped by {by}.") if by else manage.STOPPED
        self._post(manage.StopAsked(time.monotonic(), force, outcome))

    def _lose(self, why: str) -> None:
        """Somebody has taken the run away: what may be left of it is ended."""
        self._post(manage.StopAsked(time.monotonic(), outcome=Outcome(Verdict.LOST, why)))

    async def _next(self) -> manage.Event:
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def _post(self, event: manage.Event) -> None:
        self._events.put_nowait(event)

    def _finish(self, outcome: Outcome) -> Outcome:
        now = time.time()
        if self._lives.has_main:
            outcome = replace(outcome, metrics=self._last_metrics())
        report = self._flow.report()
        if report:
            self._recorder.event(now, events.Reported(others=report))
        told = outcome.told()
        if outcome.verdict is Verdict.DONE:
            final = report.get("final") if report else None
            result = self._spec.place.result(self._spec, self._folder, final)
            told |= {"result": result} if result else {}
        # In this order: who sees that the run has ended finds the event that tells how.
        self._recorder.event(now, events.Finished(run=self._run_id, **told))
        self._recorder.update(
            now, state=outcome.verdict.value, ended=now, outcome=told, exit_code=outcome.verdict.exit_code
        )
        return outcome

    def _last_metrics(self) -> Mapping[str, float]:
        """Of the first rank that has some."""
        return next((values for _, values in sorted(self._recorder.last.items()) if values), {})

    # ---- actions

    def _do(self, action: manage.Action, summary: str) -> None:
        now = time.time()
        match action:
            case manage.Place():
                self._spawn(self._placing.place(action.task, action.attempt))
            case manage.Launch():
                self._spawn(self._launch(action.task, action.attempt, action.placement))
            case manage.End():
                self._recorder.event(now, events.Ending(task=about(action.task), why=action.why))
                self._pool.end(action.task, action.attempt, action.grace)
            case manage.Kill():
                self._pool.end(action.task, action.attempt, 0)
            case manage.Wake():
                self._set_wake(action.at)
            case manage.Waiting() if summary == "queued":
                waiting = events.Waiting(run=self._run_id, task=about(action.task), reason=action.reason)
                self._recorder.event(now, waiting)
            case manage.Restarting():
                restarting = events.Restarting(
                    task=about(action.task), attempt=action.attempt, reason=action.reason, spent=action.spent
                )
                self._recorder.event(now, restarting)

    def _note(self, text: str) -> None:
        self._recorder.event(time.time(), events.Note(text=text))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._collect)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._events.put_nowait(context.get("exception") or RuntimeError(context["message"]))

    def _collect(self, task: asyncio.Task[None]) -> None:
        """What fails in the background ends the loop as if it had failed there: nothing may die unseen."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._events.put_nowait(error)

    def _set_wake(self, at: float) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay = max(0.0, at - time.monotonic())
        self._wake = asyncio.get_running_loop().call_later(delay, lambda: self._post(manage.Tick(time.monotonic())))

    async def _launch(self, task: str, attempt: int, placement: Mapping[str, int]) -> None:
        life = self._lives.by_name.get(task)
        if life is None:
            return
        first = self._lives.next_number
        order = self._lives.order(task, attempt, placement, first)
        now, ranks = time.time(), len(life.gangs[attempt].table.ranks)
        planned = self._lives.planned(order, placement)
        if life.plan != planned:  # Who was turned away asks again, with the same plan perhaps.
            self._recorder.event(now, planned)
            life.plan = planned
        if task == MAIN:
            self._recorder.update(now, attempt=attempt, placement=dict(placement), ranks=ranks)
        else:
            self._recorder.task(now, task, placement=dict(placement), ranks=ranks, first=first)
            if life.first is not None:
                self._recorder.forget([life.first])
            self._lives.give_numbers(life, first)
            self._lives.next_number += ranks
        self._recorder.event(now, events.Starting(**self._lives.numbered(order), attempt=attempt))
        try:
            await self._pool.launch(order, self._listener)
        except OSError as error:
            outcome = Outcome(Verdict.FAILED, f"The gang could not be started: {error}.")
            self._post(manage.Ended(time.monotonic(), task, attempt, outcome))


def _shortened(outcome: Outcome) -> Outcome:
    """For a record that has room for many."""
    return replace(outcome, tail=tuple(line[-_LINE:] for line in outcome.tail[-_LINES:]))


def _kept(task: manage.TaskState | None) -> tuple[object, ...]:
    """What is written down of a task: not how often it has looked for room."""
    return ("queued", 0, 0) if task is None else (_STATES[task.phase], task.attempt, task.restarts)
