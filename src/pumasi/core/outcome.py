"""How a gang, and with it a run, ended; and the exit code that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any


class Verdict(str, Enum):
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    TIMED_OUT = "timed out"
    STOPPED = "stopped"

    @property
    def exit_code(self) -> int:
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Verdict.DONE: 0,
    Verdict.FAILED: 1,
    Verdict.LOST: 3,
    Verdict.TIMED_OUT: 4,
    Verdict.STOPPED: 5,
}


@dataclass(frozen=True)
class Outcome:
    """`reason` is one sentence that names rank, node and cause; `hint` says what to do; `tail` is the end of the log of
    the rank that failed first; `metrics` are the last ones of the first rank that has some, or of the result where
    several tasks make one; `task` is the one that decided it, where there are several; `cause` is the agents' word for
    what happened ("exit", "oom", …)."""

    verdict: Verdict
    reason: str = ""
    hint: str = ""
    rank: int | None = None
    node: str | None = None
    code: int | None = None
    signal: str | None = None
    tail: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    task: str = ""
    cause: str = ""

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        told = {**asdict(self), "verdict": self.verdict.value, "tail": list(self.tail)}
        return told if self.task else {name: value for name, value in told.items() if name != "task"}


def outcome_from(told: Mapping[str, Any]) -> Outcome:
    """Of this version, an earlier or a later one: a verdict that is not known is a failure."""
    known = {each.name: told[each.name] for each in fields(Outcome) if each.name in told}
    is_known = told["verdict"] in {each.value for each in Verdict}
    verdict = Verdict(told["verdict"]) if is_known else Verdict.FAILED
    return Outcome(**{**known, "verdict": verdict, "tail": tuple(told.get("tail", ()))})
