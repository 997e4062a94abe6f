"""pumasi ps: the runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import absence_of, command_of, open_store, place_in
from pumasi.cli.several import STATES, states_in
from pumasi.cli.view.output import columns, is_colourful, paint, paint_row, say, show, show_json
from pumasi.cli.view.text import age, finite, notable, table, with_finite_metrics
from pumasi.errors import Unreachable, UsageError
from pumasi.store import RunRecord, Store

if TYPE_CHECKING:
    from pumasi.pools.kubernetes.record import Row
    from pumasi.pools.kubernetes.runs import Place

VERB = Verb(
    name="ps",
    usage=("pumasi ps [options]",),
    about="""Lists the last 20 runs, the newest first: those that were started or looked at on this machine; with --on
    those that a cluster has, whoever started them.""",
    options=(
        Option(("-a", "--all"), "all runs"),
        Option(("--state",), "only runs in this state; may be given several times", "STATE", STATES),
        Option(("--mine",), "only runs that were started from here"),
        Option(("-w", "--watch"), "show the list again every two seconds, until Ctrl-C"),
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
        ("pumasi ps --watch --mine --state running --on k8s", ""),
    ),
)
_LAST = 20
_MORE = f"Only the last {_LAST} are shown; --all shows the others too."
_PAUSE = 2.0
"""Seconds between two looks of --watch."""
_CLEAR = "\x1b[H\x1b[2J"
_HEADS = ("id", "state", "age", "slots", "framework", "last", "command")


def main(arguments: Arguments) -> int:
    states, place = states_in(arguments), place_in(arguments)
    store = open_store()
    show_once = partial(_show_cluster, store, place) if place else partial(_show_here, store)
    if not arguments.has("watch"):
        show_once(arguments, states)
        return 0
    if not sys.stdout.isatty() or arguments.has("json") or arguments.has("quiet"):
        raise UsageError("--watch shows a table at a terminal.", "For a program: call `pumasi ps --json` repeatedly.")
    while True:
        sys.stdout.write(_CLEAR)
        with _bear_with_cluster():
            show_once(arguments, states)
        sys.stdout.flush()
        time.sleep(_PAUSE)


@contextmanager
def _bear_with_cluster() -> Iterator[None]:
    """A cluster that is away for a moment does not end a watch."""
    try:
        yield
    except Unreachable as trouble:
        say(trouble.message)


def _show_here(store: Store, arguments: Arguments, states: Collection[str]) -> None:
    known = [
        record
        for record in _records(store, None if states or arguments.has("mine") or arguments.has("all") else _LAST + 1)
        if (not states or record.state in states) and (record.started_here or not arguments.has("mine"))
    ]
    records = known if arguments.has("all") else known[:_LAST]
    if arguments.has("json"):
        show_json([_described(store, record) for record in records])
    elif arguments.has("quiet"):
        show(record.id for record in records)
    elif records:
        _show_table(store, records)
        if len(known) > len(records):
            say(_MORE)
        for record in records:
            if words := absence_of(store, record):
                say(*words)
    elif states or arguments.has("mine"):
        say("No run matches.")
    else:
        say("There are no runs yet.", "Start one: pumasi run train.py")


def _records(store: Store, limit: int | None) -> list[RunRecord]:
    """As they are now: where a run goes on, its manager may have died meanwhile."""
    records = store.runs(limit)
    if all(record.ended is not None for record in records):
        return records
    from pumasi.runs.control import reconcile

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


_CLUSTER_HEADS = ("namespace", "id", "state", "age", "slots", "framework", "user", "command")


def _show_cluster(store: Store, place: Place, arguments: Arguments, states: Collection[str]) -> None:
    from pumasi.cli.view.sentences import absence_words
    from pumasi.pools.kubernetes.runs import rows, whys_unattended

    known, now = rows(place, everywhere=arguments.has("all-namespaces"))
    own = store.own() if arguments.has("mine") else {row.run for row in known}
    fitting = [row for row in known if (not states or row.state(now) in states) and row.run in own]
    found = fitting if arguments.has("all") else fitting[:_LAST]
    if arguments.has("json"):
        show_json([_row_values(row, now) for row in found])
    elif arguments.has("quiet"):
        show(row.run for row in found)
    elif found:
        values = [{**_row_values(row, now), "age": age(now - row.created)} for row in found]
        cells = [tuple(str(each[head]) for head in _CLUSTER_HEADS) for each in values]
        _paint_table(_CLUSTER_HEADS, cells, [str(each["state"]) for each in values], right=(3, 4))
        if len(fitting) > len(found):
            say(_MORE)
        for run, why in whys_unattended(place, found, now).items():
            say(*absence_words(run, why))
    elif known:
        say("No run in the cluster matches.")
    else:
        say("The cluster has no runs there.", f"Start one: pumasi run {place.words} train.py")


def _row_values(row: Row, now: float) -> dict[str, object]:
    return {
        "namespace": row.namespace,
        "id": row.run,
        "state": row.state(now),
        "created": row.created,
        "slots": int(row.number("slots") or 1),
        "framework": row.note("framework"),
        "exit_code": None if (code := row.number("exit-code")) is None else int(code),
        "user": row.note("user"),
        "host": row.note("host"),
        "command": row.note("command"),
    }


def _last_metrics(store: Store, record: RunRecord) -> dict[str, float]:
    """Those of the result, where several tasks make one; else of the first rank that has some."""
    told: Any = (record.outcome or {}).get("metrics")
    return told or next(iter(store.last_metrics(record.id).values()), {})


def _described(store: Store, record: RunRecord) -> dict[str, object]:
    metrics = {name: finite(value) for name, value in _last_metrics(store, record).items()}
    outcome = record.outcome and with_finite_metrics(record.outcome)
    return {**record._asdict(), "outcome": outcome, "metrics": metrics}
