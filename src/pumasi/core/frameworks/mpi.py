"""MPI: mpirun starts the ranks, and reaches the other nodes through the agent instead of ssh.

The variables for OpenMPI 4 and 5 do not disturb each other. mpirun hands its own environment to every rank: it must not
hold another framework's rank numbers, which would then be the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from pumasi.core.frameworks.base import Framework, Gang, Layout, file, host
from pumasi.core.frameworks.script import Script
from pumasi.core.ranks import Rank


class Mpi(Framework):
    name = "mpi"
    modules = ("mpi4py",)
    starts = ("mpi4py.MPI",)
    launchers = ("mpirun", "mpiexec", "orterun", "prterun")
    see_gpus = "all"
    only_distributed = True
    exclusive = True

    def wires(self, gang: Gang) -> bool:
        return gang.slots > 1

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        return {
            "OMPI_MCA_plm_rsh_agent": file("rsh"),
            "OMPI_MCA_orte_default_hostfile": file("hostfile"),
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            # Only the chief's agent takes launch requests: no daemon may be asked to launch others.
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
            "PRTE_MCA_plm_ssh_agent": file("rsh"),
            "PRTE_MCA_prte_default_hostfile": file("hostfile"),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def traps(self, script: Script, layout: Layout) -> Iterator[str]:
        by_itself = script.mentions_any("excepthook", "Abort") or "mpi4py" in script.command
        if not layout.shim and script.imports_any("mpi4py") and not by_itself:
            yield (
                "Without the shim, an mpi4py rank that raises leaves the others waiting for ever: "
                "leave out --no-shim, or start the script with python -m mpi4py."
            )


def hostfile(gang: Gang) -> str:
    """The text behind `{file:hostfile}`, with placeholders for the addresses."""
    lines = (f"{host(first)} slots={gang.slots_on(node)}\n" for node, first in enumerate(gang.first_ranks()))
    return "".join(lines)


MPI = Mpi()
