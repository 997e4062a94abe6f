"""A run in the background: started there (`pumasi run -d`, the Python API), and the process that manages it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pumasi.catalogue import recorded_spec
from pumasi.core.spec import Spec
from pumasi.errors import PumasiError
from pumasi.pools import pool_named
from pumasi.pools.base import Request
from pumasi.pools.processes import start_manager
from pumasi.runs.prepare import Prepared, adopted, interrupted, new_record, pack_program, prepare
from pumasi.runs.recorder import Unwatched
from pumasi.store import RunRecord, Store

if TYPE_CHECKING:
    from pumasi.pools.pool import Say


def detach(store: Store, spec: Spec, say: Say = lambda text: None, warn: Say = lambda text: None) -> RunRecord:
    """Start it so that it goes on without us. `say` is told what takes long, `warn` the notes about the program, which
    are events of the run too."""
    pool = pool_named(spec.on)
    prepared = _prepared(store, spec, say, warn)
    left = None if pool.outlives_manager else interrupted(store, prepared.spec)
    record = left or new_record(store, prepared.spec, prepared.program.framework, detached=True)
    fields = record.copied()
    request = Request(record.id, prepared.spec, prepared.program, store.home, fields, prepared.packed, say)
    pool.detach(store, record, request)
    return record


def start(store: Store, spec: Spec, warn: Say) -> tuple[RunRecord, subprocess.Popen[bytes]]:
    """Start it in a process of its own that ends with this one."""
    prepared = _prepared(store, spec, lambda text: None, warn)
    pool = pool_named(spec.on)
    left = None if pool.outlives_manager else interrupted(store, prepared.spec)
    record = left or new_record(store, prepared.spec, prepared.program.framework, detached=True)
    return record, start_manager(store, record, "lifeline")


def _prepared(store: Store, spec: Spec, say: Say, warn: Say) -> Prepared:
    prepared = prepare(spec, store.home, say)
    for note in prepared.program.notes:
        warn(note)
    return prepared


def main(home: str, run_id: str, mode: str) -> int:
    """The manager; `mode` is one of those of `start_manager`."""
    from pumasi.runs.terminal import Session

    store = Store.open(Path(home))
    record = store.run(run_id)
    spec = recorded_spec(record.spec)
    goes_on = mode == "adopt"
    prepared = adopted(spec, run_id) if goes_on else Prepared(spec, *pack_program(spec, lambda text: None))
    session = Session(store, record, prepared, Unwatched())
    try:
        outcome = session.run(0 if mode == "lifeline" else None)
    except PumasiError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return outcome.verdict.exit_code if outcome else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
