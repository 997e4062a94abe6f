"""What Pumasi says about a run: the plan at once, the phases, and at the end how it went and what to do next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli.view.text import aligned, count, duration, importance, notable, table
from pumasi.registry import DEFAULT_POOL

if TYPE_CHECKING:
    from pumasi.pools.pool import Absence

_VERDICTS = {
    "done": "is done",
    "failed": "failed",
    "lost": "was lost",
    "timed out": "timed out",
    "stopped": "was stopped",
}

_NOTED_WAIT = 2.0
"""Seconds from which on a wait is worth a word: every start takes a moment."""


def plan_line(run: str, data: Mapping[str, Any]) -> str:
    """train-x7k2p · 4 slots on this machine · torch (train.py imports torch) · python 3.11 (.venv)"""
    parts = [run, where(data), _framework(data), _gpus(data)]
    parts += [_interpreter(str(data.get("python") or "")), str(data.get("packages") or "")]
    return " · ".join(part for part in parts if part)


def flow_line(run: str, data: Mapping[str, Any]) -> str:
    """imdb-x7k2p · 5 trainers apart, 4 rounds of averaging · jax (train.py imports keras)"""
    where = "" if data.get("on", DEFAULT_POOL) == DEFAULT_POOL else f"on {data['on']}"
    return " · ".join(part for part in (run, str(data["title"]), where, _framework(data)) if part)


def report_lines(data: Mapping[str, Any]) -> list[str]:
    """What was evaluated, side by side, and where the result is."""
    scores, won = data["scores"], data.get("winner")
    names = sorted({name for score in scores for name in score["metrics"]}, key=importance)
    columns = [aligned([score["metrics"].get(name) for score in scores]) for name in names]
    rows = [
        (
            str(score["round"]),
            _model(score["model"]),
            *figures,
            "◄ best" if won == {"round": score["round"], "model": score["model"]} else "",
        )
        for score, *figures in zip(scores, *columns, strict=True)
    ]
    best = data.get("best")
    which = f" ({_model(best['model'])} of round {best['round']})" if best else ""
    lines = [f"The final model: {data['final']}{which}"]
    if names:
        lines += table(("round", "model", *names, ""), rows, 10**6, right=(0, *range(2, 2 + len(names))))
    return [*lines, *data.get("remarks", ())]


def _model(who: str) -> str:
    return _MODELS.get(who, f"model {who}")


_MODELS = {"average": "the average", "ensemble": "the ensemble"}


def where(data: Mapping[str, Any]) -> str:
    placement, chief = data.get("placement") or {}, data.get("chief")
    slots = count(sum(placement.values()), "slot")
    if data.get("unplaced"):
        return f"{slots}, wherever the cluster's scheduler puts them"
    if len(placement) < 2:
        return f"{slots} on {chief if data.get('on', 'local') != 'local' else 'this machine'}"
    shares = ", ".join(f"{share} on {node}" for node, share in placement.items())
    return f"{slots}: {shares}; the chief on {chief}" if chief else f"{slots}: {shares}"


def _framework(data: Mapping[str, Any]) -> str:
    framework, because = data.get("framework") or "", data.get("because") or ""
    if framework in ("", "none"):
        return str(because)
    return f"{framework} ({because})" if because else str(framework)


def _interpreter(path: str) -> str:
    """python (.venv) for one that is in an environment; all others as they are."""
    folder, _, name = path.rpartition("/bin/")
    environment = folder.rpartition("/")[2]
    if not name.startswith("python") or environment in ("", "usr", "local"):
        return path
    return f"{name} ({environment})"


def _gpus(data: Mapping[str, Any]) -> str:
    gpus = [gpu for ids in (data.get("gpus") or {}).values() for gpu in ids]
    if not gpus:
        return ""
    seen = {"own": ", each rank sees its own", "all": ", each rank sees all"}.get(str(data.get("see_gpus")), "")
    return count(len(gpus), "GPU") + (seen if len(gpus) > 1 else "")


def phase_line(kind: str, data: Mapping[str, Any]) -> str:
    """A sentence for an event that a user should see as it happens; empty for the others."""
    if kind == "note":
        return str(data["text"])
    if kind == "waiting":
        return f"{_task(data)}{waiting_words(str(data['reason']))}"
    if kind == "task ended":
        return task_end(data) if data["verdict"] in ("failed", "lost") else ""
    if kind == "running" and "task" in data:
        return ""
    if kind == "running":
        ranks = len(data.get("ranks", ()))
        return "running" if ranks == 1 else f"running: {ranks} processes"
    if kind == "restarting":
        return f"{_task(data)}starting again (attempt {data['attempt']}): {data['reason']}"
    if kind == "gap":
        return f"{count(data['lines'], 'line')} of rank {data['rank']} were lost: the log went faster than it was read"
    if kind == "stop asked":
        return f"{data['by']} asked to stop it"
    if kind == "ending":
        return f"{_task(data)}ending: {data['why']}" if data.get("why") else f"{_task(data)}ending"
    return ""


def waiting_words(reason: str) -> str:
    """waiting for 5 GPUs: …, or the sentence that says why."""
    return f"waiting {reason}" if reason.startswith("for ") else f"waiting: {reason}"


def task_end(data: Mapping[str, Any]) -> str:
    """train-1-2 failed: The program …"""
    verdict = data["verdict"]
    said = f"{data['task']} {_VERDICTS.get(verdict, verdict)}"
    return said if verdict == "done" else f"{said}: {data['reason']}"


def _task(data: Mapping[str, Any]) -> str:
    return f"{data['task']}: " if "task" in data else ""


def absence_words(run: str, why: Absence) -> list[str]:
    """For a run whose manager is not there."""
    return [f"{run} has no manager: {why.reason}", *([why.hint] if why.hint else [])]


def left_words(run: str) -> list[str]:
    """For a run that goes on without the one who watched it, and how to return to it."""
    return [f"{run} goes on in the background.", f"pumasi attach {run}", f"pumasi stop {run}"]


def end_line(
    run: str, data: Mapping[str, Any], elapsed: float, metrics: Mapping[str, float], *, waited: float = 0.0
) -> str:
    """One sentence about the outcome."""
    verdict = str(data["verdict"])
    said = f"{run} {_VERDICTS.get(verdict, verdict)} after {time_words(elapsed, waited)}"
    if verdict == "done":
        noted = notable(metrics)
        return f"{said} · {noted}" if noted else f"{said}."
    return f"{said}: {data['reason']}" if data.get("reason") else f"{said}."


def time_words(elapsed: float, waited: float) -> str:
    """6.1 s · 6.1 s (waited 40 s): before its processes ran for the first time"""
    return duration(elapsed) + (f" (waited {duration(waited)})" if waited >= _NOTED_WAIT else "")


def end_details(run: str, data: Mapping[str, Any], words: Sequence[str] | None, has_metrics: bool) -> list[str]:
    """What stands below the sentence: the last lines of the rank that failed first, what to do, the next commands."""
    tail = [f"| {line}" for line in data.get("tail") or ()]
    hint = [str(data["hint"])] if data.get("hint") else []
    return [*tail, *hint, *next_commands(run, data, words, has_metrics), *fetching(run, data)]


def fetching(run: str, data: Mapping[str, Any]) -> list[str]:
    """How to have what it left on a volume, if it did."""
    if not data.get("result"):
        return []
    from pumasi.pools import known_pools

    return [line for pool in known_pools() for line in pool.fetch_lines(run, data["result"])]


def next_commands(run: str, data: Mapping[str, Any], words: Sequence[str] | None, has_metrics: bool) -> list[str]:
    """The two commands that one would want next. `words` are those that `pumasi run` was started with."""
    verdict = data["verdict"]
    which = f" --rank {data['rank']}" if data.get("rank") is not None else ""
    which = f" --task {data['task']}" if data.get("task") else which
    logs = f"pumasi logs {run}{which}"
    if verdict == "done":
        return [logs, f"pumasi metrics {run}" if has_metrics else f"pumasi show {run}"]
    has_culprit = data.get("rank") is not None or data.get("node") is not None
    may_help = verdict == "lost" and has_culprit and data.get("cause") != "oom"
    if may_help and not data.get("task") and words is not None and "--restarts" not in words:
        return [logs, f"pumasi run --restarts 3 {shlex.join(words)}"]
    return [logs, f"pumasi show {run}"]
