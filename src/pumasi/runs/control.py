"""What can be done to a run from outside its manager: look after it, wait for it, follow it, stop it, delete it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from pumasi.core.events import StopAsked
from pumasi.errors import NotFound, SystemTrouble, Unreachable, UsageError
from pumasi.store.person import this_person

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pumasi.core.frames import Frame
    from pumasi.runs.recorder import View
    from pumasi.store import EventRow, RunRecord, Store

POLL = 0.1
LOOK = 2.0
"""Seconds between two looks at a cluster."""
YOUTH = 30.0
"""A run this young may have a manager that has not taken its lock yet."""
MARGIN = 30.0
"""Seconds beyond its grace after which a manager that was asked to stop is taken for stuck."""


def reconcile(store: Store) -> None:
    """Look after all runs. One that was deleted meanwhile, or whose end can't be written down (a full disk), must not
    keep anybody from seeing the others, or from deleting one to have room again."""
    for record in store.unfinished():
        with suppress(NotFound, SystemTrouble):
            look_after(store, record)


def look_after(store: Store, record: RunRecord) -> bool:
    """If its manager died: close the record of the run, and end whatever it may have left. Whether that was so. A run
    in a cluster goes on without a manager: there it is looked up how it stands."""
    if record.is_remote:
        if store.manager_pid(record.id) is None:
            from pumasi.pools.kubernetes.runs import refresh

            refresh(store, record)
        return False
    is_orphan = _is_orphan(store, record)
    if is_orphan:
        from pumasi.runs.session import bury

        bury(store, record, "lost", 3, "Its manager died.")
    return is_orphan


def _is_orphan(store: Store, record: RunRecord) -> bool:
    young = record.pid is None and time.time() - record.created < YOUTH
    return not young and store.manager_pid(record.id) is None and store.run(record.id).ended is None


def wait(store: Store, run_id: str, timeout: float | None = None) -> RunRecord:
    """The record of the run when it has ended. TimeoutError when it has not in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    looked, reached = -LOOK, time.monotonic()
    while True:
        record = store.run(run_id)
        if record.ended is not None:
            return record
        if record.is_remote:
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                reached = _see_to(store, record, reached)
        elif look_after(store, record):
            continue
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{run_id} is still {record.state} after {timeout:g} s.")
        time.sleep(POLL)


def _see_to(store: Store, record: RunRecord, reached: float) -> float:
    """That a run in a cluster has a manager, and that we know how it stands. When the cluster was last reached; one
    that can't be reached for long is told."""
    from pumasi.pools.kubernetes.copying import attend
    from pumasi.pools.kubernetes.record import PATIENCE

    try:
        look_after(store, record)
        if store.run(record.id).ended is None:
            attend(store, record)
    except Unreachable:
        if time.monotonic() - reached > PATIENCE:
            raise
        return reached
    return time.monotonic()


def stop(store: Store, record: RunRecord, *, force: bool, tell: Callable[[str], None]) -> RunRecord:
    """Ask the manager to stop the run, and see that it does; one that does not answer is killed with all it has."""
    return ask_to_stop(store, record, force=force, tell=tell)()


def ask_to_stop(
    store: Store, record: RunRecord, *, force: bool, tell: Callable[[str], None]
) -> Callable[[], RunRecord]:
    """Returns at once what sees that the run stops: several runs have their grace at the same time."""
    grace = 0.0 if force else float(str(record.spec.get("grace", 0.0)))
    if record.is_remote:
        from pumasi.pools.kubernetes import copying
        from pumasi.pools.kubernetes import runs as remote

        if not copying.attend(store, record):
            tell(f"Stopping {record.id} in the cluster.")
            remote.ask_to_stop(record, force=force)
            return partial(_see_it_stop_there, store, record, grace)
    pid = _await_manager(store, record.id)
    if pid is None:
        return partial(store.run, record.id)
    tell(f"Stopping {record.id}" + (" at once." if force else f": its processes have {grace:g} s to end."))
    with suppress(SystemTrouble):  # A full disk must not keep anybody from stopping a run.
        store.add_event(record.id, time.time(), StopAsked(by=str(this_person())))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1 if force else signal.SIGTERM)
    return partial(_see_it_stop, store, record, grace, tell)


def _see_it_stop_there(store: Store, record: RunRecord, grace: float) -> RunRecord:
    try:
        return wait(store, record.id, grace + MARGIN + _needed_to_confirm(record))
    except TimeoutError:
        raise SystemTrouble(
            f"The manager of {record.id} does not answer.",
            "Try again in a while: when it has been silent for long, another one takes its place.",
        ) from None


def _see_it_stop(store: Store, record: RunRecord, grace: float, tell: Callable[[str], None]) -> RunRecord:
    try:
        return wait(store, record.id, grace + MARGIN + _needed_to_confirm(record))
    except TimeoutError:
        if record.is_remote:
            raise SystemTrouble(
                f"{record.id} could not be stopped so far.", "Can the cluster be reached? Its manager goes on trying."
            ) from None
        tell(f"The manager of {record.id} does not answer: ending it by force.")
    from pumasi.runs.session import bury

    _kill_manager(store, record.id)
    bury(store, record, "stopped", 5, "Stopped by force: its manager did not answer.")
    return store.run(record.id)


def _needed_to_confirm(record: RunRecord) -> float:
    """Seconds beyond its grace: in a cluster somebody may have to be given up first who does not answer."""
    return MARGIN + float(str(record.spec.get("silence", 0.0))) if record.is_remote else 0.0


def _await_manager(store: Store, run_id: str) -> int | None:
    """The pid of the manager, which may have yet to take its lock; None when the run has ended."""
    while (record := store.run(run_id)).ended is None:
        pid = store.manager_pid(run_id)
        if pid is not None:
            return pid
        look_after(store, record)
        time.sleep(POLL)
    return None


def _kill_manager(store: Store, run_id: str) -> None:
    deadline = time.monotonic() + MARGIN
    while (pid := store.manager_pid(run_id)) is not None and time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)


def delete(store: Store, record: RunRecord, *, force: bool, tell: Callable[[str], None]) -> None:
    if store.run(record.id).ended is None and (record.is_remote or not _is_orphan(store, record)):
        if not force:
            hint = f"Stop it first (pumasi stop {record.id}), or delete it with --force."
            raise UsageError(f"{record.id} is still {record.state}.", hint)
        stop(store, record, force=True, tell=tell)
    _await_release(store, record.id)
    if record.is_remote:
        from pumasi.pools.kubernetes.runs import remove

        remove(record)
    store.delete_run(record.id)


def _await_release(store: Store, run_id: str) -> None:
    """A manager lives on for a moment after it has written down the end."""
    deadline = time.monotonic() + MARGIN
    while store.manager_pid(run_id) is not None and time.monotonic() < deadline:
        time.sleep(POLL)


def follow(
    store: Store, run_id: str, view: View, *, tail: int | None = None, between: Callable[[], None] = lambda: None
) -> RunRecord:
    """Show the run from its beginning or from its last `tail` lines, and go on until it has ended. Events and output
    come in the order in which they happened. `between` is called again and again while nothing is being shown."""
    with kept_up(store, store.run(run_id)) as check:
        return _follow(store, run_id, view, tail, check, between)


def kept_up(store: Store, record: RunRecord) -> AbstractContextManager[Callable[[], None]]:
    """As long as this lasts, what a run writes comes into the store: by its manager here, or as a copy of what it
    writes in a cluster that is steered from elsewhere. To be called now and then: it raises what stands in the way."""
    if not record.is_remote or store.is_complete(record.id):
        return nullcontext(lambda: None)
    from pumasi.pools.kubernetes.copying import attend, copied

    if record.ended is None and attend(store, record):
        return nullcontext(lambda: None)
    return copied(store, record)


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
        if not record.is_remote:
            look_after(store, record)
        check()
        between()
        time.sleep(POLL)


def find(store: Store, prefix: str | None, *, running_first: bool = False, careful: bool = False) -> RunRecord:
    record = store.find(prefix, running_first=running_first, careful=careful)
    if record.ended is None:
        with suppress(NotFound, SystemTrouble):
            look_after(store, record)
    return store.run(record.id)
