"""Runs that live in a cluster, seen and steered from here, whoever started them and wherever their manager is.

Whoever looks at such a run gets a copy of it in the own store: its state and its events, and its output as far as the
cluster has it (`copying`). So every verb works on it as on a run of this machine, and what was seen once is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pumasi.core.events import Event, finished, pack, unpack
from pumasi.errors import ClusterTrouble, Forbidden, NotFound, NotThere
from pumasi.kube.api import Api
from pumasi.kube.kubectl import kubectl
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes import record as records
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.pod_facts import absence
from pumasi.pools.kubernetes.reach import PATIENCE, ask
from pumasi.pools.kubernetes.record import Content, Row
from pumasi.pools.kubernetes.target import Target
from pumasi.pools.pool import Absence, Listed
from pumasi.store.lookup import pick
from pumasi.store.person import this_person
from pumasi.store.records import COPIED, RunRecord

if TYPE_CHECKING:
    from pumasi.core.launch import Program
    from pumasi.core.spec import Spec
    from pumasi.store import Store

BRIEF = 5.0
"""Seconds that a list of runs waits for a cluster before it shows what is known."""
REMOVAL = 60.0


def target_of(record: RunRecord) -> Target:
    return Target(str(record.spec["on"]).partition(":")[2], str(record.spec.get("namespace") or ""))


# ---- finding runs


def rows(target: Target) -> tuple[list[Row], float]:
    """The runs of the cluster, and what time it is there."""

    async def list_them(api: Api, namespace: str) -> tuple[list[Row], float]:
        return await records.list_rows(api, None if target.everywhere else namespace), api.now

    try:
        return ask(target, list_them)
    except Forbidden as error:
        hint = "--namespace NAME looks in one where you may; an administrator can give you the right `view` in others."
        raise Forbidden(
            error.message, f"Leave out -A: {hint}" if target.everywhere else hint, said=error.said
        ) from None


def find(
    store: Store, target: Target, prefix: str | None, *, running_first: bool = False, careful: bool = False
) -> RunRecord:
    """The run of the cluster that is meant, with a copy of its record in the store; see `Store.find`."""
    known, _ = rows(target)
    running = {row.run for row in known if row.ended is None} if running_first else set()
    ps = f"pumasi ps {target.words}" + (" -A" if target.everywhere else "")
    ids = [row.run for row in known]
    begin = f"pumasi run {target.words}"
    run = pick(prefix, ids, own=store.own(), running=running, careful=careful, run=begin, ps=ps)
    return fetch(store, target, next(row for row in known if row.run == run))


def listed(store: Store, target: Target, row: Row, now: float) -> Listed:
    values = {
        "namespace": row.namespace,
        "id": row.run,
        "state": row.state(now),
        "created": row.created,
        "slots": int(row.number("slots") or 1),
        "framework": row.note("framework"),
        "exit_code": None if (code := row.number("exit-code")) is None else int(code),
        "user": row.note("user"),
        "host": row.note("host"),
        "command": row.note("command"),
    }
    return Listed(row.run, row.state(now), row.created, row.ended, values, partial(fetch, store, target, row), row)


def fetch(store: Store, target: Target, row: Row) -> RunRecord:
    """A run of the cluster, with a copy of its record in the store."""

    async def read(api: Api, namespace: str) -> tuple[Target, Content]:
        content = records.read(await api.get(records.path_of(namespace, row.run)))
        return Target(api.connection.context, namespace), content

    return _import(store, *ask(target._replace(namespace=row.namespace), read))


def _import(store: Store, target: Target, content: Content) -> RunRecord:
    try:
        record = store.run(content.run)
    except NotFound:
        where = {"on": target.on, "namespace": content.namespace}
        record = store.import_run(content.run, {**content.spec, **where}, content.state["created"])
    apply(store, record.id, content)
    return store.run(record.id)


def apply(store: Store, run: str, content: Content, *, attended: bool = True) -> None:
    """Events first: who sees that the run has ended finds the one that tells how. They are told apart by what they say:
    clocks differ, and the store has events of its own (gaps in what was copied)."""
    context = target_of(store.run(run)).context
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
        content, attended = _stand(record, patience)
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


def _stand(record: RunRecord, patience: float = PATIENCE) -> tuple[Content, bool]:
    """What its record says, and whether some manager, here or elsewhere, steers it, or need not any more."""

    async def read(api: Api, namespace: str) -> tuple[Content, bool]:
        content = records.read(await api.get(records.path_of(namespace, record.id)))
        return content, bool(content.state.get("ended")) or api.now - content.beat < records.STALE

    return ask(target_of(record), read, patience)


def is_attended(record: RunRecord) -> bool:
    """Raises ClusterTrouble where nobody attends it, and this version of Pumasi can't."""
    content, attended = _stand(record)
    if not attended:
        records.check_form(content)
    return attended


def program_left(spec: Spec, run: str) -> Program:
    """What a run that goes on in the cluster runs. NotThere where it has ended."""
    from pumasi.pools.kubernetes.beginning import recorded_program

    async def read(api: Api, namespace: str) -> Content:
        return records.read(await api.get(records.path_of(namespace, run)))

    content = ask(Target(spec.context, spec[KubernetesOptions].namespace or ""), read)
    if content.state.get("ended"):
        raise NotThere(f"{run} has ended already.")
    return recorded_program(content)


def is_there(record: RunRecord) -> bool:
    """In its cluster, and not over."""
    try:
        return not _stand(record)[0].state.get("ended")
    except NotThere:
        return False


# ---- why nobody steers it


def why_unattended(store: Store, record: RunRecord) -> Absence | None:
    """Why the manager of a detached run is not there, as far as the cluster tells."""
    if not (record.detached and record.state in ("queued", "unattended")):
        return None
    if store.manager_pid(record.id) is not None:
        return None
    target = target_of(record)

    async def look(api: Api, namespace: str) -> Absence | None:
        notes = (await api.get(records.path_of(namespace, record.id)))["metadata"].get("annotations", {})
        row = Row(record.id, namespace, notes)
        return await _why(api, target, row) if _is_missed(row, api.now) else None

    with contextlib.suppress(ClusterTrouble):
        return ask(target, look, BRIEF)
    return None


def whys_unattended(target: Target, rows: Iterable[Row], now: float) -> dict[str, Absence]:
    """The same for all of a list that need it."""
    missed = [row for row in rows if _is_missed(row, now)]
    if not missed:
        return {}

    async def look(api: Api, _: str) -> list[Absence | None]:
        return await asyncio.gather(*(_why(api, target, row) for row in missed))

    with contextlib.suppress(ClusterTrouble):
        return {row.run: why for row, why in zip(missed, ask(target, look, BRIEF), strict=True) if why}
    return {}


def _is_missed(row: Row, now: float) -> bool:
    """Whether it should have a manager in the cluster, which has not come, or has fallen silent."""
    return row.note("detached") == "True" and not (row.note("manager") and row.is_attended(now))


async def _why(api: Api, target: Target, row: Row) -> Absence | None:
    folder = f"/api/v1/namespaces/{row.namespace}"
    selector = f"{manifests.of_run(row.run)},{manifests.KIND}=manager"
    pods = await api.list(f"{folder}/pods", labelSelector=selector)
    about = f"involvedObject.name={row.run}-manager,type=Warning"
    events = [] if pods else await api.list(f"{folder}/events", fieldSelector=about)
    setup = f"pumasi setup {target._replace(namespace=row.namespace).words}"
    why = absence(pods, events, setup, kubectl(target.context, row.namespace))
    return Absence(why.reason, why.hint) if why else None


# ---- steering it


def ask_to_stop(record: RunRecord, *, force: bool) -> None:
    """Whoever steers it listens for this."""

    async def note(api: Api, namespace: str) -> None:
        by = this_person().known_as(await api.user())
        notes = {manifests.DOMAIN + "stop": "now" if force else "soon", manifests.DOMAIN + "stopped-by": str(by)}
        await api.patch(records.path_of(namespace, record.id), {"metadata": {"annotations": notes}})

    ask(target_of(record), note)


def remove(record: RunRecord) -> None:
    """Everything that the run has in the cluster. Its pods first: there may be many, and one request takes them all."""

    async def delete(api: Api, namespace: str) -> None:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        await api.delete_all(pods, grace=1, labelSelector=manifests.of_run(record.id))
        await api.delete(records.anchor_path(namespace, record.id))
        await _until_gone(api, namespace, record.id)

    ask(target_of(record), delete)


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
