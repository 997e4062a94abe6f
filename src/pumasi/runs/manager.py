"""The loop that joins planner, pool and store: events go through `core.manage`, and what it answers is done.

Records tell the time of day; deadlines go by the clock that nobody sets.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.agent.files import installer_files, step_files
from pumasi.core import events, manage
from pumasi.core.endings import outcome_of
from pumasi.core.events import Event
from pumasi.core.flows import MAIN, log_of
from pumasi.core.flows.catalogue import flow_of
from pumasi.core.frameworks import Gang
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of, packages_of, program_of
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.planning import plan
from pumasi.core.ranks import chief_first
from pumasi.core.results import result_on_volume
from pumasi.errors import ClusterTrouble, DoesNotFit, RunBusy, Unreachable
from pumasi.kube.waiting import end_task
from pumasi.pools.base import Found, FoundTask, Order, Pool, kept_task
from pumasi.runs.recorder import Recorder

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_STATES = {
    manage.Phase.QUEUED: "queued",
    manage.Phase.PLACING: "queued",
    manage.Phase.LAUNCHING: "starting",
    manage.Phase.RUNNING: "running",
    manage.Phase.ENDING: "ending",
    manage.Phase.KILLING: "ending",
    manage.Phase.ENDED: "ended",
}
_PHASES = {"starting": manage.Phase.LAUNCHING, "running": manage.Phase.RUNNING, "ending": manage.Phase.RUNNING}
_LINES, _LINE = 5, 200
"""What the record of a run keeps of the last words of each of its tasks: lines, and letters of each."""
_LAST = 5.0
"""Seconds that what goes on in the background has to end, when the run has."""


class Task(NamedTuple):
    """What a task asks for, and what its ranks run."""

    spec: Spec
    program: Program


class Manager:
    """Steers one run from its plan to its outcome. Also the pool's sink: whatever the gangs do comes in here."""

    def __init__(self, run_id: str, folder: str, spec: Spec, program: Program, pool: Pool, recorder: Recorder) -> None:
        self._run_id = run_id
        self._folder = folder
        self._spec = spec
        self._program = program
        self._flow = flow_of(spec, folder)
        self._pool = pool
        self._recorder = recorder
        self._events: asyncio.Queue[manage.Event | BaseException] = asyncio.Queue()
        self._ended: Mapping[str, Outcome] = {}
        self._works: dict[tuple[str, int], Task] = {}
        self._plans: dict[str, events.Planned] = {}
        self._gangs: dict[tuple[str, int], Gang] = {}
        self._gpus: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._next_number = 0
        self._placing = asyncio.Lock()
        self._full: dict[int, tuple[float, manage.Refused]] = {}  # by slots: when it was looked, and what was said
        self._started: float | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
            before = state
            state, actions = manage.step(state, await self._next())
            self._ended = state.ended
            self._keep_tasks(before.tasks, state.tasks)
            if state.summary != before.summary and state.outcome is None:
                self._recorder.update(time.time(), state=state.summary)
            for action in actions:
                self._do(action, state.summary)
        return state.outcome

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
            max(spec.restarts, self._flow.restarts),
            spec.timeout,
            spec.start_timeout,
            spec.grace,
            spec.wait,
            self._pool.confirm,
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
            return manage.begin(self._flow, policy)
        self._post(manage.Begun(now, since=now - (time.time() - found.created)))
        self._started = found.started
        if self._flow.title:
            self._recorder.take_over({name: kept_task(task) for name, task in found.tasks.items()})
        self._ended = {name: task.outcome for name, task in found.tasks.items() if task.outcome is not None}
        if self._flow.title:
            self._note(f"{self._run_id} goes on: {len(self._ended)} of its tasks are done already.")
        self._next_number = max((task.first + task.ranks for task in found.tasks.values()), default=0)
        return manage.begin(self._flow, policy, [self._go_on(name, task, now) for name, task in found.tasks.items()])

    def _go_on(self, name: str, found: FoundTask, now: float) -> manage.TaskState:
        """With what another manager has left of it."""
        phase = _PHASES.get(found.state, manage.Phase.QUEUED) if found.placement else manage.Phase.QUEUED
        state = manage.TaskState(name, found.attempt, phase, restarts=found.restarts)
        if found.outcome is not None:
            return state.ended(found.outcome)
        if phase is not manage.Phase.QUEUED:
            order = self._order(name, found.attempt, found.placement, found.first)
            self._recorder.recall(found.first)
            self._pool.adopt(order, self, self._recorder.heard(log_of(order.task, order.attempt)))
        limit = self._spec.start_timeout if phase is manage.Phase.LAUNCHING else 0.0
        return state if phase is manage.Phase.RUNNING else replace(state, due=now + limit)

    def _keep_tasks(self, before: Mapping[str, manage.TaskState], after: Mapping[str, manage.TaskState]) -> None:
        """What the next manager needs to go on, should this one be lost."""
        for name, task in after.items():
            if name != MAIN and _kept(task) != _kept(before.get(name)):
                outcome = None if task.outcome is None else _shortened(task.outcome).told()
                if task.outcome is not None:
                    self._recorder.event(time.time(), events.TaskEnded(**{**task.outcome.told(), "task": name}))
                self._recorder.task(
                    time.time(),
                    name,
                    state=_STATES[task.phase],
                    attempt=task.attempt,
                    restarts=task.restarts,
                    outcome=outcome,
                )

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
        if any(task == MAIN for task, _ in self._gangs):
            outcome = replace(outcome, metrics=self._last_metrics())
        report = self._flow.report(self._ended)
        if report:
            self._recorder.event(now, events.Reported(others=report))
        told = outcome.told()
        if outcome.verdict is Verdict.DONE:
            result = result_on_volume(self._spec, self._folder, report["final"] if report else None)
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
                self._spawn(self._place(action.task, action.attempt))
            case manage.Launch():
                self._spawn(self._launch(action.task, action.attempt, action.placement))
            case manage.End():
                self._recorder.event(now, events.Ending(task=_about(action.task), why=action.why))
                self._pool.end(action.task, action.attempt, action.grace)
            case manage.Kill():
                self._pool.end(action.task, action.attempt, 0)
            case manage.Wake():
                self._set_wake(action.at)
            case manage.Waiting() if summary == "queued":
                waiting = events.Waiting(run=self._run_id, task=_about(action.task), reason=action.reason)
                self._recorder.event(now, waiting)
            case manage.Restarting():
                about, attempt, spent = _about(action.task), action.attempt, action.spent
                restarting = events.Restarting(task=about, attempt=attempt, reason=action.reason, spent=spent)
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

    def _task(self, name: str, attempt: int) -> Task:
        if (name, attempt) not in self._works:
            work = self._flow.work(name, self._ended, attempt)
            spec = replace(self._spec, slots=work.slots or self._spec.slots, env={**self._spec.env, **work.env})
            installer = installer_files() if self._program.setup else {}
            files = {**step_files(), **installer} if work.is_step else self._program.files
            self._works[name, attempt] = Task(spec, program_of(self._program, work)._replace(files=files))
        return self._works[name, attempt]

    async def _place(self, task: str, attempt: int) -> None:
        """One after the other: what one task takes is not there for the next. Where there is no room for one, there is
        none for others of its size that were waiting to ask: fifty tasks need not look at a cluster fifty times."""
        asked, slots = time.monotonic(), self._task(task, attempt).spec.slots
        async with self._placing:
            self._pool.release(task)
            looked, refused = self._full.get(slots, (asked, None))
            if refused is not None and looked > asked:
                self._post(replace(refused, at=time.monotonic(), task=task, attempt=attempt))
            else:
                self._post(await self._find_room(task, attempt))

    async def _find_room(self, task: str, attempt: int) -> manage.Event:
        looked, spec = time.monotonic(), self._task(task, attempt).spec
        try:
            nodes = await self._pool.nodes()
            placement = plan(nodes, spec.slots, most_per_node=spec.max_per_node).placement
        except Unreachable as error:
            refused = manage.Refused(time.monotonic(), task, attempt, error.message, False, error.hint)
        except DoesNotFit as error:
            refused = self._refusal(task, attempt, error)
        else:
            return await self._reserve(task, attempt, placement)
        self._full[spec.slots] = looked, refused
        return refused

    async def _reserve(self, task: str, attempt: int, placement: Mapping[str, int]) -> manage.Event:
        gpus = await self._pool.reserve(task, placement)
        if gpus is None:
            return manage.Refused(time.monotonic(), task, attempt, "Another run was faster to take the room.")
        self._gpus[task, attempt] = gpus
        return manage.Placed(time.monotonic(), task, attempt, placement)

    def _refusal(self, task: str, attempt: int, error: DoesNotFit) -> manage.Refused:
        """What would not fit even if nobody else were there is told as that."""
        now = time.monotonic()
        try:
            spec = self._task(task, attempt).spec
            plan(self._pool.capacity(), spec.slots, most_per_node=spec.max_per_node)
        except DoesNotFit as never:
            return manage.Refused(now, task, attempt, never.message, True, never.hint)
        remark, waiting, gist = self._pool.shortage(spec.slots)
        reason = f"{error.message} {remark}".rstrip()
        return manage.Refused(now, task, attempt, reason, False, error.hint, waiting, gist)

    async def _launch(self, task: str, attempt: int, placement: Mapping[str, int]) -> None:
        order = self._order(task, attempt, placement, self._next_number)
        gang, program = self._gangs[task, attempt], self._task(task, attempt).program
        now = time.time()
        planned = events.Planned(
            run=self._run_id,
            task=_about(task),
            on=self._spec.on,
            placement=dict(placement),
            unplaced=self._pool.is_blind,
            chief=order.nodes[0],
            framework=program.framework,
            because=program.because,
            python=program.command[0],
            gpus={node: list(ids) for node, ids in self._gpus[task, attempt].items()},
            see_gpus=gang.see_gpus,
            packages=packages_of(program),
        )
        if self._plans.get(task) != planned:  # Who was turned away asks again, with the same plan perhaps.
            self._recorder.event(now, planned)
            self._plans[task] = planned
        ranks = len(gang.table.ranks)
        if task == MAIN:
            self._recorder.update(now, attempt=attempt, placement=dict(placement), ranks=ranks)
        else:
            self._recorder.task(now, task, placement=dict(placement), ranks=ranks, first=self._next_number)
            self._next_number += ranks
        self._recorder.event(now, events.Starting(**self._numbered(order), attempt=attempt))
        try:
            await self._pool.launch(order, self)
        except OSError as error:
            outcome = Outcome(Verdict.FAILED, f"The gang could not be started: {error}.")
            self._post(manage.Ended(time.monotonic(), task, attempt, outcome))

    def _order(self, task: str, attempt: int, placement: Mapping[str, int], first: int) -> Order:
        spec, program = self._task(task, attempt)
        details = Attempt(
            run=self._run_id,
            number=attempt,
            placement=placement,
            gpus=self._gpus.get((task, attempt), {}),
            secret=secrets.token_hex(32),
            nonce=secrets.token_hex(4),
            folder=self._folder,
            addresses=self._pool.addresses(chief_first(placement)),
            task=task,
            first=0 if task == MAIN else first,
        )
        gang = self._gangs[task, attempt] = gang_of(spec, program, details)
        return Order(task, attempt, gang.table.nodes, agent_configs(spec, program, details, gang))

    # ---- what the gang tells

    def frames(self, order: Order, chunk: bytes) -> None:
        self._recorder.frames(time.time(), log_of(order.task, order.attempt), chunk)

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        now = time.time()
        if words["event"] == "running":
            self._started = self._started or now
            self._recorder.update(now, started=self._started)
            ranks = self._named(order, words["ranks"])
            self._tell_once(now, events.Running(**self._numbered(order), attempt=order.attempt, ranks=ranks))
            self._post(manage.Started(time.monotonic(), order.task, order.attempt))
        elif words["event"] == "exit":
            ended = {key: words[key] for key in ("rank", "code", "signal")}
            self._tell_once(now, events.RankEnded(**self._numbered(order), attempt=order.attempt, **ended))
        elif words["event"] == "ending":
            outcome = self._outcome(order, words["outcome"])
            self._post(manage.Failing(time.monotonic(), order.task, order.attempt, outcome))
        elif words["event"] == "note":
            self._tell_once(now, events.Note(**self._numbered(order), attempt=order.attempt, text=words["text"]))
        elif words["event"] == "gap":
            lost = {"attempt": order.attempt, "rank": words["rank"], "lines": words["lines"]}
            self._recorder.event(now, events.Gap(task=_about(order.task), **lost))

    def _numbered(self, order: Order) -> dict[str, Any]:
        """Which task it is, and the numbers of its processes."""
        ranks = len(self._gangs[order.task, order.attempt].table.ranks)
        return {} if order.task == MAIN else {"task": order.task, "numbers": (order.configs[0]["first"], ranks)}

    def _tell_once(self, at: float, event: Event) -> None:
        """A gang that was adopted tells from its beginning what the manager before us has written down already."""
        if self._pool.found is None or not self._recorder.has_event(event):
            self._recorder.event(at, event)

    def _named(self, order: Order, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        table = self._gangs[order.task, order.attempt].table
        return [{**rank, "node": order.nodes[rank["node"]], "role": table.ranks[rank["rank"]].role} for rank in ranks]

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        self._plans.pop(order.task, None)
        outcome, spends = self._outcome(order, facts), facts.get("spends", True)
        if order.task != MAIN:
            outcome = replace(outcome, metrics=self._recorder.last.get(order.configs[0]["first"], {}))
        self._post(manage.Ended(time.monotonic(), order.task, order.attempt, outcome, spends))

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        """Two that raced for the same room both lose it: the dice decide who asks again first."""
        patience = random.uniform(0.5, 1.5)
        now = time.monotonic()
        self._post(manage.TurnedAway(now, order.task, order.attempt, reason, hopeless, hint, patience))

    def _outcome(self, order: Order, facts: Mapping[str, Any]) -> Outcome:
        size = len(self._gangs[order.task, order.attempt].table.ranks)
        return outcome_of(facts, order.nodes, size, self._pool.setting)


def _shortened(outcome: Outcome) -> Outcome:
    """For a record that has room for many."""
    return replace(outcome, tail=tuple(line[-_LINE:] for line in outcome.tail[-_LINES:]))


def _kept(task: manage.TaskState | None) -> tuple[object, ...]:
    """What is written down of a task: not how often it has looked for room."""
    return () if task is None else (_STATES[task.phase], task.attempt, task.restarts, task.outcome)


def _about(task: str) -> str | None:
    """Which task an event is about, where there may be several."""
    return None if task == MAIN else task
