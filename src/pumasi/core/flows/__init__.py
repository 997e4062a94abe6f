"""Which task comes next. A flow is pure: what has ended goes in, what to start comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from pumasi.core.outcome import Outcome

MAIN = "main"
"""The only task of most runs, and the program that the user named."""


def log_of(task: str, attempt: int) -> int:
    """Which of the run's logs an attempt writes to: its own, or the one that several tasks have in common."""
    return attempt if task == MAIN else 0


class Work(NamedTuple):
    """What a task runs: one of the run's programs, with these values for its placeholders and these arguments after
    them; `slots` of it, or as many as the run asks for. A step is something that we do ourselves. `makes` is a file
    without which it is not done: where it writes it, and where that goes then."""

    program: str = MAIN
    values: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    slots: int | None = None
    arguments: tuple[str, ...] = ()
    is_step: bool = False
    makes: tuple[str, str] | None = None


class Flow(ABC):
    """All methods get the outcome of every task that has ended for good. `restarts` is how often a task may start again
    when it has failed, where the user asks for less; `title` is the whole of it in a few words, empty where its only
    task says all."""

    restarts: int = 0
    title: str = ""

    @abstractmethod
    def next(self, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        """Names of the tasks that should run now; naming one again that was started already is harmless."""

    @abstractmethod
    def outcome(self, ended: Mapping[str, Outcome]) -> Outcome | None:
        """The run's outcome, or None while it is open. Once it is there, no further task is started."""

    def work(self, task: str, ended: Mapping[str, Outcome], attempt: int = 0) -> Work:
        """What that attempt of a task is; asked for when `next` has named it, and again when it is adopted."""
        return Work()

    def tries_again(self, task: str, outcome: Outcome) -> bool:
        """Whether a task that ended like this may start again, if it has restarts left."""
        return True

    def report(self, ended: Mapping[str, Outcome]) -> Mapping[str, Any] | None:
        """What the user should see at the end, besides the outcome; as JSON has it."""
        return None
