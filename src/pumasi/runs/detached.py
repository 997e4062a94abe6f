"""The manager of a run that lives elsewhere, where its pool has started it; only the standard library is there.

When it is asked to go, it lets go of the run, which does not notice; the one that comes after it adopts the run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from pumasi.core.events import Event, kind_of, to_json
from pumasi.errors import PumasiError, RunBusy
from pumasi.pools import pool_named
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store


class Noted(Unwatched):
    """Events go to the manager's own log, for who has to find out what it did."""

    def event(self, at: float, event: Event) -> None:
        sys.stderr.write(f"{at:.3f} {kind_of(event)} {to_json(event)}\n")
        sys.stderr.flush()


async def _manage(pool_name: str, run: str) -> None:
    pool = pool_named(pool_name)
    with tempfile.TemporaryDirectory() as home:
        store = Store.open(Path(home))
        request = await pool.hand_over(run, store)
        if request is None:
            return
        async with pool.open(request, adopt=True) as runner:
            await runner.keep_output()
            recorder = Recorder(store, run, Noted())
            recorder.copy = runner.copy
            folder = runner.folder(store.folder(run))
            manager = Manager(run, folder, request.spec, request.program, runner, recorder)
            leave = RunBusy(f"The pod that manages {run} was asked to go; the next one goes on with it.")
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, runner.fail, leave)
            await manager.run()


def main(pool: str, run: str) -> int:
    try:
        asyncio.run(_manage(pool, run))
    except PumasiError as error:
        # The last line is what whoever misses this manager is told.
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    return 0
