"""pumasi show: everything about a run, for people in blocks, for programs in JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from pumasi.cli.grammar import JSON, RUNS, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import where_options
from pumasi.cli.runs import absence_of, command_of, find_run, open_store, times_of
from pumasi.cli.view import sentences
from pumasi.cli.view.board import Board, replayed
from pumasi.cli.view.output import STATE_COLOURS, columns, paint, show, show_json
from pumasi.cli.view.sentences import report_lines
from pumasi.cli.view.text import age, count, finite, notable, table, with_finite_metrics
from pumasi.core.person import Person
from pumasi.core.printable import clean
from pumasi.pools import pool_of
from pumasi.store import EventRow, RunRecord, Store

VERB = Verb(
    name="show",
    usage=("pumasi show [RUN] [options]",),
    about="Tells everything about a run: what was asked for, where it ran, what happened when, how it ended.",
    options=(*where_options(), JSON),
    takes=(0, 1),
    completes=RUNS,
    examples=(("pumasi show", "the last run"), ("pumasi show train-x7 --json", "")),
)
_TOLD_APART = ("command", "workdir", "name", "slots", "framework", "nodes", "on", "namespace", "env")


def main(arguments: Arguments) -> int:
    store = open_store()
    record = find_run(store, arguments, output=True)
    events = store.events(record.id)
    if arguments.has("json"):
        show_json(_described(store, record, events))
        return 0
    board = replayed(events)
    for rank, values in store.last_metrics(record.id).items():
        if rank in board.ranks:
            board.ranks[rank].values = values
    show(_heading(record, events))
    show(_facts(store, record))
    show(_outcome(record, events))
    show(_absence(store, record))
    show(_reported(events))
    show(_ranks(board))
    show(_happened(events))
    return 0


def _described(store: Store, record: RunRecord, events: Sequence[EventRow]) -> dict[str, Any]:
    last = store.last_metrics(record.id)
    return {
        **record._asdict(),
        "outcome": record.outcome and with_finite_metrics(record.outcome),
        "folder": str(store.folder(record.id)),
        "metrics": {rank: {name: finite(value) for name, value in row.items()} for rank, row in last.items()},
        "events": [{"at": event.at, "event": event.kind, **event.data} for event in events],
    }


def _reported(events: Sequence[EventRow]) -> list[str]:
    told = [event.data for event in events if event.kind == "report"]
    return ["", *report_lines(told[-1])] if told else []


def _heading(record: RunRecord, events: Sequence[EventRow]) -> list[str]:
    state = paint(record.state, STATE_COLOURS.get(record.state, ""), sys.stdout)
    took = f", {sentences.time_words(*times_of(record, events))}" if record.started else ""
    return [f"{paint(record.id, 'bold', sys.stdout)}  {state}{took}", ""]


def _facts(store: Store, record: RunRecord) -> list[str]:
    facts = {
        "command": command_of(record),
        "by": str(Person(record.user, record.host)) if record.user else "",
        "in": str(record.spec.get("workdir", "")),
        "on": pool_of(record).place_words(record),
        "slots": _placed(record),
        "framework": record.framework,
        "attempt": f"{record.attempt} (the first is 0)" if record.attempt else "",
        "options": _options(record),
        "begun": _when(record.created),
        "ended": _when(record.ended) if record.ended else "",
        "exit code": "" if record.exit_code is None else str(record.exit_code),
        "files": str(store.folder(record.id)),
    }
    return [f"  {name:<11}{clean(value)}" for name, value in facts.items() if value]


def _placed(record: RunRecord) -> str:
    if len(record.placement) > 1:
        shares = ", ".join(f"{share} on {node}" for node, share in record.placement.items())
        return f"{record.spec.get('slots', 1)}: {shares}"
    return str(record.spec.get("slots", 1))


def _options(record: RunRecord) -> str:
    """The options that are not as they would be by themselves; values of the environment are nobody's business."""
    from pumasi.core.spec import DEFAULTS

    changed = {
        name: value
        for name, value in record.spec.items()
        if name not in _TOLD_APART and name in DEFAULTS and value != DEFAULTS[name]
    }
    names: Any = record.spec.get("env") or {}
    return ", ".join(
        [*(f"{name} {_plain(value)}" for name, value in changed.items()), *(f"env {name}" for name in names)]
    )


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _when(at: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} ({age(time.time() - at)} ago)"


def _outcome(record: RunRecord, events: Sequence[EventRow]) -> list[str]:
    if record.outcome is None:
        return []
    told: dict[str, Any] = {"verdict": record.state, **record.outcome}
    took, waited = times_of(record, events)
    line = sentences.end_line(record.id, told, took, {}, waited=waited)
    return ["", line, *(f"  {part}" for part in sentences.end_details(record.id, told, None, has_metrics=True))]


def _absence(store: Store, record: RunRecord) -> list[str]:
    words = absence_of(store, record)
    return ["", words[0], *(f"  {part}" for part in words[1:])] if words else []


def _ranks(board: Board) -> list[str]:
    if not board.ranks:
        return []
    rows = [
        (str(rank), row.node, row.role, row.state, notable(row.values, most=6))
        for rank, row in sorted(board.ranks.items())
    ]
    return ["", *table(("rank", "node", "role", "state", "last metrics"), rows, columns(), right=(0,))]


def _happened(events: Sequence[EventRow]) -> list[str]:
    lines = []
    for event in events:
        time_of_day = time.strftime("%H:%M:%S", time.localtime(event.at))
        if told := _event_line(event):
            lines.append(f"  {time_of_day}  {clean(told)}")
    return ["", f"{count(len(lines), 'event')}:", *lines] if lines else []


def _event_line(event: EventRow) -> str:
    data: dict[str, Any] = event.data
    if event.kind == "finished":
        return f"{data.get('verdict')}: {data.get('reason') or ''}".rstrip(": ")
    if event.kind == "flow":
        return sentences.flow_line("", data)
    if event.kind == "report":
        return ""
    if "task" in data:
        return _task_line(event.kind, data)
    if event.kind == "planned":
        return f"planned: {sentences.plan_line('', data)}"
    if event.kind == "rank ended":
        return f"rank {data.get('rank')} ended: {_end(data)}"
    if event.kind == "starting":
        return f"starting attempt {data.get('attempt', 0)}"
    return sentences.phase_line(event.kind, data) or event.kind


def _task_line(kind: str, data: dict[str, Any]) -> str:
    """Of one of several tasks: where it starts, how it ends, and what went wrong on the way."""
    if kind == "planned":
        return f"{data['task']}: {sentences.where(data)}"
    if kind == "task ended":
        return sentences.task_end(data)
    return sentences.phase_line(kind, data)


def _end(data: dict[str, object]) -> str:
    return str(data["signal"]) if data.get("signal") else f"exit code {data.get('code')}"
