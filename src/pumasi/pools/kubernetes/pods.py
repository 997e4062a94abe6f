"""One attempt of a task as pods: created all together, watched, read, and gone when it is said that they are."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pumasi.core.frames import separate
from pumasi.errors import ClusterTrouble, Conflict, Forbidden, Rejected, Unreachable
from pumasi.kube.api import Api
from pumasi.kube.logs import Sieve, follow
from pumasi.pools.base import Order, Sink
from pumasi.pools.kubernetes import manifests, pod_facts
from pumasi.pools.kubernetes.discovery import NOT_ENDED, why_out
from pumasi.pools.kubernetes.record import PATIENCE
from pumasi.waiting import within

AT_ONCE = 20
"""Pods that are created at the same time."""
DRAIN = 20.0
"""Seconds that the last lines of a container that has ended may take to arrive."""
INIT_LOG = 5.0
"""Seconds that the lines of an init container that has failed may take to arrive."""
AGAIN = 2.0
"""Seconds after which a wish to delete that did not get there is repeated."""
MARGIN = 15.0
"""Seconds that an agent needs, beyond what it waits for, to end its ranks by force."""
_CAUSED_BY_SILENCE = frozenset(("silent", "hub lost"))


class _NotCreated(Exception):
    """The gang can't be whole any more, or shall not be."""


class PodGang:
    """`whole` is called when all its ranks run; `away` with a sentence when the API server can't be reached."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        run: str,
        order: Order,
        sink: Sink,
        whole: Callable[[], None],
        away: Callable[[str], None],
    ) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace = namespace
        self._kubectl = api.connection.kubectl(namespace)
        self._selector = manifests.of_attempt(run, order.task, order.attempt)
        self._whole = whole
        self._away = away
        self._changed = asyncio.Event()
        self._synced = asyncio.Event()
        self._objects: dict[str, Mapping[str, Any]] = {}
        self._gone: set[str] = set()
        self._ended: set[str] = set()
        self._pulls: dict[str, int] = {}
        self._sieves: dict[str, Sieve] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._missed: dict[str, float] = {}
        """Pods whose node does not answer, and since when."""
        self._strange: list[str] = []
        self._told: Mapping[str, Any] | None = None
        self._refusal: pod_facts.Refusal | None = None
        self._failure: Mapping[str, Any] | None = None
        self._asked = False
        self._is_left = False
        self._ran = False
        self._late = ""
        self._deadline: float | None = None
        self._nudge: float | None = None
        self._killed_by: float | None = None
        """When kubelets kill what is left of the pods: as the first deletion said."""
        self._unreadable: Mapping[str, Any] | None = None
        self._names = [manifests.pod_name(run, order.task, order.attempt, n) for n in range(len(order.configs))]
        self.order = order
        self.sink = sink
        self.silence = float(order.configs[0]["silence"])
        self.grace = float(order.configs[0]["grace"])
        self.lost_nodes: set[str] = set()
        self.needs: Mapping[str, float] = {}
        """What it asks for in all, at the least, by the names that quotas have for it."""
        self.patched = False
        """Whether --set has changed its pods."""
        self.over = self.turned_away = False

    # ---- from beginning to end

    async def run(self, pods: Sequence[Mapping[str, Any]], heard: Mapping[int, int] = {}, *, ran: bool = False) -> None:
        """Create `pods` and stay until the attempt is over. None: they should be there already; `heard` says how much
        of their output is known, and `ran` whether they were seen running all together."""
        self._heard = heard
        self._ran = ran
        watching = asyncio.ensure_future(self._watch(fresh=bool(pods)))
        try:
            await self._created(pods, watching)
            while not self._is_over():
                await self._wait_for_news(watching)
                await self._judge()
            if not (self._refusal or self._failure or self._asked):
                await self._look_at_init()  # All had ended before anybody looked.
            await self._finish_reading()
        finally:
            for task in (watching, *self._readers.values()):
                task.cancel()
        self._report()

    async def _created(self, pods: Sequence[Mapping[str, Any]], watching: asyncio.Future[None]) -> None:
        """The watch comes first: nothing that happens to a pod is missed. The first refusal takes all of them back."""
        synced = asyncio.ensure_future(self._synced.wait())
        await asyncio.wait((synced, watching), return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        if watching.done():
            watching.result()
        if not pods:
            await self._find_all()
            return
        gate = asyncio.Semaphore(AT_ONCE)
        answers = await asyncio.gather(*(self._create(pod, gate) for pod in pods), return_exceptions=True)
        for error in answers:
            if isinstance(error, BaseException) and not isinstance(error, (Forbidden, Rejected, _NotCreated)):
                self._failure = self._failure or _trouble(error)
        self._gone |= {name for name, answer in zip(self._names, answers, strict=True) if answer is not None}
        if self._refusal or self._failure:
            await self._take_down(1)
        elif self._asked:
            # Again: what was on its way when the end was asked for is there only now.
            await self._delete(1, fieldSelector=NOT_ENDED)

    async def _find_all(self) -> None:
        """A manager that was lost while it made them has left some, or none."""
        missing = set(self._names) - set(self._objects)
        self._gone |= missing
        if missing and not self._ran:
            self._refusal = pod_facts.Refusal("Its manager was lost before the gang was whole.")
            await self._take_down(1)

    async def _create(self, pod: Mapping[str, Any], gate: asyncio.Semaphore) -> None:
        async with gate:
            if self._refusal or self._failure or self._asked:
                raise _NotCreated
            try:
                await self._api.create(self._folder, pod)
            except Conflict:
                pass  # The answer to a first try was lost: names are ours alone.
            except (Forbidden, Rejected) as error:
                refusal = pod_facts.rejection(error.said, self.needs, self._kubectl, patched=self.patched)
                self._refusal = self._refusal or refusal
                raise

    async def _watch(self, *, fresh: bool) -> None:
        changes = self._api.watch(
            self._folder, patience=PATIENCE, away=self._away, fresh=fresh, labelSelector=self._selector
        )
        async for kind, pod in changes:
            if kind == "SYNCED":
                self._synced.set()
            else:
                self._heed(kind, pod)
            self._changed.set()

    def _heed(self, kind: str, pod: Mapping[str, Any]) -> None:
        name = pod["metadata"]["name"]
        before = self._objects.get(name)
        self._objects[name] = pod
        if kind == "DELETED":
            self._gone.add(name)
        if _is_pull_failure(pod) and not (before and _is_pull_failure(before)):
            self._pulls[name] = self._pulls.get(name, 0) + 1
        seen = pod_facts.see(pod)
        if seen.ended:
            self._ended.add(name)
        self._mind_node(seen)
        if seen.started and name not in self._readers:
            self._readers[name] = asyncio.ensure_future(self._read(name))

    def _mind_node(self, pod: pod_facts.Seen) -> None:
        """A gang of several pods finds out by itself whether one is lost. Nobody else looks after a single pod: its
        node may be silent for as long as the agents of a gang may."""
        if pod.away is (pod.name in self._missed):
            return
        if pod.away:
            self._missed[pod.name] = asyncio.get_running_loop().time()
        else:
            del self._missed[pod.name]
        if self._is_ending:
            if self._is_alone:
                self._set_deadline()
            return
        self._deadline = None
        if not pod.ended:
            self._note(self._about_node(pod))

    def _about_node(self, pod: pod_facts.Seen) -> str:
        if not pod.away:
            return f"{pod.node} answers again; the run goes on."
        limit = f"; in {self.silence:g} s the run starts again elsewhere" if self._is_alone else ""
        return f"{pod.node} does not answer (NotReady){limit}."

    def _note(self, text: str) -> None:
        self.sink.said(self.order, {"event": "note", "text": text})

    async def _wait_for_news(self, watching: asyncio.Future[None]) -> None:
        """Until something has changed, or the deadline; trouble of the watch is the manager's to handle."""
        loop = asyncio.get_running_loop()
        due = min((limit for limit in (self._nudge, self._deadline) if limit is not None), default=None)
        timeout = None if due is None else max(0.0, due - loop.time())
        news = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait((news, watching), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        self._changed.clear()
        if watching.done():
            watching.result()

    # ---- what is to be done about what is seen

    @property
    def _seen(self) -> list[pod_facts.Seen]:
        return sorted(pod_facts.see(pod) for pod in self._objects.values())

    def _is_over(self) -> bool:
        """A refused gang must be gone altogether: what is being deleted still counts against others."""
        if self._refusal:
            return self._gone.issuperset(self._names)
        return (self._gone | self._ended).issuperset(self._names)

    async def _judge(self) -> None:
        if not (self._refusal or self._failure or self._asked):
            await self._look_at_init()
            self._look_for_trouble()
            if self._refusal or self._failure:
                await self._take_down(1)
        if self._deadline is None and self._missed and self._is_alone:
            self._set_deadline()
        elif self._deadline is None and self._shows_an_end():
            self._set_deadline()
            self._nudge = asyncio.get_running_loop().time() + (self.grace + MARGIN / 3 if self._ran else 0.0)
        if _is_due(self._nudge):
            self._nudge = None
            fields = {} if self._refusal else {"fieldSelector": NOT_ENDED}
            await self._delete(math.ceil(self.grace) if self._ran else 1, **fields)
        elif _is_due(self._deadline):
            if self._is_ending or await self._is_a_node_ready():
                await self._force()
            else:
                self._deadline = asyncio.get_running_loop().time() + AGAIN

    async def _is_a_node_ready(self) -> bool:
        """If the cluster reaches none of its nodes, it is the cluster that is cut off, and the pod may be well. False
        also where nobody can tell: then the pod is left to Kubernetes, which deletes it unless it is cut off itself."""
        try:
            nodes = await self._api.list("/api/v1/nodes")
        except Forbidden:
            self._leave_to_kubernetes()
            return False
        except Unreachable:
            return False
        return not nodes or any(why_out(node, (), {}) != "not ready" for node in nodes)

    def _leave_to_kubernetes(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._note("You may not list nodes: the run starts again when the cluster itself gives the pod up.")

    def _look_for_trouble(self) -> None:
        self._failure = self._failure or self._unreadable
        for name, pod in self._objects.items():
            if name in self._gone:
                continue
            self._refusal = self._refusal or pod_facts.refusal(pod, self._kubectl)
            stuck = pod_facts.stuck(pod, self._pulls.get(name, 0)) or pod_facts.broken_start(pod)
            self._failure = self._failure or stuck

    async def _look_at_init(self) -> None:
        """An init container that failed has ended the gang, whatever becomes of the other pods; what it said last is
        read before its pod is deleted."""
        found = ((name, facts) for name, pod in self._objects.items() if (facts := pod_facts.failed_init(pod)))
        name, facts = next(found, ("", None))
        if facts is None:
            return
        self._failure = facts
        lines: list[str] = []
        reading = follow(
            self._api,
            self._namespace,
            name,
            Sieve(),
            lambda: True,
            lambda chunk: lines.extend(chunk.decode(errors="replace").splitlines()),
            lines.append,
            container=facts["init"],
        )
        with contextlib.suppress(ClusterTrouble, asyncio.TimeoutError):
            await within(reading, INIT_LOG)
        if lines:
            self._failure = {**facts, "tail": lines[-20:]}

    @property
    def _is_alone(self) -> bool:
        return len(self._names) == 1

    @property
    def _is_ending(self) -> bool:
        return bool(self._asked or self._refusal or self._failure or self._shows_an_end())

    def _shows_an_end(self) -> bool:
        return bool(self._told or self._gone or any(pod.ended or pod.deleting for pod in self._seen))

    def _set_deadline(self) -> None:
        """The others end by themselves, if they can hear each other; `_nudge` is when they are told to."""
        wait = self._longest_life() + (self.grace if self._asked else 0.0)
        due = asyncio.get_running_loop().time() + wait
        self._deadline = due if self._deadline is None or self._is_alone else min(self._deadline, due)

    def _longest_life(self) -> float:
        """After this nothing of the gang lives anywhere, even on a node that nobody can reach: an agent that is cut off
        ends its ranks by itself. Whoever was silent has been so for long already. Nobody can know that of
        a single pod: should it live on behind a cut, it ends when its node returns."""
        if self._missed and self._is_alone:
            since = min(self._missed.values())
            return max(0.0, since + self.silence - asyncio.get_running_loop().time())
        silent = self._told is not None and self._told["cause"] in _CAUSED_BY_SILENCE
        return (0.0 if silent else self.silence) + self.grace + MARGIN

    async def _take_down(self, grace: int) -> None:
        self._set_deadline()
        await self._delete(grace)

    async def _delete(self, grace: int, **fields: str) -> None:
        try:
            await self._api.delete_all(self._folder, grace=grace, labelSelector=self._selector, **fields)
        except ClusterTrouble as trouble:
            self._away(trouble.message)
            self._nudge = asyncio.get_running_loop().time() + AGAIN
            return
        now = asyncio.get_running_loop().time()
        if self._killed_by is None:
            self._killed_by = now + grace
        elif grace == 1 and self._killed_by - now > MARGIN:
            # https://github.com/kubernetes/kubernetes/issues/83916
            left = math.ceil(self._killed_by - now)
            self._away(f"Kubernetes does not shorten a grace period that has begun: the pods end within {left} s.")

    async def _force(self) -> None:
        """The API lists them still, but nobody is there to end them."""
        left = [pod for pod in self._seen if pod.name not in self._gone and (self._refusal or not pod.ended)]
        try:
            for pod in left:
                await self._api.delete(f"{self._folder}/{pod.name}", grace=0)
        except Unreachable as trouble:
            self._away(trouble.message)
            self._deadline = asyncio.get_running_loop().time() + AGAIN
            return
        self.lost_nodes |= {pod.node for pod in left if pod.node and not pod.ended}
        self._gone |= {pod.name for pod in left}
        for pod in left:
            # A dead node does not answer the request for its log either.
            if reader := self._readers.get(pod.name):
                reader.cancel()
        self._deadline = None

    def end(self, grace: float) -> None:
        """Deleting a pod is the only way to reach its agent from here, which knows of one grace only: its own. Before
        the gang is whole nothing runs that would need it, and a Python that has just begun hears nothing yet. Pods that
        have ended are kept for their logs."""
        if self.over:
            return
        self._asked = True
        self._set_deadline()
        self._changed.set()
        if not self._ran:
            grace = min(grace, 1.0)
        seconds = max(1, math.ceil(grace) + (12 if grace >= self.grace else 0))
        self._ending = asyncio.ensure_future(self._end_pods(seconds))

    async def _end_pods(self, grace: int) -> None:
        if not self._ran and not self._late:
            self._late = await self._find_late()
        await self._delete(grace, fieldSelector=NOT_ENDED)

    async def _find_late(self) -> str:
        """Whom the gang is waiting for, and what the cluster says about that."""
        late = next((pod for pod in self._seen if not pod.started and pod.name not in self._gone), None)
        if late is None:
            return ""
        about = f"involvedObject.name={late.name},type=Warning"
        events: list[dict[str, Any]] = []
        with contextlib.suppress(ClusterTrouble):
            events = await self._api.list(f"/api/v1/namespaces/{self._namespace}/events", fieldSelector=about)
        return pod_facts.lateness(late, self._objects[late.name], events)

    # ---- what the gang says

    async def _read(self, name: str) -> None:
        """Until its container has ended and all of its log has come."""
        index = self._names.index(name)
        config = self.order.configs[index]
        own = {config["first"] + rank["rank"] for rank in config["ranks"]}
        sieve = self._sieves[name] = Sieve({rank: seq for rank, seq in self._heard.items() if rank in own})
        try:
            await follow(
                self._api,
                self._namespace,
                name,
                sieve,
                lambda: self._has_ended(name),
                lambda chunk: self._hear(index, chunk),
                self._strange.append,
            )
        except Forbidden as error:
            self._unreadable = _trouble(error)
            self._changed.set()
        except ClusterTrouble as error:
            self._away(f"The output of the pod {name} could not be read to its end: {error.message}")

    def _has_ended(self, name: str) -> bool:
        return name in self._gone or name in self._ended

    def _hear(self, index: int, chunk: bytes) -> None:
        for part in separate(chunk):
            if isinstance(part, bytes):
                self.sink.frames(self.order, part)
            elif part["event"] == "over":
                if index == 0 or self._told is None:
                    self._told = part["outcome"]
                    self._changed.set()
            elif part["event"] == "running":
                self._ran = True
                self._whole()
                self.sink.said(self.order, part)
            elif part["event"] in ("exit", "note") or (part["event"] == "ending" and _is_certain(part["outcome"])):
                self.sink.said(self.order, part)

    async def _finish_reading(self) -> None:
        readers = [task for name, task in self._readers.items() if not task.done()]
        if readers:
            await asyncio.wait(readers, timeout=DRAIN)

    def _report(self) -> None:
        self.over = True
        self.lost_nodes |= {pod.node for pod in self._seen if pod.node and pod.is_lost}
        for sieve in self._sieves.values():
            for rank, lines in sieve.missing.items():
                self.sink.said(self.order, {"event": "gap", "rank": rank, "lines": lines})
        if self._failure is None and self._refusal is not None:
            self.turned_away = True
            self.sink.refused(self.order, self._refusal.reason, self._refusal.hopeless, self._refusal.hint)
            return
        facts = self._failure or pod_facts.verdict_on(self._seen, self._told, self._asked)
        if self._late and facts["cause"] == "stopped":
            # Should it have been stopped for another reason than that: whoever stopped it knows.
            facts = {"cause": "late", "who": self._late, "hint": pod_facts.late_hint(self._late)}
        if facts["cause"] == "agent died":
            facts = {**facts, "tail": self._strange[-20:]}
        if facts["cause"] == "exit" and (hint := self._about_volumes(facts)):
            facts = {**facts, "hint": hint}
        self.sink.ended(self.order, facts)

    def _about_volumes(self, facts: Mapping[str, Any]) -> str:
        pods = self._objects.values()
        return next((hint for pod in pods if (hint := pod_facts.closed_volume(pod, facts.get("tail") or ()))), "")


def _is_due(limit: float | None) -> bool:
    return limit is not None and asyncio.get_running_loop().time() >= limit


def _is_certain(outcome: Mapping[str, Any]) -> bool:
    """An agent that was told to stop does not know by whom: an eviction looks like a wish of the user's. Nor does it
    know why another one is silent. The pods tell, when they have ended."""
    return outcome["cause"] not in _CAUSED_BY_SILENCE and outcome["cause"] != "stopped"


def _is_pull_failure(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return any((each.get("state", {}).get("waiting") or {}).get("reason") == "ErrImagePull" for each in statuses)


def _trouble(error: BaseException) -> Mapping[str, Any]:
    if not isinstance(error, ClusterTrouble):
        raise error
    return {"cause": "cluster", "verdict": "failed", "reason": error.message, "hint": error.hint}
