"""Rank table to environment variables: one file a framework, and all of them at once.

What the frameworks want does not collide, so a script needs no word about its framework; what would collide is set only
for the one that is chosen. Another framework is one more file, and one more line in `FRAMEWORKS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pumasi.core.frameworks.base import PLACEHOLDER, Framework, Gang, Layout, Sight, host
from pumasi.core.frameworks.gpus import visibility
from pumasi.core.frameworks.horovod import HOROVOD
from pumasi.core.frameworks.jax import JAX
from pumasi.core.frameworks.mpi import MPI, hostfile
from pumasi.core.frameworks.tensorflow import TENSORFLOW
from pumasi.core.frameworks.torch import TORCH
from pumasi.core.ranks import Rank

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

__all__ = [
    "FRAMEWORKS",
    "PLACEHOLDER",
    "Framework",
    "Gang",
    "Layout",
    "agent_parts",
    "chief_ports",
    "decides",
    "environment",
    "extra_roles",
    "find_framework",
    "hint",
    "hostfile",
    "settle_see_gpus",
    "without_noise",
]

FRAMEWORKS: tuple[Framework, ...] = (
    HOROVOD,
    MPI,
    TORCH,
    TENSORFLOW,
    JAX,
)
"""In the order in which they win when a script trains with several."""


def find_framework(name: str) -> Framework | None:
    return next((framework for framework in FRAMEWORKS if framework.name == name), None)


def environment(gang: Gang, rank: Rank, chosen: str) -> dict[str, str]:
    """What `rank` finds in its environment, with placeholders for addresses.

    A user's own variables win over these, except `no_proxy` and `NO_PROXY`: to them the agent appends, and only where a
    proxy is set at all (JAX warns of any variable with such a name). The agent adds what depends on its machine, such
    as the name of the network interface.
    """
    values = {
        "PYTHONUNBUFFERED": "1",
        "PUMASI_RUN": gang.run,
        "PUMASI_ATTEMPT": str(gang.attempt),
        "PUMASI_RANK": str(rank.rank),
        "PUMASI_WORLD_SIZE": str(gang.processes),
        **visibility(gang, rank),
    }
    for framework in _wired(gang, chosen):
        values |= framework.environment(gang, rank)
        if framework.name == chosen:
            values |= framework.when_chosen(gang, rank)
    if gang.processes > 1:
        values |= dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(host(first) for first in gang.first_ranks()))
    return values


def chief_ports(gang: Gang, chosen: str) -> tuple[str, ...]:
    """The names of the ports that must be found on the chief's node."""
    return tuple(port for framework in _wired(gang, chosen) for port in framework.ports)


def agent_parts(gang: Gang, chosen: str, hosts: str | None) -> tuple[str, ...]:
    """What the agents do for the frameworks of this gang. `hosts` is the text for mpirun's host file, if there is one:
    also a single process may be an mpirun."""
    parts = [framework.agent_part for framework in _wired(gang, chosen) if framework.agent_part]
    return tuple(dict.fromkeys([*parts, *([MPI.agent_part] if hosts is not None else [])]))


def _wired(gang: Gang, chosen: str) -> list[Framework]:
    main = find_framework(chosen)
    if main is not None and main.exclusive:
        return [main] if main.wires(gang) else []
    if main is not None and gang.processes == 1 and gang.joins:
        return [main]
    return [framework for framework in FRAMEWORKS if not framework.exclusive and framework.wires(gang)]


def settle_see_gpus(spec: Spec, chosen: str) -> Sight:
    """Whether a rank sees only its own GPU or all of the task's on its node: as asked, else as a framework insists, or
    as the chosen one wants it."""
    if spec.see_gpus in ("own", "all"):
        return "own" if spec.see_gpus == "own" else "all"
    if spec.per_node:
        return "all"
    for framework in FRAMEWORKS:
        if insisted := framework.insists_on(spec):
            return insisted
    main = find_framework(chosen)
    return main.see_gpus if main is not None else "own"


def extra_roles(spec: Spec) -> tuple[str, ...]:
    """The roles of processes in addition to the slots."""
    return tuple(role for framework in FRAMEWORKS for role in framework.extra_roles(spec))


def decides(gang: Gang, rank: Rank) -> bool:
    """Whether the task is not over before this rank has ended."""
    return all(framework.decides(gang, rank) for framework in FRAMEWORKS)


def hint(tail: Sequence[str]) -> str:
    """What a framework knows about a failure that ended with these lines; "" for nothing."""
    return next(filter(None, (framework.hint(tail) for framework in FRAMEWORKS)), "")


def without_noise(tail: Sequence[str]) -> tuple[str, ...]:
    """The lines without those that a framework writes at every start, unless nothing would be left."""
    noise = re.compile("|".join(f"(?:{framework.noise})" for framework in FRAMEWORKS if framework.noise))
    return tuple(line for line in tail if not noise.search(line)) or tuple(tail)
