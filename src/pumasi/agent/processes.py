"""Whose processes are whose, and how they are ended: everything of a gang carries its mark in the environment, or
descends from something that does."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable

HARD = 5.0
"""Seconds that a killed process gets to disappear, and a member to say that it has."""
LINUX = sys.platform.startswith("linux")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def adopt_orphans() -> None:
    """Linux: grandchildren whose parent has gone become ours instead of init's, so that they can be found. In a pod we
    are init."""
    if LINUX and os.getpid() != 1:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def family(marker: str, ancestor: int | None = None) -> set[int]:
    """Ids of all processes that carry `marker` in their environment or descend from such a one or from `ancestor`.
    A marker that ends in a dot stands for all that begin with it: `…1` must not mean `…10`."""
    parents, marked = _proc_table(marker) if LINUX else _ps_table(marker)
    found = {pid for pid in marked if pid != os.getpid()}
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if (parent in found or parent == ancestor) and p not in found}
        found |= more
        grown = bool(more)
    found.discard(os.getpid())
    return found


def _proc_table(marker: str) -> tuple[dict[int, int], set[int]]:
    parents, marked = {}, set()
    needle = b"\0" + marker.encode() + (b"" if marker.endswith(".") else b"\0")
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            # A process whose first thread has ended looks like a zombie while its other threads go on.
            if fields[0] == b"Z" and int(fields[17]) < 2:
                continue
            parents[int(entry)] = int(fields[1])
            with open("/proc/%s/environ" % entry, "rb") as file:
                if needle in b"\0" + file.read():
                    marked.add(int(entry))
        except OSError:
            continue
    return parents, marked


def _ps_table(marker: str) -> tuple[dict[int, int], set[int]]:
    parents, marked = {}, set()
    listing = subprocess.run(
        ["ps", "-axEww", "-o", "pid=,ppid=,stat=,command="], stdout=subprocess.PIPE, timeout=30, check=False
    ).stdout.decode("utf-8", "replace")
    needle = " " + marker + ("" if marker.endswith(".") else " ")
    for line in listing.splitlines():
        fields = line.split(None, 3)
        if len(fields) < 3 or fields[2].startswith("Z"):
            continue
        parents[int(fields[0])] = int(fields[1])
        if needle in line + " ":
            marked.add(int(fields[0]))
    return parents, marked


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_family(marker: str, ancestor: int | None = None, seconds: float = HARD) -> set[int]:
    """Kill until none is left, since a process may fork while we look; what survives `seconds` is returned. To see none
    once is no proof: one that forks and exits all the time may hide from a look, though hardly from several."""
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < 3:
        pids = family(marker, ancestor)
        if time.monotonic() > deadline:
            return pids
        quiet = 0 if pids else quiet + 1
        signal_all(pids, signal.SIGKILL)
        time.sleep(0.002)
    return set()


def strike() -> None:
    """Kill our children, adopted ones too, as fast as they come: one that forks and exits lives for a moment only."""
    path = "/proc/self/task/%d/children" % os.getpid()
    with contextlib.suppress(OSError):
        for _ in range(100):
            with open(path, "rb") as file:
                pids = [int(pid) for pid in file.read().split()]
            if not pids:
                return
            signal_all(pids, signal.SIGKILL)


def reap_all() -> tuple[dict[int, int], bool]:
    """Exit statuses of children that have ended, {pid: status}, and whether there are others that have not."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return ended, True
            ended[pid] = status
    except ChildProcessError:
        return ended, False


def oom_kills() -> int:
    """How many processes were killed for memory so far: in our control group, or, where that is not told, in all."""
    groups = {}
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            groups[kinds] = path
    old = "/sys/fs/cgroup/memory%s/memory.oom_control" % groups.get("memory")
    new = "/sys/fs/cgroup%s/memory.events" % groups.get("")
    for path in (old, new, "/proc/vmstat"):
        with contextlib.suppress(OSError), open(path, "rb") as counts:
            found = re.search(rb"^oom_kill (\d+)", counts.read(), re.MULTILINE)
            if found:
                return int(found.group(1))
    return 0
