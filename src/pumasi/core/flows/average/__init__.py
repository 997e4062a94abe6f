"""Copies of one model train apart and are averaged: see `flow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumasi.core.flows.average.options import AverageOptions

if TYPE_CHECKING:
    from pumasi.core.flows import Flow
    from pumasi.core.spec import Spec


class AverageFlow:
    name = "average"
    synonyms = ("averaging", "fedavg", "localsgd")
    summary = "copies that are averaged"
    options = AverageOptions
    shares_files = True

    def open(self, spec: Spec, folder: str) -> Flow:
        from pumasi.core.flows.average.checks import average_of

        return average_of(spec, folder)

    def at_once(self, spec: Spec) -> int:
        """Trainers need not wait for each other."""
        return 1


FLOW = AverageFlow()
