"""The flow of most runs: one task, and its outcome is the run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pumasi.core.outcome import Outcome


class Single(NamedTuple):
    task: str = "main"

    def next(self, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        return () if self.task in ended else (self.task,)

    def outcome(self, ended: Mapping[str, Outcome]) -> Outcome | None:
        return ended.get(self.task)
