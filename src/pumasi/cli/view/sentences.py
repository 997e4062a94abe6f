"""What Pumasi says about a run: the plan at once, the phases, and at the end how it went and what to do next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli.view.text import aligned, count, duration, notable, table
from pumasi.core import events

if TYPE_CHECKING:
    from pumasi.core.events import Event
    from pumasi.pools.kubernetes.pod_facts import Refusal

_VERDICTS = {
    "done": "is done",
    "failed": "failed",
    "lost": "was lost",
    "timed out": "timed out",
    "stopped": "was stopped",
}

_NOTED_WAIT = 2.0
"""Seconds from which on a wait is worth a word: every start takes a moment."""


def plan_line(run: str, event: events.Planned) -> str:
    """train-x7k2p · 4 slots on this machine · torch (train.py imports torch) · python 3.11 (.venv)"""
    parts = [run, where(event), _framework(event), _gpus(event), _interpreter(event.python), event.packages]
    return " · ".join(part for part in parts if part)


def flow_line(run: str, event: events.FlowBegun) -> str:
    """imdb-x7k2p · 5 trainers apart, 4 rounds of averaging · jax (train.py imports keras)"""
    where = "" if event.on == "local" else f"on {event.on}"
    return " · ".join(part for part in (run, event.title, where, _framework(event)) if part)


def report_lines(data: Mapping[str, Any]) -> list[str]:
    """What the flow of a run has to show at its end; see `Flow.report`."""
    headline = data.get("headline") or (f"The result: {data['final']}" if data.get("final") else "")
    return [*([headline] if headline else []), *_table(data.get("table") or {}), *data.get("remarks", ())]


def _table(told: Mapping[str, Any]) -> list[str]:
    heads, rows = told.get("columns", ()), told.get("rows", ())
    if not rows:
        return []
    columns = list(zip(*rows, strict=True))
    right = [index for index, column in enumerate(columns) if not any(isinstance(cell, str) for cell in column)]
    texts = [aligned(column) if index in right else column for index, column in enumerate(columns)]
    return table(heads, zip(*texts, strict=True), 10**6, right=right)


def where(event: events.Planned) -> str:
    slots = count(sum(event.placement.values()), "slot")
    if event.unplaced:
        return f"{slots}, wherever the cluster's scheduler puts them"
    if len(event.placement) < 2:
        return f"{slots} on {event.chief if event.on != 'local' else 'this machine'}"
    shares = ", ".join(f"{share} on {node}" for node, share in event.placement.items())
    return f"{slots}: {shares}; the chief on {event.chief}" if event.chief else f"{slots}: {shares}"


def _framework(event: events.Planned | events.FlowBegun) -> str:
    if event.framework in ("", "none"):
        return event.because
    return f"{event.framework} ({event.because})" if event.because else event.framework


def _interpreter(path: str) -> str:
    """python (.venv) for one that is in an environment; all others as they are."""
    folder, _, name = path.rpartition("/bin/")
    environment = folder.rpartition("/")[2]
    if not name.startswith("python") or environment in ("", "usr", "local"):
        return path
    return f"{name} ({environment})"


def _gpus(event: events.Planned) -> str:
    gpus = [gpu for ids in event.gpus.values() for gpu in ids]
    if not gpus:
        return ""
    seen = {"own": ", each rank sees its own", "all": ", each rank sees all"}.get(event.see_gpus, "")
    return count(len(gpus), "GPU") + (seen if len(gpus) > 1 else "")


def phase_line(event: Event) -> str:
    """A sentence for an event that a user should see as it happens; empty for the others."""
    match event:
        case events.Note():
            return event.text
        case events.Waiting():
            return f"{_task(event)}{waiting_words(event.reason)}"
        case events.TaskEnded():
            return task_end(event) if event.verdict in ("failed", "lost") else ""
        case events.Running(task=None):
            ranks = len(event.ranks)
            return "running" if ranks == 1 else f"running: {ranks} processes"
        case events.Restarting():
            return f"{_task(event)}starting again (attempt {event.attempt}): {event.reason}"
        case events.Gap():
            lost = f"{count(event.lines, 'line')} of rank {event.rank}"
            return f"{lost} were lost: the log went faster than it was read"
        case events.StopAsked():
            return f"{event.by} asked to stop it"
        case events.Ending():
            return f"{_task(event)}ending: {event.why}" if event.why else f"{_task(event)}ending"
    return ""


def waiting_words(reason: str) -> str:
    """waiting for 5 GPUs: …, or the sentence that says why."""
    return f"waiting {reason}" if reason.startswith("for ") else f"waiting: {reason}"


def task_end(event: events.TaskEnded) -> str:
    """train-1-2 failed: The program …"""
    said = f"{event.task} {_VERDICTS.get(event.verdict, event.verdict)}"
    return said if event.verdict == "done" else f"{said}: {event.reason}"


def _task(event: events.Waiting | events.Restarting | events.Ending) -> str:
    return f"{event.task}: " if event.task else ""


def absence_words(run: str, why: Refusal) -> list[str]:
    """For a run whose manager is not there."""
    return [f"{run} has no manager: {why.reason}", *([why.hint] if why.hint else [])]


def left_words(run: str) -> list[str]:
    """For a run that goes on without the one who watched it, and how to return to it."""
    return [f"{run} goes on in the background.", f"pumasi attach {run}", f"pumasi stop {run}"]


def end_line(
    run: str, end: events.Finished, elapsed: float, metrics: Mapping[str, float], *, waited: float = 0.0
) -> str:
    """One sentence about the outcome."""
    said = f"{run} {_VERDICTS.get(end.verdict, end.verdict)} after {time_words(elapsed, waited)}"
    if end.verdict == "done":
        noted = notable(metrics)
        return f"{said} · {noted}" if noted else f"{said}."
    return f"{said}: {end.reason}" if end.reason else f"{said}."


def time_words(elapsed: float, waited: float) -> str:
    """6.1 s · 6.1 s (waited 40 s): before its processes ran for the first time"""
    return duration(elapsed) + (f" (waited {duration(waited)})" if waited >= _NOTED_WAIT else "")


def end_details(run: str, end: events.Finished, words: Sequence[str] | None, has_metrics: bool) -> list[str]:
    """What stands below the sentence: the last lines of the rank that failed first, what to do, the next commands."""
    tail = [f"| {line}" for line in end.tail]
    hint = [end.hint] if end.hint else []
    return [*tail, *hint, *next_commands(run, end, words, has_metrics), *fetching(run, end)]


def fetching(run: str, end: events.Finished) -> list[str]:
    """How to have what it left on a volume, if it did."""
    if not end.result:
        return []
    from pumasi.cli.fetching import fetch_lines

    return fetch_lines(run, end.result)


def next_commands(run: str, end: events.Finished, words: Sequence[str] | None, has_metrics: bool) -> list[str]:
    """The two commands that one would want next. `words` are those that `pumasi run` was started with."""
    which = f" --rank {end.rank}" if end.rank is not None else ""
    which = f" --task {end.task}" if end.task else which
    logs = f"pumasi logs {run}{which}"
    if end.verdict == "done":
        return [logs, f"pumasi metrics {run}" if has_metrics else f"pumasi show {run}"]
    has_culprit = end.rank is not None or end.node is not None
    may_help = end.verdict == "lost" and has_culprit and end.cause != "oom"
    if may_help and not end.task and words is not None and "--restarts" not in words:
        return [logs, f"pumasi run --restarts 3 {shlex.join(words)}"]
    return [logs, f"pumasi show {run}"]
