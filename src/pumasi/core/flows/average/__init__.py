"""Training apart: copies of one model, averaged round after round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pumasi.core.flows.average import checks
from pumasi.core.flows.average.flow import Average
from pumasi.core.flows.average.plan import AVERAGE, DATA, EVALUATE, Plan, suffix_of, without_suffix
from pumasi.core.flows.base import Flow, FlowType, Words

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_POOR = (
    "To average once, at the end, models that began apart is likely to be poor: the same weight means another thing in "
    "each. --rounds with {init}, or --init, gives them a common start; --evaluate shows whether it helped."
)


class AverageType(FlowType):
    name = "average"
    synonyms = ("averaging", "fedavg", "localsgd")
    summary = "copies that are averaged"
    shares_files = True
    steps = "pumasi.core.flows.average.steps"
    step_modules = ("pumasi.errors", "pumasi.report", "pumasi.data", "pumasi.models")

    def open(self, spec: Spec, folder: str) -> Flow:
        self.check(spec)
        data = spec.split or spec.copy
        places = {path: f"{folder}/{place}" for place, path in checks.sent(spec).items()}
        return Average(
            Plan(
                slots=spec.slots,
                rounds=spec.rounds,
                folder=folder,
                suffix=suffix_of(spec.command),
                data=places.get(data, data) if data else None,
                evaluated=spec.evaluate is not None,
                least=spec.min_models or (spec.slots + 1) // 2,
                init=places.get(spec.init, spec.init) if spec.init else "",
                best=spec.best,
                save=checks.saved(spec),
                values=checks.values_of(spec),
            )
        )

    def check(self, spec: Spec) -> None:
        checks.check(spec)

    def contradictions(self, spec: Spec) -> Iterable[tuple[str, str, str, str]]:
        return checks.contradictions(spec)

    def settle(self, spec: Spec, environ: Mapping[str, str]) -> Spec:
        known = {name: environ[name] for name in checks.VARIABLES if name in environ}
        return replace(spec, env={**known, **spec.env})

    def at_once(self, spec: Spec) -> int:
        """Those that train apart need not wait for each other."""
        return 1

    def size(self, asked: Mapping[str, Any]) -> int:
        return int(asked.get("slots", 1)) + 1

    def programs(self, spec: Spec) -> Mapping[str, Words]:
        found = {AVERAGE: Words(("average",), is_step=True)}
        if spec.split or spec.copy:
            found[DATA] = Words(("split" if spec.split else "copy",), is_step=True)
        if spec.evaluate:
            found[EVALUATE] = Words(tuple(spec.evaluate))
        return found

    def words(self, spec: Spec, command: Sequence[str]) -> tuple[str, ...]:
        return without_suffix(command, suffix_of(spec.command))

    def files(self, spec: Spec) -> Mapping[str, str]:
        return checks.sent(spec)

    def reads(self, spec: Spec) -> Mapping[str, bool]:
        here = [spec.split or spec.copy, spec.init] if spec.pool == "local" else self.files(spec).values()
        return {path: path != spec.init for path in here if path}

    def writes(self, spec: Spec) -> Iterable[str]:
        return [spec.save] if spec.save and spec.pool == "local" else []

    def notes(self, spec: Spec) -> Iterable[str]:
        return [_POOR] if spec.slots > 1 and spec.rounds == 1 and spec.init is None else []

    def sample(self, spec: Spec) -> Spec:
        """One round: all are alike."""
        return replace(spec, rounds=1)


FLOW = AverageType()
