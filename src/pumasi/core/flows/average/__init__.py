"""Training apart: copies of one model, averaged round after round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pumasi.core.flows.average import checks
from pumasi.core.flows.average.flow import Average
from pumasi.core.flows.average.options import AverageOptions
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
    options = AverageOptions
    shares_files = True
    steps = "pumasi.core.flows.average.steps"
    step_modules = ("pumasi.errors", "pumasi.report", "pumasi.data", "pumasi.models")

    def open(self, spec: Spec, folder: str) -> Flow:
        self.check(spec)
        options = spec[AverageOptions]
        data = options.split or options.copy
        places = {path: f"{folder}/{place}" for place, path in checks.sent(spec).items()}
        return Average(
            Plan(
                slots=spec.slots,
                rounds=options.rounds,
                folder=folder,
                suffix=suffix_of(spec.command),
                data=places.get(data, data) if data else None,
                evaluated=options.evaluate is not None,
                least=options.min_models or (spec.slots + 1) // 2,
                init=places.get(options.init, options.init) if options.init else "",
                best=options.best,
                save=checks.saved(spec),
                values=checks.values_of(spec),
            )
        )

    def check(self, spec: Spec) -> None:
        checks.check(spec)

    def settle(self, spec: Spec, environ: Mapping[str, str]) -> Spec:
        known = {name: environ[name] for name in checks.VARIABLES if name in environ}
        return replace(spec, env={**known, **spec.env})

    def at_once(self, spec: Spec) -> int:
        """Those that train apart need not wait for each other."""
        return 1

    def size(self, asked: Mapping[str, Any]) -> int:
        return int(asked.get("slots", 1)) + 1

    def programs(self, spec: Spec) -> Mapping[str, Words]:
        options = spec[AverageOptions]
        found = {AVERAGE: Words(("average",), is_step=True)}
        if options.split or options.copy:
            found[DATA] = Words(("split" if options.split else "copy",), is_step=True)
        if options.evaluate:
            found[EVALUATE] = Words(tuple(options.evaluate))
        return found

    def words(self, spec: Spec, command: Sequence[str]) -> tuple[str, ...]:
        return without_suffix(command, suffix_of(spec.command))

    def files(self, spec: Spec) -> Mapping[str, str]:
        return checks.sent(spec)

    def reads(self, spec: Spec) -> Mapping[str, bool]:
        options = spec[AverageOptions]
        named = {options.split or options.copy: True, options.init: False}
        there = {path for path in named if path and spec.pool != "local" and spec.place.keeps(path)}
        return {path: may_be_folder for path, may_be_folder in named.items() if path and path not in there}

    def writes(self, spec: Spec) -> Iterable[str]:
        save = spec[AverageOptions].save
        return [save] if save and spec.pool == "local" else []

    def notes(self, spec: Spec) -> Iterable[str]:
        options = spec[AverageOptions]
        return [_POOR] if spec.slots > 1 and options.rounds == 1 and options.init is None else []

    def sample(self, spec: Spec) -> Spec:
        """One round: all are alike."""
        return spec.changed({"rounds": 1})


FLOW = AverageType()
