"""What a run that looks for room sees of a cluster: its nodes, the pods that may hold something, the runs that wait.

The first look lists all three. A run that has to wait then watches them, each from the version that was listed: to look
again costs no request, however many runs wait, and what changes is heard within a moment. When nobody has looked for a
while the watches end, and the next look lists again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pumasi.errors import ClusterTrouble, Forbidden, Unreachable
from pumasi.kube.api import Api
from pumasi.pools.kubernetes.discovery import NOT_ENDED, Object
from pumasi.pools.kubernetes.manifests import WAITING
from pumasi.pools.kubernetes.record import BEAT_NOTE
from pumasi.waiting import end_task

COALESCE = 0.05
"""Seconds in which changes are gathered: the pods of a gang end together."""
IDLE = 30.0
"""Seconds after the last look at which the watches end. A run that waits looks more often than that."""
PATIENCE = 10.0
"""Seconds without the API server after which a look fails."""


class View(NamedTuple):
    nodes: Sequence[Object]
    pods: Sequence[Object]
    anchors: Sequence[Object]


class Lookout:
    """While followed, calls `changed` after a change that affects the free resources, but not earlier than `pause`
    seconds after the last look. A caller that spends long on each look sets a longer pause."""

    def __init__(self, api: Api, namespace: str, changed: Callable[[], None]) -> None:
        self.pause = 0.0
        self.looked = -math.inf
        """When that was, by the clock of the event loop."""
        self.moved = asyncio.Event()
        self._api = api
        self._namespace = namespace
        self._changed = changed
        self._kinds: list[_Kind] = []
        self._following: asyncio.Task[None] | None = None
        self._bug: BaseException | None = None
        self._may_follow = True
        self._everywhere = True
        self._news: asyncio.TimerHandle | None = None
        self._rest: asyncio.TimerHandle | None = None

    async def look(self) -> View:
        """As it is now. Forbidden: for who may not list nodes and pods."""
        self.moved.clear()
        if self._bug is not None:
            raise self._bug
        if self._following is None:
            await self._list()
        self._stay()
        self.looked = asyncio.get_running_loop().time()
        nodes, pods, anchors = (tuple(kind.things.values()) for kind in self._kinds)
        return View(nodes, pods, anchors)

    def follow(self) -> None:
        """From the last look on. Where nothing can be watched, who waits has to look again and again."""
        if self._following is None and self._kinds and self._may_follow:
            self._following = asyncio.ensure_future(self._follow())
            self._following.add_done_callback(self._lose)

    def _lose(self, following: asyncio.Task[None]) -> None:
        """The cluster was away for long, or refuses to be watched: the next look lists, and says so. What was refused
        once is not asked for again: the answer would come at once, and with it the next look."""
        trouble = None if following.cancelled() else following.exception()
        if following is not self._following:
            return
        self._following = None
        self._may_follow = not isinstance(trouble, ClusterTrouble) or isinstance(trouble, Unreachable)
        self._bug = None if isinstance(trouble, ClusterTrouble) else trouble
        self._tell()

    async def end(self) -> None:
        following = self._following
        self.close()
        if following is not None:
            with contextlib.suppress(ClusterTrouble):
                await end_task(following)

    def close(self) -> None:
        for timer in (self._news, self._rest):
            if timer is not None:
                timer.cancel()
        self._news = self._rest = None
        following, self._following, self._kinds = self._following, None, []
        if following is not None:
            following.cancel()

    async def _list(self) -> None:
        nodes = _Kind(self._api, "/api/v1/nodes", _of_node)
        pods = _Kind(self._api, "/api/v1/pods", _of_pod, fieldSelector=NOT_ENDED)
        *_, anchors = await asyncio.gather(nodes.list(), pods.list(), self._list_anchors())
        self._kinds = [nodes, pods, anchors]

    async def _list_anchors(self) -> _Kind:
        """Of all namespaces, for who may list Jobs there; else of the own one, or none."""
        selected = {"labelSelector": f"{WAITING}=yes"}
        try:
            where = "" if self._everywhere else f"/namespaces/{self._namespace}"
            anchors = _Kind(self._api, f"/apis/batch/v1{where}/jobs", _of_anchor, **selected)
            await anchors.list()
        except Forbidden:
            if not self._everywhere:
                return _Nothing()
            self._everywhere = False
            return await self._list_anchors()
        return anchors

    async def _follow(self) -> None:
        tasks = [asyncio.ensure_future(kind.follow(self._hear)) for kind in self._kinds]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    def _hear(self) -> None:
        if self._news is None:
            loop = asyncio.get_running_loop()
            wait = max(COALESCE, self.looked + self.pause - loop.time())
            self._news = loop.call_later(wait, self._tell)

    def _tell(self) -> None:
        self._news = None
        self.moved.set()
        self._changed()

    def _stay(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(IDLE, self.close)


class _Kind:
    """The objects of one kind. `essence` is what matters of one: when that stays the same, nothing has changed."""

    def __init__(self, api: Api, path: str, essence: Callable[[Object], object], **query: Any) -> None:
        self.things: dict[str, Object] = {}
        self._essence = essence
        self._events = api.watch(path, patience=PATIENCE, **query)

    async def list(self) -> None:
        async for kind, thing in self._events:
            if kind == "SYNCED":
                return
            self._learn(kind, thing)

    async def follow(self, changed: Callable[[], None]) -> None:
        async for kind, thing in self._events:
            if self._learn(kind, thing):
                changed()

    def _learn(self, kind: str, thing: Any) -> bool:
        """Whether it matters."""
        key = thing["metadata"]["uid"]
        before = self.things.pop(key, None)
        if kind != "DELETED":
            self.things[key] = thing
        after = self.things.get(key)
        return (before and self._essence(before)) != (after and self._essence(after))


class _Nothing(_Kind):
    """For who may not see them."""

    def __init__(self) -> None:
        self.things = {}

    async def follow(self, changed: Callable[[], None]) -> None:
        return


def _of_node(node: Object) -> object:
    status = node.get("status", {})
    ready = [each["status"] for each in status.get("conditions", ()) if each["type"] == "Ready"]
    return node["metadata"].get("labels"), node.get("spec"), status.get("allocatable"), ready


def _of_pod(pod: Object) -> object:
    """Nothing before it is bound to a node."""
    spec, statuses = pod["spec"], pod.get("status", {}).get("containerStatuses") or ()
    if not spec.get("nodeName"):
        return None
    ended = ["terminated" in each.get("state", {}) for each in statuses]
    asked = [each.get("resources") for each in spec["containers"]]
    return pod["metadata"].get("deletionTimestamp"), asked, bool(ended) and all(ended)


def _of_anchor(anchor: Object) -> object:
    notes = anchor["metadata"].get("annotations", {})
    return {name: text for name, text in notes.items() if name != BEAT_NOTE}
