"""pumasi attach: watch a run that another process manages."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, RUNS, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import where_options
from pumasi.cli.runs import find_run, open_store, size_of
from pumasi.cli.view.output import say
from pumasi.cli.view.printer import to_streams
from pumasi.cli.view.sentences import left_words
from pumasi.pools import pool_of

if TYPE_CHECKING:
    from pumasi.runs.recorder import View
    from pumasi.store import RunRecord, Store

VERB = Verb(
    name="attach",
    usage=("pumasi attach [RUN] [options]",),
    about="""Shows the last thousand lines of a run (with --json all of them) and goes on until it ends, as if it had
    been started here; then ends with its exit code. Ctrl-C asks whether to stop the run or to leave it running; without
    a terminal it leaves.""",
    options=(*where_options(), JSON),
    takes=(0, 1),
    completes=RUNS,
    examples=(("pumasi attach", "the last run"),),
)
_QUESTION = "[s]top it, [l]eave it running, or go on? Type s, l or nothing, then Enter. (Ctrl-C again leaves it.)"
_TAIL = 1000


class Left(Exception):
    """The user does not want to watch any longer. Nothing is wrong."""


class StopWanted(Exception):
    """The user wants the run to end."""


def main(arguments: Arguments) -> int:
    from pumasi.cli.view.views import choose_view

    store = open_store()
    record = _going_on(store, find_run(store, arguments, running_first=True))
    view = choose_view(to_streams, ranks=record.ranks or size_of(record.spec), as_json=arguments.has("json"))
    try:
        return _watch(store, record, view, None if arguments.has("json") else _TAIL)
    finally:
        view.close()


def _going_on(store: Store, record: RunRecord) -> RunRecord:
    """A run of several tasks whose manager died gets another one, which goes on with what is done."""
    if record.state != "lost":
        return record
    from pumasi.pools.processes import start_manager

    pool = pool_of(record)
    if not pool.can_go_on(store, record):
        return record
    say(f"{record.id} goes on where it was interrupted.")
    start_manager(store, pool.reopen(store, record), "alone")
    return store.run(record.id)


def _watch(store: Store, record: RunRecord, view: View, tail: int | None) -> int:
    from pumasi.runs.control import follow, stop

    is_interrupted = False

    def interrupted(_signal: int, _frame: FrameType | None) -> None:
        """It may come in the middle of a line: the question has to wait. Whoever does not want to wait leaves."""
        nonlocal is_interrupted
        if is_interrupted or not sys.stdin.isatty():
            raise Left
        is_interrupted = True

    def ask_if_interrupted() -> None:
        nonlocal is_interrupted
        if is_interrupted:
            _ask(view)
            is_interrupted = False

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        return follow(store, record.id, view, tail=tail, between=ask_if_interrupted).exit_code or 0
    except Left:
        stops = False
    except StopWanted:
        stops = True
    finally:
        signal.signal(signal.SIGINT, before)
    if not stops:
        say(*left_words(record.id))
        return 0
    ended = stop(store, record, force=False, tell=say)
    say(f"{ended.id} is {ended.state}.")
    return ended.exit_code or 0


def _ask(view: View) -> None:
    # A second Ctrl-C is no answer, but clear enough.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = "?"
        while answer not in ("", "s", "stop", "l", "leave"):
            view.ask(_QUESTION)
            answer = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        raise Left from None
    finally:
        signal.signal(signal.SIGINT, before)
    if answer.startswith("s"):
        raise StopWanted
    if answer.startswith("l"):
        raise Left
    view.ask("")
