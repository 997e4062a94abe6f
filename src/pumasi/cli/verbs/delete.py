"""pumasi delete: the record of a run, with its logs and checkpoints."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, RUNS, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import examples_of, where_options
from pumasi.cli.runs import find_run, find_runs, open_store
from pumasi.cli.several import STATES, YES, agreed, for_each, names, no_names, own_runs, states_in
from pumasi.cli.view.output import say, show_json
from pumasi.cli.view.text import age
from pumasi.errors import SpecError, UsageError
from pumasi.pools import pool_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pumasi.pools.pool import Listed
    from pumasi.store import RunRecord, Store

VERB = Verb(
    name="delete",
    usage=("pumasi delete RUN … [options]", "pumasi delete --all | --older-than TIME | --state STATE [options]"),
    about="""Deletes runs: their record, logs, metrics and the checkpoints in their folder are gone. What the script
    wrote elsewhere is not touched.

    --all, --older-than and --state choose among the runs that were started from here and have ended; with
    several of them, a run has to fit all. You are asked before they are deleted. Without RUN and without any of these,
    a terminal asks whether the last run is meant.""",
    options=(
        Option(("--all",), "all that have ended"),
        Option(("--older-than",), "those that ended longer ago than this: 12h, 7d", "TIME"),
        Option(("--state",), "those in this state; may be given several times", "STATE", STATES),
        Option(("--force",), "also those that still run: stop them first, at once"),
        YES,
        *where_options(),
        JSON,
    ),
    takes=(0, None),
    completes=RUNS,
    examples=(
        ("pumasi delete train-x7k2p", ""),
        ("pumasi delete --older-than 7d", ""),
        *examples_of("delete"),
    ),
)
_CHOOSING = ("all", "older-than", "state")


def main(arguments: Arguments) -> int:
    store = open_store()
    if any(arguments.has(option) for option in _CHOOSING):
        fetches = [run.fetch for run in _chosen(store, arguments)]
    else:
        runs = find_runs(store, arguments) if arguments.rest else _last(store, arguments)
        fetches = [partial(store.run, run.id) for run in runs]
    return for_each(partial(_delete, store, arguments, fetch) for fetch in fetches)


def _last(store: Store, arguments: Arguments) -> list[RunRecord]:
    """The last run that was started from here, if that is what the user wants."""
    run = find_run(store, arguments)
    when = f"{age(time.time() - (run.ended or run.created))} ago"
    about = f"{run.id} ({run.state} {when})" if run.ended else f"{run.id} ({run.state}, begun {when})"
    instead = ("'pumasi delete' needs RUN.", f"The last run is {about}: pumasi delete {run.id}")
    if arguments.has("yes"):
        raise UsageError(*instead)
    return [run] if agreed(arguments, f"Delete {about} with its logs and checkpoints?", instead=instead) else []


def _chosen(store: Store, arguments: Arguments) -> list[Listed]:
    no_names(arguments, next(option for option in _CHOOSING if arguments.has(option)))
    states, oldest = states_in(arguments), _end_before(arguments)
    runs = [
        run
        for run in own_runs(store, arguments)
        if (not states or run.state in states)
        and (run.ended is not None or arguments.has("force"))
        and (oldest is None or (run.ended is not None and run.ended < oldest))
    ]
    if not runs:
        say("Of the runs that were started from here, none fits and has ended.")
        return []
    instead = (f"Without a terminal you can't be asked whether to delete {names(runs)}.", "To delete them: add -y.")
    whose = "its" if len(runs) == 1 else "their"
    question = f"Delete {names(runs)} with {whose} logs and checkpoints?"
    return runs if agreed(arguments, question, instead=instead) else []


def _end_before(arguments: Arguments) -> float | None:
    from pumasi.core.fields import parse_duration

    given = arguments.last("older-than")
    if given is None:
        return None
    try:
        return time.time() - parse_duration(given)
    except SpecError:
        raise UsageError(
            f"--older-than takes a time; '{given}' is none.", "Write --older-than 12h or --older-than 7d."
        ) from None


def _delete(store: Store, arguments: Arguments, fetch: Callable[[], RunRecord]) -> None:
    from pumasi.runs.control import delete

    record = fetch()
    delete(store, record, force=arguments.has("force"), tell=say)
    if arguments.has("json"):
        show_json({"run": record.id, "deleted": True})
    else:
        say(f"{record.id} is deleted, {pool_of(record).deleted}.")
