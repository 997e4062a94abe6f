"""What was evaluated, who won, and how that is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any, NamedTuple

from pumasi.core.flows.average.plan import AVERAGE, ENSEMBLE
from pumasi.core.noted import importance

SCORES = (("accuracy", 1), ("acc", 1), ("auc", 1), ("f1", 1), ("loss", -1))
"""What names a winner, the first that there is, and whether more of it is better."""
UNNAMED = f"No best is named: no evaluation printed {', '.join(name for name, _ in SCORES)}, as in: accuracy: 0.93"


class Score(NamedTuple):
    """What an evaluation told of one model, of the average or of the ensemble of a round."""

    round: int
    who: str
    path: str
    metrics: Mapping[str, float]


def winner(scores: Sequence[Score]) -> Score | None:
    """By the first of SCORES that any of them has; of equals the first."""
    for name, sign in SCORES:
        measured = [score for score in scores if not isnan(score.metrics.get(name, nan))]
        if measured:
            return max(measured, key=lambda score: sign * score.metrics[name])
    return None


def report(scores: Sequence[Score], best: Score | None, kept: str, final: str, remarks: list[str]) -> dict[str, Any]:
    won = winner(scores)
    which = f" ({_model(best.who)} of round {best.round})" if best else ""
    return {
        "scores": [{**_named(score), "metrics": dict(score.metrics)} for score in scores],
        "winner": _named(won) if won else None,
        "best": _named(best) if best else None,
        "kept": kept,
        "final": final,
        "remarks": remarks,
        "headline": f"The final model: {final}{which}",
        "table": _table(scores, won),
    }


def _table(scores: Sequence[Score], won: Score | None) -> dict[str, Any] | None:
    names = sorted({name for score in scores for name in score.metrics}, key=importance)
    rows = [
        [score.round, _model(score.who), *map(score.metrics.get, names), "◄ best" if score is won else ""]
        for score in scores
    ]
    return {"columns": ["round", "model", *names, ""], "rows": rows} if names else None


def _named(score: Score) -> dict[str, Any]:
    return {"round": score.round, "model": score.who}


def _model(who: str) -> str:
    return {AVERAGE: "the average", ENSEMBLE: "the ensemble"}.get(who, f"model {who}")
