"""pumasi stop: with grace, then by force."""

from __future__ import annotations

from pumasi.cli.output import say, show_json
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import find_runs, open_store
from pumasi.cli.verbs import JSON, RUNS, WHERE, Option, Verb

VERB = Verb(
    name="stop",
    usage=("pumasi stop [RUN …] [options]",),
    about="""Stops runs: their processes are asked to end, and killed when they have not ended after the run's grace
    (15 seconds, if not told otherwise). Logs, metrics and checkpoints stay.""",
    options=(Option(("--force",), "kill at once"), *WHERE, JSON),
    takes=(0, None),
    completes=RUNS,
    examples=(("pumasi stop", "the last run"), ("pumasi stop train-x7k2p --force", "")),
)


def main(arguments: Arguments) -> int:
    from pumasi.control import stop

    store = open_store()
    for record in find_runs(store, arguments):
        ended = record
        if record.ended is None:
            ended = stop(store, record, force=arguments.has("force"), tell=say)
        if arguments.has("json"):
            show_json({"run": ended.id, "state": ended.state})
        elif ended is record:
            say(f"{record.id} has ended already: {record.state}.")
        else:
            say(f"{ended.id} is {ended.state}.")
    return 0
