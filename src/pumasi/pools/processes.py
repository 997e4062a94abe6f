"""Runs whose manager is a process of this machine: who steers one is a file lock, and signals reach it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pumasi.core.events import Finished, StopAsked
from pumasi.errors import SystemTrouble
from pumasi.store.person import this_person

if TYPE_CHECKING:
    from pumasi.pools.pool import Pool, Say
    from pumasi.store import RunRecord, Store

POLL = 0.1
YOUTH = 30.0
"""A run this young may have a manager that has not taken its lock yet."""
MARGIN = 30.0
"""Seconds beyond its grace after which a manager that was asked to stop is taken for stuck."""
START_SECONDS = 30.0
"""How long a manager in the background may take to be there."""


def start_manager(store: Store, record: RunRecord, mode: str) -> subprocess.Popen[bytes]:
    """A manager in a process of its own: for a new run ("alone", "lifeline"), or for one to "adopt"."""
    environ = {name: value for name, value in os.environ.items() if name != "PUMASI_GANG"}
    with (store.folder(record.id) / "manager.err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "pumasi.runs.background", str(store.home), record.id, mode],
            env=environ,
            cwd=store.home,  # Python looks for modules here first, and a user's queue.py is not the one that we need
            stdin=subprocess.PIPE if mode == "lifeline" else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    _await_start(store, record.id, process)
    return process


def _await_start(store: Store, run_id: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while store.manager_pid(run_id) is None and store.run(run_id).ended is None:
        if process.poll() is not None or time.monotonic() > deadline:
            errors = store.folder(run_id) / "manager.err"
            raise SystemTrouble(f"The background manager of {run_id} did not start.", f"What it said is in {errors}.")
        time.sleep(0.02)


def is_orphan(store: Store, record: RunRecord) -> bool:
    young = record.pid is None and time.time() - record.created < YOUTH
    return not young and store.manager_pid(record.id) is None and store.run(record.id).ended is None


def bury_orphan(store: Store, record: RunRecord) -> bool:
    """If its manager died: close the record of the run, and end whatever it may have left. Whether that was so."""
    if not is_orphan(store, record):
        return False
    bury(store, record, "lost", 3, "Its manager died.")
    return True


def bury(store: Store, record: RunRecord, verdict: str, exit_code: int, reason: str) -> None:
    """Close the record of a run that nobody steers any more."""
    _sweep(store, record)
    now = time.time()
    errors = store.folder(record.id) / "manager.err"
    said = errors.exists() and errors.stat().st_size
    hint = f"What the manager said is in {errors}." if said else f"What it printed: pumasi logs {record.id}"
    outcome: dict[str, object] = {"verdict": verdict, "reason": reason, "hint": hint}
    # In this order: who sees that the run has ended finds the event that tells how.
    store.add_event(record.id, now, Finished(verdict=verdict, reason=reason, hint=hint))
    store.update_run(record.id, state=verdict, ended=now, outcome=outcome, exit_code=exit_code)


def _sweep(store: Store, record: RunRecord) -> None:
    from pumasi.agent.processes import kill_family

    kill_family(f"PUMASI_GANG={record.id}.")
    shutil.rmtree(store.folder(record.id) / "tmp", ignore_errors=True)


def can_go_on(store: Store, record: RunRecord) -> bool:
    if store.manager_pid(record.id) is not None:
        return False
    lost = record.state == "lost" and "task" not in (record.outcome or {})  # for its manager, not for one of its tasks
    return (record.ended is None or lost) and bool(store.tasks(record.id))


def reopen(store: Store, record: RunRecord) -> RunRecord:
    _sweep(store, record)
    store.reopen(record.id)
    return store.run(record.id)


def ask_manager(
    pool: Pool, store: Store, record: RunRecord, see_it_stop: Callable[[], RunRecord], *, force: bool, tell: Say
) -> Callable[[], RunRecord]:
    """Ask the manager here to stop the run. `see_it_stop` waits for the end; it is returned, unless there is nothing
    to wait for."""
    pid = _await_manager(pool, store, record.id)
    if pid is None:
        return partial(store.run, record.id)
    words = " at once." if force else f": its processes have {grace_of(record, force=False):g} s to end."
    tell(f"Stopping {record.id}{words}")
    with suppress(SystemTrouble):  # A full disk must not keep anybody from stopping a run.
        store.add_event(record.id, time.time(), StopAsked(by=str(this_person())))
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGUSR1 if force else signal.SIGTERM)
    return see_it_stop


def grace_of(record: RunRecord, *, force: bool) -> float:
    return 0.0 if force else float(str(record.spec.get("grace", 0.0)))


def insist(pool: Pool, store: Store, record: RunRecord, grace: float, tell: Say) -> RunRecord:
    """Wait for the end; a manager that does not answer is killed with all it has."""
    try:
        return pool.wait(store, record.id, grace + MARGIN)
    except TimeoutError:
        tell(f"The manager of {record.id} does not answer: ending it by force.")
    _kill_manager(store, record.id)
    bury(store, record, "stopped", 5, "Stopped by force: its manager did not answer.")
    return store.run(record.id)


def _await_manager(pool: Pool, store: Store, run_id: str) -> int | None:
    """The pid of the manager, which may have yet to take its lock; None when the run has ended."""
    while (record := store.run(run_id)).ended is None:
        pid = store.manager_pid(run_id)
        if pid is not None:
            return pid
        pool.look_after(store, record)
        time.sleep(POLL)
    return None


def _kill_manager(store: Store, run_id: str) -> None:
    deadline = time.monotonic() + MARGIN
    while (pid := store.manager_pid(run_id)) is not None and time.monotonic() < deadline:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)


def await_release(store: Store, run_id: str) -> None:
    """A manager lives on for a moment after it has written down the end."""
    deadline = time.monotonic() + MARGIN
    while store.manager_pid(run_id) is not None and time.monotonic() < deadline:
        time.sleep(POLL)
