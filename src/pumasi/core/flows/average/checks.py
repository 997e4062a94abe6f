"""What can't work is told before anything starts; and which files such a run reads, sends and writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING

from pumasi.core import placeholders
from pumasi.core.flows.average.options import AverageOptions
from pumasi.core.flows.average.plan import suffix_of
from pumasi.errors import SpecError

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

VARIABLES = {"EPOCH": "epoch", "BATCH": "batch"}
"""Of the environment, and the placeholders that stand for their values."""
_TOLD = {
    "model": ("where to save their models", "train.py --savemodel {model}"),
    "shard": ("where their data is", "train.py --data {shard}"),
    "init": ("which model to begin with", "train.py --init {init} (which is empty where there is none yet)"),
}


def values_of(spec: Spec) -> dict[str, str]:
    """What the user's own variables stand for in a command."""
    return {name: spec.env[variable] for variable, name in VARIABLES.items() if variable in spec.env}


def check(spec: Spec) -> None:
    """Whether each placeholder stands for something; SpecError."""
    options = spec[AverageOptions]
    known = [*values_of(spec), "model", "init", "index", "round", "slots"]
    has_data = bool(options.split or options.copy)
    unset = {name: f"Give it a value: --env {variable}=3" for variable, name in VARIABLES.items()}
    placeholders.check(spec.command, [*known, *(["shard"] if has_data else [])], unset)
    placeholders.check(options.evaluate or (), known, unset)
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
    saved(spec)


def sent(spec: Spec) -> Mapping[str, str]:
    """Files of this machine that a run elsewhere needs on its volume: where they go in the run's folder there, and
    their paths here."""
    options = spec[AverageOptions]
    named = {"data": options.split or options.copy, "init": options.init}
    return {
        f"source/{kind}/{PurePath(path).name}": path
        for kind, path in named.items()
        if path and not spec.place.keeps(path)
    }


def saved(spec: Spec) -> str:
    save = spec[AverageOptions].save
    if not save:
        return ""
    try:
        return spec.place.placed(save)
    except SpecError as error:
        raise SpecError(f"--save {error.message}", error.hint) from None
