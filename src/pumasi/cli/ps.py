"""pumasi ps: the runs."""

from __future__ import annotations

import sys
import time

from pumasi.cli.output import columns, is_colourful, paint, paint_row, say, show, show_json
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import command_of, open_store
from pumasi.cli.text import age, finite, notable, table
from pumasi.cli.verbs import JSON, Option, Verb
from pumasi.store import RunRecord, Store

VERB = Verb(
    name="ps",
    usage=("pumasi ps [options]",),
    about="Lists the last 20 runs, the newest first.",
    options=(
        Option(("-a", "--all"), "all runs"),
        Option(("-q", "--quiet"), "only their ids, one a line"),
        JSON,
    ),
    examples=(
        ("pumasi ps", ""),
        ("pumasi stop $(pumasi ps -q | head -1)", "stop the newest"),
    ),
)
_LAST = 20
_HEADS = ("id", "state", "age", "slots", "framework", "last", "command")


def main(arguments: Arguments) -> int:
    store = open_store()
    records = _records(store, None if arguments.has("all") else _LAST)
    if arguments.has("json"):
        show_json([_described(store, record) for record in records])
    elif arguments.has("quiet"):
        show(record.id for record in records)
    elif records:
        _show_table(store, records)
    else:
        say("There are no runs yet.", "Start one: pumasi run train.py")
    return 0


def _records(store: Store, limit: int | None) -> list[RunRecord]:
    """As they are now: where a run goes on, its manager may have died meanwhile."""
    records = store.runs(limit)
    if all(record.ended is not None for record in records):
        return records
    from pumasi.control import reconcile

    reconcile(store)
    return store.runs(limit)


def _show_table(store: Store, records: list[RunRecord]) -> None:
    now = time.time()
    rows = [
        (
            record.id,
            record.state,
            age(now - record.created),
            str(record.spec.get("slots", 1)),
            record.framework,
            notable(_last_metrics(store, record), most=1),
            command_of(record),
        )
        for record in records
    ]
    head, *lines = table(_HEADS, rows, columns(), right=(2, 3))
    show([paint(head, "dim", sys.stdout)])
    show(map(paint_row, lines, (record.state for record in records)) if is_colourful(sys.stdout) else lines)


def _last_metrics(store: Store, record: RunRecord) -> dict[str, float]:
    """Those of the first rank that has some."""
    return next(iter(store.last_metrics(record.id).values()), {})


def _described(store: Store, record: RunRecord) -> dict[str, object]:
    metrics = {name: finite(value) for name, value in _last_metrics(store, record).items()}
    return {**record._asdict(), "metrics": metrics}
