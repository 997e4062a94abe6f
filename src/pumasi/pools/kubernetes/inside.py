"""The manager of a detached run, inside the cluster, where only the standard library is.

When its pod is asked to go, it lets go of the run, which does not notice; the pod that comes after it adopts the run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

from pumasi.catalogue import recorded_spec
from pumasi.core.events import Event, kind_of, to_json
from pumasi.core.spec import Spec
from pumasi.errors import PumasiError, RunBusy
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.base import Request
from pumasi.pools.kubernetes import kept_output
from pumasi.pools.kubernetes import record as records
from pumasi.pools.kubernetes.pool import KubernetesPool, open_pool, program_of
from pumasi.pools.kubernetes.record import Content
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store


class Noted(Unwatched):
    """Events go to the manager's own log, for who has to find out what it did."""

    def event(self, at: float, event: Event) -> None:
        sys.stderr.write(f"{at:.3f} {kind_of(event)} {to_json(event)}\n")
        sys.stderr.flush()


def spec_of(content: Content) -> Spec:
    return recorded_spec({**content.spec, "on": "k8s", "namespace": content.namespace})


async def _fetch(run: str) -> tuple[Content, list[tuple[int, bytes]]]:
    connection = connect("", os.environ)
    async with Api(connection) as api:
        thing = await api.get(records.path_of(connection.namespace, run))
        return records.read(thing), await kept_output.read(api, connection.namespace, run)


async def _manage(run: str) -> None:
    content, archived = await _fetch(run)
    if content.state.get("ended"):
        return
    with tempfile.TemporaryDirectory() as home:
        store = Store.open(Path(home))
        store.import_run(run, content.spec, content.state["created"])
        for at, event in content.events:
            store.add_event(run, at, event)
        for attempt, frames in archived:
            store.append_log(run, attempt, frames)
        request = Request(run, spec_of(content), program_of(content), Path(home), content.state)
        async with open_pool(request, adopt=True) as pool:
            assert isinstance(pool, KubernetesPool)
            await pool.keep_output()
            recorder = Recorder(store, run, Noted())
            recorder.copy = pool.copy
            folder = pool.folder(store.folder(run))
            manager = Manager(run, folder, request.spec, request.program, pool, recorder)
            leave = RunBusy(f"The pod that manages {run} was asked to go; the next one goes on with it.")
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, pool.fail, leave)
            await manager.run()


def main(run: str) -> int:
    try:
        asyncio.run(_manage(run))
    except PumasiError as error:
        # The last line is what whoever misses this manager is told.
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    return 0
