"""Placement to order: what the agent of each node has to know to start its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.core.flows import MAIN, Task
from pumasi.core.frameworks import (
    Gang,
    agent_parts,
    chief_ports,
    decides,
    environment,
    extra_roles,
    hostfile,
    settle_see_gpus,
)
from pumasi.core.placeholders import fill
from pumasi.core.ranks import Rank, RankTable, rank_table

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


AGENT_VERSION = 1
"""Of the configurations made here. Raised when an agent that does not know the change would do something wrong."""


class Program(NamedTuple):
    """What every rank runs, as found on this machine. `mpirun` is set when MPI has to start the ranks;
    `launcher` when the program is itself one that starts ranks elsewhere, and so runs on the chief's node only. `parts`
    are the commands of tasks that run something else; `makes` is what a task has to make, see `flows.Task`; `setup` is
    what each node does before the ranks start, see `agent/installer.py`."""

    command: tuple[str, ...]
    framework: str
    because: str
    files: Mapping[str, str]
    mpirun: str | None = None
    launcher: bool = False
    joins: bool = False
    notes: tuple[str, ...] = ()
    parts: Mapping[str, tuple[str, ...]] = {}
    makes: tuple[str, str] | None = None
    setup: Mapping[str, Any] = {}


def program_of(program: Program, task: Task) -> Program:
    """What the ranks of one of several tasks run."""
    command = program.parts.get(task.program, program.command)
    return program._replace(command=(*fill(command, task.values), *task.arguments), makes=task.makes)


def packages_of(program: Program) -> str:
    """What is installed first, in a few words; empty: nothing."""
    wanted = program.setup.get("requirements")
    if not wanted:
        return ""
    return f"{wanted['count']} {'package' if wanted['count'] == 1 else 'packages'} of {wanted['name']}"


class Attempt(NamedTuple):
    """One attempt of a task, as far as it differs from others: where it runs, what nobody else may know, and from which
    number on its ranks speak. A run's processes all have numbers of their own: those of a run of one task are its
    ranks."""

    run: str
    number: int
    placement: Mapping[str, int]
    gpus: Mapping[str, Sequence[str]]
    secret: str
    nonce: str
    folder: str
    addresses: Sequence[str]
    task: str = MAIN
    first: int = 0

    @property
    def scratch(self) -> str:
        return f"{self.folder}/tmp/{self.number if self.task == MAIN else f'{self.task}-{self.number}'}"

    @property
    def checkpoints(self) -> str:
        return f"{self.folder}/checkpoints" if self.task == MAIN else f"{self.folder}/checkpoints/{self.task}"


def gang_of(spec: Spec, program: Program, attempt: Attempt) -> Gang:
    share = dict.fromkeys(attempt.placement, 1) if spec.per_node else attempt.placement
    table = rank_table(share, extra_roles(spec))
    sight = settle_see_gpus(spec, program.framework)
    return Gang(
        run=attempt.run,
        attempt=attempt.number,
        restarts=spec.restarts,
        table=table,
        per_node=spec.per_node,
        sections=spec.sections,
        gpus=_gpus(spec, attempt, table),
        see_gpus=sight,
        slots_per_node=tuple(attempt.placement[name] for name in table.nodes),
        joins=program.joins,
    )


def _gpus(spec: Spec, attempt: Attempt, table: RankTable) -> tuple[tuple[str, ...], ...]:
    """Nothing where no GPU is known of, so that what the user has set stays; empty for each node to hide them."""
    if not attempt.gpus and spec.gpu != "none":
        return ()
    return tuple(tuple(attempt.gpus.get(name, ())) for name in table.nodes)


def agent_configs(spec: Spec, program: Program, attempt: Attempt, gang: Gang) -> list[dict[str, Any]]:
    """A configuration a node, the chief's first; see `agent/config.py` for what each field means."""
    shared = _shared(spec, program, attempt, gang)
    return [_config(spec, program, attempt, gang, node, shared) for node in range(len(gang.table.nodes))]


def _shared(spec: Spec, program: Program, attempt: Attempt, gang: Gang) -> dict[str, Any]:
    table = gang.table
    hosts = hostfile(gang) if program.mpirun is not None or program.launcher else None
    return {
        "version": AGENT_VERSION,
        "nodes": len(table.nodes),
        "names": list(table.nodes),
        "first": attempt.first,
        "total": 1 if program.launcher else len(table.ranks),
        "deciders": [0]
        if program.launcher
        else [rank.rank for rank in table.ranks if decides(gang, rank, program.framework)],
        "hub": [attempt.addresses[0], 0],
        "secret": attempt.secret,
        "chief_ports": list(chief_ports(gang, program.framework)),
        "parts": list(agent_parts(gang, program.framework, hosts)),
        "hostfile": hosts,
        "launcher": _mpirun(program, table) if program.mpirun else None,
        "files": dict(program.files),
        "setup": _setup(spec, program, attempt),
        "cwd": spec.workdir,
        "start_timeout": spec.start_timeout,
        "silence": spec.silence,
        "grace": spec.grace,
    }


def _config(
    spec: Spec, program: Program, attempt: Attempt, gang: Gang, node: int, shared: Mapping[str, Any]
) -> dict[str, Any]:
    ranks = gang.table.on(node) if not program.launcher else gang.table.on(node)[: node == 0]
    return {
        **shared,
        "node": node,
        "address": attempt.addresses[node],
        "gang": f"{attempt.run}.{attempt.number}.{attempt.nonce}.{node}",
        "dir": f"{attempt.scratch}-{node}",
        "slots": attempt.placement[gang.table.nodes[node]],
        "seats": [rank.rank for rank in gang.table.on(node)],
        "ranks": [_rank(spec, program, attempt, gang, rank) for rank in ranks],
    }


def _rank(spec: Spec, program: Program, attempt: Attempt, gang: Gang, rank: Rank) -> dict[str, Any]:
    own = {"PUMASI_CHECKPOINT_DIR": attempt.checkpoints, "PUMASI_NODE": gang.table.nodes[rank.node]}
    env = {**environment(gang, rank, program.framework), **own, **spec.env}
    makes = {"makes": list(program.makes)} if program.makes else {}
    return {"rank": rank.rank, "command": list(program.command), "env": env, **makes}


def _setup(spec: Spec, program: Program, attempt: Attempt) -> dict[str, Any] | None:
    """A pool whose nodes share a disk changes `shared`."""
    if not program.setup:
        return None
    return {**program.setup, "env": dict(spec.env), "shared": "", "own": f"{attempt.folder}/tmp/environment"}


def _mpirun(program: Program, table: RankTable) -> list[str]:
    """`{self}` is the agent, which stands between mpirun and each rank."""
    options = ["-np", str(len(table.ranks)), "--map-by", "slot", "--bind-to", "none"]
    return [str(program.mpirun), *options, "{self}", "rank", *program.command]
