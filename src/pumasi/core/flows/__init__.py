"""Which task comes next. A flow is pure: what has ended goes in, what to start comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pumasi.core.outcome import Outcome


class Flow(Protocol):
    """Both methods get the outcome of every task that has ended for good, restarts and all."""

    def next(self, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        """Names of the tasks that should run now; naming one again that was started already is harmless."""

    def outcome(self, ended: Mapping[str, Outcome]) -> Outcome | None:
        """The run's outcome, or None while it is open. Once it is there, no further task is started."""
