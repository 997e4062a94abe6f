"""Names and places of a run whose models are averaged, and what each of its trainers and evaluations is told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from pumasi.core.flows.base import MAIN, Task
from pumasi.core.outcome import Verdict
from pumasi.errors import SpecError

DATA, TRAIN, AVERAGE, EVALUATE, SAVE = "data", "train", "average", "evaluate", "save"
ENSEMBLE = "ensemble"
SUFFIXES = (".weights.h5", ".h5", ".hdf5", ".keras", ".npz", ".safetensors", ".pt", ".pth")
"""Of the models that can be averaged."""
_FILES = (".npz", ".npy", ".csv", ".jsonl", ".parquet")
"""Data that is one file."""
_MODEL = re.compile(r"\{model\}(\.\w[\w.]*)?")
_LOST = frozenset((Verdict.LOST,))
"""Steps and evaluations do the same again; but a machine that is lost is another matter."""


@dataclass(frozen=True)
class Plan:
    """`folder` is where the files of the run are, for all of its tasks; `suffix` is that of its models; `data` is None
    where the trainers find their data by themselves; `least` models make an average."""

    slots: int
    rounds: int
    folder: str
    suffix: str
    data: str | None = None
    evaluated: bool = False
    least: int = 1
    init: str = ""
    best: bool = False
    save: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 1

    @property
    def title(self) -> str:
        rounds = f"{self.rounds} rounds" if self.rounds > 1 else "one round"
        trainers = f"{self.slots} trainers apart" if self.slots > 1 else "1 trainer"
        return f"{trainers}, {rounds} of averaging"

    # ---- names and places

    def trainers(self, number: int) -> list[str]:
        return [f"{TRAIN}-{number}-{index}" for index in range(self.slots)]

    def judges(self, number: int, done: Sequence[int]) -> list[str]:
        """The evaluations of a round in which these trainers came to their end: of each model, then of all."""
        if not self.evaluated:
            return []
        names = [*map(str, done), AVERAGE, *([ENSEMBLE] if len(done) > 1 else [])]
        return [f"{EVALUATE}-{number}-{name}" for name in names]

    def model(self, number: int, index: int | str) -> str:
        return f"{self._models(number)}/{index}-model{self.suffix}"

    def draft(self, number: int, index: str, attempt: int) -> str:
        """Where an attempt of a trainer writes its model."""
        return f"{self.folder}/round-{number}/attempts/{index}-{attempt}/{index}-model{self.suffix}"

    def averaged(self, number: int) -> str:
        return f"{self.folder}/round-{number}/average{self.suffix}"

    @property
    def final(self) -> str:
        return self.save or f"{self.folder}/final{self.suffix}"

    def subject(self, number: int, who: str) -> str:
        """What an evaluation measures."""
        if who == AVERAGE:
            return self.averaged(number)
        return self._models(number) if who == ENSEMBLE else self.model(number, who)

    def _models(self, number: int) -> str:
        return f"{self.folder}/round-{number}/model"

    def of(self, number: int) -> str:
        return f" of round {number}" if self.rounds > 1 else ""

    # ---- what each task is

    def data_step(self) -> Task:
        return self._step(DATA, DATA, str(self.data), "-n", str(self.slots), "--to", f"{self.folder}/data")

    def average_step(self, number: int, done: Sequence[int]) -> Task:
        models = [self.model(number, index) for index in done]
        samples = () if self.data is None else ("--samples", f"{self.folder}/data")
        arguments = (*models, "--output", self.averaged(number), "--least", str(self.least), *samples)
        return self._step(f"{AVERAGE}-{number}", AVERAGE, *arguments)

    def save_step(self, kept: str) -> Task:
        return self._step(SAVE, AVERAGE, kept, "--output", self.final)

    def evaluation(self, number: int, who: str) -> Task:
        values = self._placeholders(number, who, self.subject(number, who))
        name = f"{EVALUATE}-{number}-{who}"
        return Task(name, EVALUATE, values, slots=1, restarts=self.restarts, tries_again=_LOST)

    def trainer(self, number: int, who: str, attempt: int = 0) -> Task:
        draft = self.draft(number, who, attempt)
        return Task(
            f"{TRAIN}-{number}-{who}",
            MAIN,
            self._placeholders(number, who, draft),
            env={"WORKER_NUMBER": str(self.slots)},
            slots=1,
            makes=(draft, self.model(number, who)),
            restarts=self.restarts,
        )

    def _step(self, name: str, program: str, *arguments: str) -> Task:
        again = {"restarts": self.restarts, "tries_again": _LOST}
        return Task(name, program, arguments=arguments, slots=1, is_step=True, **again)  # type: ignore[arg-type]

    def _placeholders(self, number: int, who: str, model: str) -> dict[str, str]:
        init = self.init if number == 1 else self.averaged(number - 1)
        shard = "" if self.data is None else f"{self.folder}/data/{who}{_part_suffix(self.data)}"
        return {
            **self.values,
            "shard": shard,
            "model": model,
            "init": init,
            "index": who,
            "round": str(number),
            "slots": str(self.slots),
        }


def _part_suffix(data: str) -> str:
    """That of the parts, as `pumasi data` names them; those of a folder are folders."""
    suffix = PurePath(data).suffix.lower()
    return suffix if suffix in _FILES else ""


def suffix_of(command: Sequence[str]) -> str:
    """Of the model's file: what stands after {model}, as in {model}.keras. SpecError if it can only be another one."""
    written = [match[1] or "" for word in command for match in _MODEL.finditer(word)]
    known = [suffix for each in written for suffix in SUFFIXES if f"{each}.".startswith(f"{suffix}.")]
    if written and not known and "" not in written:
        raise SpecError(
            f"{{model}}{written[0]} is of no format that can be averaged.", f"There are {', '.join(SUFFIXES)}."
        )
    return known[0] if known else ".h5"


def without_suffix(command: Sequence[str], suffix: str) -> tuple[str, ...]:
    """What {model} stands for has it already."""
    return tuple(word.replace(f"{{model}}{suffix}", "{model}") for word in command)
