"""Whether what is asked of those that train apart can work, and the flow that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from pumasi.core import placeholders
from pumasi.core.flows.average.flow import Average, suffix_of
from pumasi.core.flows.average.options import AverageOptions
from pumasi.core.spec import Spec
from pumasi.errors import SpecError

MOST_TASKS = 1500


def average_of(spec: Spec, folder: str) -> Average:
    options = spec[AverageOptions]
    data = options.split or options.copy
    values = {name: spec.env[variable] for variable, name in placeholders.VARIABLES.items() if variable in spec.env}
    check(spec, values)
    _check_size(spec)
    places = {path: f"{folder}/{place}" for place, path in sent(spec).items()}
    return Average(
        slots=spec.slots,
        rounds=options.rounds,
        folder=folder,
        suffix=suffix_of(spec.command),
        data=places.get(data, data) if data else None,
        evaluated=options.evaluate is not None,
        least=options.min_models or (spec.slots + 1) // 2,
        init=places.get(options.init, options.init) if options.init else "",
        best=options.best,
        save=_saved(spec),
        values=values,
    )


def _check_size(spec: Spec) -> None:
    """The record of a run in a cluster is one object, of 1 MiB at most."""
    options = spec[AverageOptions]
    a_round = spec.slots * (2 if options.evaluate else 1) + 3
    tasks = options.rounds * a_round + 2
    if spec.pool != "local" and tasks > MOST_TASKS:
        raise SpecError(
            f"{options.rounds} rounds of {spec.slots} trainers are {tasks:,} tasks; "
            f"a cluster takes {MOST_TASKS:,} of one run.",
            "Ask for fewer rounds, and go on from there with another run: --init.",
        )


def sent(spec: Spec) -> dict[str, str]:
    """Files of this machine that a run elsewhere needs on its volume: where they go in the run's folder there, and
    their paths here."""
    options = spec[AverageOptions]
    named = {"data": options.split or options.copy, "init": options.init}
    return {
        f"source/{kind}/{PurePath(path).name}": path
        for kind, path in named.items()
        if path and not spec.place.keeps(path)
    }


def _saved(spec: Spec) -> str:
    save = spec[AverageOptions].save
    if not save:
        return ""
    try:
        return spec.place.placed(save)
    except SpecError as error:
        raise SpecError(f"--save {error.message}", error.hint) from None


def check(spec: Spec, values: Mapping[str, str]) -> None:
    """Whether each placeholder stands for something; SpecError."""
    options = spec[AverageOptions]
    known = [*values, "model", "init", "index", "round", "slots"]
    has_data = bool(options.split or options.copy)
    placeholders.check(spec.command, [*known, *(["shard"] if has_data else [])])
    placeholders.check(options.evaluate or (), known)
    needed = {"model": True, "shard": has_data, "init": options.rounds > 1 or bool(options.init)}
    for name in (name for name in needed if needed[name] and name not in placeholders.names_in(spec.command)):
        what, example = _TOLD[name]
        raise SpecError(f"The trainers are not told {what}.", f"Name {{{name}}} in the command, as in: {example}")
    if options.evaluate and "model" not in placeholders.names_in(options.evaluate):
        raise SpecError("--evaluate does not name the model to measure.", "As in: evaluate.py --modelpath {model}")
    if options.best and not options.evaluate:
        raise SpecError("--best has nothing to compare the models by.", "Add --evaluate, which measures them.")
    suffix = PurePath(f"model{suffix_of(spec.command)}").suffix
    if options.save and PurePath(options.save).suffix != suffix:
        raise SpecError(f"--save {options.save} is of another format than the models.", f"These end in {suffix}.")


_TOLD = {
    "model": ("where to save their models", "train.py --savemodel {model}"),
    "shard": ("where their data is", "train.py --data {shard}"),
    "init": ("which model to begin with", "train.py --init {init} (which is empty where there is none yet)"),
}
