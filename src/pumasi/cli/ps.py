"""pumasi ps: the runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli import sentences
from pumasi.cli.output import columns, is_colourful, paint, paint_row, say, show, show_json
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import absence_of, command_of, open_store, place_in
from pumasi.cli.text import age, finite, notable, table
from pumasi.cli.verbs import JSON, Option, Verb
from pumasi.store import RunRecord, Store

if TYPE_CHECKING:
    from pumasi.kube.record import Row
    from pumasi.remote import Place

VERB = Verb(
    name="ps",
    usage=("pumasi ps [options]",),
    about="""Lists the last 20 runs, the newest first: those that were started or looked at on this machine; with --on
    those that a cluster has, whoever started them.""",
    options=(
        Option(("-a", "--all"), "all runs"),
        Option(("-q", "--quiet"), "only their ids, one a line"),
        Option(("--on",), "the runs of a cluster: k8s, k8s:CONTEXT", "POOL"),
        Option(("-n", "--namespace"), "in that namespace of the cluster", "NAME"),
        Option(("-A", "--all-namespaces"), "in all namespaces of the cluster"),
        JSON,
    ),
    examples=(
        ("pumasi ps", ""),
        ("pumasi stop $(pumasi ps -q | head -1)", "stop the newest"),
        ("pumasi ps --on k8s -A", "all runs of a cluster"),
    ),
)
_LAST = 20
_HEADS = ("id", "state", "age", "slots", "framework", "last", "command")


def main(arguments: Arguments) -> int:
    if place := place_in(arguments):
        return _show_cluster(place, arguments)
    store = open_store()
    records = _records(store, None if arguments.has("all") else _LAST)
    if arguments.has("json"):
        show_json([_described(store, record) for record in records])
    elif arguments.has("quiet"):
        show(record.id for record in records)
    elif records:
        _show_table(store, records)
        for record in records:
            if words := absence_of(store, record):
                say(*words)
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
    _paint_table(_HEADS, rows, [record.state for record in records], right=(2, 3))


def _paint_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], states: Sequence[str], right: Sequence[int]
) -> None:
    head, *lines = table(heads, rows, columns(), right=right)
    show([paint(head, "dim", sys.stdout)])
    show(map(paint_row, lines, states) if is_colourful(sys.stdout) else lines)


_CLUSTER_HEADS = ("namespace", "id", "state", "age", "slots", "framework", "command")


def _show_cluster(place: Place, arguments: Arguments) -> int:
    from pumasi.remote import rows, whys_unattended

    found, now = rows(place, everywhere=arguments.has("all-namespaces"))
    if not arguments.has("all"):
        found = found[:_LAST]
    if arguments.has("json"):
        show_json([_row_values(row, now) for row in found])
    elif arguments.has("quiet"):
        show(row.run for row in found)
    elif found:
        values = [{**_row_values(row, now), "age": age(now - row.created)} for row in found]
        cells = [tuple(str(each[head]) for head in _CLUSTER_HEADS) for each in values]
        _paint_table(_CLUSTER_HEADS, cells, [str(each["state"]) for each in values], right=(3, 4))
        for run, why in whys_unattended(place, found, now).items():
            say(*sentences.absence_words(run, why))
    else:
        say("The cluster has no runs there.", "Start one: pumasi run --on k8s train.py")
    return 0


def _row_values(row: Row, now: float) -> dict[str, object]:
    return {
        "namespace": row.namespace,
        "id": row.run,
        "state": row.note("state") if row.is_attended(now) else "unattended",
        "created": row.created,
        "slots": int(row.note("slots") or 1),
        "framework": row.note("framework"),
        "exit_code": int(row.note("exit-code")) if row.note("exit-code") else None,
        "command": row.note("command"),
    }


def _last_metrics(store: Store, record: RunRecord) -> dict[str, float]:
    """Those of the result, where several tasks make one; else of the first rank that has some."""
    told: Any = (record.outcome or {}).get("metrics")
    return told or next(iter(store.last_metrics(record.id).values()), {})


def _described(store: Store, record: RunRecord) -> dict[str, object]:
    metrics = {name: finite(value) for name, value in _last_metrics(store, record).items()}
    return {**record._asdict(), "metrics": metrics}
