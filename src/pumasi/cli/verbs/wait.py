"""pumasi wait: until a run ends."""

from __future__ import annotations

from typing import Any

from pumasi.cli.grammar import JSON, RUNS, WHERE, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import absence_of, find_run, open_store, times_of
from pumasi.cli.view import sentences
from pumasi.cli.view.output import say, show_json
from pumasi.cli.view.text import with_finite_metrics
from pumasi.core.events import finished
from pumasi.errors import SpecError, UsageError

VERB = Verb(
    name="wait",
    usage=("pumasi wait [RUN] [options]",),
    about="""Waits until a run ends, and ends with the exit code that the run ended with; with 4 when the run has not
    ended in time. The run does not mind either way.""",
    options=(Option(("--timeout",), "wait at most so long: 90, 15m, 2h", "TIME"), *WHERE, JSON),
    takes=(0, 1),
    completes=RUNS,
    examples=(
        ("pumasi run -d train.py; pumasi wait && echo trained", ""),
        ("pumasi wait train-x7k2p --timeout 2h", ""),
    ),
)
_NOT_IN_TIME = 4


def main(arguments: Arguments) -> int:
    from pumasi.runs.control import wait

    limit = arguments.last("timeout")
    timeout = None if limit is None else _seconds(limit)
    store = open_store()
    record = find_run(store, arguments, running_first=True)
    if words := absence_of(store, record):
        say(*words)
    try:
        record = wait(store, record.id, timeout)
    except TimeoutError as error:
        say(str(error), f"Watch it: pumasi attach {record.id}")
        return _NOT_IN_TIME
    told: dict[str, Any] = {"verdict": record.state, **(record.outcome or {})}
    if arguments.has("json"):
        show_json({"run": record.id, "exit_code": record.exit_code, **with_finite_metrics(told)})
        return record.exit_code or 0
    metrics = next(iter(store.last_metrics(record.id).values()), {})
    took, waited = times_of(record, store.events(record.id))
    end = finished(told)
    say(sentences.end_line(record.id, end, took, metrics, waited=waited), *sentences.fetching(record.id, end))
    return record.exit_code or 0


def _seconds(text: str) -> float:
    from pumasi.core.fields import parse_duration

    try:
        return parse_duration(text)
    except SpecError as error:
        raise UsageError(
            f"--timeout takes a time; '{text}' is none.", "Write --timeout 90 or --timeout 15m."
        ) from error
