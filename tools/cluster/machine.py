"""A machine made of Linux namespaces: processes, mounts, network and host name of its own, held by its process 1.

Killing process 1 is pulling the plug: the kernel ends every process inside, and with the last of them go the mounts,
the loop devices, the network and its links. So nothing of a machine outlives it, however it ended. A machine can stand
inside another one, and ends with it.

Machines are found by looking, not by remembering: the command line of process 1 names its folder and its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.cgroups import Group
from tools.common import ToolError, until

NAMESPACES = ("--pid", "--mount", "--net", "--uts")


@dataclass
class Machine:
    """`folder` is the cluster's, for its logs and its identity; `outer` the machine that this one stands in."""

    name: str
    folder: Path
    group: Group
    outer: Machine | None = None

    @property
    def pid(self) -> int:
        """Of process 1, as seen from outside; 0 where the machine is off."""
        wanted = [str(self.folder), self.name]
        return next((pid for pid in _pids() if _command_line(pid)[1:] == wanted and _is(pid, "init")), 0)

    @property
    def pid_inside_outer(self) -> int:
        """Of process 1, as the outer machine numbers its processes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("NSpid:")[2].splitlines()[0].split()[-2])

    def seen_from_outside(self, path: str) -> Path:
        return Path(f"/proc/{self.pid}/root{path}")

    def boot(self, init: Path) -> None:
        enter = self.outer._enter("--pid", "--mount") if self.outer else []
        unshare = ["unshare", "--fork", "--mount-proc", *NAMESPACES]
        self._spawn(enter, [*unshare, str(init), str(self.folder), self.name], "init")
        until(lambda: self.pid, f"the machine {self.name} to come up", seconds=10)
        self.run("sh", "-c", "echo $1 > /proc/sys/kernel/hostname", "sh", self.name)

    def pull_plug(self) -> None:
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            until(lambda: not self.pid, f"the machine {self.name} to go off", seconds=30)

    def run(self, *command: str, feed: str = "") -> str:
        """What the command printed inside; it must succeed."""
        inside = [*self._enter(*NAMESPACES), *command]
        try:
            result = subprocess.run(inside, input=feed, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            raise ToolError(f"{command[0]} on {self.name} does not end") from None
        if result.returncode:
            raise ToolError(f"{command[0]} failed on {self.name}: {(result.stderr or result.stdout).strip()[-2000:]}")
        return result.stdout

    def start(self, *command: str) -> None:
        """In the background, with the output in the log of the program's name."""
        program = Path(command[0]).name
        self._spawn(self._enter(*NAMESPACES), list(command), program)
        until(lambda: self.find(program), f"{program} to start on {self.name}", seconds=10, every=0.01)

    def find(self, program: str) -> list[int]:
        """The processes that run this program directly on the machine: containers have process ids of their own."""
        here = _process_namespace(self.pid)
        return [pid for pid in _pids() if _is(pid, program) and _process_namespace(pid) == here]

    def signal(self, program: str, number: signal.Signals) -> None:
        pids = self.find(program)
        if not pids:
            raise ToolError(f"there is no {program} on {self.name}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, program: str) -> None:
        self.signal(program, signal.SIGKILL)
        until(lambda: not self.find(program), f"{program} on {self.name} to end", seconds=10)

    def log_of(self, program: str) -> Path:
        return self.folder / "logs" / f"{program}-{self.name}.log"

    def _enter(self, *namespaces: str) -> list[str]:
        pid = self.pid
        if not pid:
            raise ToolError(f"the machine {self.name} is off")
        return ["nsenter", "--target", str(pid), *namespaces, "--"]

    def _spawn(self, enter: list[str], command: list[str], program: str) -> None:
        """`setsid` forks inside, so that the machine's process 1 is the parent, and nobody outside stands between."""
        log = self.log_of(program)
        log.parent.mkdir(exist_ok=True)
        words = [*self.group.joining(), *enter, "setsid", "--fork", *command]
        with log.open("ab") as out:
            result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", timeout=60)
        if result.returncode:
            raise ToolError(f"{program} could not be started on {self.name}: {log.read_text()[-500:]}")


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _is(pid: int, program: str) -> bool:
    return Path((_command_line(pid) or [""])[0]).name == program


def _process_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""
