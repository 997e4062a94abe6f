"""pumasi stop: with grace, then by force."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, RUNS, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import examples_of, where_options
from pumasi.cli.runs import find_runs, open_store
from pumasi.cli.several import YES, agreed, for_each, names, no_names, own_runs
from pumasi.cli.view.output import say, show_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from pumasi.pools.pool import Listed
    from pumasi.store import RunRecord, Store

VERB = Verb(
    name="stop",
    usage=("pumasi stop [RUN …] [options]", "pumasi stop --all [options]"),
    about="""Stops runs: their processes are asked to end, and killed when they have not ended after the run's grace
    (15 seconds, if not told otherwise). Logs, metrics and checkpoints stay.

    Without RUN the last run that you started from here is meant; --all means all of those that have not ended.""",
    options=(
        Option(("--force",), "kill at once"),
        Option(("--all",), "all runs that were started from here and have not ended"),
        YES,
        *where_options(),
        JSON,
    ),
    takes=(0, None),
    completes=RUNS,
    examples=(
        ("pumasi stop", "the last run"),
        ("pumasi stop train-x7k2p --force", ""),
        *examples_of("stop"),
    ),
)


def main(arguments: Arguments) -> int:
    store = open_store()
    if arguments.has("all"):
        fetches = [run.fetch for run in _all(store, arguments)]
    else:
        fetches = [partial(store.run, run.id) for run in find_runs(store, arguments, running_first=True)]
    asked: list[Callable[[], None]] = []
    refused = for_each(partial(_ask, store, arguments, fetch, asked) for fetch in fetches)
    unseen = for_each(asked)
    return refused or unseen


def _all(store: Store, arguments: Arguments) -> list[Listed]:
    no_names(arguments, "all")
    runs = [run for run in own_runs(store, arguments) if run.ended is None]
    if not runs:
        say("No run that was started from here is going on.")
        return []
    instead = ("Without a terminal `pumasi stop --all` can't ask.", "To stop them without a question: add -y.")
    return runs if agreed(arguments, f"Stop {names(runs)}?", instead=instead) else []


def _ask(store: Store, arguments: Arguments, fetch: Callable[[], RunRecord], asked: list[Callable[[], None]]) -> None:
    """All are asked before any is waited for: their times of grace pass together."""
    from pumasi.runs.control import ask_to_stop

    record = fetch()
    if record.ended is not None:
        asked.append(partial(_tell, arguments, record, f"{record.id} has ended already: {record.state}."))
        return
    see_it_stop = ask_to_stop(store, record, force=arguments.has("force"), tell=say)
    asked.append(lambda: _tell(arguments, ended := see_it_stop(), f"{ended.id} is {ended.state}."))


def _tell(arguments: Arguments, record: RunRecord, words: str) -> None:
    if arguments.has("json"):
        show_json({"run": record.id, "state": record.state})
    else:
        say(words)
