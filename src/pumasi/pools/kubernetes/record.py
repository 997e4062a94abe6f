"""A run's record in the cluster, and who may write it.

One ConfigMap a run: what was asked for, how it stands, how it ended; its annotations are what a list of runs shows. The
manager that steers the run has its name in it, and renews a beat. Every write carries the version that it was based on:
a manager whose write is refused looks again, and when another's name stands there, it steps down. A manager in the
cluster, which has no store that lasts, keeps the output there too (`kept_output`). Of several tasks the record has
those that are on their way; what became of the others is in the `journal`.

A run that waits for room says so on its anchor, with what it asks for: other runs read that, of other namespaces too,
where they may not read any ConfigMap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi import __version__
from pumasi.core.events import Event, pack, unpack
from pumasi.core.person import read_name
from pumasi.errors import ClusterTrouble, Conflict, NotThere, RunBusy, Unreachable
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.discovery import seconds
from pumasi.pools.kubernetes.journal import Journal
from pumasi.pools.kubernetes.manifests import DOMAIN, KIND, WAITING, Owner
from pumasi.waiting import end_task, set_within

if TYPE_CHECKING:
    from pumasi.pools.kubernetes.kept_output import Archive

BEAT = 10.0
STALE = 30.0
"""Seconds after the last beat at which a run counts as unattended."""
LONGEST = 30 * 86400.0
"""Seconds that a run may go on without any manager, if it has no timeout of its own."""
PATIENCE = 600.0
"""Seconds without the API server after which a manager gives up; the gang goes on without it."""
BURST = 20.0
"""Writes at once; after that there are at most two a second."""
MOST_EVENTS = 1000
MOST_BYTES = 400_000
"""Of events: a ConfigMap takes 1 MiB, and has the spec and the tasks to hold as well."""
FORM = 1
"""The version of what a record looks like. A change that a manager of this version would misunderstand raises it."""
WISH, CREATED, PLACEMENT, BEAT_NOTE = (DOMAIN + word for word in ("wish", "created", "placement", "beat"))
_STATE = "state.json"
_SPEC = "spec.json"
_EVENTS = "events.json"
_BEFORE_IT_RUNS = ("queued", "starting")
_SHOWN = (
    "state",
    "framework",
    "slots",
    "command",
    "attempt",
    "created",
    "started",
    "ended",
    "exit_code",
    "detached",
    "user",
    "host",
)


_Mark = dict[str, dict[str, str | None]]
"""Labels and annotations of the anchor; None takes one off."""
Age = tuple[str, float, str]
"""What orders runs, the oldest first: the second in which the cluster made the anchor, when the run was asked for by
the clock of whoever did, and its name. So a clock that is wrong decides nothing but ties."""


class Content(NamedTuple):
    """What a record says. `state` has the fields of the store's own record. `form` is the version of the record, and
    `written_by` that of the Pumasi which made it, empty where it does not say so yet."""

    run: str
    namespace: str
    spec: dict[str, Any]
    program: dict[str, Any]
    code: dict[str, Any]
    state: dict[str, Any]
    events: list[tuple[float, Event]]
    manager: str
    beat: float
    uid: str
    version: str
    stop: str
    stop_by: str
    form: int
    written_by: str


def read(thing: Mapping[str, Any]) -> Content:
    metadata, data = thing["metadata"], thing.get("data", {})
    notes = metadata.get("annotations", {})
    asked = json.loads(data.get(_SPEC, "{}"))
    return Content(
        run=metadata["name"],
        namespace=metadata["namespace"],
        spec=asked.get("spec", {}),
        program=asked.get("program", {}),
        code=asked.get("code", {}),
        state=json.loads(data.get(_STATE, "{}")),
        events=[(at, unpack(kind, told)) for at, kind, told in json.loads(data.get(_EVENTS, "[]"))],
        manager=notes.get(DOMAIN + "manager", ""),
        beat=float(notes.get(DOMAIN + "beat", "0")),
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        stop=notes.get(DOMAIN + "stop", ""),
        stop_by=read_name(notes.get(DOMAIN + "stopped-by", "")),
        form=int(asked.get("v", FORM)),
        written_by=str(asked.get("by", "")),
    )


def check_form(content: Content) -> None:
    """Raise ClusterTrouble for a run that this version can look at, but not steer."""
    if content.form > FORM:
        raise ClusterTrouble(
            f"{content.run} was started by Pumasi {content.written_by}, with a record of version {content.form}; "
            f"this is Pumasi {__version__}, which steers runs with records of version {FORM}.",
            "Update Pumasi here, or use the machine that has started the run.",
        )


class Row(NamedTuple):
    """A run as a list shows it, out of the record's metadata alone."""

    run: str
    namespace: str
    notes: dict[str, str]

    def note(self, name: str) -> str:
        return self.notes.get(DOMAIN + name, "")

    def number(self, name: str) -> float | None:
        """None also for what somebody has written by hand, and is no number."""
        try:
            number = float(self.note(name))
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    @property
    def created(self) -> float:
        return self.number("created") or 0.0

    @property
    def ended(self) -> float | None:
        return self.number("ended")

    def state(self, now: float) -> str:
        return self.note("state") if self.is_attended(now) else "unattended"

    def is_attended(self, now: float) -> bool:
        return self.ended is not None or now - (self.number("beat") or 0.0) < STALE


async def list_rows(api: Api, namespace: str | None) -> list[Row]:
    """The newest first; None: of all namespaces."""
    where = f"/namespaces/{namespace}" if namespace else ""
    things = await api.list(f"/api/v1{where}/configmaps", metadata_only=True, labelSelector=f"{KIND}=record")
    rows = [
        Row(each["metadata"]["name"], each["metadata"]["namespace"], each["metadata"].get("annotations", {}))
        for each in things
    ]
    return sorted(rows, key=lambda row: row.created, reverse=True)


def path_of(namespace: str, run: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/{run}"


def anchor_path(namespace: str, run: str = "") -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{run}" if run else "")


class Record:
    """The record while we steer the run. `dismissed` is called when we no longer do, with the reason; `stop` when
    somebody asks for an end, with True where it should be at once, and who it was. `waits`: until it runs, younger runs
    are to leave room for what `wish` says."""

    def __init__(self, api: Api, namespace: str, run: str, manager: str) -> None:
        self.run = run
        self.namespace = namespace
        self.manager = manager
        self.dismissed: Callable[[PumasiReason], None] = lambda _: None
        self.stop: Callable[[bool, str], None] = lambda force, by: None
        self.archive: Archive | None = None
        self.history = Journal(api, namespace, run, manager, lambda: self.owner)
        self.wish = ""
        self._waits = self._is_marked = True
        self._last_mark: _Mark = {"labels": {}, "annotations": {}}
        self._marked_at = 0.0
        self._api = api
        self._version = ""
        self._made = ""
        self._kept = 0
        self._fields: dict[str, Any] = {}
        self._events: deque[tuple[float, Event]] = deque(maxlen=MOST_EVENTS)
        self._dirty = asyncio.Event()
        self._credit, self._credited = BURST, time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._deadline = 0.0
        self._wanted: tuple[float, float] | None = None
        self._stop_heard = ""
        self._is_anothers = False

    # ---- making and taking it

    async def create(self, asked: Mapping[str, Any], fields: Mapping[str, Any], deadline: float) -> None:
        """With its anchor, which takes it away should nobody come back to it within `deadline` seconds."""
        self._fields.update(fields)
        self._last_mark, self._marked_at = self._mark(), self._api.now
        notes = {name: text for name, text in self._last_mark["annotations"].items() if text is not None}
        job = manifests.anchor(self.run, int(deadline), 0, notes)
        try:
            made = await self._api.create(anchor_path(self.namespace), job)
        except Conflict:
            self._is_anothers = True
            raise RunBusy(f"The cluster has a run {self.run} already.", "Try again: ids are drawn by lot.") from None
        self._started = self._api.now
        self._deadline = self._started + deadline
        self._made = made["metadata"].get("creationTimestamp", "")
        owner = Owner("Job", self.run, made["metadata"]["uid"])
        data = {_SPEC: json.dumps({"v": FORM, "by": __version__, **asked}), **self._data()}
        thing = manifests.record(self.run, owner, self._notes(), data)
        made = await self._api.create(f"/api/v1/namespaces/{self.namespace}/configmaps", thing)
        self._remember(made)

    async def claim(self) -> Content:
        """Become its manager: whoever was it before steps down at its next write."""
        job, thing = await asyncio.gather(
            self._api.get(anchor_path(self.namespace, self.run)), self._api.get(path_of(self.namespace, self.run))
        )
        self._made = job["metadata"]["creationTimestamp"]
        self._started = seconds(self._made)
        self._deadline = self._started + job["spec"]["activeDeadlineSeconds"]
        before = read(thing).manager
        check_form(read(thing))
        while True:
            content = read(thing)
            if content.manager not in (before, self.manager):
                raise self._replaced()
            self._fields = dict(content.state)
            self._events = deque(content.events, MOST_EVENTS)
            self._remember(thing)
            if await self._put():
                return content
            # Somebody wishes for a stop, or the old manager has had a last word.
            thing = await self._api.get(path_of(self.namespace, self.run))

    @property
    def has_ended(self) -> bool:
        return self._fields.get("ended") is not None

    @property
    def age(self) -> Age | None:
        """None before the cluster has it: then all that are there are older."""
        return (self._made, float(self._fields.get("created", 0)), self.run) if self._made else None

    @property
    def owner(self) -> Owner:
        return Owner("ConfigMap", self.run, self._uid)

    @property
    def user(self) -> str:
        """Who has started the run, as far as its record says."""
        return str(self._fields.get("user") or "")

    @property
    def waits(self) -> bool:
        return self._waits

    @waits.setter
    def waits(self, waits: bool) -> None:
        if waits != self._waits:
            self._waits = waits
            self._dirty.set()

    # ---- keeping it

    def update(self, fields: Mapping[str, Any]) -> None:
        self._fields.update(fields)
        self._dirty.set()

    def event(self, at: float, event: Event) -> None:
        self._events.append((at, event))
        self._dirty.set()

    def journal(self, entry: dict[str, Any]) -> None:
        self.history.add(entry)
        self._dirty.set()

    def frames(self, attempt: int, chunk: bytes) -> None:
        if self.archive is not None:
            self.archive.add(attempt, chunk)
            if self.archive.is_full:
                self._dirty.set()

    def attend(self) -> None:
        """Write what changes, show that we are there, and listen to what others ask for."""
        self._tasks = [asyncio.ensure_future(self._keep()), asyncio.ensure_future(self._listen())]

    async def _keep(self) -> None:
        while True:
            await set_within(self._dirty, BEAT)
            if self._dirty.is_set():
                await asyncio.sleep(self._pause())
            self._dirty.clear()
            try:
                await self._write()
                await self._tend_anchor()
                await self.history.compact()
                if self.archive is not None and self.archive.is_full:
                    await self.archive.flush()
            except Unreachable:
                # The next beat says it all again; how long that may go on is for the watches to decide.
                continue
            except (ClusterTrouble, RunBusy) as error:
                self.dismissed(error)
                return

    def _pause(self) -> float:
        """Seconds before the next write: 0 while there were few of late. What changes meanwhile goes along with it."""
        now, every = time.monotonic(), BEAT / 20
        self._credit = min(BURST, self._credit + (now - self._credited) / every)
        self._credited = now
        self._credit -= 1
        return max(0.0, -self._credit) * every

    async def _write(self) -> None:
        """The journal first, and nothing in between: a task that the record no longer has is in the journal."""
        while True:
            await self.history.flush()
            if await self._put():
                return
            self._look_again(await self._api.get(path_of(self.namespace, self.run)))

    async def _put(self) -> bool:
        """Over the version that we know, or not at all."""
        metadata = {"resourceVersion": self._version, "annotations": self._notes()}
        change = {"metadata": metadata, "data": self._data()}
        try:
            self._remember(await self._api.patch(path_of(self.namespace, self.run), change))
        except Conflict:
            return False
        return True

    def _look_again(self, thing: Mapping[str, Any]) -> None:
        if read(thing).manager != self.manager:
            raise self._replaced()
        self._remember(thing)

    def _replaced(self) -> RunBusy:
        return RunBusy(
            f"Another pumasi has taken over {self.run}.", f"Watch it with `pumasi attach {self.run}`; this one leaves."
        )

    def _remember(self, thing: Mapping[str, Any]) -> None:
        self._version = thing["metadata"]["resourceVersion"]
        self._uid = thing["metadata"]["uid"]

    async def _listen(self) -> None:
        name = f"metadata.name={self.run}"
        folder = f"/api/v1/namespaces/{self.namespace}/configmaps"
        there = False
        try:
            async for kind, thing in self._api.watch(folder, patience=PATIENCE, fieldSelector=name):
                if kind == "DELETED" or (kind == "SYNCED" and not there):
                    self.dismissed(NotThere(f"{self.run} was deleted by somebody."))
                    return
                if kind in ("ADDED", "MODIFIED"):
                    there = True
                    self._heed(read(thing))
        except ClusterTrouble as trouble:
            self.dismissed(trouble)

    def _heed(self, content: Content) -> None:
        if content.manager != self.manager:
            self._dirty.set()  # our next write will find out
        elif content.stop and content.stop != self._stop_heard:
            self._stop_heard = content.stop
            self.stop(content.stop == "now", content.stop_by)

    def _notes(self) -> dict[str, str]:
        notes = {name.replace("_", "-"): self._fields.get(name) for name in _SHOWN}
        shown = {DOMAIN + name: str(value) for name, value in notes.items() if value is not None}
        return {**shown, DOMAIN + "manager": self.manager, DOMAIN + "beat": f"{self._api.now:.0f}"}

    def _data(self) -> dict[str, str]:
        return {_STATE: json.dumps(self._fields), _EVENTS: _newest(self._events)}

    # ---- the anchor

    def extend(self, seconds: float, keep: float = 0.0) -> None:
        """The run may go on for so long without any manager, and stays for `keep` seconds after that. While it has not
        started there is nothing worth keeping."""
        if (seconds, keep) != self._wanted:
            self._wanted = (seconds, keep)
            self._dirty.set()

    @property
    def _is_waiting(self) -> bool:
        return self.waits and self._fields.get("state") in _BEFORE_IT_RUNS

    async def _tend_anchor(self) -> None:
        change: dict[str, Any] = {}
        if more := self._more_time():
            change["spec"] = more
        mark, is_waiting = self._mark(), self._is_waiting
        if (self._is_marked or is_waiting) and (self._is_unmarked(mark) or self._api.now - self._marked_at >= BEAT):
            change["metadata"] = mark
        if not change:
            return
        await self._api.patch(anchor_path(self.namespace, self.run), change)
        if more:
            self._deadline = self._started + more["activeDeadlineSeconds"]
            self._kept = more["ttlSecondsAfterFinished"]
        if "metadata" in change:
            self._last_mark, self._is_marked, self._marked_at = mark, is_waiting, self._api.now

    def _is_unmarked(self, mark: _Mark) -> bool:
        """Whether it says something else than the last one, which is not only when it was written."""
        before = self._last_mark["annotations"]
        return any(before.get(name) != text for name, text in mark["annotations"].items() if name != BEAT_NOTE)

    def _more_time(self) -> dict[str, int]:
        """As long as we are there, at least half of the time is left; less often than that it costs nothing."""
        if self._wanted is None:
            return {}
        seconds, keep = self._wanted
        if self._deadline - self._api.now >= seconds / 2 and int(keep) == self._kept:
            return {}
        due = self._api.now + seconds
        return {"activeDeadlineSeconds": int(due - self._started), "ttlSecondsAfterFinished": int(keep)}

    def _mark(self) -> _Mark:
        """What other runs read of one that waits."""
        told: dict[str, str | None] = dict.fromkeys((WISH, CREATED, PLACEMENT, BEAT_NOTE))
        if self._is_waiting:
            told |= {WISH: self.wish, CREATED: str(self._fields.get("created", 0)), BEAT_NOTE: f"{self._api.now:.0f}"}
            if self._fields.get("state") == "starting":
                told[PLACEMENT] = json.dumps(self._fields.get("placement", {}))
        return {"labels": {WAITING: "yes" if self._is_waiting else None}, "annotations": told}

    async def finish(self, keep: float) -> None:
        """The last write; then the anchor counts as complete, and Kubernetes removes all of it in time."""
        await self.leave()
        if self.archive is not None:
            with contextlib.suppress(ClusterTrouble):  # Its pods have the output as well.
                await self.archive.flush()
        with contextlib.suppress(ClusterTrouble, RunBusy):
            try:
                await self._write()
            except NotThere:
                await self.remove()  # Somebody has deleted the record: there is nothing to keep.
                return
            spec = {"completions": 0, "ttlSecondsAfterFinished": int(keep)}
            # A mark that was under way when we left may have arrived: it is taken off whether or not we know of it.
            await self._api.patch(anchor_path(self.namespace, self.run), {"spec": spec, "metadata": self._mark()})
            if self.archive is None and self._fields.get("detached"):
                # The manager in the cluster that we have replaced may not have found its image yet.
                await self._api.delete(anchor_path(self.namespace, f"{self.run}-manager"))

    async def remove(self) -> None:
        """With everything that it owns; not that of another run of the same name."""
        if not self._is_anothers:
            await self._api.delete(anchor_path(self.namespace, self.run))

    async def leave(self) -> None:
        for task in self._tasks:
            await end_task(task)
        self._tasks = []


def _newest(events: Sequence[tuple[float, Event]]) -> str:
    """As JSON: as many as there is room for."""
    kept: deque[str] = deque()
    size = 0
    for at, event in reversed(events):
        text = json.dumps((at, *pack(event)))
        size += len(text) + 2
        if size > MOST_BYTES:
            break
        kept.appendleft(text)
    return f"[{', '.join(kept)}]"


PumasiReason = ClusterTrouble | RunBusy
