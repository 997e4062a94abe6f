"""Copies that train apart and are averaged: which task comes when, what each is told, and what becomes of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.core.flows import MAIN, Task
from pumasi.core.flows.average.flow import Average
from pumasi.core.flows.average.plan import SUFFIXES, Plan, suffix_of, without_suffix
from pumasi.core.flows.average.report import Score, winner
from pumasi.core.outcome import Outcome, Verdict
from pumasi.errors import SpecError
from pumasi.models import formats

DONE = Outcome(Verdict.DONE)
FAILED = Outcome(Verdict.FAILED, "Rank 0 failed, with exit code 1.", "Look.", rank=0, code=1)
FLOW = Plan(slots=3, rounds=2, folder="/run", suffix=".h5", data="reviews.npz", evaluated=True, least=2)
PLAIN = replace(FLOW, data=None, evaluated=False)


def done(*names: str, **metrics: float) -> dict[str, Outcome]:
    return dict.fromkeys(names, Outcome(Verdict.DONE, metrics=metrics))


def told(plan: Plan, ended: Mapping[str, Outcome]) -> Average:
    """A run in which these have ended."""
    flow = Average(plan)
    for name, outcome in ended.items():
        flow.ended(name, outcome)
    return flow


def pulled(flow: Average) -> list[Task]:
    """All that it gives before something else ends."""
    return list(iter(flow.next, None))


def fresh(plan: Plan, ended: Mapping[str, Outcome]) -> list[str]:
    return [task.name for task in pulled(told(plan, ended)) if task.name not in ended]


def work(plan: Plan, name: str, ended: Mapping[str, Outcome], attempt: int = 0) -> Task:
    flow = told(plan, ended)
    return flow.attempt(flow.task(name), attempt)


def outcome_of(plan: Plan, ended: Mapping[str, Outcome]) -> Outcome | None:
    return told(plan, ended).outcome()


def report_of(plan: Plan, ended: Mapping[str, Outcome]) -> Mapping[str, Any] | None:
    return told(plan, ended).report()


def scores_of(plan: Plan, ended: Mapping[str, Outcome]) -> list[Score]:
    return told(plan, ended).scores()


def play(plan: Plan, bad: Mapping[str, Outcome] = {}) -> dict[str, Outcome]:
    """Every task ends well, but those in `bad`; to the end."""
    flow, ended = Average(plan), dict[str, Outcome]()
    while flow.outcome() is None:
        tasks = pulled(flow)
        assert tasks, f"nothing is left to do after {ended}"
        for task in tasks:
            ended[task.name] = bad.get(task.name, DONE)
            flow.ended(task.name, ended[task.name])
    return ended


def test_trainers_wait_for_their_data_and_the_average_for_all_trainers() -> None:
    assert fresh(FLOW, {}) == ["data"]
    ended = done("data")
    assert fresh(FLOW, ended) == ["train-1-0", "train-1-1", "train-1-2"]
    ended |= done("train-1-0", "train-1-1")
    assert fresh(FLOW, ended) == ["train-1-2"]
    ended |= done("train-1-2")
    assert fresh(FLOW, ended) == ["average-1", "evaluate-1-0", "evaluate-1-1", "evaluate-1-2"]


def test_the_next_round_starts_from_the_average_and_waits_for_no_evaluation() -> None:
    ended = done("data", *FLOW.trainers(1), "average-1")
    assert fresh(FLOW, ended)[-5:] == [
        *("evaluate-1-average", "evaluate-1-ensemble"),
        *("train-2-0", "train-2-1", "train-2-2"),
    ]
    first, second = work(FLOW, "train-1-1", ended), work(FLOW, "train-2-1", ended)
    assert first.values["init"] == ""
    assert second.values["init"] == "/run/round-1/average.h5" == FLOW.averaged(1)
    assert work(replace(FLOW, init="start.h5"), "train-1-1", ended).values["init"] == "start.h5"


def test_the_last_model_is_saved_when_everything_has_been_measured() -> None:
    ended = play(PLAIN)
    assert list(ended)[-2:] == ["average-2", "save"]
    assert work(PLAIN, "save", ended).arguments == ("/run/round-2/average.h5", "--output", "/run/final.h5")
    ended = play(FLOW)
    assert list(ended)[-1] == "save"
    assert outcome_of(FLOW, ended) == Outcome(Verdict.DONE)


def test_a_trainer_is_told_its_part_its_model_and_its_place() -> None:
    asked = work(replace(FLOW, values={"epoch": "3"}), "train-2-1", {}, attempt=4)
    assert (asked.program, asked.slots, asked.env) == (MAIN, 1, {"WORKER_NUMBER": "3"})
    assert asked.values == {
        "epoch": "3",
        "shard": "/run/data/1.npz",
        "model": "/run/round-2/attempts/1-4/1-model.h5",
        "init": "/run/round-1/average.h5",
        "index": "1",
        "round": "2",
        "slots": "3",
    }


def test_only_the_model_of_an_attempt_that_came_to_its_end_is_where_models_are_read() -> None:
    asked = work(FLOW, "train-2-1", {}, attempt=4)
    assert asked.makes == (asked.values["model"], FLOW.model(2, 1))
    assert work(FLOW, "evaluate-2-1", {}).values["model"] == FLOW.model(2, 1)
    assert FLOW.model(2, 1) in work(FLOW, "average-2", done(*FLOW.trainers(2))).arguments


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("evaluate-1-2", "/run/round-1/model/2-model.h5"),
        ("evaluate-1-average", "/run/round-1/average.h5"),
        ("evaluate-2-ensemble", "/run/round-2/model"),
    ],
)
def test_a_model_the_average_and_all_models_together_are_measured(task: str, model: str) -> None:
    assert work(FLOW, task, {}).values["model"] == model


def test_a_trainer_that_failed_is_left_out_and_named_and_the_next_round_has_all_again() -> None:
    ended = play(FLOW, {"train-1-1": FAILED})
    assert "evaluate-1-1" not in ended
    assert "train-2-1" in ended
    models = work(FLOW, "average-1", ended).arguments[:2]
    assert models == ("/run/round-1/model/0-model.h5", "/run/round-1/model/2-model.h5")
    outcome = outcome_of(FLOW, ended)
    assert outcome is not None
    assert (outcome.verdict, outcome.reason) == (Verdict.DONE, "Left out: trainer 1 of round 1.")
    report = report_of(FLOW, ended)
    assert report is not None
    assert report["remarks"][-1] == outcome.reason


def test_models_count_by_the_samples_that_they_have_seen_where_the_data_was_divided() -> None:
    assert work(FLOW, "average-1", done(*FLOW.trainers(1))).arguments[-2:] == ("--samples", "/run/data")
    assert "--samples" not in work(PLAIN, "average-1", done(*PLAIN.trainers(1))).arguments


def test_too_few_models_end_the_run_with_the_first_reason() -> None:
    ended = play(FLOW, {"train-2-0": FAILED, "train-2-2": FAILED})
    outcome = outcome_of(FLOW, ended)
    assert outcome is not None
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == (
        "1 of 3 trainers of round 2 came to their end, and 2 are needed. "
        "The first that did not: Rank 0 failed, with exit code 1."
    )
    assert fresh(FLOW, ended) == []


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("data", "The data could not be prepared."),
        ("average-2", "The models of round 2 could not be averaged."),
        ("save", "The final model could not be saved."),
    ],
)
def test_what_nothing_goes_on_without_ends_the_run_with_its_reason(task: str, said: str) -> None:
    outcome = outcome_of(FLOW, play(FLOW, {task: FAILED}))
    assert outcome == replace(FAILED, reason=f"{said} {FAILED.reason}", task=task)


@pytest.mark.parametrize("task", ["data", "train-1-0", "average-1", "save"])
def test_a_run_that_was_stopped_ended_for_no_other_reason(task: str) -> None:
    stopped = Outcome(Verdict.STOPPED, "Stopped on request.")
    assert outcome_of(replace(FLOW, least=3), play(replace(FLOW, least=3), {task: stopped})) == stopped
    before = {"train-1-0": FAILED, "train-1-1": stopped, "train-1-2": stopped}
    assert outcome_of(FLOW, play(FLOW, before)) == stopped


def test_only_trainers_are_tried_again_unless_a_machine_was_lost() -> None:
    for task in ("data", "average-1", "evaluate-1-0", "save"):
        assert work(FLOW, task, {}).tries_again == {Verdict.LOST}
    assert work(FLOW, "train-1-0", {}).tries_again == {Verdict.LOST, Verdict.FAILED}
    assert work(FLOW, "train-1-0", {}).restarts == 1


def test_a_run_that_goes_on_after_a_break_looks_at_its_data_again_before_anything_else() -> None:
    flow = Average(FLOW)
    assert [task.name for task in pulled(flow)] == ["data"]
    flow.ended("data", DONE)
    assert flow.next() == flow.task("train-1-0")
    flow.ended("train-1-0", DONE)
    assert [task.name for task in flow.resumed()] == ["data"]
    assert flow.next() is None
    flow.ended("data", DONE)
    assert [task.name for task in pulled(flow)] == ["train-1-1", "train-1-2"]
    flow = told(FLOW, done("data"))
    assert list(flow.resumed())
    flow.ended("data", FAILED)
    assert flow.outcome() == replace(FAILED, reason=f"The data could not be prepared. {FAILED.reason}", task="data")
    assert list(told(FLOW, {}).resumed()) == list(told(PLAIN, done("train-1-0")).resumed()) == []


def test_a_result_that_could_not_be_saved_is_told_where_it_is() -> None:
    report = report_of(FLOW, play(FLOW, {"save": FAILED}))
    assert report is not None
    assert report["final"] == "/run/round-2/average.h5"


def test_an_evaluation_that_fails_costs_a_figure_and_nothing_else() -> None:
    ended = play(FLOW, {"evaluate-1-ensemble": FAILED})
    outcome = outcome_of(FLOW, ended)
    assert outcome is not None
    assert outcome.verdict is Verdict.DONE
    [row] = [score for score in scores_of(FLOW, ended) if (score.round, score.who) == (1, "ensemble")]
    assert row.metrics == {}


def test_the_table_has_each_model_the_average_and_the_ensemble_of_each_round() -> None:
    ended = play(FLOW) | done("evaluate-2-1", accuracy=0.9)
    report = report_of(FLOW, ended)
    assert report is not None
    assert [(row["round"], row["model"]) for row in report["scores"]] == [
        (number, who) for number in (1, 2) for who in ("0", "1", "2", "average", "ensemble")
    ]
    assert report["final"] == "/run/final.h5"


def scored(**accuracy: float) -> dict[str, Outcome]:
    ended = play(FLOW)
    judged = {name: Outcome(Verdict.DONE, metrics={"accuracy": 0.5}) for name in ended if name.startswith("evaluate")}
    better = {f"evaluate-{key[1:].replace('_', '-')}": value for key, value in accuracy.items()}
    return ended | judged | {name: Outcome(Verdict.DONE, metrics={"accuracy": value}) for name, value in better.items()}


def test_the_winner_is_named_and_kept_only_on_request() -> None:
    ended = scored(r1_2=0.8, r2_average=0.7)
    report = report_of(FLOW, ended)
    assert report is not None
    assert report["winner"] == {"round": 1, "model": "2"}
    assert report["kept"] == "/run/round-2/average.h5"
    best = report_of(replace(FLOW, best=True), ended)
    assert best is not None
    assert best["kept"] == "/run/round-1/model/2-model.h5"


def test_an_ensemble_may_win_but_is_no_file_that_could_be_kept() -> None:
    ended = scored(r2_ensemble=0.9, r1_average=0.8)
    report = report_of(replace(FLOW, best=True), ended)
    assert report is not None
    assert (report["winner"], report["kept"]) == ({"round": 2, "model": "ensemble"}, "/run/round-1/average.h5")


def test_less_of_a_loss_is_better_and_accuracy_comes_first() -> None:
    scores = [
        score._replace(metrics=metrics) for score, metrics in zip(scores_of(FLOW, play(FLOW)), LOSSES, strict=False)
    ]
    won = winner(scores[:2])
    assert won is scores[1]
    assert winner([score._replace(metrics={}) for score in scores]) is None


def test_that_nothing_was_measured_by_which_to_name_a_best_is_told() -> None:
    report = report_of(FLOW, play(FLOW))
    assert report is not None
    assert report["winner"] is None
    assert report["remarks"] == [
        "No best is named: no evaluation printed accuracy, acc, auc, f1, loss, as in: accuracy: 0.93"
    ]
    measured = report_of(FLOW, scored())
    assert measured is not None
    assert measured["remarks"] == []


def test_what_was_not_measured_can_not_win() -> None:
    """An evaluation that understands no folder fails for the ensemble; a model that diverged has no loss."""
    scores = scores_of(FLOW, play(FLOW))[:3]
    measures: list[dict[str, float]] = [{}, {"loss": float("nan")}, {"loss": 0.3}]
    scores = [score._replace(metrics=metrics) for score, metrics in zip(scores, measures, strict=True)]
    assert winner(scores) is scores[2]


LOSSES = ({"loss": 0.3}, {"loss": 0.2, "accuracy": 0.5})


@given(st.sets(st.sampled_from(sorted({*FLOW.trainers(1), *FLOW.trainers(2)}))))
def test_whichever_trainers_fail_the_run_comes_to_an_end(names: set[str]) -> None:
    ended = play(FLOW, dict.fromkeys(names, FAILED))
    outcome = outcome_of(FLOW, ended)
    assert outcome is not None
    most = max(sum(name in names for name in FLOW.trainers(number)) for number in (1, 2))
    assert (outcome.verdict is Verdict.DONE) == (3 - most >= FLOW.least)


def test_what_stands_after_the_model_is_the_suffix_of_its_file() -> None:
    assert suffix_of(["train.py", "--savemodel", "{model}"]) == ".h5"
    assert suffix_of(["train.py", "--savemodel={model}.weights.h5"]) == ".weights.h5"
    assert without_suffix(["--out={model}.pt", "x.pt"], ".pt") == ("--out={model}", "x.pt")
    assert suffix_of(["--log", "{model}.log", "--out", "{model}"]) == ".h5"
    assert suffix_of(["--about", "{model}.pt.json"]) == ".pt"
    with pytest.raises(SpecError, match=r"\{model\}\.ptx is of no format that can be averaged"):
        suffix_of(["{model}.ptx"])


def test_what_can_be_averaged_is_what_models_can_be() -> None:
    assert {f".{suffix.rpartition('.')[2]}" for suffix in SUFFIXES} == set(formats.SUFFIXES)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ("reviews.npz", "1.npz"),
        ("DATA.CSV", "1.csv"),
        ("imdb.v2", "1"),
        ("films", "1"),
        ("a.b/rows.parquet", "1.parquet"),
    ],
)
def test_a_part_is_called_as_it_will_be(data: str, part: str) -> None:
    values = work(replace(FLOW, data=data), "train-1-1", done("data")).values
    assert values["shard"] == f"/run/data/{part}"
