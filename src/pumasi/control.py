"""What can be done to a run from outside its manager: look after it, wait for it, follow it, stop it, delete it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pumasi.errors import NotFound, SystemTrouble, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pumasi.core.frames import Frame
    from pumasi.recorder import View
    from pumasi.store import EventRow, RunRecord, Store

POLL = 0.1
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
    """If its manager died: close the record of the run, and end whatever it may have left. Whether that was so."""
    is_orphan = _is_orphan(store, record)
    if is_orphan:
        bury(store, record, "lost", 3, "Its manager died.")
    return is_orphan


def _is_orphan(store: Store, record: RunRecord) -> bool:
    young = record.pid is None and time.time() - record.created < YOUTH
    return not young and store.manager_pid(record.id) is None and store.run(record.id).ended is None


def bury(store: Store, record: RunRecord, verdict: str, exit_code: int, reason: str) -> None:
    """Close the record of a run that nobody steers any more."""
    import shutil

    from pumasi.agent.agent import kill_family

    kill_family(f"PUMASI_GANG={record.id}.")
    shutil.rmtree(store.folder(record.id) / "tmp", ignore_errors=True)
    now = time.time()
    errors = store.folder(record.id) / "manager.err"
    said = errors.exists() and errors.stat().st_size
    hint = f"What the manager said is in {errors}." if said else f"What it printed: pumasi logs {record.id}"
    outcome: dict[str, object] = {"verdict": verdict, "reason": reason, "hint": hint}
    # In this order: who sees that the run has ended finds the event that tells how.
    store.add_event(record.id, now, "finished", outcome)
    store.update_run(record.id, state=verdict, ended=now, outcome=outcome, exit_code=exit_code)


def wait(store: Store, run_id: str, timeout: float | None = None) -> RunRecord:
    """The record of the run when it has ended. TimeoutError when it has not in time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        record = store.run(run_id)
        if record.ended is not None:
            return record
        if look_after(store, record):
            continue
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"{run_id} is still {record.state} after {timeout:g} s.")
        time.sleep(POLL)


def stop(store: Store, record: RunRecord, *, force: bool, tell: Callable[[str], None]) -> RunRecord:
    """Ask the manager to stop the run, and see that it does; one that does not answer is killed with all it has."""
    pid = _await_manager(store, record.id)
    if pid is None:
        return store.run(record.id)
    grace = 0.0 if force else float(str(record.spec.get("grace", 0.0)))
    tell(f"Stopping {record.id}" + (" at once." if force else f": its processes have {grace:g} s to end."))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1 if force else signal.SIGTERM)
    try:
        return wait(store, record.id, grace + MARGIN)
    except TimeoutError:
        tell(f"The manager of {record.id} does not answer: ending it by force.")
    _kill_manager(store, record.id)
    bury(store, record, "stopped", 5, "Stopped by force: its manager did not answer.")
    return store.run(record.id)


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
    if store.run(record.id).ended is None and not _is_orphan(store, record):
        if not force:
            hint = f"Stop it first (pumasi stop {record.id}), or delete it with --force."
            raise UsageError(f"{record.id} is still {record.state}.", hint)
        stop(store, record, force=True, tell=tell)
    _await_release(store, record.id)
    store.delete_run(record.id)


def _await_release(store: Store, run_id: str) -> None:
    """A manager lives on for a moment after it has written down the end."""
    deadline = time.monotonic() + MARGIN
    while store.manager_pid(run_id) is not None and time.monotonic() < deadline:
        time.sleep(POLL)


def follow(store: Store, run_id: str, view: View, *, tail: int | None = None) -> RunRecord:
    """Show the run from its beginning or from its last `tail` lines, and go on until it has ended. Events and output
    come in the order in which they happened."""
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
                view.event(event.at, event.kind, event.data)
                frames = frames[len(earlier) :]
            show(frames)
        for event in events:
            view.event(event.at, event.kind, event.data)
        events.clear()
        if record.ended is not None:
            return record
        look_after(store, record)
        time.sleep(POLL)


def find(store: Store, prefix: str | None) -> RunRecord:
    record = store.find(prefix)
    reconcile(store)
    return store.run(record.id)
