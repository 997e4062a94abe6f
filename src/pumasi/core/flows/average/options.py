"""What may be asked of those that train apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pumasi.core.fields import optional, switch, text, whole, words
from pumasi.core.options import Contradiction, Options, option
from pumasi.core.spec import NONE, SHARE, Spec
from pumasi.registry import FLOWS

_APART = "Training apart (--strategy average)"


@dataclass(frozen=True)
class AverageOptions(Options):
    belongs: ClassVar[str] = "it is for those that train apart"

    split: str | None = option(
        optional(text()),
        "each trainer gets its share of this data: {shard}",
        example="reviews.npz",
        default=None,
        value="FILE",
        group=_APART,
    )
    copy: str | None = option(
        optional(text()),
        "each trainer gets a copy of this data: {shard}",
        example="reviews.npz",
        default=None,
        value="FILE",
        group=_APART,
    )
    rounds: int = option(
        whole(1, 1000),
        "average so many times, and train on from there: {init}",
        example=4,
        default=1,
        value="N",
        group=_APART,
        default_text="1",
    )
    init: str | None = option(
        optional(text()),
        "the model to begin with: {init} in the first round",
        example="start.h5",
        default=None,
        value="FILE",
        group=_APART,
    )
    evaluate: tuple[str, ...] | None = option(
        optional(words()),
        'what measures a model: "evaluate.py --modelpath {model}"',
        example="evaluate.py --modelpath {model}",
        default=None,
        value="COMMAND",
        group=_APART,
    )
    min_models: int | None = option(
        optional(SHARE, NONE),
        "the fewest models to average",
        example=3,
        default=None,
        value="N",
        group=_APART,
        default_text="half of them",
        description="the fewest models to average; by default half of them",
    )
    best: bool = option(
        switch(), "keep the best model, not the last average", example=True, default=False, group=_APART
    )
    save: str | None = option(
        optional(text()),
        "where the final model goes",
        example="final.h5",
        default=None,
        value="FILE",
        group=_APART,
        default_text="the run's folder",
        description="where the final model goes; by default into the run's folder",
    )

    def contradictions(self, spec: Spec) -> Iterator[Contradiction]:
        if FLOWS.get(spec.strategy).options is not AverageOptions:
            return
        for name in (*(["per_node"] if spec.per_node else []), *_for_gangs(spec)):
            yield Contradiction(name, "it is for those that train one model", "strategy")
        if self.split and self.copy:
            yield Contradiction("split", "a trainer has a part of the data or all of it", "copy")
        if (self.min_models or 0) > spec.slots:
            yield Contradiction("min_models", "there are not so many", "slots", "ask for fewer")


def _for_gangs(spec: Spec) -> Iterator[str]:
    for section in spec.sections.values():
        if section.for_gangs:
            yield from section.changed_names()
