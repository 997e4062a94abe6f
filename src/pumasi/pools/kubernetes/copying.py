"""A copy of what a run of a cluster says, made by whoever looks at it and kept in the own store; and a manager for it,
where whoever looks sees that nobody steers it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pumasi.core.events import Gap
from pumasi.core.flows import log_of
from pumasi.core.frames import separate, unheard
from pumasi.errors import ClusterTrouble, NotThere
from pumasi.kube.api import Api
from pumasi.kube.logs import Sieve, follow
from pumasi.pools.kubernetes import kept_output, manifests
from pumasi.pools.kubernetes import record as records
from pumasi.pools.kubernetes import runs as remote
from pumasi.pools.kubernetes.pod_facts import Seen, see
from pumasi.pools.kubernetes.record import Content
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store.records import RunRecord

if TYPE_CHECKING:
    from pumasi.store import Store

POLL = 1.0


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


def attend(store: Store, record: RunRecord) -> bool:
    """See that the run has a manager: one elsewhere, if there is one (then False), else one here, which adopts it."""
    if store.manager_pid(record.id) is not None:
        return True
    if remote.is_attended(record):
        return False
    from pumasi.runs.session import start_background

    copy_logs(store, record)
    start_background(store, store.run(record.id), "adopt")
    return True


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
            remote.close(store, self._record)
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
    async with remote.reach(remote.place_of(record), records.PATIENCE if live else 10.0) as (api, namespace):
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
                    remote.apply(self._store, self._run, content, attended=attended)
                    for trouble in answers:
                        if isinstance(trouble, BaseException):
                            raise trouble
                    if content.state.get("ended"):
                        self._store.mark_complete(self._run)
                    return True
                if not content.state.get("ended"):
                    remote.apply(self._store, self._run, content, attended=attended)
                    if not attended:
                        return False
                await asyncio.sleep(POLL)
        finally:
            for task in self._readers.values():
                task.cancel()

    async def _read_archive(self) -> None:
        for attempt, frames in await kept_output.read(self._api, self._namespace, self._run):
            if new := unheard(frames, self._store.last_heard(self._run, attempt)):
                self._recorder.frames(time.time(), attempt, new)

    async def _look(self, content: Content, *, live: bool) -> None:
        selector = f"{manifests.of_run(self._run)},{manifests.KIND}=rank"
        pods = await self._api.list(f"/api/v1/namespaces/{self._namespace}/pods", labelSelector=selector)
        found = {pod["metadata"]["name"]: pod for pod in pods}
        self._pods = {name: see(pod) for name, pod in found.items()}
        for name, pod in found.items():
            if self._pods[name].started and name not in self._readers:
                labels = pod["metadata"]["labels"]
                log = log_of(labels[manifests.TASK], int(labels[manifests.ATTEMPT]))
                reading = self._follow(name, log) if live else self._read(name, log)
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
            async for chunk in self._api.log(self._namespace, pod, follow=False, idle=remote.BRIEF):
                deliver(sieve.pass_on(chunk))
            deliver(sieve.finish())
        self._tell_gaps(attempt, sieve)

    def _tell_gaps(self, attempt: int, sieve: Sieve) -> None:
        for rank, lines in sieve.missing.items():
            self._recorder.event(time.time(), Gap(attempt=attempt, rank=rank, lines=lines))

    def _deliver(self, attempt: int) -> Callable[[bytes], None]:
        def deliver(chunk: bytes) -> None:
            for part in separate(chunk):
                if isinstance(part, bytes):
                    self._recorder.frames(time.time(), attempt, part)

        return deliver
