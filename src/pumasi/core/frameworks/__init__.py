"""Rank table to environment variables: one file a framework, and all of them at once.

What the frameworks want does not collide, so a script needs no word about its framework; what would collide is set only
for the one that is chosen. Another framework is one more file, and one more line in `registry`; one of an installed
package is asked only when a run names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from pumasi.core.frameworks.base import PLACEHOLDER, Framework, Gang, Layout, Sight, host
from pumasi.core.frameworks.gpus import visibility
from pumasi.core.frameworks.mpi import hostfile
from pumasi.core.ranks import Rank
from pumasi.registry import FRAMEWORKS as REGISTERED

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
    "is_reaching_out",
    "needs_shared_memory",
    "package_of",
    "settle_see_gpus",
    "without_noise",
]

FRAMEWORKS: tuple[Framework, ...] = tuple(REGISTERED.built_in())
"""The built-in ones, in the order in which they win when a script trains with several."""


@cache
def find_framework(name: str) -> Framework | None:
    if name in ("", "auto", "none"):
        return None
    built_in = next((framework for framework in FRAMEWORKS if framework.name == name), None)
    found: Framework | None = built_in or (REGISTERED.get(name) if REGISTERED.has(name) else None)
    return found


def _asked(chosen: str) -> list[Framework]:
    """All that have a say where this one is chosen."""
    main = find_framework(chosen)
    return [*FRAMEWORKS, *([main] if main is not None and main not in FRAMEWORKS else [])]


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
    parts += [framework.agent_part for framework in FRAMEWORKS if framework.by_mpirun and hosts is not None]
    return tuple(dict.fromkeys(parts))


def _wired(gang: Gang, chosen: str) -> list[Framework]:
    main = find_framework(chosen)
    if main is not None and main.exclusive:
        return [main] if main.wires(gang) else []
    if main is not None and gang.processes == 1 and gang.joins:
        return [main]
    return [framework for framework in _asked(chosen) if not framework.exclusive and framework.wires(gang)]


def settle_see_gpus(spec: Spec, chosen: str) -> Sight:
    """Whether a rank sees only its own GPU or all of the task's on its node: as asked, else as a framework insists, or
    as the chosen one wants it."""
    if spec.see_gpus in ("own", "all"):
        return "own" if spec.see_gpus == "own" else "all"
    if spec.per_node:
        return "all"
    for framework in _asked(chosen):
        if insisted := framework.insists_on(spec):
            return insisted
    main = find_framework(chosen)
    return main.see_gpus if main is not None else "own"


def extra_roles(spec: Spec) -> tuple[str, ...]:
    """The roles of processes in addition to the slots."""
    return tuple(role for framework in _asked(spec.framework) for role in framework.extra_roles(spec))


def decides(gang: Gang, rank: Rank, chosen: str) -> bool:
    """Whether the task is not over before this rank has ended."""
    return all(framework.decides(gang, rank) for framework in _asked(chosen))


def is_reaching_out(program: str) -> bool:
    """Whether it starts ranks on other nodes by itself."""
    return any(program in framework.reaching_out for framework in FRAMEWORKS)


def package_of(launcher: str) -> str:
    """The package that a launcher comes with; "" where it is none."""
    return next(filter(None, (framework.launcher_packages.get(launcher, "") for framework in FRAMEWORKS)), "")


def needs_shared_memory(name: str) -> bool:
    framework = find_framework(name)
    return framework is not None and framework.needs_shared_memory


def hint(tail: Sequence[str], chosen: str = "") -> str:
    """What a framework knows about a failure that ended with these lines; "" for nothing."""
    return next(filter(None, (framework.hint(tail) for framework in _asked(chosen))), "")


def without_noise(tail: Sequence[str], chosen: str = "") -> tuple[str, ...]:
    """The lines without those that a framework writes at every start, unless nothing would be left."""
    noise = re.compile("|".join(f"(?:{framework.noise})" for framework in _asked(chosen) if framework.noise))
    return tuple(line for line in tail if not noise.search(line)) or tuple(tail)
