"""Control groups of both kinds. A group is one path, made in every hierarchy that is mounted."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.errors import ClusterError
from tools.cluster.waiting import until

JOIN = """
while [ "$1" != -- ]; do echo $$ > "$1"; shift; done
shift
exec "$@"
"""


def hierarchies() -> list[Path]:
    """Where control groups are mounted: one place in version 2, one for each set of controllers in version 1."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(place) for _, place, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]


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
        found: set[int] = set()
        for folder in self.folders():
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found.update(int(pid) for pid in file.read_text().split())
        return found

    def joining(self) -> list[str]:
        """What to put before a command, so that it runs in the group."""
        files = [str(folder / "cgroup.procs") for folder in self.folders()]
        return ["sh", "-euc", JOIN, "sh", *files, "--"]

    def remove(self) -> None:
        until(self._gone, f"the control group {self.path} to become empty", seconds=20)

    def _gone(self) -> bool:
        for folder in self.folders():
            for below, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    Path(below).rmdir()
        return not self.folders()

    def _roots(self) -> list[Path]:
        roots = hierarchies()
        if not roots:
            raise ClusterError("no control groups are mounted under /sys/fs/cgroup: Kubernetes can't run here")
        return roots


def _pass_on(folder: Path) -> None:
    """Version 2 hands a controller to the groups below only where told so; then it holds no process itself."""
    controllers = folder / "cgroup.controllers"
    if not controllers.exists():
        return
    wanted = " ".join(f"+{name}" for name in controllers.read_text().split())
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        raise ClusterError(
            f"{folder} does not hand its controllers on ({error.strerror}): where this is a container, start it "
            "privileged, with a control-group namespace of its own and no process in its root group, or use a machine"
        ) from None


def _inherit_cpuset(folder: Path) -> None:
    """A new cpuset group of version 1 has no processor, and takes no process in."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        own, above = folder / name, folder.parent / name
        if own.exists() and above.exists() and not own.read_text().strip():
            own.write_text(above.read_text())
