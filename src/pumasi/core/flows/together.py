"""The flow of most runs: one task, and its outcome is the run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pumasi.core.flows import MAIN, Flow
from pumasi.core.outcome import Outcome

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


class Single(Flow):
    def next(self, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        return () if MAIN in ended else (MAIN,)

    def outcome(self, ended: Mapping[str, Outcome]) -> Outcome | None:
        return ended.get(MAIN)


class Together:
    name = "together"
    synonyms = ("single",)
    summary = "one model"
    options = None
    shares_files = False

    def open(self, spec: Spec, folder: str) -> Flow:
        return Single()

    def at_once(self, spec: Spec) -> int:
        return spec.slots


FLOW = Together()
