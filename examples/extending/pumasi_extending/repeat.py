"""`pumasi run --strategy repeat --times 5 train.py --seed {seed}`: how much of a result is luck?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from statistics import mean, pstdev
from typing import Any

from pumasi.core.fields import text, whole
from pumasi.core.flows.base import Flow, FlowType, Task
from pumasi.core.options import Options, option
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.spec import Spec

GROUP = "Repeating (--strategy repeat)"


@dataclass(frozen=True)
class RepeatOptions(Options):
    times: int = option(
        whole(1, 10_000), "how often to run it", example=5, default=3, value="N", default_text="3", group=GROUP
    )
    metric: str = option(
        text(), "what to compare", example="accuracy", default="loss", value="NAME", default_text="loss", group=GROUP
    )


class Repeat(Flow):
    def __init__(self, times: int, metric: str) -> None:
        self.title = f"{times} times, each with a seed of its own"
        self._times = times
        self._metric = metric
        self._offered = 0
        self._outcomes: dict[str, Outcome] = {}

    def next(self) -> Task | None:
        if self._offered == self._times:
            return None
        seed = str(self._offered)
        self._offered += 1
        return Task(f"seed-{seed}", values={"seed": seed}, env={"SEED": seed})

    def measured(self, name: str, values: Mapping[str, float]) -> str:
        return f"Its {self._metric} is not a number." if isnan(values.get(self._metric, 0.0)) else ""

    def ended(self, name: str, outcome: Outcome) -> None:
        self._outcomes[name] = outcome

    def outcome(self) -> Outcome | None:
        if len(self._outcomes) < self._times:
            return None
        if self._values():
            return Outcome(Verdict.DONE)
        return next(iter(self._outcomes.values()))

    def report(self) -> Mapping[str, Any]:
        values = self._values()
        spread = f"{mean(values):.4g} ± {pstdev(values):.2g}" if values else "unknown"
        rows = [[name, outcome.metrics.get(self._metric)] for name, outcome in self._outcomes.items()]
        return {
            "headline": f"{self._metric}: {spread}, of {len(values)} runs",
            "table": {"columns": ["task", self._metric], "rows": rows},
        }

    def _values(self) -> list[float]:
        done = [outcome for outcome in self._outcomes.values() if outcome.verdict is Verdict.DONE]
        return [outcome.metrics[self._metric] for outcome in done if self._metric in outcome.metrics]


class RepeatType(FlowType):
    name = "repeat"
    summary = "the same again, with other seeds"
    options = RepeatOptions

    def open(self, spec: Spec, folder: str) -> Flow:
        return Repeat(spec[RepeatOptions].times, spec[RepeatOptions].metric)


FLOW = RepeatType()
