"""What the manager in a pod is given of the run that it takes over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pumasi.catalogue import recorded_spec
from pumasi.core.spec import Spec
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.base import Request
from pumasi.pools.kubernetes import kept_output
from pumasi.pools.kubernetes import record as records
from pumasi.pools.kubernetes.beginning import recorded_program
from pumasi.pools.kubernetes.record import Content

if TYPE_CHECKING:
    from pumasi.store import Store


async def hand_over(run: str, store: Store) -> Request | None:
    """See `Pool.hand_over`."""
    connection = connect("", os.environ)
    async with Api(connection) as api:
        content = records.read(await api.get(records.path_of(connection.namespace, run)))
        kept = await kept_output.read(api, connection.namespace, run)
    if content.state.get("ended"):
        return None
    store.import_run(run, content.spec, content.state["created"])
    for at, event in content.events:
        store.add_event(run, at, event)
    for attempt, frames in kept:
        store.append_log(run, attempt, frames)
    return Request(run, spec_of(content), recorded_program(content), store.home, content.state)


def spec_of(content: Content) -> Spec:
    """As the pod sees the cluster: by no context."""
    return recorded_spec({**content.spec, "on": "k8s", "namespace": content.namespace})
