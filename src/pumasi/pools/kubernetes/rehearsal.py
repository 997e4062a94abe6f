"""What a run would make in a cluster: the code of a real run, in front of a cluster that makes nothing."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.core.flows import MAIN
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.planning import plan
from pumasi.core.ranks import chief_first
from pumasi.errors import DoesNotFit
from pumasi.kube.api import Api
from pumasi.kube.config import Connection, connect
from pumasi.kube.documents import abridged, to_yaml
from pumasi.pools.base import Order, Request
from pumasi.pools.kubernetes.beginning import make_run
from pumasi.pools.kubernetes.manifests import KIND, Object
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.record import Record
from pumasi.pools.kubernetes.runner import KubernetesRunner
from pumasi.pools.pool import Preview

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

LATER = "(given when it is made)"


class Rehearsal(Api):
    """Looks at the cluster as usual, and remembers what it is asked to make."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.made: list[Object] = []

    async def create(self, path: str, thing: Mapping[str, Any]) -> Object:
        self.made.append(dict(thing))
        answer = {**thing, "metadata": {**thing["metadata"], "uid": LATER, "resourceVersion": LATER}}
        return {**answer, "spec": {**thing["spec"], "clusterIP": LATER}} if thing["kind"] == "Service" else answer

    async def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        raise AssertionError("nothing is changed in a rehearsal")

    async def delete(self, path: str, *, grace: int | None = None, background: bool = True) -> bool:
        """What does not fit is taken back, though it was never made."""
        self.made.clear()
        return True


def rehearsed(request: Request, say: Callable[[str], None], *, detached: bool) -> Preview:
    """The objects themselves. What only programs read is cut short in the text, which is for people."""
    objects = asyncio.run(objects_of(request, say, detached=detached))
    for note in request.program.notes:
        say(note)
    remark = "What would be made, and is not. Long texts are cut short here: --json prints all of them."
    return Preview(objects, to_yaml(map(abridged, objects), [remark]))


async def objects_of(request: Request, tell: Callable[[str], None], *, detached: bool = False) -> list[Object]:
    """All objects, in the order in which they would be made, given what is free now; DoesNotFit if too little is.
    Only the end of the run's id, uids, addresses and the star's secret are chosen later."""
    spec, program = request.spec, request.program
    connection = connect(spec.context, os.environ)
    api = Rehearsal(connection)
    async with api:
        record = Record(
            api, spec[KubernetesOptions].namespace or connection.namespace, request.run, "" if detached else LATER
        )
        fields = {"state": "queued", "created": time.time(), "framework": program.framework, "detached": detached}
        pool = await make_run(api, request._replace(home=Path(), fields=fields), record)
        pool.tell = tell
        if detached:
            await pool.start_manager()
        pods = await pool.make_pods(await _order(pool, request.run, spec, program))
        return [_without_secret(_placed(thing, record.namespace)) for thing in (*api.made, *pods)]


async def _order(pool: KubernetesRunner, run: str, spec: Spec, program: Program) -> Order:
    placement = await _place(pool, spec)
    nodes = chief_first(placement)
    gpus = await pool.reserve(MAIN, placement) or {}
    attempt = Attempt(run, 0, placement, gpus, "", "0", pool.folder(Path()), pool.addresses(nodes))
    gang = gang_of(spec, program, attempt)
    return Order("main", 0, gang.table.nodes, agent_configs(spec, program, attempt, gang))


async def _place(pool: KubernetesRunner, spec: Spec) -> Mapping[str, int]:
    """What would never fit is told as that; for what only has to wait, there is nothing to show yet."""
    asked = spec[KubernetesOptions]
    try:
        return plan(await pool.nodes(), spec.slots, most_per_node=asked.max_per_node).placement
    except DoesNotFit as busy:
        plan(pool.capacity(), spec.slots, most_per_node=asked.max_per_node)
        raise DoesNotFit(
            f"{busy.message} {pool.shortage(spec.slots).remark}".rstrip(),
            "The run would wait for room." if spec.wait else busy.hint,
        ) from None


def _placed(thing: Object, namespace: str) -> Object:
    metadata = thing["metadata"]
    return {**thing, "metadata": {"name": metadata["name"], "namespace": namespace, **metadata}}


def _without_secret(thing: Object) -> Object:
    """That of the star is drawn by lot; the user's code is what it is."""
    if thing["kind"] != "Secret" or thing["metadata"]["labels"][KIND] != "star":
        return thing
    return {**thing, "stringData": dict.fromkeys(thing["stringData"], LATER)}
