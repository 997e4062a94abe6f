"""Many models ─► one: what is done with which tensor, and a result that is there whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from itertools import chain
from math import gcd, lcm
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pumasi.errors import UsageError
from pumasi.models import preprocessing
from pumasi.models.arithmetic import FLOATS, Array, is_finite, mean, narrow, variance
from pumasi.models.finding import find
from pumasi.models.formats import format_of, open_model
from pumasi.models.model import Model, Tensor

_MOST_SAMPLES = 2**53
_WEIGHT = re.compile(r"\d{1,15}(\.\d{1,15})?")
_RANDOM = re.compile(r"seed|rng|random", re.IGNORECASE)
_LAST_WORD = re.compile(r"[^./]*$")


class Diverged(UsageError):
    """The model `path` has values that are not finite."""

    def __init__(self, path: Path, tensor: str) -> None:
        message = f"{tensor} in {path} has values that are not finite: NaN or infinity."
        super().__init__(message, "Its training has diverged: leave it out.")
        self.path = path


class Averaged(NamedTuple):
    """`rules` counts tensors by what was done with them; `notes` are sentences about those that have no mean."""

    output: Path
    inputs: list[Path]
    weights: list[int]
    rules: dict[str, int]
    notes: list[str]


def average(
    words: Sequence[str | Path],
    output: str | Path,
    weights: Sequence[str | float] = (),
    *,
    force: bool = False,
) -> Averaged:
    """`words` are files, patterns and folders; `weights` has a number for each file: how many samples it has seen."""
    paths = find(words)
    counts = _counts(weights, paths)
    chosen = [(path, count) for path, count in zip(paths, counts, strict=True) if count]
    target = Path(output)
    _check_output(target, paths, force=force)
    described, notes = preprocessing.shared([path for path, _ in chosen])
    with ExitStack() as stack:
        (path, _), *others = chosen
        first = stack.enter_context(open_model(path))
        models = [first, *(stack.enter_context(open_model(path, first)) for path, _ in others)]
        for other in models[1:]:
            _check_same(first, other)
        work = _Average(models, [count for _, count in chosen])
        with _whole_or_not(target, described) as temporary:
            first.write(temporary, work.blocks)
    return Averaged(target, [path for path, _ in chosen], work.weights, dict(work.rules), [*work.notes, *notes])


def _counts(weights: Sequence[str | float], paths: Sequence[Path]) -> list[int]:
    """As whole numbers that are to each other as the weights: sums of such lose nothing."""
    if not weights:
        return [1] * len(paths)
    if len(weights) != len(paths):
        raise UsageError(
            f"There are {len(weights)} weights for {len(paths)} files.", "Give one for each, in the order of the files."
        )
    texts = [str(weight).strip() for weight in weights]
    for text in texts:
        if not _WEIGHT.fullmatch(text):
            raise UsageError(f"'{text}' is no weight.", "A weight is a number from 0 on: --weights 3,1,0.5")
    fractions = [Fraction(text) for text in texts]
    if not any(fractions):
        raise UsageError("All weights are 0.", "At least one file has to count.")
    scale = lcm(*(each.denominator for each in fractions))
    wholes = [int(each * scale) for each in fractions]
    wholes = [each // gcd(*wholes) for each in wholes]
    if sum(wholes) > _MOST_SAMPLES:
        raise UsageError("The weights have more digits than can be counted with.", "Give fewer digits.")
    return wholes


def _check_output(target: Path, inputs: Sequence[Path], *, force: bool) -> None:
    if format_of(target) != format_of(inputs[0]):
        raise UsageError(
            f"{target} would be of another format than the models.", f"Give it the ending {inputs[0].suffix}."
        )
    if any(path.resolve() == target.resolve() for path in inputs):
        raise UsageError(f"{target} is both a model to average and the result.", "Give the result another name.")
    if not target.parent.is_dir():
        raise UsageError(f"There is no folder {target.parent}.")
    if target.exists() and not (force and target.is_file()):
        raise UsageError(f"{target} exists already.", "To overwrite it: --force")


def _check_same(first: Model, other: Model) -> None:
    """One architecture, or a sentence that says where they differ."""
    hint = f"'pumasi models diff {first.path} {other.path}' shows all differences."
    for one, two in ((first, other), (other, first)):
        if missing := next((name for name in one.tensors if name not in two.tensors), None):
            raise UsageError(f"{two.path} has no tensor {missing}, which {one.path} has.", hint)
    for name, tensor in first.tensors.items():
        for what, mine, theirs in (
            ("shape", tensor.shape, other.tensors[name].shape),
            ("type", tensor.dtype, other.tensors[name].dtype),
        ):
            if mine != theirs:
                raise UsageError(f"The {what} of {name} is {mine} in {first.path}, but {theirs} in {other.path}.", hint)
        if first.shared.get(name) != other.shared.get(name):
            raise UsageError(f"{name} shares its memory with another tensor in only one of {first.path}, {other.path}.")


class _Average:
    """The numbers of the result, tensor by tensor, block by block."""

    def __init__(self, models: Sequence[Model], weights: list[int]) -> None:
        self.models = models
        self.weights = weights
        self.rules: Counter[str] = Counter()
        self.notes: list[str] = []

    def blocks(self, tensor: Tensor) -> Iterator[Array]:
        if tensor.dtype not in FLOATS or _is_counter(tensor):
            return self._settled(tensor)
        return self._averaged(tensor)

    def _streams(self, name: str) -> list[Iterator[Array]]:
        return [model.blocks(name) for model in self.models]

    def _averaged(self, tensor: Tensor) -> Iterator[Array]:
        center = self.models[0].means.get(tensor.name)
        self.rules["pooled variance" if center else "mean"] += 1
        centers = self._streams(center) if center else []
        first, *others = self._streams(tensor.name)
        for block in first:
            values = mean(chain([block], map(next, others)), self.weights, tensor.dtype)
            if centers:
                values += variance(map(next, centers), self.weights, tensor.dtype)
            result = narrow(values, tensor.dtype)
            if not is_finite(result, tensor.dtype):
                raise self._infinite(tensor)
            yield result

    def _infinite(self, tensor: Tensor) -> UsageError:
        for model in self.models:
            if not all(is_finite(block, tensor.dtype) for block in model.blocks(tensor.name)):
                return Diverged(model.path, tensor.name)
        return UsageError(f"The average of {tensor.name} is larger than {tensor.dtype} can hold.")

    def _settled(self, tensor: Tensor) -> Iterator[Array]:
        """What has no mean: whole numbers, truth values, strings. Equal in all, or there is a rule for it."""
        first, *others = self._streams(tensor.name)
        rule, note = "kept", ""
        for block in first:
            for model, other in zip(self.models[1:], others, strict=True):
                theirs = next(other)
                if np.array_equal(block, theirs):
                    continue
                if _is_counter(tensor):
                    rule, block = "largest", np.maximum(block, theirs)
                elif _RANDOM.search(tensor.name):
                    note = f"{tensor.name} differs; as the state of a random generator it is kept as in"
                else:
                    raise UsageError(
                        f"{tensor.name} differs between {self.models[0].path} and {model.path}, but is of type "
                        f"{tensor.dtype}, of which there is no mean.",
                        "Where such tensors differ, the models are not of one kind: other vocabularies, masks, codes.",
                    )
            yield block
        self.rules[rule] += 1
        if note:
            self.notes.append(f"{note} {self.models[0].path}.")


def _is_counter(tensor: Tensor) -> bool:
    """Iterations, steps, batches seen: one whole number. PyTorch's optimizers have it as a float called step."""
    if tensor.size != 1:
        return False
    return "int" in tensor.dtype or (tensor.dtype in FLOATS and _LAST_WORD.findall(tensor.name)[0] == "step")


@contextmanager
def _whole_or_not(target: Path, described: bytes | None) -> Iterator[Path]:
    """A name to write to, beside `target`. What was written there takes its place at the end, if there is no error,
    with its preprocessing beside it: whoever finds the model never finds that of another one."""
    beside = preprocessing.beside(target)
    model, description = (path.with_name(f".{path.name}.{secrets.token_hex(4)}") for path in (target, beside))
    try:
        yield model
        _sync(model)
        if described != preprocessing.read(target):
            if described is not None:
                description.write_bytes(described)
                _sync(description)
            target.unlink(missing_ok=True)
            beside.unlink(missing_ok=True)
        if description.exists():
            description.replace(beside)
        model.replace(target)
    finally:
        model.unlink(missing_ok=True)
        description.unlink(missing_ok=True)
    _sync(target.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
