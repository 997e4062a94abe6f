"""The flows, by the name of the strategy that a user asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath

from pumasi.core import placeholders
from pumasi.core.flows import Flow
from pumasi.core.flows.average import Average, suffix_of
from pumasi.core.flows.single import Single
from pumasi.core.spec import Spec
from pumasi.errors import SpecError

VARIABLES = {"EPOCH": "epoch", "BATCH": "batch"}
"""Of the environment, and the placeholders that stand for their values."""


def average_of(spec: Spec, folder: str) -> Average:
    data = spec.split or spec.copy
    values = {name: spec.env[variable] for variable, name in VARIABLES.items() if variable in spec.env}
    check(spec, values)
    return Average(
        slots=spec.slots,
        rounds=spec.rounds,
        folder=folder,
        suffix=suffix_of(spec.command),
        parts=PurePath(data).suffix if data else None,
        evaluated=spec.evaluate is not None,
        least=spec.min_models or (spec.slots + 1) // 2,
        init=spec.init or "",
        best=spec.best,
        save=spec.save or "",
        values=values,
    )


def check(spec: Spec, values: Mapping[str, str]) -> None:
    """Whether each placeholder stands for something; SpecError."""
    known = [*values, "model", "init", "index", "round", "slots", *(["shard"] if spec.split or spec.copy else [])]
    placeholders.check(spec.command, known)
    placeholders.check(spec.evaluate or (), known)
    if "model" not in placeholders.names_in(spec.command):
        raise SpecError(
            "The trainers are not told where to save their models.",
            "Name {model} in the command, as in: train.py --savemodel {model}",
        )
    if spec.evaluate and "model" not in placeholders.names_in(spec.evaluate):
        raise SpecError("--evaluate does not name the model to measure.", "As in: evaluate.py --modelpath {model}")


FLOWS: Mapping[str, Callable[[Spec, str], Flow]] = {
    "together": lambda spec, folder: Single(),
    "average": average_of,
}


def flow_of(spec: Spec, folder: str) -> Flow:
    """`folder` is where the run keeps files that its tasks share."""
    return FLOWS[spec.strategy](spec, folder)
