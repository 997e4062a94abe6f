"""The agent's event loop: files and sockets that are ready, and timers."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Callable

    File = int | socket.socket
    Callback = Callable[[], object]

LONGEST_TURN = 0.5


class Loop:
    """Callbacks run one at a time and must not block."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Callback]] = []
        self.timer_numbers = itertools.count()

    def watch(self, file: File, callback: Callback, events: int = selectors.EVENT_READ) -> None:
        self.selector.register(file, events, callback)

    def unwatch(self, file: File) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(file)

    def after(self, seconds: float, callback: Callback) -> None:
        heapq.heappush(self.timers, (time.monotonic() + seconds, next(self.timer_numbers), callback))

    def turn(self) -> None:
        """Wait until something is ready or due, and call what belongs to it."""
        left = self.timers[0][0] - time.monotonic() if self.timers else LONGEST_TURN
        for key, _ in self.selector.select(max(0.0, min(LONGEST_TURN, left))):
            key.data()
        while self.timers and self.timers[0][0] <= time.monotonic():
            heapq.heappop(self.timers)[2]()
