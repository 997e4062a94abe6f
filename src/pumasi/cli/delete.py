"""pumasi delete: the record of a run, with its logs and checkpoints."""

from __future__ import annotations

from pumasi.cli.output import say, show_json
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import find_runs, open_store
from pumasi.cli.verbs import JSON, RUNS, WHERE, Option, Verb

VERB = Verb(
    name="delete",
    usage=("pumasi delete [RUN …] [options]",),
    about="""Forgets runs: their record, logs, metrics and the checkpoints in their folder are gone. What the script
    wrote elsewhere is not touched.""",
    options=(Option(("--force",), "stop the ones that still run, at once"), *WHERE, JSON),
    takes=(0, None),
    completes=RUNS,
    examples=(("pumasi delete train-x7k2p", ""), ("pumasi delete", "the last run")),
)


def main(arguments: Arguments) -> int:
    from pumasi.control import delete

    store = open_store()
    for record in find_runs(store, arguments):
        delete(store, record, force=arguments.has("force"), tell=say)
        if arguments.has("json"):
            show_json({"run": record.id, "deleted": True})
        else:
            there = "here and in the cluster; what it wrote to volumes stays" if record.is_remote else ""
            say(f"{record.id} is deleted, {there or 'with its logs and checkpoints'}.")
    return 0
