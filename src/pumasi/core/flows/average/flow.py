"""Copies of one model train apart and are averaged, round after round.

    data ─► train-1-0 … train-1-4 ─► average-1 ─► train-2-0 … train-2-4 ─► average-2 ─► save
               └─► evaluate-1-0 …        └─► evaluate-1-average, evaluate-1-ensemble

Each attempt of a trainer writes to a folder of its own; only the model of one that came to its end goes where models
are read. A trainer that fails, restarts and all, or whose model has diverged, is left out of its round; the next round
is for all of them again, from the average. An evaluation that fails costs a figure in the table, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import PurePath
from typing import Any, NamedTuple

from pumasi.core.flows import MAIN, Flow, Work
from pumasi.core.outcome import Outcome, Verdict
from pumasi.errors import SpecError

DATA, TRAIN, AVERAGE, EVALUATE, SAVE = "data", "train", "average", "evaluate", "save"
ENSEMBLE = "ensemble"
SCORES = (("accuracy", 1), ("acc", 1), ("auc", 1), ("f1", 1), ("loss", -1))
"""What names a winner, the first that there is, and whether more of it is better."""
_FILES = (".npz", ".npy", ".csv", ".jsonl", ".parquet")
"""Data that is one file."""


@dataclass(frozen=True)
class Average(Flow):
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
    def title(self) -> str:  # type: ignore[override]
        rounds = f"{self.rounds} rounds" if self.rounds > 1 else "one round"
        trainers = f"{self.slots} trainers apart" if self.slots > 1 else "1 trainer"
        return f"{trainers}, {rounds} of averaging"

    # ---- names and places

    def trainers(self, number: int) -> list[str]:
        return [f"{TRAIN}-{number}-{index}" for index in range(self.slots)]

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

    def _models(self, number: int) -> str:
        return f"{self.folder}/round-{number}/model"

    def _done(self, number: int, ended: Mapping[str, Outcome]) -> list[int]:
        """The trainers of that round which have a model to give."""
        outcomes = [ended.get(name) for name in self.trainers(number)]
        return [index for index, outcome in enumerate(outcomes) if outcome and outcome.verdict is Verdict.DONE]

    def _judges(self, number: int, ended: Mapping[str, Outcome]) -> list[str]:
        if not self.evaluated:
            return []
        done = self._done(number, ended)
        names = [*map(str, done), AVERAGE, *([ENSEMBLE] if len(done) > 1 else [])]
        return [f"{EVALUATE}-{number}-{name}" for name in names]

    # ---- what comes next

    def next(self, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        names: list[str] = []
        if self.data is not None:
            names.append(DATA)
            if not _is_done(DATA, ended):
                return tuple(names)
        for number in range(1, self.rounds + 1):
            names += self.trainers(number)
            if not all(name in ended for name in self.trainers(number)) or self._is_short(number, ended):
                return tuple(names)
            average, judges = f"{AVERAGE}-{number}", self._judges(number, ended)
            names += [average, *judges[: len(self._done(number, ended))]]
            if not _is_done(average, ended):
                return tuple(names)
            names += judges
        if all(name in ended for number in range(1, self.rounds + 1) for name in self._judges(number, ended)):
            names.append(SAVE)
        return tuple(names)

    def outcome(self, ended: Mapping[str, Outcome]) -> Outcome | None:
        for number in range(1, self.rounds + 1):
            if all(name in ended for name in self.trainers(number)) and self._is_short(number, ended):
                return self._short(number, ended)
        for task, why in self._needed():
            if task in ended and not _is_done(task, ended):
                return _blamed(task, why, ended[task])
        if SAVE not in ended:
            return None
        return Outcome(Verdict.DONE, self._summary(ended), metrics=self._winners_metrics(ended))

    def tries_again(self, task: str, outcome: Outcome) -> bool:
        """Steps and evaluations do the same again; but a machine that is lost is another matter."""
        return task.startswith(TRAIN) or outcome.verdict is Verdict.LOST

    def _needed(self) -> Iterator[tuple[str, str]]:
        """Tasks that nothing goes on without, and what it means if one fails."""
        yield DATA, "The data could not be prepared."
        for number in range(1, self.rounds + 1):
            yield f"{AVERAGE}-{number}", f"The models{self._of(number)} could not be averaged."
        yield SAVE, "The final model could not be saved."

    def _of(self, number: int) -> str:
        return f" of round {number}" if self.rounds > 1 else ""

    def _is_short(self, number: int, ended: Mapping[str, Outcome]) -> bool:
        return len(self._done(number, ended)) < self.least

    def _short(self, number: int, ended: Mapping[str, Outcome]) -> Outcome:
        done = self._done(number, ended)
        missing = [name for name in self.trainers(number) if not _is_done(name, ended)]
        first = min(missing, key=lambda name: ended[name].verdict not in _CLOSED)
        needed = "1 is needed" if self.least == 1 else f"{self.least} are needed"
        why = (
            f"{len(done)} of {self.slots} trainers{self._of(number)} came to their end, and {needed}. "
            "The first that did not:"
        )
        return _blamed(first, why, ended[first])

    def _summary(self, ended: Mapping[str, Outcome]) -> str:
        left_out = [
            f"trainer {index}{self._of(number)}"
            for number in range(1, self.rounds + 1)
            for index in range(self.slots)
            if self._is_left_out(number, index, ended)
        ]
        return f"Left out: {', '.join(left_out)}." if left_out else ""

    def _is_left_out(self, number: int, index: int, ended: Mapping[str, Outcome]) -> bool:
        """Its trainer failed, or its model has diverged, as the step that averages reports."""
        return index not in self._done(number, ended) or f"left_out_{index}" in ended[f"{AVERAGE}-{number}"].metrics

    # ---- what each task is

    def work(self, task: str, ended: Mapping[str, Outcome], attempt: int = 0) -> Work:
        kind, _, rest = task.partition("-")
        if kind == DATA:
            arguments = (str(self.data), "-n", str(self.slots), "--to", f"{self.folder}/data")
            return Work(DATA, slots=1, is_step=True, arguments=arguments)
        if kind == SAVE:
            return Work(AVERAGE, slots=1, is_step=True, arguments=(self._kept(ended), "--output", self.final))
        number, _, who = rest.partition("-")
        if kind == AVERAGE:
            return Work(AVERAGE, slots=1, is_step=True, arguments=self._average(int(number), ended))
        if kind == EVALUATE:
            return Work(EVALUATE, self._placeholders(int(number), who, self._subject(int(number), who)), slots=1)
        draft = self.draft(int(number), who, attempt)
        values = self._placeholders(int(number), who, draft)
        makes = (draft, self.model(int(number), who))
        return Work(MAIN, values, {"WORKER_NUMBER": str(self.slots)}, slots=1, makes=makes)

    def _average(self, number: int, ended: Mapping[str, Outcome]) -> tuple[str, ...]:
        models = [self.model(number, index) for index in self._done(number, ended)]
        samples = () if self.data is None else ("--samples", f"{self.folder}/data")
        return (*models, "--output", self.averaged(number), "--least", str(self.least), *samples)

    def _subject(self, number: int, who: str) -> str:
        if who == AVERAGE:
            return self.averaged(number)
        return self._models(number) if who == ENSEMBLE else self.model(number, who)

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

    # ---- who won

    def scores(self, ended: Mapping[str, Outcome]) -> list[Score]:
        """What was evaluated, in the order of the table: round by round each model, the average, the ensemble."""
        found = []
        for number in range(1, self.rounds + 1):
            for task in self._judges(number, ended):
                who = task.rpartition("-")[2]
                outcome = ended.get(task)
                metrics = outcome.metrics if outcome and outcome.verdict is Verdict.DONE else {}
                found.append(Score(number, who, self._subject(number, who), metrics))
        return found

    def report(self, ended: Mapping[str, Outcome]) -> Mapping[str, Any] | None:
        if SAVE not in ended:
            return None
        scores = self.scores(ended)
        won, best = winner(scores), self._best(ended)
        kept = self._kept(ended)
        return {
            "scores": [{**_named(score), "metrics": dict(score.metrics)} for score in scores],
            "winner": _named(won) if won else None,
            "best": _named(best) if best else None,
            "kept": kept,
            "final": self.final if _is_done(SAVE, ended) else kept,
            "remarks": [*([_UNNAMED] if self.evaluated and not won else []), *filter(None, [self._summary(ended)])],
        }

    def _best(self, ended: Mapping[str, Outcome]) -> Score | None:
        """What is kept instead of the last average; an ensemble is no file that could be."""
        return winner([score for score in self.scores(ended) if score.who != ENSEMBLE]) if self.best else None

    def _kept(self, ended: Mapping[str, Outcome]) -> str:
        best = self._best(ended)
        return best.path if best else self.averaged(self.rounds)

    def _winners_metrics(self, ended: Mapping[str, Outcome]) -> Mapping[str, float]:
        kept = self._kept(ended)
        return next((score.metrics for score in self.scores(ended) if score.path == kept), {})


_UNNAMED = f"No best is named: no evaluation printed {', '.join(name for name, _ in SCORES)}, as in: accuracy: 0.93"


class Score(NamedTuple):
    """What an evaluation told of one model, of the average or of the ensemble of a round."""

    round: int
    who: str
    path: str
    metrics: Mapping[str, float]


SUFFIXES = (".weights.h5", ".h5", ".hdf5", ".keras", ".npz", ".safetensors", ".pt", ".pth")
"""Of the models that can be averaged."""
_MODEL = re.compile(r"\{model\}(\.\w[\w.]*)?")


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


def winner(scores: list[Score]) -> Score | None:
    """By the first of SCORES that any of them has; of equals the first."""
    for name, sign in SCORES:
        measured = [score for score in scores if not isnan(score.metrics.get(name, nan))]
        if measured:
            return max(measured, key=lambda score: sign * score.metrics[name])
    return None


def _named(score: Score) -> dict[str, Any]:
    return {"round": score.round, "model": score.who}


_CLOSED = (Verdict.STOPPED, Verdict.TIMED_OUT)


def _blamed(task: str, why: str, outcome: Outcome) -> Outcome:
    """A run that was stopped, or ran out of time, did not end for any other reason."""
    if outcome.verdict in _CLOSED:
        return outcome
    return replace(outcome, reason=f"{why} {outcome.reason}", metrics={}, task=task)


def _is_done(task: str, ended: Mapping[str, Outcome]) -> bool:
    return task in ended and ended[task].verdict is Verdict.DONE
