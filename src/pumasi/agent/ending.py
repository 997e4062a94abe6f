"""How the processes of this node are ended, and how it is known that nothing of them is left."""

from __future__ import annotations

import os
import signal
import time

from pumasi.agent.processes import HARD, family, signal_all, strike

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from pumasi.agent.children import Children
    from pumasi.agent.loop import Loop

BRIEF = 1.0
"""Seconds that an installation gets to end: nothing of it is worth waiting for."""
LOOK = 0.2
"""Seconds after which we look again for what is left. Our children tell when they end; theirs do not."""


class Ending:
    """`marker` is in the environment of all that has to go; `over` is called once, when all of it is gone."""

    def __init__(self, loop: Loop, children: Children, marker: str, over: Callable[[], None]) -> None:
        self.loop = loop
        self.children = children
        self.marker = marker
        self.over = over
        self.begun = False
        self.gone = False
        self.looking = False
        self.give_up: float | None = None

    def begin(self, grace: float) -> None:
        if not self.begun:
            self.begun = True
            patience = min(BRIEF, grace) if self.children.has("setup") else grace
            self.loop.after(patience, self.kill)
            signal_all(self.check(), signal.SIGTERM)

    def kill(self) -> None:
        self.begun = True
        if self.give_up is None:
            self.give_up = time.monotonic() + HARD
            self.check()

    def check(self) -> set[int]:
        """Are all our processes gone, grandchildren too? When their grace is over, kill until they are, since a process
        may fork while we look. Answers which are left."""
        if self.gone:
            return set()
        children = self.children.reap()
        left = family(self.marker, os.getpid())
        if self.give_up is not None:
            signal_all(left, signal.SIGKILL)
            strike()
        if (left or children or self.children.living()) and not (self.give_up and time.monotonic() > self.give_up):
            self.look_later()
            return left
        self.gone = True
        self.over()
        return set()

    def look_later(self) -> None:
        if not self.looking:
            self.looking = True
            self.loop.after(LOOK, self.look_again)

    def look_again(self) -> None:
        self.looking = False
        self.check()
