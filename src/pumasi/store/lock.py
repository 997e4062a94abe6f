"""Who steers a run: a lock that lives exactly as long as the manager that holds it, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

_WIDTH = 20
"""The pid is padded: an old, longer one never shines through, and the file need not be emptied first."""
_TRIES = 200
_PAUSE = 0.005


class RunLock:
    """Held from the moment it is made. `flock` locks what was opened, not the process: a forked child goes on holding
    it when its parent ends, and the kernel lets go of it after a SIGKILL. Programs that are started do not inherit it.
    """

    def __init__(self, path: Path) -> None:
        """BlockingIOError: somebody else has it. FileNotFoundError: the run has been deleted."""
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _take(self._fd)
            _check_still_there(self._fd, path)
        except OSError:
            self.release()
            raise

    def claim(self) -> None:
        """Say that this process is the manager; to be said again by a forked child that goes on alone."""
        os.pwrite(self._fd, str(os.getpid()).ljust(_WIDTH).encode() + b"\n", 0)

    def release(self) -> None:
        """Only closes: to unlock would take the lock from a forked child too."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def manager_pid(path: Path) -> int | None:
    """The pid of the process that holds the lock, None where nobody does.

    A manager that took the lock this very moment has not written its pid yet, and an older one may stand there: a pid
    that is not alive is looked at again. If it stays, it is told as it stands, for the pid of a manager in a container
    is not alive out here.
    """
    pid: int | None = None
    for _ in range(_TRIES):
        if not _is_held(path):
            return None
        pid = _signed_by(path)
        if pid is not None and _is_alive(pid):
            return pid
        time.sleep(_PAUSE)
    return pid


def _take(fd: int) -> None:
    """`_is_held` borrows the lock for a moment, shared. Where a shared lock can be had, nobody has it for good."""
    for _ in range(_TRIES):
        if _try(fd, fcntl.LOCK_EX):
            return
        if not _try(fd, fcntl.LOCK_SH):
            break
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(_PAUSE)
    raise BlockingIOError


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_still_there(fd: int, path: Path) -> None:
    """A lock on a file that was moved away before it was ours guards nothing."""
    if not os.path.samestat(os.fstat(fd), path.stat()):
        raise FileNotFoundError


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _signed_by(path: Path) -> int | None:
    try:
        text = path.read_bytes().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
