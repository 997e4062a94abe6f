"""What can be done to a run from outside its manager: look after it, wait for it, follow it, stop it, delete it. How is
up to its pool."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from pumasi.errors import NotFound, SystemTrouble, UsageError
from pumasi.pools import pool_of
from pumasi.pools.processes import await_release

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pumasi.core.frames import Frame
    from pumasi.pools.pool import Say
    from pumasi.runs.recorder import View
    from pumasi.store import EventRow, RunRecord, Store

POLL = 0.1


def reconcile(store: Store) -> None:
    """Look after all runs. One that was deleted meanwhile, whose pool is not installed, or whose end can't be written
    down (a full disk), must not keep anybody from seeing the others, or from deleting one to have room again."""
    for record in store.unfinished():
        with suppress(NotFound, SystemTrouble, UsageError):
            pool_of(record).look_after(store, record)


def find(store: Store, prefix: str | None, *, running_first: bool = False, careful: bool = False) -> RunRecord:
    """The run that is meant, of those that the store knows, as it is now."""
    record = store.find(prefix, running_first=running_first, careful=careful)
    if record.ended is None:
        with suppress(NotFound, SystemTrouble):
            pool_of(record).look_after(store, record)
    return store.run(record.id)


def wait(store: Store, run_id: str, timeout: float | None = None) -> RunRecord:
    """The record of the run when it has ended. TimeoutError when it has not in time."""
    return pool_of(store.run(run_id)).wait(store, run_id, timeout)


def stop(store: Store, record: RunRecord, *, force: bool, tell: Say) -> RunRecord:
    """Ask the manager to stop the run, and see that it does."""
    return ask_to_stop(store, record, force=force, tell=tell)()


def ask_to_stop(store: Store, record: RunRecord, *, force: bool, tell: Say) -> Callable[[], RunRecord]:
    """Returns at once what sees that the run stops: several runs have their grace at the same time."""
    return pool_of(record).ask_to_stop(store, record, force=force, tell=tell)


def delete(store: Store, record: RunRecord, *, force: bool, tell: Say) -> None:
    pool = pool_of(record)
    if not pool.is_over(store, record):
        if not force:
            hint = f"Stop it first (pumasi stop {record.id}), or delete it with --force."
            raise UsageError(f"{record.id} is still {record.state}.", hint)
        stop(store, record, force=True, tell=tell)
    await_release(store, record.id)
    pool.remove(record)
    store.delete_run(record.id)


def catch_up(store: Store, record: RunRecord) -> None:
    """Bring what a run has written so far into the store. Raises ClusterTrouble."""
    pool_of(record).catch_up(store, record)


def kept_up(store: Store, record: RunRecord) -> AbstractContextManager[Callable[[], None]]:
    """As long as this lasts, what a run writes comes into the store; see `Pool.kept_up`."""
    return pool_of(record).kept_up(store, record)


def follow(
    store: Store, run_id: str, view: View, *, tail: int | None = None, between: Callable[[], None] = lambda: None
) -> RunRecord:
    """Show the run from its beginning or from its last `tail` lines, and go on until it has ended. Events and output
    come in the order in which they happened. `between` is called again and again while nothing is being shown."""
    with kept_up(store, store.run(run_id)) as check:
        return _follow(store, run_id, view, tail, check, between)


def _follow(
    store: Store, run_id: str, view: View, tail: int | None, check: Callable[[], None], between: Callable[[], None]
) -> RunRecord:
    from pumasi.core.measuring import FrameParser

    log, parser, seen = store.follow_log(run_id, tail=tail), FrameParser(), 0
    events: list[EventRow] = []

    def show(frames: Sequence[Frame]) -> None:
        view.output(frames)
        for rank, reading in parser.readings(frames):
            view.reading(rank, reading)

    while True:
        record = store.run(run_id)
        events += store.events(run_id, after=seen)
        seen = events[-1].seq if events else seen
        while frames := log.read():
            while events and events[0].at * 1000 <= frames[-1].ms:
                event = events.pop(0)
                earlier = [frame for frame in frames if frame.ms < event.at * 1000]
                show(earlier)
                view.event(event.at, event.event)
                frames = frames[len(earlier) :]
            show(frames)
            between()
        for event in events:
            view.event(event.at, event.event)
        events.clear()
        if record.ended is not None:
            return record
        check()
        between()
        time.sleep(POLL)
