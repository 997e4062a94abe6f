"""The runs that a verb is about, and what several verbs say of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pumasi.cli.pools import others, place_in
from pumasi.cli.view.output import say
from pumasi.errors import ClusterTrouble, NotFound, UsageError
from pumasi.pools import pool_of
from pumasi.registry import FLOWS
from pumasi.store import EventRow, RunRecord, Store, default_home

if TYPE_CHECKING:
    from pumasi.cli.parsing import Arguments


def open_store() -> Store:
    return Store.open(default_home(os.environ))


def find_run(store: Store, arguments: Arguments, *, output: bool = False, running_first: bool = False) -> RunRecord:
    """The run that was named, or the last one that was started from here, as it is now: a manager that died meanwhile
    is noticed. `output`: what it wrote is asked for, too. `running_first`: see `Store.find`."""
    record = _find(store, arguments, arguments.rest[0] if arguments.rest else None, running_first=running_first)
    if output:
        from pumasi.runs.control import catch_up

        try:
            catch_up(store, record)
        except ClusterTrouble as trouble:
            say(f"This may not be all: {trouble.message}")
        record = store.run(record.id)
    return record


def find_runs(store: Store, arguments: Arguments, *, running_first: bool = False) -> list[RunRecord]:
    """All the runs that were named, each once; they are all looked for before anything is done to one. Runs of others
    have to be named in full."""
    names: list[str | None] = [*arguments.rest] or [None]
    found = [_find(store, arguments, name, running_first=running_first, careful=True) for name in names]
    return list({record.id: record for record in found}.values())


def _find(
    store: Store, arguments: Arguments, name: str | None, *, running_first: bool, careful: bool = False
) -> RunRecord:
    if place := place_in(arguments):
        pool, scope = place
        return pool.find(store, scope, name, running_first=running_first, careful=careful)
    from pumasi.runs.control import find

    try:
        return find(store, name, running_first=running_first, careful=careful)
    except NotFound as error:
        pool = others()[0]
        hint = f"If it runs on a cluster and was started elsewhere: --on {pool.name} looks there."
        raise NotFound(error.message, f"{error.hint}\n{hint}" if name else error.hint) from None


def absence_of(store: Store, record: RunRecord) -> list[str]:
    """Why its manager is not there, where one should be; mostly nothing."""
    why = None if record.ended is not None else pool_of(record).why_unattended(store, record)
    if why is None:
        return []
    from pumasi.cli.view.sentences import absence_words

    return absence_words(record.id, why)


def command_of(record: RunRecord) -> str:
    command: Any = record.spec.get("command") or ()
    return shlex.join(str(word) for word in command)


def size_of(spec: Mapping[str, Any]) -> int:
    """How many processes the run will have at least, as far as its spec tells."""
    with contextlib.suppress(UsageError):  # Of a flow that was installed once.
        if size := FLOWS.get(str(spec.get("strategy", "together"))).size(spec):
            return int(size)
    nodes = spec.get("nodes")
    trainers = (len(nodes) if nodes else 1) if spec.get("per_node") else spec.get("slots", 1)
    return int(trainers) + _beside_trainers(spec)


def _beside_trainers(spec: Mapping[str, Any]) -> int:
    from pumasi.catalogue import recorded_spec
    from pumasi.core.frameworks import extra_roles

    with contextlib.suppress(UsageError):  # Of what was installed once.
        return len(extra_roles(recorded_spec(spec)))
    return 0


def times_of(record: RunRecord, events: Iterable[EventRow]) -> tuple[float, float]:
    """How long its processes have run, and how long it waited before: as the view of it counts."""
    from pumasi.cli.view.board import replayed

    board = replayed(events)
    return board.elapsed(record.ended or time.time()), board.waited
