"""What can't work is told before anything starts; and which files such a run reads, sends and writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING

from pumasi.core import placeholders
from pumasi.core.flows.average.plan import suffix_of
from pumasi.core.kubewords import files_mount, mount
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
    known = [*values_of(spec), "model", "init", "index", "round", "slots"]
    has_data = bool(spec.split or spec.copy)
    unset = {name: f"Give it a value: --env {variable}=3" for variable, name in VARIABLES.items()}
    placeholders.check(spec.command, [*known, *(["shard"] if has_data else [])], unset)
    placeholders.check(spec.evaluate or (), known, unset)
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
    saved(spec)


def contradictions(spec: Spec) -> Iterator[tuple[str, str, str, str]]:
    right = "leave one of the two out"
    for field in ("per_node", "ps", "evaluator", "slot_as_node"):
        if getattr(spec, field):
            yield field, "it is for those that train one model", "strategy", right
    if spec.split and spec.copy:
        yield "split", "a trainer has a part of the data or all of it", "copy", right
    if spec.pool != "local" and not spec.volume and not files_mount(spec.mounts):
        yield "strategy", "the trainers' files need a place that all of them see", "on", "add --volume NAME"
    if (spec.min_models or 0) > spec.slots:
        yield "min_models", "there are not so many", "slots", "ask for fewer"


def sent(spec: Spec) -> Mapping[str, str]:
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


def saved(spec: Spec) -> str:
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
