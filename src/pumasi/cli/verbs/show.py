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
from pumasi.core import events
from pumasi.core.events import Event
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
    rows = store.events(record.id)
    if arguments.has("json"):
        show_json(_described(store, record, rows))
        return 0
    board = replayed(rows)
    for rank, values in store.last_metrics(record.id).items():
        if rank in board.ranks:
            board.ranks[rank].values = values
    show(_heading(record, rows))
    show(_facts(store, record))
    show(_outcome(record, rows))
    show(_absence(store, record))
    show(_reported(rows))
    show(_ranks(board))
    show(_happened(rows))
    return 0


def _described(store: Store, record: RunRecord, rows: Sequence[EventRow]) -> dict[str, Any]:
    last = store.last_metrics(record.id)
    return {
        **record._asdict(),
        "outcome": record.outcome and with_finite_metrics(record.outcome),
        "folder": str(store.folder(record.id)),
        "metrics": {rank: {name: finite(value) for name, value in row.items()} for rank, row in last.items()},
        "events": [{"at": row.at, "event": events.kind_of(row.event), **events.to_json(row.event)} for row in rows],
    }


def _reported(rows: Sequence[EventRow]) -> list[str]:
    told = [row.event.others for row in rows if isinstance(row.event, events.Reported)]
    return ["", *report_lines(told[-1])] if told else []


def _heading(record: RunRecord, rows: Sequence[EventRow]) -> list[str]:
    state = paint(record.state, STATE_COLOURS.get(record.state, ""), sys.stdout)
    took = f", {sentences.time_words(*times_of(record, rows))}" if record.started else ""
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
    from pumasi.catalogue import defaults

    usual = defaults(record.spec)
    changed = {
        name: value
        for name, value in record.spec.items()
        if name not in _TOLD_APART and name in usual and value != usual[name]
    }
    names: Any = record.spec.get("env") or {}
    return ", ".join(
        [*(f"{name} {_plain(value)}" for name, value in changed.items()), *(f"env {name}" for name in names)]
    )


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _when(at: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} ({age(time.time() - at)} ago)"


def _outcome(record: RunRecord, rows: Sequence[EventRow]) -> list[str]:
    if record.outcome is None:
        return []
    end = events.finished({"verdict": record.state, **record.outcome})
    took, waited = times_of(record, rows)
    line = sentences.end_line(record.id, end, took, {}, waited=waited)
    return ["", line, *(f"  {part}" for part in sentences.end_details(record.id, end, None, has_metrics=True))]


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


def _happened(rows: Sequence[EventRow]) -> list[str]:
    lines = []
    for row in rows:
        time_of_day = time.strftime("%H:%M:%S", time.localtime(row.at))
        if told := _event_line(row.event):
            lines.append(f"  {time_of_day}  {clean(told)}")
    return ["", f"{count(len(lines), 'event')}:", *lines] if lines else []


def _event_line(event: Event) -> str:
    match event:
        case events.Finished():
            return f"{event.verdict}: {event.reason}".rstrip(": ")
        case events.FlowBegun():
            return sentences.flow_line("", event)
        case events.Reported():
            return ""
        case events.Planned(task=None):
            return f"planned: {sentences.plan_line('', event)}"
        case events.Planned():
            return f"{event.task}: {sentences.where(event)}"
        case events.TaskEnded():
            return sentences.task_end(event)
        case events.RankEnded(task=None):
            return f"rank {event.rank} ended: {event.signal or f'exit code {event.code}'}"
        case events.Starting(task=None):
            return f"starting attempt {event.attempt}"
    line = sentences.phase_line(event)
    return line if line or getattr(event, "task", None) else events.kind_of(event)
