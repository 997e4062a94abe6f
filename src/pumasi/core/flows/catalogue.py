"""The flows, by the name of the strategy that a user asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath, PurePosixPath

from pumasi.core import placeholders
from pumasi.core.flows import Flow
from pumasi.core.flows.average import Average, suffix_of
from pumasi.core.flows.single import Single
from pumasi.core.kubewords import files_mount, mount
from pumasi.core.spec import Spec
from pumasi.errors import SpecError

MOST_TASKS = 1500


def average_of(spec: Spec, folder: str) -> Average:
    data = spec.split or spec.copy
    values = {name: spec.env[variable] for variable, name in placeholders.VARIABLES.items() if variable in spec.env}
    check(spec, values)
    _check_size(spec)
    places = {path: f"{folder}/{place}" for place, path in sent(spec).items()}
    return Average(
        slots=spec.slots,
        rounds=spec.rounds,
        folder=folder,
        suffix=suffix_of(spec.command),
        data=places.get(data, data) if data else None,
        evaluated=spec.evaluate is not None,
        least=spec.min_models or (spec.slots + 1) // 2,
        init=places.get(spec.init, spec.init) if spec.init else "",
        best=spec.best,
        save=_saved(spec),
        values=values,
    )


def _check_size(spec: Spec) -> None:
    """The record of a run in a cluster is one object, of 1 MiB at most."""
    a_round = spec.slots * (2 if spec.evaluate else 1) + 3
    tasks = spec.rounds * a_round + 2
    if spec.pool != "local" and tasks > MOST_TASKS:
        raise SpecError(
            f"{spec.rounds} rounds of {spec.slots} trainers are {tasks:,} tasks; "
            f"a cluster takes {MOST_TASKS:,} of one run.",
            "Ask for fewer rounds, and go on from there with another run: --init.",
        )


def sent(spec: Spec) -> dict[str, str]:
    """Files of this machine that a run elsewhere needs on its volume: where they go in the run's folder there, and
    their paths here."""
    named = {} if spec.pool == "local" else {"data": spec.split or spec.copy, "init": spec.init}
    return {
        f"source/{kind}/{PurePath(path).name}": path
        for kind, path in named.items()
        if path and not _is_there(spec, path)
    }


def _is_there(spec: Spec, path: str) -> bool:
    """On a volume of the run."""
    return any(PurePosixPath(path).is_relative_to(mount(each).path) for each in spec.mounts)


def _saved(spec: Spec) -> str:
    files = files_mount(spec.mounts) if spec.save and spec.pool != "local" else None
    if files is None or not spec.save:
        return spec.save or ""
    path = str(PurePosixPath(files.path, spec.save))
    if not _is_there(spec, path) or ".." in PurePosixPath(path).parts:
        raise SpecError(
            f"--save {spec.save} is on no volume: the model would be lost with its pod.",
            f"A path that does not begin with / is one on the volume, which the pods see as {files.path}.",
        )
    return path


def check(spec: Spec, values: Mapping[str, str]) -> None:
    """Whether each placeholder stands for something; SpecError."""
    known = [*values, "model", "init", "index", "round", "slots"]
    has_data = bool(spec.split or spec.copy)
    placeholders.check(spec.command, [*known, *(["shard"] if has_data else [])])
    placeholders.check(spec.evaluate or (), known)
    needed = {"model": True, "shard": has_data, "init": spec.rounds > 1 or bool(spec.init)}
    for name in (name for name in needed if needed[name] and name not in placeholders.names_in(spec.command)):
        what, example = _TOLD[name]
        raise SpecError(f"The trainers are not told {what}.", f"Name {{{name}}} in the command, as in: {example}")
    if spec.evaluate and "model" not in placeholders.names_in(spec.evaluate):
        raise SpecError("--evaluate does not name the model to measure.", "As in: evaluate.py --modelpath {model}")
    if spec.best and not spec.evaluate:
        raise SpecError("--best has nothing to compare the models by.", "Add --evaluate, which measures them.")
    suffix = PurePath(f"model{suffix_of(spec.command)}").suffix
    if spec.save and PurePath(spec.save).suffix != suffix:
        raise SpecError(f"--save {spec.save} is of another format than the models.", f"These end in {suffix}.")


_TOLD = {
    "model": ("where to save their models", "train.py --savemodel {model}"),
    "shard": ("where their data is", "train.py --data {shard}"),
    "init": ("which model to begin with", "train.py --init {init} (which is empty where there is none yet)"),
}


FLOWS: Mapping[str, Callable[[Spec, str], Flow]] = {
    "together": lambda spec, folder: Single(),
    "average": average_of,
}


def flow_of(spec: Spec, folder: str) -> Flow:
    """`folder` is where the run keeps files that its tasks share."""
    return FLOWS[spec.strategy](spec, folder)
