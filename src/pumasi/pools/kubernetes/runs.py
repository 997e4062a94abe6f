"""Runs that live in a cluster, seen and steered from here, whoever started them and wherever their manager is.

Whoever looks at such a run gets a copy of it in the own store: its state and its events, and its output as far as the
cluster has it (`copying`). So every verb works on it as on a run of this machine, and what was seen once is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.core.events import Event, finished, pack, unpack
from pumasi.errors import ClusterTrouble, Forbidden, NotFound, NotThere
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.kube.kubectl import kubectl
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes import record as records
from pumasi.pools.kubernetes.pod_facts import Refusal, absence
from pumasi.pools.kubernetes.record import Content, Row
from pumasi.store.lookup import pick
from pumasi.store.person import this_person
from pumasi.store.records import COPIED, RunRecord

if TYPE_CHECKING:
    from pumasi.core.spec import Spec
    from pumasi.store import Store

BRIEF = 5.0
"""Seconds that a list of runs waits for a cluster before it shows what is known."""
REMOVAL = 60.0


class Place(NamedTuple):
    """A cluster, by the context of the kubeconfig, and a namespace in it; empty ones are the kubeconfig's own."""

    context: str = ""
    namespace: str = ""

    @property
    def words(self) -> str:
        """The options that lead there."""
        where = f"--on k8s:{self.context}" if self.context else "--on k8s"
        return f"{where} --namespace {self.namespace}" if self.namespace else where


def place_of(record: RunRecord) -> Place:
    return Place(str(record.spec["on"]).partition(":")[2], str(record.spec.get("namespace") or ""))


@contextlib.asynccontextmanager
async def reach(place: Place, patience: float = 10.0) -> AsyncIterator[tuple[Api, str]]:
    connection = connect(place.context, os.environ)
    async with Api(connection, patience=patience) as api:
        yield api, place.namespace or connection.namespace


# ---- finding runs


def rows(place: Place, *, everywhere: bool = False) -> tuple[list[Row], float]:
    """The runs of the cluster, and what time it is there."""

    async def ask() -> tuple[list[Row], float]:
        async with reach(place) as (api, namespace):
            return await records.list_rows(api, None if everywhere else namespace), api.now

    try:
        return asyncio.run(ask())
    except Forbidden as error:
        hint = "--namespace NAME looks in one where you may; an administrator can give you the right `view` in others."
        raise Forbidden(error.message, f"Leave out -A: {hint}" if everywhere else hint, said=error.said) from None


def find(
    store: Store,
    place: Place,
    prefix: str | None,
    *,
    everywhere: bool = False,
    running_first: bool = False,
    careful: bool = False,
) -> RunRecord:
    """The run of the cluster that is meant, with a copy of its record in the store; see `Store.find`."""
    known, _ = rows(place, everywhere=everywhere)
    running = {row.run for row in known if row.ended is None} if running_first else set()
    ps = f"pumasi ps {place.words}" + (" -A" if everywhere else "")
    ids = [row.run for row in known]
    begin = f"pumasi run {place.words}"
    run = pick(prefix, ids, own=store.own(), running=running, careful=careful, run=begin, ps=ps)
    return fetch(store, place, next(row for row in known if row.run == run))


def fetch(store: Store, place: Place, row: Row) -> RunRecord:
    """A run of the cluster, with a copy of its record in the store."""
    place = Place(place.context or connect("", os.environ).context, row.namespace)
    return _import(store, place, asyncio.run(_fetch(place, row.run)))


async def _fetch(place: Place, run: str, patience: float = 10.0) -> Content:
    async with reach(place, patience) as (api, namespace):
        return records.read(await api.get(records.path_of(namespace, run)))


def _import(store: Store, place: Place, content: Content) -> RunRecord:
    try:
        record = store.run(content.run)
    except NotFound:
        where = {"on": f"k8s:{place.context}" if place.context else "k8s", "namespace": content.namespace}
        record = store.import_run(content.run, {**content.spec, **where}, content.state["created"])
    apply(store, record.id, content)
    return store.run(record.id)


def apply(store: Store, run: str, content: Content, *, attended: bool = True) -> None:
    """Events first: who sees that the run has ended finds the one that tells how. They are told apart by what they say:
    clocks differ, and the store has events of its own (gaps in what was copied)."""
    context = place_of(store.run(run)).context
    known = {(row.at, json.dumps(pack(row.event))) for row in store.events(run)}
    for at, event in content.events:
        seen = _event_seen_from(context, event)
        if not {(at, json.dumps(pack(event))), (at, json.dumps(pack(seen)))} & known:
            store.add_event(run, at, seen)
    fields = {name: value for name, value in content.state.items() if name in COPIED}
    if fields.get("outcome"):
        fields["outcome"] = _seen_from(context, fields["outcome"])
    store.update_run(run, **fields if attended else {**fields, "state": "unattended"})


def _event_seen_from(context: str, event: Event) -> Event:
    kind, data = pack(event)
    return unpack(kind, _seen_from(context, data))


def _seen_from(context: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """A result on a volume is reached by the context that this kubeconfig has for the cluster: a manager inside knows
    of none, and somebody else may have another."""
    result = data.get("result")
    return {**data, "result": {**result, "context": context}} if result else dict(data)


# ---- how it stands


def refresh(store: Store, record: RunRecord, patience: float = BRIEF) -> None:
    """Bring the copy up to date, as far as the cluster can be reached."""
    try:
        content, attended = asyncio.run(_stand(place_of(record), record.id, patience))
    except NotThere:
        close(store, record)
        return
    except ClusterTrouble:
        return
    apply(store, record.id, content, attended=attended)


def close(store: Store, record: RunRecord) -> None:
    """It was deleted, or its manager was lost before it had started, and the cluster has tidied up."""
    now = time.time()
    outcome: dict[str, object] = {"verdict": "lost", "reason": "It is no longer in the cluster.", "hint": ""}
    store.add_event(record.id, now, finished(outcome))
    store.update_run(record.id, state="lost", ended=now, outcome=outcome, exit_code=3)


async def _stand(place: Place, run: str, patience: float = 10.0) -> tuple[Content, bool]:
    """What its record says, and whether some manager, here or elsewhere, steers it, or need not any more."""
    async with reach(place, patience) as (api, namespace):
        content = records.read(await api.get(records.path_of(namespace, run)))
        return content, bool(content.state.get("ended")) or api.now - content.beat < records.STALE


def is_attended(record: RunRecord) -> bool:
    return asyncio.run(_stand(place_of(record), record.id))[1]


# ---- why nobody steers it


def why_unattended(store: Store, record: RunRecord) -> Refusal | None:
    """Why the manager of a detached run is not there, as far as the cluster tells."""
    if not (record.is_remote and record.detached and record.state in ("queued", "unattended")):
        return None
    if store.manager_pid(record.id) is not None:
        return None
    place = place_of(record)

    async def ask() -> Refusal | None:
        async with reach(place, BRIEF) as (api, namespace):
            notes = (await api.get(records.path_of(namespace, record.id)))["metadata"].get("annotations", {})
            row = Row(record.id, namespace, notes)
            return await _why(api, place, row) if _is_missed(row, api.now) else None

    with contextlib.suppress(ClusterTrouble):
        return asyncio.run(ask())
    return None


def whys_unattended(place: Place, rows: Iterable[Row], now: float) -> dict[str, Refusal]:
    """The same for all of a list that need it."""
    missed = [row for row in rows if _is_missed(row, now)]
    if not missed:
        return {}

    async def ask() -> list[Refusal | None]:
        async with reach(place, BRIEF) as (api, _):
            return await asyncio.gather(*(_why(api, place, row) for row in missed))

    with contextlib.suppress(ClusterTrouble):
        return {row.run: why for row, why in zip(missed, asyncio.run(ask()), strict=True) if why}
    return {}


def _is_missed(row: Row, now: float) -> bool:
    """Whether it should have a manager in the cluster, which has not come, or has fallen silent."""
    return row.note("detached") == "True" and not (row.note("manager") and row.is_attended(now))


async def _why(api: Api, place: Place, row: Row) -> Refusal | None:
    folder = f"/api/v1/namespaces/{row.namespace}"
    selector = f"{manifests.of_run(row.run)},{manifests.KIND}=manager"
    pods = await api.list(f"{folder}/pods", labelSelector=selector)
    about = f"involvedObject.name={row.run}-manager,type=Warning"
    events = [] if pods else await api.list(f"{folder}/events", fieldSelector=about)
    setup = f"pumasi setup {place._replace(namespace=row.namespace).words}"
    return absence(pods, events, setup, kubectl(place.context, row.namespace))


# ---- steering it


def detach(store: Store, spec: Spec, say: Callable[[str], None], warn: Callable[[str], None]) -> RunRecord:
    """Start a run whose manager lives in the cluster. `say` is told what takes long, `warn` the notes of the
    program."""
    from pumasi.pools.base import Request
    from pumasi.pools.kubernetes.pool import detach
    from pumasi.runs.session import new_record, prepare

    spec, program, packed = prepare(spec, store.home, say)
    for note in program.notes:
        warn(note)
    record = new_record(store, spec, program.framework, detached=True)
    try:
        asyncio.run(detach(Request(record.id, spec, program, store.home, record.copied(), packed, say)))
    except BaseException:
        store.delete_run(record.id)
        raise
    return record


def ask_to_stop(record: RunRecord, *, force: bool) -> None:
    """Whoever steers it listens for this."""

    async def ask() -> None:
        async with reach(place_of(record)) as (api, namespace):
            by = this_person().known_as(await api.user())
            notes = {manifests.DOMAIN + "stop": "now" if force else "soon", manifests.DOMAIN + "stopped-by": str(by)}
            await api.patch(records.path_of(namespace, record.id), {"metadata": {"annotations": notes}})

    asyncio.run(ask())


def remove(record: RunRecord) -> None:
    """Everything that the run has in the cluster. Its pods first: there may be many, and one request takes them all."""

    async def ask() -> None:
        async with reach(place_of(record)) as (api, namespace):
            pods = f"/api/v1/namespaces/{namespace}/pods"
            await api.delete_all(pods, grace=1, labelSelector=manifests.of_run(record.id))
            await api.delete(records.anchor_path(namespace, record.id))
            await _until_gone(api, namespace, record.id)

    asyncio.run(ask())


async def _until_gone(api: Api, namespace: str, run: str) -> None:
    deadline = time.monotonic() + REMOVAL
    selector = manifests.of_run(run)
    while time.monotonic() < deadline:
        left: list[dict[str, Any]] = []
        for kind in ("pods", "configmaps"):
            left += await api.list(f"/api/v1/namespaces/{namespace}/{kind}", metadata_only=True, labelSelector=selector)
        if not left:
            return
        await asyncio.sleep(0.2)
    raise ClusterTrouble(f"{run} is being deleted, but the cluster has not finished within {REMOVAL:g} s.")
