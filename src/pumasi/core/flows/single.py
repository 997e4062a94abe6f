"""The flow of most runs: one task, and its outcome is the run's."""

from __future__ import annotations

from collections.abc import Mapping

from pumasi.core.flows import MAIN, Flow
from pumasi.core.outcome import Outcome


class Single(Flow):
    def next(self, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        return () if MAIN in ended else (MAIN,)

    def outcome(self, ended: Mapping[str, Outcome]) -> Outcome | None:
        return ended.get(MAIN)
