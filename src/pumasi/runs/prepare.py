"""A run before it starts: what was asked for with all names settled, its program, the working folder where it travels;
and what an earlier run that asked for the very same has left."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pumasi.core.launch import Program
from pumasi.core.spec import Spec, run_name
from pumasi.pools import pool_named, pool_of
from pumasi.program.find import find_program
from pumasi.program.packages import made_files, setup_files
from pumasi.program.site import must_travel
from pumasi.registry import FLOWS
from pumasi.store import RunRecord, Store
from pumasi.store.person import this_person

if TYPE_CHECKING:
    from pumasi.pools.pool import Pool, Say
    from pumasi.program.workdir import LeaveOut

MOST_LOOKED_AT = 100
"""Runs, from the newest on, among which one is looked for that can go on."""


class Prepared(NamedTuple):
    """`packed` is the working folder, where it travels. `is_adopted`: the run goes on already, without a manager."""

    spec: Spec
    program: Program
    packed: bytes = b""
    is_adopted: bool = False


def prepare(spec: Spec, home: Path, say: Say = lambda text: None) -> Prepared:
    """Whatever can't work, whoever waits, is told before anything is written or started. `say` is called before work
    that takes long."""
    pool = pool_named(spec.on)
    spec = pool.settle(_settled(spec, pool))
    FLOWS.get(spec.strategy).check(spec)
    pool.check(spec, home)
    program, packed = pack_program(spec, say)
    return Prepared(spec, program._replace(notes=(*program.notes, *pool.notes(spec))), packed)


def _settled(spec: Spec, pool: Pool) -> Spec:
    """With what its flow takes from the environment, and the Python of this shell, if another one may go on with the
    run."""
    flow, site = FLOWS.get(spec.strategy), pool.site()
    settled: Spec = flow.settle(spec, os.environ)
    return settled if flow.is_single or site.travels else replace(settled, python=site.python(settled, os.environ))


def adopted(spec: Spec, run: str) -> Prepared:
    """A run that goes on where it is, for another manager. NotThere where it has ended."""
    return Prepared(spec, pool_named(spec.on).program_left(spec, run), is_adopted=True)


def pack_program(spec: Spec, say: Say, leave_out: LeaveOut = lambda status, head: False) -> tuple[Program, bytes]:
    """The program, and the working folder where it has to travel; see `program.workdir.pack`."""
    site = pool_named(spec.on).site()
    program = find_program(spec, os.environ, site)
    if not site.travels:
        return program, b""
    from pumasi.program.workdir import pack

    folder = Path(spec.workdir)
    stays = [folder / path for path in FLOWS.get(spec.strategy).files(spec).values()]
    code = pack(folder, [*must_travel(spec), *setup_files(spec)], leave_out, stays, say, made_files(spec))
    return program._replace(notes=(*program.notes, *code.notes)), code.packed


def new_record(store: Store, spec: Spec, framework: str, *, detached: bool) -> RunRecord:
    user, host = this_person()
    told = {"framework": framework, "detached": detached, "user": user, "host": host}
    return store.create_run(run_name(spec), spec.dump(), time.time(), **told)


def interrupted(store: Store, spec: Spec) -> RunRecord | None:
    """One's own run of several tasks that asked for the very same and whose manager died. It goes on with what is
    done."""
    if FLOWS.get(spec.strategy).is_single:
        return None
    asked = json.loads(json.dumps(spec.dump()))
    for record in store.runs(limit=MOST_LOOKED_AT):
        if record.started_here and record.spec == asked and pool_of(record).can_go_on(store, record):
            return pool_of(record).reopen(store, record)
    return None
