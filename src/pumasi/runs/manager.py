"""The loop that joins flow, planner, pool and store: events go through `core.manage`, and what it answers is done.

What is known of a task is forgotten when it has ended: a run of many thousands needs no more memory than one of few.
Records tell the time of day; deadlines go by the clock that nobody sets.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.agent.files import installer_files, step_files
from pumasi.core import events, manage
from pumasi.core.endings import outcome_of
from pumasi.core.events import Event
from pumasi.core.flows import MAIN, Flow, Task, log_of
from pumasi.core.frameworks import Gang
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of, packages_of, program_of
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.planning import plan
from pumasi.core.ranks import chief_first
from pumasi.errors import ClusterTrouble, DoesNotFit, RunBusy, Unreachable
from pumasi.pools.base import Found, FoundTask, Order, Runner, kept_task
from pumasi.registry import FLOWS
from pumasi.runs.adoption import Adopted, repeat
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


_SIZES = 100
"""Of tasks: for so many it is remembered that there was no room."""


class Work(NamedTuple):
    """What an attempt of a task asks for, and what its ranks run."""

    spec: Spec
    program: Program


@dataclass
class Life:
    """What is known of a task until it has ended, much of it by the number of the attempt. `plan` is what was told of
    it last; `first` is the number of its first process; `adopted` is an attempt that another manager has launched."""

    task: Task
    works: dict[int, Work] = field(default_factory=dict)
    gangs: dict[int, Gang] = field(default_factory=dict)
    gpus: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    plan: events.Planned | None = None
    first: int | None = None
    attempt: int = 0
    adopted: int | None = None

    def forget(self, attempt: int) -> None:
        """It is over."""
        for known in (self.works, self.gangs, self.gpus):
            known.pop(attempt, None)


class Manager:
    """Steers one run from its plan to its outcome. Also the pool's sink: whatever the gangs do comes in here."""

    def __init__(
        self, run_id: str, folder: str, spec: Spec, program: Program, pool: Runner, recorder: Recorder
    ) -> None:
        self._run_id = run_id
        self._folder = folder
        self._spec = spec
        self._program = program
        self._kind = FLOWS.get(spec.strategy)
        self._flow: Flow = self._kind.open(spec, folder)
        self._pool = pool
        self._recorder = recorder
        self._events: asyncio.Queue[manage.Event | BaseException] = asyncio.Queue()
        self._lives: dict[str, Life] = {}
        self._speakers: dict[int, str] = {}  # the tasks that are on their way, by the number of their first process
        self._has_main = False
        self._step_files: Mapping[str, str] = {}
        self._next_number = 0
        self._placing = asyncio.Lock()
        self._full: dict[str, tuple[float, manage.Refused]] = {}  # by size: when it was looked, and what was said
        self._started: float | None = None
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
                self._lives[task.name] = Life(task)
                if task.name != MAIN:
                    self._recorder.offered(time.time(), task.name)
            return manage.Offered(time.monotonic(), task)
        if isinstance(action, manage.Over):
            self._end_life(action)
            self._flow.ended(action.task, action.outcome)
            return manage.Heard(time.monotonic(), action.task, action.attempt, self._flow.outcome())
        return None

    def _end_life(self, over: manage.Over) -> None:
        life = self._lives.pop(over.task, None)
        if over.task == MAIN:
            return
        if life is not None and life.first is not None:
            self._speakers.pop(life.first, None)
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
        self._started = found.started
        return manage.begin(policy, self._take_over(found, now), self._flow.outcome())

    def _take_over(self, found: Found, now: float) -> list[manage.TaskState]:
        """What was asked and told before is repeated; what is on its way is gone on with."""
        adopted = repeat(self._flow, found, self._recorder)
        self._lives = {name: Life(task) for name, (task, _) in adopted.tasks.items()}
        self._next_number = adopted.next_number
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
        order = self._order(name, found.attempt, found.placement, found.first)
        life = self._lives[name]
        life.adopted = found.attempt
        if name != MAIN:
            life.first = found.first
            self._speakers[found.first] = name
        self._pool.adopt(order, self, heard)
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
        name = MAIN if self._has_main else self._speakers.get(number)
        if name not in self._lives or (self._has_main and number != 0):
            return
        if why := self._flow.measured(name, values):
            self._post(manage.EndAsked(time.monotonic(), name, self._lives[name].attempt, why))

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
        if self._has_main:
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

    def _work(self, name: str, attempt: int) -> Work:
        life = self._lives[name]
        if attempt not in life.works:
            task = self._flow.attempt(life.task, attempt)
            files = self._files_of_steps() if task.is_step else self._program.files
            life.works[attempt] = Work(_asked(self._spec, task), program_of(self._program, task)._replace(files=files))
        return life.works[attempt]

    def _files_of_steps(self) -> Mapping[str, str]:
        if not self._step_files:
            installer = installer_files() if self._program.setup else {}
            self._step_files = {**step_files((self._kind.steps, *self._kind.step_modules)), **installer}
        return self._step_files

    async def _place(self, task: str, attempt: int) -> None:
        """One after the other: what one task takes is not there for the next. Where there is no room for one, there is
        none for others of its size that were waiting to ask: fifty tasks need not look at a cluster fifty times."""
        if task not in self._lives:
            return
        asked, size = time.monotonic(), self._size(task)
        async with self._placing:
            self._pool.release(task)
            looked, refused = self._full.get(size, (asked, None))
            if task not in self._lives:
                return
            if refused is not None and looked > asked:
                self._post(refused._replace(at=time.monotonic(), task=task, attempt=attempt))
            else:
                self._post(await self._find_room(task, attempt))
            if task not in self._lives:  # It has ended meanwhile: nobody will launch it.
                self._pool.release(task)

    def _size(self, task: str) -> str:
        """Tasks that ask for the same have the same."""
        asked = self._lives[task].task
        return f"{asked.slots} {sorted(asked.options.items())}"

    async def _find_room(self, task: str, attempt: int) -> manage.Event:
        looked, spec, size = time.monotonic(), self._work(task, attempt).spec, self._size(task)
        try:
            nodes = await self._pool.nodes(spec if self._lives[task].task.options else None)
            placement = plan(nodes, spec.slots, most_per_node=spec.place.most_per_node).placement
        except Unreachable as error:
            refused = manage.Refused(time.monotonic(), task, attempt, error.message, False, error.hint)
        except DoesNotFit as error:
            refused = self._refusal(task, attempt, spec, error)
        else:
            return await self._reserve(task, attempt, placement)
        if len(self._full) >= _SIZES:
            self._full.clear()
        self._full[size] = looked, refused
        return refused

    async def _reserve(self, task: str, attempt: int, placement: Mapping[str, int]) -> manage.Event:
        gpus = await self._pool.reserve(task, placement)
        if gpus is None:
            return manage.Refused(time.monotonic(), task, attempt, "Another run was faster to take the room.")
        if task in self._lives:
            self._lives[task].gpus[attempt] = gpus
        return manage.Placed(time.monotonic(), task, attempt, placement)

    def _refusal(self, task: str, attempt: int, spec: Spec, error: DoesNotFit) -> manage.Refused:
        """What would not fit even if nobody else were there is told as that."""
        now = time.monotonic()
        try:
            plan(self._pool.capacity(), spec.slots, most_per_node=spec.place.most_per_node)
        except DoesNotFit as never:
            return manage.Refused(now, task, attempt, never.message, True, never.hint)
        remark, waiting, gist = self._pool.shortage(spec.slots)
        reason = f"{error.message} {remark}".rstrip()
        return manage.Refused(now, task, attempt, reason, False, error.hint, waiting, gist)

    async def _launch(self, task: str, attempt: int, placement: Mapping[str, int]) -> None:
        life = self._lives.get(task)
        if life is None:
            return
        order = self._order(task, attempt, placement, self._next_number)
        self._tell_plan(life, order, attempt, placement)
        now, ranks = time.time(), len(life.gangs[attempt].table.ranks)
        if task == MAIN:
            self._recorder.update(now, attempt=attempt, placement=dict(placement), ranks=ranks)
        else:
            self._recorder.task(now, task, placement=dict(placement), ranks=ranks, first=self._next_number)
            self._give_number(life, ranks)
        self._recorder.event(now, events.Starting(**self._numbered(order), attempt=attempt))
        try:
            await self._pool.launch(order, self)
        except OSError as error:
            outcome = Outcome(Verdict.FAILED, f"The gang could not be started: {error}.")
            self._post(manage.Ended(time.monotonic(), task, attempt, outcome))

    def _give_number(self, life: Life, ranks: int) -> None:
        """Its processes speak under these from now on."""
        if life.first is not None:
            self._speakers.pop(life.first, None)
            self._recorder.forget([life.first])
        life.first = self._next_number
        self._speakers[life.first] = life.task.name
        self._next_number += ranks

    def _tell_plan(self, life: Life, order: Order, attempt: int, placement: Mapping[str, int]) -> None:
        program = life.works[attempt].program
        planned = events.Planned(
            run=self._run_id,
            task=_about(order.task),
            on=self._spec.on,
            placement=dict(placement),
            unplaced=self._pool.is_blind,
            chief=order.nodes[0],
            framework=program.framework,
            because=program.because,
            python=program.command[0],
            gpus={node: list(ids) for node, ids in life.gpus[attempt].items()},
            see_gpus=life.gangs[attempt].see_gpus,
            packages=packages_of(program),
        )
        if life.plan != planned:  # Who was turned away asks again, with the same plan perhaps.
            self._recorder.event(time.time(), planned)
            life.plan = planned

    def _order(self, task: str, attempt: int, placement: Mapping[str, int], first: int) -> Order:
        spec, program = self._work(task, attempt)
        life = self._lives[task]
        details = Attempt(
            run=self._run_id,
            number=attempt,
            placement=placement,
            gpus=life.gpus.get(attempt, {}),
            secret=secrets.token_hex(32),
            nonce=secrets.token_hex(4),
            folder=self._folder,
            addresses=self._pool.addresses(chief_first(placement)),
            task=task,
            first=0 if task == MAIN else first,
        )
        gang = life.gangs[attempt] = gang_of(spec, program, details)
        life.attempt = attempt
        if task == MAIN:
            self._has_main = True
        own = spec if life.task.options else None
        return Order(task, attempt, gang.table.nodes, agent_configs(spec, program, details, gang), own)

    def _gang(self, order: Order) -> Gang | None:
        """None for an attempt that nobody waits for any longer."""
        life = self._lives.get(order.task)
        return life.gangs.get(order.attempt) if life is not None else None

    # ---- what the gang tells

    def frames(self, order: Order, chunk: bytes) -> None:
        self._recorder.frames(time.time(), log_of(order.task, order.attempt), chunk)

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        gang, now = self._gang(order), time.time()
        if gang is None:
            return
        if words["event"] == "running":
            if self._started is None or order.task == MAIN:
                self._started = self._started or now
                self._recorder.update(now, started=self._started)
            ranks = _named(gang, order, words["ranks"])
            self._tell_once(now, order, events.Running(**self._numbered(order), attempt=order.attempt, ranks=ranks))
            self._flow.started(order.task)
            self._post(manage.Started(time.monotonic(), order.task, order.attempt))
        elif words["event"] == "exit":
            ended = {key: words[key] for key in ("rank", "code", "signal")}
            told = {**self._numbered(order), "attempt": order.attempt, **ended}
            self._tell_once(now, order, events.RankEnded(**told))
        elif words["event"] == "ending":
            outcome = self._outcome(gang, order, words["outcome"])
            self._post(manage.Failing(time.monotonic(), order.task, order.attempt, outcome))
        elif words["event"] == "note":
            told = {**self._numbered(order), "attempt": order.attempt, "text": words["text"]}
            self._tell_once(now, order, events.Note(**told))
        elif words["event"] == "gap":
            lost = {"attempt": order.attempt, "rank": words["rank"], "lines": words["lines"]}
            self._recorder.event(now, events.Gap(task=_about(order.task), **lost))

    def _numbered(self, order: Order) -> dict[str, Any]:
        """Which task it is, and the numbers of its processes."""
        if order.task == MAIN:
            return {}
        ranks = len(self._lives[order.task].gangs[order.attempt].table.ranks)
        return {"task": order.task, "numbers": (order.configs[0]["first"], ranks)}

    def _tell_once(self, at: float, order: Order, event: Event) -> None:
        """A gang that was adopted tells from its beginning what the manager before us has written down already."""
        is_adopted = self._lives[order.task].adopted == order.attempt
        if not is_adopted or not self._recorder.has_event(event):
            self._recorder.event(at, event)

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        gang = self._gang(order)
        if gang is None:
            return
        life = self._lives[order.task]
        life.plan = None
        outcome, spends = self._outcome(gang, order, facts), facts.get("spends", True)
        if order.task != MAIN:
            outcome = replace(outcome, metrics=self._recorder.last.get(order.configs[0]["first"], {}))
        self._post(manage.Ended(time.monotonic(), order.task, order.attempt, outcome, spends))
        life.forget(order.attempt)

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        """Two that raced for the same room both lose it: the dice decide who asks again first."""
        if order.task in self._lives:
            self._lives[order.task].forget(order.attempt)
        patience = random.uniform(0.5, 1.5)
        now = time.monotonic()
        self._post(manage.TurnedAway(now, order.task, order.attempt, reason, hopeless, hint, patience))

    def _outcome(self, gang: Gang, order: Order, facts: Mapping[str, Any]) -> Outcome:
        setting = self._pool.setting._replace(framework=self._program.framework)
        return outcome_of(facts, order.nodes, len(gang.table.ranks), setting)


def _asked(spec: Spec, task: Task) -> Spec:
    """What a task asks for; options that there are not mean nothing."""
    return spec.changed({**task.options, "slots": task.slots or spec.slots, "env": {**spec.env, **task.env}})


def _named(gang: Gang, order: Order, ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    table = gang.table
    return [{**rank, "node": order.nodes[rank["node"]], "role": table.ranks[rank["rank"]].role} for rank in ranks]


def _shortened(outcome: Outcome) -> Outcome:
    """For a record that has room for many."""
    return replace(outcome, tail=tuple(line[-_LINE:] for line in outcome.tail[-_LINES:]))


def _kept(task: manage.TaskState | None) -> tuple[object, ...]:
    """What is written down of a task: not how often it has looked for room."""
    return ("queued", 0, 0) if task is None else (_STATES[task.phase], task.attempt, task.restarts)


def _about(task: str) -> str | None:
    """Which task an event is about, where there may be several."""
    return None if task == MAIN else task
