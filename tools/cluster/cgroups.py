"""Control groups of both kinds. A group is one path, made in every hierarchy that is mounted."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tools.common import ToolError, until

JOIN = """
while [ "$1" != -- ]; do echo $$ > "$1"; shift; done
shift
exec "$@"
"""


def hierarchies() -> list[Path]:
    """Where control groups are mounted: one place in version 2, one for each set of controllers in version 1."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    found = [Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]
    return [place for place in found if place.is_relative_to("/sys/fs/cgroup")]


@dataclass(frozen=True)
class Group:
    path: str

    def make(self) -> None:
        for root in self._roots():
            parent = root
            for part in Path(self.path).parts:
                _pass_on(parent)
                parent /= part
                parent.mkdir(exist_ok=True)
                _inherit_cpuset(parent)

    def folders(self) -> list[Path]:
        return [folder for root in hierarchies() if (folder := root / self.path).is_dir()]

    def processes(self) -> set[int]:
        """Those in the group and in the groups below it."""
        return {pid for folder in self.folders() for below, _, _ in os.walk(folder) for pid in _processes(below)}

    def processes_of(self, part: str) -> set[int]:
        """Those in the groups below it that have this name."""
        walks = (os.walk(folder) for folder in self.folders())
        return {pid for walk in walks for below, _, _ in walk if Path(below).name == part for pid in _processes(below)}

    def joining(self) -> list[str]:
        """What to put before a command, so that it runs in the group."""
        files = [str(folder / "cgroup.procs") for folder in self.folders()]
        return ["sh", "-euc", JOIN, "sh", *files, "--"]

    def remove(self) -> None:
        """With everything that is still in it."""
        until(self._gone, f"the control group {self.path} to become empty", seconds=20)

    def _gone(self) -> bool:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for folder in self.folders():
            for below, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    Path(below).rmdir()
        return not self.folders()

    def _roots(self) -> list[Path]:
        roots = hierarchies()
        if not roots:
            raise ToolError("no control groups are mounted under /sys/fs/cgroup: Kubernetes can't run here")
        return roots


def _processes(folder: str) -> list[int]:
    """0 is one that this process can't see: nothing of ours."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split() if pid != "0"]
    return []


def _pass_on(folder: Path) -> None:
    """Version 2 hands a controller to the groups below only where told so; then it holds no process itself."""
    controllers = folder / "cgroup.controllers"
    if not controllers.exists():
        return
    wanted = " ".join(f"+{name}" for name in controllers.read_text().split())
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        raise ToolError(
            f"{folder} does not hand its controllers on ({error.strerror}): where this is a container, start it "
            "privileged, with a control-group namespace of its own and no process in its root group, or use a machine"
        ) from None


def _inherit_cpuset(folder: Path) -> None:
    """A new cpuset group of version 1 has no processor, and takes no process in."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own, above = folder / name, folder.parent / name
        if own.exists() and above.exists() and not own.read_text().strip():
            own.write_text(above.read_text())
