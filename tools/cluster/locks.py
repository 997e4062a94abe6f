from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock file, alone on this machine, and removes it afterwards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_still(path, lock.fileno()):
                continue  # whoever had it before has removed it
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
