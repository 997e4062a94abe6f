"""Copies of one model train apart and are averaged, round after round.

    data ─► train-1-0 … train-1-4 ─► average-1 ─► train-2-0 … train-2-4 ─► average-2 ─► save
               └─► evaluate-1-0 …        └─► evaluate-1-average, evaluate-1-ensemble

Each attempt of a trainer writes to a folder of its own; only the model of one that came to its end goes where models
are read. A trainer that fails, restarts and all, or whose model has diverged, is left out of its round; the next round
is for all of them again, from the average. An evaluation that fails costs a figure in the table, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pumasi.core.flows.average.plan import AVERAGE, DATA, ENSEMBLE, EVALUATE, SAVE, TRAIN, Plan
from pumasi.core.flows.average.report import UNNAMED, Score, report, winner
from pumasi.core.flows.base import Flow, Task
from pumasi.core.outcome import Outcome, Verdict

_CLOSED = (Verdict.STOPPED, Verdict.TIMED_OUT)


@dataclass
class _Round:
    """Trainers that have a model to give, those that have none and why, and models that have diverged."""

    done: set[int] = field(default_factory=set)
    missing: dict[int, Outcome] = field(default_factory=dict)
    diverged: set[int] = field(default_factory=set)

    @property
    def left_out(self) -> list[int]:
        return sorted({*self.missing, *self.diverged})


class Average(Flow):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.title = plan.title
        self._ready: deque[str] = deque([DATA] if plan.data is not None else plan.trainers(1))
        self._waits_for_data = False
        self._rounds: dict[int, _Round] = {}
        self._judges: set[str] = set()
        """Evaluations that are to come to their end before the last model is saved."""
        self._metrics: dict[str, Mapping[str, float]] = {}
        self._has_begun = False
        self._is_averaged = False
        self._is_saved: bool | None = None
        self._outcome: Outcome | None = None

    # ---- what comes next

    def next(self) -> Task | None:
        if self._outcome is not None or self._waits_for_data or not self._ready:
            return None
        return self.task(self._ready.popleft())

    def task(self, name: str) -> Task:
        """As far as is known by now."""
        kind, number, who = _parts(name)
        if kind == DATA:
            return self.plan.data_step()
        if kind == SAVE:
            return self.plan.save_step(self._kept())
        if kind == AVERAGE:
            return self.plan.average_step(number, self._done(number))
        return self.plan.evaluation(number, who) if kind == EVALUATE else self.plan.trainer(number, who)

    def attempt(self, task: Task, number: int) -> Task:
        kind, round_number, who = _parts(task.name)
        return self.plan.trainer(round_number, who, number) if kind == TRAIN else task

    def resumed(self) -> Iterable[Task]:
        """The data may be another by now."""
        if self._has_begun and self.plan.data is not None:
            self._waits_for_data = True
            yield self.plan.data_step()

    def outcome(self) -> Outcome | None:
        return self._outcome

    # ---- what has ended

    def ended(self, name: str, outcome: Outcome) -> None:
        kind, number, who = _parts(name)
        is_done = outcome.verdict is Verdict.DONE
        if kind == TRAIN:
            self._end_trainer(number, int(who), outcome)
        elif kind == EVALUATE:
            self._judges.discard(name)
            self._metrics[name] = outcome.metrics if is_done else {}
            self._save_when_all_is_measured()
        elif not is_done:
            self._is_saved = False if kind == SAVE else None
            self._decide(_blamed(name, _REASONS[kind].format(self.plan.of(number)), outcome))
        elif kind == DATA:
            self._have_data()
        elif kind == AVERAGE:
            self._end_round(number, outcome.metrics)
        else:
            self._is_saved = True
            self._decide(Outcome(Verdict.DONE, self._summary(), metrics=self._winners_metrics()))

    def _decide(self, outcome: Outcome) -> None:
        self._outcome = self._outcome or outcome

    def _have_data(self) -> None:
        self._waits_for_data = False
        if not self._has_begun:
            self._has_begun = True
            self._ready.extend(self.plan.trainers(1))

    def _end_trainer(self, number: int, index: int, outcome: Outcome) -> None:
        this = self._rounds.setdefault(number, _Round())
        if outcome.verdict is Verdict.DONE:
            this.done.add(index)
        else:
            this.missing[index] = outcome
        if len(this.done) + len(this.missing) < self.plan.slots:
            return
        if len(this.done) < self.plan.least:
            self._decide(self._short(number))
            return
        done = self._done(number)
        self._ready.append(f"{AVERAGE}-{number}")
        self._judge(self.plan.judges(number, done)[: len(done)])

    def _end_round(self, number: int, metrics: Mapping[str, float]) -> None:
        done = self._done(number)
        self._rounds.setdefault(number, _Round()).diverged = {index for index in done if f"left_out_{index}" in metrics}
        self._judge(self.plan.judges(number, done)[len(done) :])
        if number < self.plan.rounds:
            self._ready.extend(self.plan.trainers(number + 1))
        else:
            self._is_averaged = True
            self._save_when_all_is_measured()

    def _judge(self, names: Iterable[str]) -> None:
        for name in names:
            self._judges.add(name)
            self._ready.append(name)

    def _save_when_all_is_measured(self) -> None:
        if self._is_averaged and not self._judges:
            self._ready.append(SAVE)

    # ---- what becomes of it

    def _done(self, number: int) -> list[int]:
        """The trainers of that round which have a model to give."""
        return sorted(self._rounds.get(number, _Round()).done)

    def _short(self, number: int) -> Outcome:
        missing = sorted(self._rounds[number].missing.items())
        index, first = min(missing, key=lambda each: each[1].verdict not in _CLOSED)
        needed = "1 is needed" if self.plan.least == 1 else f"{self.plan.least} are needed"
        why = (
            f"{len(self._done(number))} of {self.plan.slots} trainers{self.plan.of(number)} came to their end, "
            f"and {needed}. The first that did not:"
        )
        return _blamed(f"{TRAIN}-{number}-{index}", why, first)

    def _summary(self) -> str:
        left_out = [
            f"trainer {index}{self.plan.of(number)}" for number in sorted(self._rounds) for index in self._left(number)
        ]
        return f"Left out: {', '.join(left_out)}." if left_out else ""

    def _left(self, number: int) -> list[int]:
        return self._rounds[number].left_out

    # ---- who won

    def scores(self) -> list[Score]:
        """What was evaluated, in the order of the table: round by round each model, the average, the ensemble."""
        names = [name for number in sorted(self._rounds) for name in self.plan.judges(number, self._done(number))]
        found = []
        for name in names:
            _, number, who = _parts(name)
            found.append(Score(number, who, self.plan.subject(number, who), self._metrics.get(name, {})))
        return found

    def report(self) -> Mapping[str, Any] | None:
        if self._is_saved is None:
            return None
        scores, kept = self.scores(), self._kept()
        unnamed = [UNNAMED] if self.plan.evaluated and not winner(scores) else []
        final = self.plan.final if self._is_saved else kept
        return report(scores, self._best(scores), kept, final, [*unnamed, *filter(None, [self._summary()])])

    def _best(self, scores: Iterable[Score]) -> Score | None:
        """What is kept instead of the last average; an ensemble is no file that could be."""
        return winner([score for score in scores if score.who != ENSEMBLE]) if self.plan.best else None

    def _kept(self) -> str:
        best = self._best(self.scores()) if self.plan.best else None
        return best.path if best else self.plan.averaged(self.plan.rounds)

    def _winners_metrics(self) -> Mapping[str, float]:
        kept = self._kept()
        return next((score.metrics for score in self.scores() if score.path == kept), {})


_REASONS = {
    DATA: "The data could not be prepared.",
    AVERAGE: "The models{} could not be averaged.",
    SAVE: "The final model could not be saved.",
}
"""What it means if a task fails that nothing goes on without."""


def _parts(name: str) -> tuple[str, int, str]:
    """train-2-1: train, 2, 1"""
    kind, number, who = [*name.split("-"), "", ""][:3]
    return kind, int(number or 0), who


def _blamed(task: str, why: str, outcome: Outcome) -> Outcome:
    """A run that was stopped, or ran out of time, did not end for any other reason."""
    if outcome.verdict in _CLOSED:
        return outcome
    return replace(outcome, reason=f"{why} {outcome.reason}", metrics={}, task=task)
