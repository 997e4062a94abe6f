"""One attempt of a task as pods. The edge of `gang`, which decides: this module watches the pods, reads their logs,
executes actions, and passes on what it observes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from pumasi.core.frames import separate
from pumasi.errors import ClusterTrouble, Conflict, Forbidden, Rejected, Unreachable
from pumasi.kube.api import Api
from pumasi.kube.logs import Sieve, follow
from pumasi.pools.base import Order, Sink
from pumasi.pools.kubernetes import gang, manifests, pod_facts
from pumasi.pools.kubernetes.discovery import NOT_ENDED, why_out
from pumasi.pools.kubernetes.gang import actions
from pumasi.pools.kubernetes.gang import observations as seen
from pumasi.pools.kubernetes.record import PATIENCE
from pumasi.pools.kubernetes.star import Introduction
from pumasi.waiting import within

INIT_LOG = 5.0
"""Seconds that the lines of an init container that has failed may take to arrive."""


class PodGang:
    """`whole` is called when all its ranks run; `away` with a sentence when the API server can't be reached.
    `introduction` is for a gang whose members wait to be called by the chief's agent."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        run: str,
        order: Order,
        sink: Sink,
        whole: Callable[[], None],
        away: Callable[[str], None],
        introduction: Introduction | None = None,
    ) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/pods"
        self._namespace = namespace
        self._kubectl = api.connection.kubectl(namespace)
        self._selector = manifests.of_attempt(run, order.task, order.attempt)
        self._whole = whole
        self._away = away
        self._introduction = introduction
        self._pods: Mapping[str, Mapping[str, Any]] = {}
        self._heard: Mapping[int, int] = {}
        self._sieves: dict[str, Sieve] = {}
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.Task[None] | None = None
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        names = [manifests.pod_name(run, order.task, order.attempt, number) for number in range(len(order.configs))]
        config = order.configs[0]
        silence, grace = float(config["silence"]), float(config["grace"])
        self.state = gang.begin(names, silence, grace, self._kubectl, introduces=introduction is not None)
        self.order = order
        self.sink = sink
        self.needs: Mapping[str, float] = {}
        """What it asks for in all, at the least, by the names that quotas have for it."""
        self.patched = False
        """Whether --set has changed its pods."""

    @property
    def over(self) -> bool:
        return self.state.phase is gang.Phase.OVER

    @property
    def turned_away(self) -> bool:
        return self.over and self.state.is_refused

    @property
    def lost_nodes(self) -> frozenset[str]:
        """Those that have lost a pod of it, as far as is known."""
        return self.state.lost_nodes

    async def run(self, pods: Sequence[Mapping[str, Any]], heard: Mapping[int, int] = {}, *, ran: bool = False) -> None:
        """Create `pods` and stay until the attempt is over. None: they should be there already; `heard` says how much
        of their output is known, and `ran` whether they were seen running all together.

        Raises what ends the watch: then nothing is known of the gang, which goes on without us."""
        self._heard = heard
        self._pods = {pod["metadata"]["name"]: pod for pod in pods}
        self._observe(seen.Begun(self._now, adopted=not pods, ran=ran))
        self._start(self._watch(fresh=bool(pods)))
        try:
            await self._finished
        finally:
            for task in self._tasks:
                task.cancel()

    def end(self, grace: float) -> None:
        self._observe(seen.EndAsked(self._now, grace))

    # ---- observations in, actions out

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _observe(self, observation: seen.Observation) -> None:
        if self._finished.done():
            return
        self.state, wanted = gang.step(self.state, observation)
        for action in wanted:
            self._execute(action)

    def _execute(self, action: actions.Action) -> None:
        match action:
            case actions.Wake():
                self._set_alarm(action.at)
            case actions.ReadLog():
                self._readers[action.pod] = self._start(self._read(action.pod))
            case actions.StopReading():
                for reader in filter(None, map(self._readers.get, action.pods)):
                    reader.cancel()
            case actions.Say() | actions.Tell() | actions.Whole():
                self._pass_on(action)
            case actions.End() | actions.Refuse():
                self._report(action)
            case _:
                self._start(self._request(action))

    def _pass_on(self, action: actions.Say | actions.Tell | actions.Whole) -> None:
        match action:
            case actions.Say():
                self.sink.said(self.order, action.words)
            case actions.Tell():
                self._away(action.sentence)
            case actions.Whole():
                self._whole()

    def _report(self, action: actions.End | actions.Refuse) -> None:
        for sieve in self._sieves.values():
            for rank, lines in sieve.missing.items():
                self.sink.said(self.order, {"event": "gap", "rank": rank, "lines": lines})
        if isinstance(action, actions.End):
            self.sink.ended(self.order, action.facts)
        else:
            self.sink.refused(self.order, *action.refusal)
        self._finished.set_result(None)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """What it fails of ends the whole, unless it has ended."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._finished.done():
            self._finished.set_exception(error)

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._start(self._tick(at))

    async def _tick(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._now))
        self._alarm = None  # It must not cancel itself.
        self._observe(seen.Tick(max(at, self._now)))

    # ---- the watch

    async def _watch(self, *, fresh: bool) -> None:
        """It comes first: nothing that happens to a pod is missed."""
        changes = self._api.watch(
            self._folder, patience=PATIENCE, away=self._away, fresh=fresh, labelSelector=self._selector
        )
        async for kind, pod in changes:
            if kind == "SYNCED":
                self._observe(seen.Synced(self._now))
            else:
                self._observe(seen.PodSeen(self._now, pod, gone=kind == "DELETED"))

    # ---- requests

    async def _request(self, action: actions.Request) -> None:
        self._observe(await self._ask(action))

    async def _ask(self, action: actions.Request) -> seen.Answer:
        match action:
            case actions.Create():
                return await self._create(action.pod)
            case actions.Delete():
                return await self._delete(action)
            case actions.Force():
                return await self._force(action.pods)
            case actions.ReadInit():
                return await self._read_init(action)
            case actions.ListEvents():
                return await self._list_events(action.pod)
            case actions.ListNodes():
                return await self._list_nodes()
            case actions.Introduce():
                return await self._introduce(action)
            case actions.OpenService():
                return await self._open_service()

    async def _create(self, name: str) -> seen.Answer:
        try:
            await self._api.create(self._folder, self._pods[name])
        except Conflict:
            pass  # The answer to a first try was lost: names are ours alone.
        except (Forbidden, Rejected) as error:
            refusal = pod_facts.rejection(error.said, self.needs, self._kubectl, patched=self.patched)
            return seen.CreateRefused(self._now, name, refusal)
        except ClusterTrouble as error:
            return seen.CreateFailed(self._now, name, _failure(error))
        return seen.Created(self._now, name)

    async def _delete(self, action: actions.Delete) -> seen.Answer:
        fields = {"fieldSelector": NOT_ENDED} if action.keep_ended else {}
        try:
            await self._api.delete_all(self._folder, grace=action.grace, labelSelector=self._selector, **fields)
        except ClusterTrouble as error:
            return seen.DeleteFailed(self._now, error.message)
        return seen.Deleted(self._now, action.grace)

    async def _force(self, pods: Sequence[str]) -> seen.Answer:
        try:
            for name in pods:
                await self._api.delete(f"{self._folder}/{name}", grace=0)
        except Unreachable as error:
            return seen.ForceFailed(self._now, error.message)
        return seen.Forced(self._now)

    async def _read_init(self, action: actions.ReadInit) -> seen.Answer:
        lines: list[str] = []
        reading = follow(
            self._api,
            self._namespace,
            action.pod,
            Sieve(),
            lambda: True,
            lambda chunk: lines.extend(chunk.decode(errors="replace").splitlines()),
            lines.append,
            container=action.container,
        )
        with contextlib.suppress(ClusterTrouble, asyncio.TimeoutError):
            await within(reading, INIT_LOG)
        return seen.InitRead(self._now, lines)

    async def _list_events(self, pod: str) -> seen.Answer:
        about = f"involvedObject.name={pod},type=Warning"
        events: list[dict[str, Any]] = []
        with contextlib.suppress(ClusterTrouble):
            events = await self._api.list(f"/api/v1/namespaces/{self._namespace}/events", fieldSelector=about)
        return seen.EventsListed(self._now, events)

    async def _list_nodes(self) -> seen.Answer:
        try:
            nodes = await self._api.list("/api/v1/nodes")
        except (Forbidden, Unreachable) as error:
            return seen.NodesListed(self._now, ready=False, allowed=not isinstance(error, Forbidden))
        ready = not nodes or any(why_out(node, (), {}) != "not ready" for node in nodes)
        return seen.NodesListed(self._now, ready)

    async def _introduce(self, action: actions.Introduce) -> seen.Answer:
        assert self._introduction is not None
        try:
            await self._introduction.tell(action.chief, dict(action.members))
        except ClusterTrouble as error:
            return seen.IntroductionFailed(self._now, hopeless=isinstance(error, Forbidden))
        return seen.Introduced(self._now)

    async def _open_service(self) -> seen.Answer:
        assert self._introduction is not None
        try:
            await self._introduction.open()
        except ClusterTrouble as error:
            return seen.ServiceOpened(self._now, error.message)
        return seen.ServiceOpened(self._now)

    # ---- what the gang says

    async def _read(self, name: str) -> None:
        """Until its container has ended and all of its log has come."""
        sieve = self._sieves[name] = Sieve(self._known_output(name))
        try:
            await follow(
                self._api,
                self._namespace,
                name,
                sieve,
                lambda: name not in self.state.live,
                lambda chunk: self._hear(name, chunk),
                lambda line: self._observe(seen.StrangeLine(self._now, name, line)),
            )
        except Forbidden as error:
            self._observe(seen.LogForbidden(self._now, name, _failure(error)))
        except ClusterTrouble as error:
            self._observe(seen.LogEnded(self._now, name, error.message))
        else:
            self._observe(seen.LogEnded(self._now, name))

    def _known_output(self, name: str) -> dict[int, int]:
        config = self.order.configs[self.state.names.index(name)]
        own = {config["first"] + rank["rank"] for rank in config["ranks"]}
        return {rank: seq for rank, seq in self._heard.items() if rank in own}

    def _hear(self, name: str, chunk: bytes) -> None:
        for part in separate(chunk):
            if isinstance(part, bytes):
                self.sink.frames(self.order, part)
            else:
                self._observe(seen.Heard(self._now, name, part))


def _failure(error: ClusterTrouble) -> Mapping[str, Any]:
    return {"cause": "cluster", "verdict": "failed", "reason": error.message, "hint": error.hint}
