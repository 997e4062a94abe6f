"""What a model is made of, and how two differ: numbers about each tensor, computed block by block."""

from __future__ import annotations

from math import inf, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pumasi.models.arithmetic import STORED, widen
from pumasi.models.formats import open_model
from pumasi.models.model import Model, Tensor


class About(NamedTuple):
    """A tensor. One without numbers (empty, or of strings) has no least, mean and largest; complex ones are pairs."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    least: float | None = None
    mean: float | None = None
    largest: float | None = None


class Shown(NamedTuple):
    path: Path
    format: str
    framework: str
    tensors: list[About]


class Difference(NamedTuple):
    """`why` says what is different where numbers can't be compared: a shape, a type, a tensor that one has not."""

    name: str
    why: str = ""
    largest: float | None = None
    relative: float | None = None
    cosine: float | None = None


class Compared(NamedTuple):
    equal: list[str]
    different: list[Difference]


def show(path: str | Path) -> Shown:
    with open_model(Path(path)) as model:
        return Shown(
            model.path, model.format, model.framework, [_about(model, each) for each in model.tensors.values()]
        )


def _about(model: Model, tensor: Tensor) -> About:
    least, largest, total, count = inf, -inf, 0.0, 0
    if tensor.dtype in STORED:
        for block in model.blocks(tensor.name):
            values = widen(block, tensor.dtype)
            # In NumPy's way: a NaN anywhere makes all of them NaN.
            least, largest = float(np.minimum(least, values.min())), float(np.maximum(largest, values.max()))
            total += float(values.sum(dtype=np.float64))
            count += values.size
    numbers = (least, total / count, largest) if count else ()
    return About(tensor.name, tensor.shape, tensor.dtype, tensor.nbytes, *numbers)


def diff(one: str | Path, other: str | Path) -> Compared:
    """May be of different formats: tensors are compared by name."""
    compared = Compared([], [])
    with open_model(Path(one)) as first, open_model(Path(other)) as second:
        for name in {**first.tensors, **second.tensors}:
            difference = _difference(first, second, name)
            if difference is None:
                compared.equal.append(name)
            else:
                compared.different.append(difference)
    return compared


def _difference(first: Model, second: Model, name: str) -> Difference | None:
    mine, theirs = first.tensors.get(name), second.tensors.get(name)
    if mine is None or theirs is None:
        return Difference(name, f"only in {(second if mine is None else first).path}")
    if mine.shape != theirs.shape:
        return Difference(name, f"shape {mine.shape} and {theirs.shape}")
    if mine.dtype != theirs.dtype:
        return Difference(name, f"type {mine.dtype} and {theirs.dtype}")
    return _distance(first, second, mine)


def _distance(first: Model, second: Model, tensor: Tensor) -> Difference | None:
    is_equal, largest = True, 0.0
    apart = square = other_square = product = 0.0
    for mine, theirs in zip(first.blocks(tensor.name), second.blocks(tensor.name), strict=True):
        # Bits, not values: a NaN equals itself, and 0 is not -0.
        is_equal = is_equal and mine.tobytes() == theirs.tobytes()
        if tensor.dtype in STORED:
            a, b = (widen(block, tensor.dtype).astype(np.float64) for block in (mine, theirs))
            with np.errstate(all="ignore"):
                largest = float(np.maximum(largest, np.abs(a - b).max()))
                apart += float((a - b) @ (a - b))
                square, other_square, product = (
                    square + float(a @ a),
                    other_square + float(b @ b),
                    product + float(a @ b),
                )
    if is_equal:
        return None
    if tensor.dtype not in STORED:
        return Difference(tensor.name, "other content")
    norms = sqrt(square) * sqrt(other_square)
    return Difference(
        tensor.name,
        largest=largest,
        relative=sqrt(apart) / sqrt(square) if square else inf if apart else 0.0,
        cosine=product / norms if norms else None,
    )
