"""Several runs at once: which of one's own are meant, the question before anything is done to them, and one that fails
without keeping the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pumasi.cli.grammar import Option
from pumasi.cli.pools import place_in
from pumasi.cli.view.output import paint, say
from pumasi.errors import PumasiError, UsageError
from pumasi.pools import is_of
from pumasi.pools.pool import Listed

if TYPE_CHECKING:
    from pumasi.cli.parsing import Arguments
    from pumasi.store import Store

STATES = (
    *("queued", "starting", "running", "ending", "unattended"),
    *("done", "failed", "lost", "timed-out", "stopped"),
)
"""As they are typed."""
YES = Option(("-y", "--yes"), "do not ask")
_NAMED = 5
"""Runs that a question names before it says how many more there are."""


def own_runs(store: Store, arguments: Arguments) -> list[Listed]:
    """The runs that were started from here, the newest first: with --on those that the cluster has."""
    if place := place_in(arguments):
        pool, scope = place
        if listing := pool.list(store, scope):
            own = store.own()
            return [run for run in listing.runs if run.id in own]
    from pumasi.runs.control import reconcile

    reconcile(store)
    return [
        Listed(record.id, record.state, record.created, record.ended, {}, partial(store.run, record.id))
        for record in store.runs()
        if record.started_here and (place is None or is_of(record, place[0]))
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


def names(runs: Sequence[Listed]) -> str:
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
