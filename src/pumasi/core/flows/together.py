"""The flow of most runs: one task, and its outcome is the run's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumasi.core.flows.base import MAIN, Flow, FlowType, Task
from pumasi.core.outcome import Outcome

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


class Single(Flow):
    def __init__(self) -> None:
        self._is_offered = False
        self._outcome: Outcome | None = None

    def next(self) -> Task | None:
        if self._is_offered:
            return None
        self._is_offered = True
        return Task(MAIN)

    def ended(self, name: str, outcome: Outcome) -> None:
        self._outcome = outcome

    def outcome(self) -> Outcome | None:
        return self._outcome


class Together(FlowType):
    name = "together"
    synonyms = ("single",)
    summary = "one model"
    is_single = True

    def open(self, spec: Spec, folder: str) -> Flow:
        return Single()


FLOW = Together()
