"""The tasks of a run that are on their way: what is known of each, and what the agents of its gangs are told.

What is known of a task is forgotten when it has ended: a run of many thousands needs no more memory than one of few.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.agent.files import installer_files, step_files
from pumasi.core import events
from pumasi.core.flows import MAIN, Flow, Task
from pumasi.core.frameworks import Gang
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of, packages_of, program_of
from pumasi.core.ranks import chief_first
from pumasi.pools.base import Order, Runner
from pumasi.registry import FLOWS

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


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


class Lives:
    """`by_name` has the tasks that are on their way; `speakers` their names, by the number of their first process;
    `next_number` is the first that no process has had."""

    def __init__(self, run_id: str, folder: str, spec: Spec, program: Program, flow: Flow, pool: Runner) -> None:
        self._run_id = run_id
        self._folder = folder
        self._spec = spec
        self._program = program
        self._flow = flow
        self._pool = pool
        self._step_files: Mapping[str, str] = {}
        self.by_name: dict[str, Life] = {}
        self.speakers: dict[int, str] = {}
        self.has_main = False
        self.next_number = 0

    def begin(self, task: Task) -> None:
        self.by_name[task.name] = Life(task)

    def end(self, name: str) -> None:
        life = self.by_name.pop(name, None)
        if life is not None and life.first is not None:
            self.speakers.pop(life.first, None)

    def give_numbers(self, life: Life, first: int) -> None:
        """Its processes speak under these from now on."""
        if life.first is not None:
            self.speakers.pop(life.first, None)
        life.first = first
        self.speakers[first] = life.task.name

    def speaker(self, number: int) -> Life | None:
        """The task whose first process has that number."""
        if self.has_main:
            return self.by_name.get(MAIN) if number == 0 else None
        return self.by_name.get(self.speakers.get(number, ""))

    def work(self, name: str, attempt: int) -> Work:
        life = self.by_name[name]
        if attempt not in life.works:
            task = self._flow.attempt(life.task, attempt)
            files = self._files_of_steps() if task.is_step else self._program.files
            life.works[attempt] = Work(_asked(self._spec, task), program_of(self._program, task)._replace(files=files))
        return life.works[attempt]

    def _files_of_steps(self) -> Mapping[str, str]:
        if not self._step_files:
            kind = FLOWS.get(self._spec.strategy)
            installer = installer_files() if self._program.setup else {}
            self._step_files = {**step_files((kind.steps, *kind.step_modules)), **installer}
        return self._step_files

    def order(self, task: str, attempt: int, placement: Mapping[str, int], first: int) -> Order:
        """`first` is the number of its first process, in a run of several tasks."""
        spec, program = self.work(task, attempt)
        life = self.by_name[task]
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
            self.has_main = True
        own = spec if life.task.options else None
        return Order(task, attempt, gang.table.nodes, agent_configs(spec, program, details, gang), own)

    def planned(self, order: Order, placement: Mapping[str, int]) -> events.Planned:
        """What is told of it before it is launched."""
        life, program = self.by_name[order.task], self.work(order.task, order.attempt).program
        return events.Planned(
            run=self._run_id,
            task=about(order.task),
            on=self._spec.on,
            placement=dict(placement),
            unplaced=self._pool.is_blind,
            chief=order.nodes[0],
            framework=program.framework,
            because=program.because,
            python=program.command[0],
            gpus={node: list(ids) for node, ids in life.gpus[order.attempt].items()},
            see_gpus=life.gangs[order.attempt].see_gpus,
            packages=packages_of(program),
        )

    def gang(self, order: Order) -> Gang | None:
        """None for an attempt that nobody waits for any longer."""
        life = self.by_name.get(order.task)
        return life.gangs.get(order.attempt) if life is not None else None

    def numbered(self, order: Order) -> dict[str, Any]:
        """Which task it is, and the numbers of its processes."""
        if order.task == MAIN:
            return {}
        ranks = len(self.by_name[order.task].gangs[order.attempt].table.ranks)
        return {"task": order.task, "numbers": (order.configs[0]["first"], ranks)}


def about(task: str) -> str | None:
    """Which task an event is about, where there may be several."""
    return None if task == MAIN else task


def _asked(spec: Spec, task: Task) -> Spec:
    """What a task asks for; options that there are not mean nothing."""
    return spec.changed({**task.options, "slots": task.slots or spec.slots, "env": {**spec.env, **task.env}})
