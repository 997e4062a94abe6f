from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tools.cluster.waiting import until


@contextmanager
def locked(name: str, seconds: float, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Alone on this machine. The lock is a socket's name, not a file: it goes with its holder, however that ends."""
    with socket.socket(socket.AF_UNIX) as holder:

        def taken() -> bool:
            try:
                holder.bind(f"\0pumasi-cluster-{name}")
            except OSError:
                return False
            return True

        if not taken():
            waiting()
            until(taken, f"the lock {name}, which another process holds,", seconds=seconds)
        yield
