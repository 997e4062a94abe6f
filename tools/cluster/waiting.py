from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tools.cluster.errors import ClusterError

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, seconds: float, every: float = 0.05) -> T:
    """The first true answer of `condition`; an error that names `what` when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {seconds:.0f} s for {what}, in vain")
        time.sleep(every)
