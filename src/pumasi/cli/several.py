"""Several runs at once: which of one's own are meant, the question before anything is done to them, and one that fails
without keeping the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pumasi.cli.grammar import Option
from pumasi.cli.runs import place_in
from pumasi.cli.view.output import paint, say
from pumasi.errors import PumasiError, UsageError

if TYPE_CHECKING:
    from pumasi.cli.parsing import Arguments
    from pumasi.store import RunRecord, Store

STATES = (
    *("queued", "starting", "running", "ending", "unattended"),
    *("done", "failed", "lost", "timed-out", "stopped"),
)
"""As they are typed."""
YES = Option(("-y", "--yes"), "do not ask")
_NAMED = 5
"""Runs that a question names before it says how many more there are."""


class Candidate(NamedTuple):
    """`fetch` gives the record, which of a run in a cluster may have to be copied first."""

    id: str
    state: str
    ended: float | None
    fetch: Callable[[], RunRecord]


def own_runs(store: Store, arguments: Arguments) -> list[Candidate]:
    """The runs that were started from here, the newest first: with --on those that the cluster has."""
    if place := place_in(arguments):
        from pumasi.pools.kubernetes.runs import fetch, rows

        own = store.own()
        found, now = rows(place, everywhere=arguments.has("all-namespaces"))
        return [
            Candidate(row.run, row.state(now), row.ended, partial(fetch, store, place, row))
            for row in found
            if row.run in own
        ]
    from pumasi.runs.control import reconcile

    reconcile(store)
    return [
        Candidate(record.id, record.state, record.ended, partial(store.run, record.id))
        for record in store.runs()
        if record.started_here
    ]


def states_in(arguments: Arguments) -> frozenset[str]:
    """Those that --state names; none: all."""
    given = [state.replace(" ", "-") for state in arguments.all("state")]
    for state in given:
        if state not in STATES:
            raise UsageError(f"--state: '{state}' is no state of a run.", f"It is one of {', '.join(STATES)}.")
    return frozenset(state.replace("-", " ") for state in given)


def no_names(arguments: Arguments, option: str) -> None:
    if arguments.rest:
        raise UsageError(
            f"'{arguments.rest[0]}' names a run, and --{option} chooses several.", "Leave one of the two out."
        )


def agreed(arguments: Arguments, question: str, *, instead: Sequence[str]) -> bool:
    """Whether the user wants that. `instead` is said where there is no terminal to ask at."""
    if arguments.has("yes"):
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(*instead)
    sys.stderr.write(f"{paint('pumasi:', 'bold', sys.stderr)} {question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def names(runs: Sequence[Candidate]) -> str:
    """3 runs (train-a, train-b, train-c)"""
    listed = [run.id for run in runs[:_NAMED]]
    more = [f"{len(runs) - _NAMED} more"] if len(runs) > _NAMED else []
    return f"{len(runs)} run{'s' if len(runs) > 1 else ''} ({', '.join([*listed, *more])})"


def for_each(steps: Iterable[Callable[[], None]]) -> int:
    """One that fails does not keep the others. The exit code of the first that did."""
    codes = [_try(step) for step in steps]
    return next((code for code in codes if code), 0)


def _try(step: Callable[[], None]) -> int:
    try:
        step()
    except PumasiError as error:
        say(*error.message.split("\n"), *(line for line in error.hint.split("\n") if line))
        return error.exit_code
    return 0
