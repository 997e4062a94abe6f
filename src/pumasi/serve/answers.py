"""What models put out ─► an answer in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
_TOLERANCE = 0.02
"""Sums of half-precision probabilities are not exactly 1."""


class Answer(NamedTuple):
    """With labels: the likeliest, how likely each is, in the order of the labels. Without: the numbers."""

    label: str = ""
    probabilities: tuple[tuple[str, float], ...] = ()
    output: Any = None

    @property
    def percent(self) -> float:
        return round(100 * max(each for _, each in self.probabilities), 2)

    @property
    def shown(self) -> str:
        """As the page shows it: 93.41 % good."""
        return f"{self.percent:.2f} % {self.label}"

    def as_json(self) -> dict[str, Any]:
        if not self.probabilities:
            return {"output": self.output}
        return {"label": self.label, "percent": self.percent, "probabilities": dict(self.probabilities)}


class Verdict(NamedTuple):
    """`votes` has a row for each model; `mean` is the answer."""

    mean: Answer
    votes: tuple[tuple[str, Answer], ...]

    def as_json(self) -> dict[str, Any]:
        votes = [{"model": name, **answer.as_json()} for name, answer in self.votes]
        return {**self.mean.as_json(), "votes": votes}


def verdict(outputs: Numbers, names: Sequence[str], labels: Sequence[str], kind: str) -> Verdict:
    """`outputs` has a row a model. A ValueError says why they are no answer."""
    if not np.isfinite(outputs).all():
        raise ValueError("the model put out a number that is not finite")
    values = outputs.astype(np.float64)
    if labels:
        values = np.stack([_probabilities(each, len(labels), kind) for each in values])
    votes = tuple((name, _answer(each, labels)) for name, each in zip(names, values, strict=True))
    return Verdict(_answer(values.mean(axis=0), labels), votes)


def _probabilities(values: Numbers, count: int, kind: str) -> Numbers:
    values = values.reshape(-1)
    if values.size != count and (values.size, count) != (1, 2):
        raise ValueError(f"the model puts out {values.size} numbers, but there are {count} labels")
    if kind == "logits":
        if values.size == 1:
            values = np.array([0.0, values[0]])
        values = np.exp(values - values.max())
        values = values / values.sum()
    elif values.size == 1:
        values = np.array([1 - values[0], values[0]])
    if values.min() < -_TOLERANCE or abs(values.sum() - 1) > _TOLERANCE:
        raise ValueError("the model puts out no probabilities; if they are logits, the preprocessing has to say so")
    values = np.clip(values, 0, 1)
    shares: Numbers = values / values.sum()
    return shares


def _answer(values: Numbers, labels: Sequence[str]) -> Answer:
    if not labels:
        return Answer(output=values.tolist())
    pairs = tuple((label, float(each)) for label, each in zip(labels, values, strict=True))
    return Answer(labels[int(values.argmax())], pairs)
