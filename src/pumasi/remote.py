"""Runs that live in a cluster, seen and steered from here, whoever started them and wherever their manager is.

Whoever looks at such a run gets a copy of it in the own store: its state, its events, its logs as far as the cluster
has them. So every verb works on it as on a run of this machine, and what was seen once is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.core.frames import separate, unheard
from pumasi.errors import ClusterTrouble, Forbidden, NotFound, NotThere
from pumasi.kube import archive, manifests
from pumasi.kube import record as records
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.kube.logs import Sieve, follow
from pumasi.kube.record import Content, Row
from pumasi.kube.sight import Refusal, Seen, absence, see
from pumasi.recorder import Recorder, Unwatched
from pumasi.store.lookup import pick
from pumasi.store.records import COPIED, RunRecord

if TYPE_CHECKING:
    from pumasi.core.spec import Spec
    from pumasi.store import Store

BRIEF = 5.0
"""Seconds that a list of runs waits for a cluster before it shows what is known."""
POLL = 1.0
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


def find(store: Store, place: Place, prefix: str | None, *, everywhere: bool = False) -> RunRecord:
    """The run of the cluster that is meant, with a copy of its record in the store."""
    known, _ = rows(place, everywhere=everywhere)
    ps = f"pumasi ps {place.words}" + (" -A" if everywhere else "")
    run = pick(prefix, [row.run for row in known], run=f"pumasi run {place.words}", ps=ps)
    namespace = next(row.namespace for row in known if row.run == run)
    place = Place(place.context or connect("", os.environ).context, namespace)
    return _import(store, place, asyncio.run(_fetch(place, run)))


async def _fetch(place: Place, run: str, patience: float = 10.0) -> Content:
    async with reach(place, patience) as (api, namespace):
        return records.read(await api.get(records.path_of(namespace, run)))


def _import(store: Store, place: Place, content: Content) -> RunRecord:
    try:
        record = store.run(content.run)
    except NotFound:
        where = {"on": f"k8s:{place.context}" if place.context else "k8s", "namespace": content.namespace}
        record = store.import_run(content.run, {**content.spec, **where}, content.state["created"])
    _apply(store, record.id, content)
    return store.run(record.id)


def _apply(store: Store, run: str, content: Content, *, attended: bool = True) -> None:
    """Events first: who sees that the run has ended finds the one that tells how. They are told apart by what they say:
    clocks differ, and the store has events of its own (gaps in what was copied)."""
    known = {(event.at, event.kind, json.dumps(event.data)) for event in store.events(run)}
    for at, kind, data in content.events:
        if (at, kind, json.dumps(data)) not in known:
            store.add_event(run, at, kind, data)
    fields = {name: value for name, value in content.state.items() if name in COPIED}
    store.update_run(run, **fields if attended else {**fields, "state": "unattended"})


# ---- how it stands


def refresh(store: Store, record: RunRecord, patience: float = BRIEF) -> None:
    """Bring the copy up to date, as far as the cluster can be reached."""
    try:
        content, attended = asyncio.run(_stand(place_of(record), record.id, patience))
    except NotThere:
        _close(store, record)
        return
    except ClusterTrouble:
        return
    _apply(store, record.id, content, attended=attended)


def _close(store: Store, record: RunRecord) -> None:
    """It was deleted, or its manager was lost before it had started, and the cluster has tidied up."""
    now = time.time()
    outcome: dict[str, object] = {"verdict": "lost", "reason": "It is no longer in the cluster.", "hint": ""}
    store.add_event(record.id, now, "finished", outcome)
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
    return absence(pods, events, f"pumasi setup {place._replace(namespace=row.namespace).words}")


# ---- a copy of its output


def copy_logs(store: Store, record: RunRecord) -> None:
    """What the cluster has of the output, and the store has not."""
    if store.is_complete(record.id) or store.manager_pid(record.id) is not None:
        return
    with _only_one(store, record.id) as mine:
        if mine:
            with contextlib.suppress(NotThere):
                asyncio.run(_copy(store, record, live=False))


@contextlib.contextmanager
def copied(store: Store, record: RunRecord) -> Iterator[Callable[[], None]]:
    """As long as this lasts, the copy in the store follows the run. Whoever reads it calls what this gives now and
    then: trouble with the cluster, after which nothing more will come, is raised there."""
    with _only_one(store, record.id) as mine:
        if not mine:
            yield lambda: None
            return
        thread = _Thread(store, record)
        thread.start()
        try:
            yield thread.check
        finally:
            thread.stop()


class _Thread(threading.Thread):
    def __init__(self, store: Store, record: RunRecord) -> None:
        super().__init__(daemon=True)
        self._home = store.home
        self._record = record
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[bool] | None = None
        self.trouble: ClusterTrouble | None = None

    def run(self) -> None:
        from pumasi.store import Store

        store = Store.open(self._home)
        self._task = self._loop.create_task(_copy(store, self._record, live=True))
        try:
            if not self._loop.run_until_complete(self._task):
                attend(store, self._record)
        except asyncio.CancelledError:
            pass
        except NotThere:
            _close(store, self._record)
        except ClusterTrouble as trouble:
            self.trouble = trouble
        finally:
            store.close()

    def check(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def stop(self) -> None:
        while self.is_alive():
            if self._task is not None:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._task.cancel)
            self.join(0.05)


@contextlib.contextmanager
def _only_one(store: Store, run: str) -> Iterator[bool]:
    """Two that copy would write every line twice; the second one just reads what the first one copies."""
    with (store.folder(run) / "copying").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


async def _copy(store: Store, record: RunRecord, *, live: bool) -> bool:
    async with reach(place_of(record), records.PATIENCE if live else 10.0) as (api, namespace):
        return await _Copying(store, record.id, api, namespace).run(live=live)


class _Copying:
    def __init__(self, store: Store, run: str, api: Api, namespace: str) -> None:
        self._store = store
        self._run = run
        self._api = api
        self._namespace = namespace
        self._recorder = Recorder(store, run, Unwatched())
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._pods: dict[str, Seen] = {}

    async def run(self, *, live: bool) -> bool:
        """Once, or until the run has ended; False: nobody steers it any more."""
        await self._read_archive()
        try:
            while True:
                content = records.read(await self._api.get(records.path_of(self._namespace, self._run)))
                attended = bool(content.state.get("ended")) or self._api.now - content.beat < records.STALE
                await self._look(content, live=live)
                reading = [task for task in self._readers.values() if not task.done()]
                if not live or (content.state.get("ended") and not reading):
                    # The state comes last: who sees the end has all that was said before it.
                    answers = await asyncio.gather(*self._readers.values(), return_exceptions=True)
                    await self._read_archive()
                    _apply(self._store, self._run, content, attended=attended)
                    for trouble in answers:
                        if isinstance(trouble, BaseException):
                            raise trouble
                    if content.state.get("ended"):
                        self._store.mark_complete(self._run)
                    return True
                if not content.state.get("ended"):
                    _apply(self._store, self._run, content, attended=attended)
                    if not attended:
                        return False
                await asyncio.sleep(POLL)
        finally:
            for task in self._readers.values():
                task.cancel()

    async def _read_archive(self) -> None:
        for attempt, frames in await archive.read(self._api, self._namespace, self._run):
            if new := unheard(frames, self._store.last_heard(self._run, attempt)):
                self._recorder.frames(time.time(), attempt, new)

    async def _look(self, content: Content, *, live: bool) -> None:
        selector = f"{manifests.of_run(self._run)},{manifests.KIND}=rank"
        pods = await self._api.list(f"/api/v1/namespaces/{self._namespace}/pods", labelSelector=selector)
        found = {pod["metadata"]["name"]: pod for pod in pods}
        self._pods = {name: see(pod) for name, pod in found.items()}
        for name, pod in found.items():
            if self._pods[name].started and name not in self._readers:
                attempt = int(pod["metadata"]["labels"][manifests.ATTEMPT])
                reading = self._follow(name, attempt) if live else self._read(name, attempt)
                self._readers[name] = asyncio.ensure_future(reading)

    async def _follow(self, pod: str, attempt: int) -> None:
        sieve = Sieve(self._store.last_heard(self._run, attempt))
        await follow(self._api, self._namespace, pod, sieve, lambda: self._has_ended(pod), self._deliver(attempt))
        self._tell_gaps(attempt, sieve)

    def _has_ended(self, pod: str) -> bool:
        return pod not in self._pods or self._pods[pod].ended

    async def _read(self, pod: str, attempt: int) -> None:
        sieve = Sieve(self._store.last_heard(self._run, attempt))
        deliver = self._deliver(attempt)
        with contextlib.suppress(NotThere):
            async for chunk in self._api.log(self._namespace, pod, follow=False, idle=BRIEF):
                deliver(sieve.pass_on(chunk))
            deliver(sieve.finish())
        self._tell_gaps(attempt, sieve)

    def _tell_gaps(self, attempt: int, sieve: Sieve) -> None:
        for rank, lines in sieve.missing.items():
            self._recorder.event(time.time(), "gap", attempt=attempt, rank=rank, lines=lines)

    def _deliver(self, attempt: int) -> Callable[[bytes], None]:
        def deliver(chunk: bytes) -> None:
            for part in separate(chunk):
                if isinstance(part, bytes):
                    self._recorder.frames(time.time(), attempt, part)

        return deliver


# ---- steering it


def detach(store: Store, spec: Spec) -> RunRecord:
    """Start a run whose manager lives in the cluster."""
    from pumasi.pools.base import Request
    from pumasi.pools.kubernetes import detach
    from pumasi.session import new_record, prepare

    spec, program, packed = prepare(spec, store.home)
    record = new_record(store, spec, program.framework, detached=True)
    try:
        asyncio.run(detach(Request(record.id, spec, program, store.home, record.copied(), packed)))
    except BaseException:
        store.delete_run(record.id)
        raise
    return record


def attend(store: Store, record: RunRecord) -> bool:
    """See that the run has a manager: one elsewhere, if there is one (then False), else one here, which adopts it."""
    if store.manager_pid(record.id) is not None:
        return True
    if is_attended(record):
        return False
    from pumasi.session import start_background

    copy_logs(store, record)
    start_background(store, store.run(record.id), "adopt")
    return True


def ask_to_stop(record: RunRecord, *, force: bool) -> None:
    """Whoever steers it listens for this."""

    async def ask() -> None:
        async with reach(place_of(record)) as (api, namespace):
            note = {manifests.DOMAIN + "stop": "now" if force else "soon"}
            await api.patch(records.path_of(namespace, record.id), {"metadata": {"annotations": note}})

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
