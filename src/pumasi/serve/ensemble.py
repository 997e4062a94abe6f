"""The models that answer together, with the preprocessing that all of them were trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pumasi.errors import UsageError
from pumasi.serve.answers import Verdict, verdict
from pumasi.serve.models import Model, load
from pumasi.serve.preprocessing import Array, Preprocessing, read
from pumasi.serve.sources import Sources, beside, check

Numbers = NDArray[Any]
Say = Callable[[str], None]


class Ensemble(NamedTuple):
    """`lacks_words`: the model takes ids of words, but no file says which."""

    models: tuple[Model, ...]
    preprocessing: Preprocessing
    lacks_words: bool

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]

    def predict(self, rows: Numbers) -> Numbers:
        """Inputs × models × outputs."""
        usual = "float32" if getattr(self.preprocessing, "ids", None) is None else "int64"
        return np.stack([model.predict(rows.astype(model.dtype or usual)) for model in self.models], axis=1)

    def verdict(self, outputs: Numbers) -> Verdict:
        return verdict(outputs, self.names, self.preprocessing.labels, self.preprocessing.output)


def gather(sources: Sources, batch: int, say: Say) -> Ensemble:
    """Loaded, checked, and warm: every size of a batch up to `batch` was calculated once."""
    check(sources.model)
    paths = sources.models()
    described_by = sources.described_by()
    described: Preprocessing = Array() if described_by is None else read(described_by)
    preprocessing = described
    models = []
    for path in paths:
        say(f"loading {path} …")
        models.append(load(path))
    for caution in dict.fromkeys(filter(None, (model.caution for model in models))):
        say(caution)
    main = models[0]
    lacks_words = described_by is None and main.ids is not None
    if isinstance(preprocessing, Array):
        ids = preprocessing.ids or main.ids
        preprocessing = replace(preprocessing, size=preprocessing.size or main.shape, ids=ids)
    for path, model in zip(paths, models, strict=True):
        _check(path, model, main, preprocessing)
        own = beside(path)
        if path != sources.model and described_by is not None and own.exists() and read(own) != described:
            raise UsageError(
                f"{path} was trained with another preprocessing than {sources.model}.",
                "Models that vote have to mean the same by the same numbers.",
            )
    ensemble = Ensemble(tuple(models), preprocessing, lacks_words)
    _warm_up(ensemble, batch, say)
    return ensemble


def _check(path: Path, model: Model, main: Model, preprocessing: Preprocessing) -> None:
    if main.shape is not None and model.shape is not None and model.shape != main.shape:
        raise UsageError(f"{path} takes inputs of another shape than {main.name}.", f"{model.shape}, not {main.shape}.")
    gives = preprocessing.shape
    if gives is not None and model.shape is not None and not _fits(gives, model.shape):
        raise UsageError(
            f"The preprocessing gives inputs of the shape {gives}, but {path} takes {model.shape}.",
            "It has to be the one that the model was trained with.",
        )
    ids = getattr(preprocessing, "ids", None)
    if ids is not None and model.ids is not None and ids > model.ids:
        raise UsageError(
            f"The preprocessing gives ids up to {ids - 1}, but {path} only knows those up to {model.ids - 1}.",
            f"If the training left out rarer words, say so: largest_id {model.ids - 1}.",
        )


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(need in (None, has) for has, need in zip(shape, wanted, strict=True))


def _warm_up(ensemble: Ensemble, batch: int, say: Say) -> None:
    row = ensemble.preprocessing.sample()
    if row is None:
        return
    size = 1
    while size <= batch:
        say(f"warming up with {size} of {batch} …")
        try:
            outputs = ensemble.predict(np.stack([row] * size))
            ensemble.verdict(outputs[0])
        except ValueError as error:
            raise UsageError(f"{', '.join(ensemble.names)} can't be served: {_first(error)}.") from None
        except Exception as error:  # noqa: BLE001
            raise UsageError(f"{ensemble.names[0]} fails on an input that it should take: {_first(error)}") from None
        size *= 2


def _first(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:300]
