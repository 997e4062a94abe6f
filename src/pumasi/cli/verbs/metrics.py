"""pumasi metrics: what a run measured, as last values, as curves, or row by row for another program."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, RUNS, WHERE, Option, Verb
from pumasi.cli.parsing import Arguments, closest
from pumasi.cli.runs import find_run, open_store
from pumasi.cli.view.board import Board, replayed
from pumasi.cli.view.output import columns, say, show, show_json
from pumasi.cli.view.text import finite, number, sparkline, table, width
from pumasi.core.noted import importance
from pumasi.errors import NotFound

if TYPE_CHECKING:
    from pumasi.store import MetricRow, Store

VERB = Verb(
    name="metrics",
    usage=("pumasi metrics [RUN] [options]",),
    about="""Prints the last value of everything that the run measured, a row for each rank. With --name: how that one
    developed. With --csv: every value there is.""",
    options=(
        Option(("--name",), "only this metric, over time", "NAME"),
        Option(("--csv",), "every value, as comma-separated rows"),
        *WHERE,
        JSON,
    ),
    takes=(0, 1),
    completes=RUNS,
    examples=(
        ("pumasi metrics", "the last values of the last run"),
        ("pumasi metrics train-x7k2p --name loss", "the curve of its loss"),
        ("pumasi metrics train-x7k2p --csv > loss.csv", "for a spreadsheet"),
    ),
)
_CURVE = 40


def main(arguments: Arguments) -> int:
    store = open_store()
    record = find_run(store, arguments, output=True)
    name = arguments.last("name")
    if name is not None:
        _check_name(store, record.id, name)
    if arguments.has("csv"):
        _show_csv(store.metrics(record.id, name=name))
    elif name is not None:
        rows = store.metrics(record.id, name=name)
        if arguments.has("json"):
            show_json([{**row._asdict(), "value": finite(row.value)} for row in rows])
        else:
            show(_curves(rows, replayed(store.events(record.id))))
    else:
        _show_last(store, record.id, as_json=arguments.has("json"))
    return 0


def _check_name(store: Store, run_id: str, name: str) -> None:
    known = {known for values in store.last_metrics(run_id).values() for known in values}
    if name not in known and not store.metrics(run_id, name=name, limit=1):
        near = closest(name, known)
        hint = f"Did you mean {near}?" if near else f"It measured {', '.join(sorted(known)) or 'nothing'}."
        raise NotFound(f"{run_id} has no metric '{name}'.", hint)


def _show_last(store: Store, run_id: str, *, as_json: bool) -> None:
    last = store.last_metrics(run_id)
    if as_json:
        show_json({str(rank): {name: finite(value) for name, value in row.items()} for rank, row in last.items()})
    elif last:
        show(_last_table(last, columns(), replayed(store.events(run_id))))
    else:
        say(
            f"{run_id} has measured nothing.",
            "Lines such as 'loss: 0.31' are understood by themselves; pumasi.report(loss=0.31) says more.",
        )


def _last_table(last: Mapping[int, Mapping[str, float]], room: int, board: Board) -> list[str]:
    """A column for each metric; where these are too many for the terminal, a line for each."""
    label, head = board.label, _head(board)
    names = sorted({name for row in last.values() for name in row}, key=importance)
    rows = [
        (label(rank), *(number(row[name]) if name in row else "" for name in names))
        for rank, row in sorted(last.items())
    ]
    heads = (head, *names)
    wide = table(heads, rows, 10**6, right=range(len(heads)))
    if width(wide[0]) <= room:
        return wide
    return table(
        (head, "metric", "value"),
        [(label(rank), name, number(row[name])) for rank, row in sorted(last.items()) for name in names if name in row],
        room,
        right=(0, 2),
        flexible=1,
    )


def _curves(rows: Sequence[MetricRow], board: Board) -> list[str]:
    """A line for each rank, or task: the curve, and the values that one asks for first."""
    by_rank: dict[int, list[float]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, []).append(row.value)
    cells = [
        (
            board.label(rank),
            sparkline(values, _CURVE),
            *(number(value) for value in (values[0], values[-1], min(values), max(values))),
            str(len(values)),
        )
        for rank, values in sorted(by_rank.items())
    ]
    return table(
        (_head(board), "", "first", "last", "least", "most", "values"),
        cells,
        columns(),
        right=(0, 2, 3, 4, 5, 6),
        flexible=1,
    )


def _head(board: Board) -> str:
    return "task" if board.labels else "rank"


def _show_csv(rows: Iterable[MetricRow]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("at", "attempt", "rank", "step", "epoch", "name", "value"))
    writer.writerows(row[:7] for row in rows)
