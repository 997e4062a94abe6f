"""Where there is room for a run in a cluster: what it sees there, what its own tasks hold, and what it leaves to the
runs that came before it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pumasi.core.planning import Node
from pumasi.errors import Forbidden, PumasiError, Unreachable
from pumasi.kube.api import Api
from pumasi.pools.base import Shortage
from pumasi.pools.kubernetes import holding, manifests
from pumasi.pools.kubernetes.discovery import LEAVING, Object, Room, is_leaving
from pumasi.pools.kubernetes.lookout import Lookout, View
from pumasi.pools.kubernetes.queueing import Left, Waiter, ahead_of, leave_room, wish_of
from pumasi.pools.kubernetes.record import Age, Record
from pumasi.pools.kubernetes.volumes import RunVolume
from pumasi.waiting import end_task, set_within

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

AVOIDED = 60.0
"""Seconds for which a node that has lost a pod is left out: Kubernetes may not have noticed yet that it is gone."""
KEPT = 30.0
"""Seconds for which room is kept for an older run that could take it and does not: something that only it knows of may
be in its way, such as a volume on another node, or it is not what it says."""
UNHURRIED = 1.0
"""Seconds between two looks of a run that has others before it, where they cost little."""
SETTLE = 5.0
"""Seconds that the pods of a gang that has just ended may go on to count, for the scheduler."""
BLIND = (
    "You may not list the nodes and pods of this cluster: its own scheduler places the slots, one a pod, "
    "and all of them start or none."
)


class Rooms:
    """Those of one run: `found` by the last look, in a cluster that looked like `view`. `tell` is told what the user
    should know; `changed` is called when what is free may have changed since, for a run that has to wait."""

    def __init__(
        self, api: Api, spec: Spec, record: Record, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        self._api = api
        self._namespace = record.namespace
        self._run = record.run
        self._record = record
        self._spec = spec
        self._tell = tell
        self._looking: asyncio.Task[Left] | None = None
        self._lookout = Lookout(api, record.namespace, changed)
        self._waiters: Sequence[Waiter] = ()
        self._fitting: dict[Age, float] = {}
        """The older runs that could start now, and since when that was seen."""
        self._over: dict[str, float] = {}
        self._has_told = False
        self._held: dict[str, Mapping[str, int]] = {}
        self._asking = spec
        """What room was looked for last."""
        self._apart: dict[str, Spec] = {}
        """Tasks that hold something, and ask for something else than the run does."""
        self.found: list[Room] = []
        self.view = View((), (), ())
        self.volume = RunVolume(api, record.namespace, spec)
        self.is_blind = False
        """It may not see the nodes."""
        self.lost_nodes: dict[str, float] = {}
        """And when they were lost, by the cluster's clock."""

    # ---- looking

    def look_ahead(self) -> None:
        """What `nodes` will be asked for soon, beside whatever has to be done before."""
        self._looking = asyncio.ensure_future(self._look())

    async def peek(self) -> None:
        """What was looked for ahead stays there for `nodes`. Forbidden: for who may not list nodes and pods."""
        self.found, _ = await asyncio.shield(self._looking or self._look())

    async def nodes(self, spec: Spec | None = None) -> list[Node]:
        """See `Runner.nodes`."""
        self._asking = spec = spec or self._spec
        if not self.is_blind:
            try:
                self.found, _ = await self._look_for(spec)
            except Forbidden:
                self.is_blind = True
                self._tell(BLIND)
        if self.volume.single and not self._has_told:
            self._has_told = True
            self._tell(self.about_volume())
        if self.is_blind:
            return self.capacity()
        return [each.as_free for each in self.found]

    async def _look_for(self, spec: Spec) -> Left:
        looking, self._looking = self._looking, None
        if looking is not None and spec is not self._spec:
            await end_task(looking)
            looking = None
        return await (looking or self._look())

    def capacity(self) -> list[Node]:
        if self.is_blind:
            return [Node(f"pod-{number}", 1) for number in range(self._asking.slots)]
        return [Node(each.name, each.total, each.domains) for each in self.found]

    def about_volume(self) -> str:
        where = "one node" if self.is_blind or not self.found else self.found[0].name
        return (
            f"All of it goes to {where}: only one can mount the volume {self.volume.single} at a time (ReadWriteOnce)."
        )

    async def _look(self) -> Left:
        view = self.view = await self._lookout.look()
        began, used = time.monotonic(), time.thread_time()
        pods = [pod for pod in view.pods if not self._is_leaving(pod)]
        left = self._leave_room(pods, self._ahead())
        self._fitting = {age: self._fitting.get(age, began) for age in left.fitting}
        # A large cluster changes all the time: spend at most a tenth of a processor on planning (finding out who holds
        # what takes twice as long as planning). Runs that are not first in line look less often: they rarely start
        # next, and many of them may share a machine.
        pause = 30 * (time.thread_time() - used)
        self._lookout.pause = max(pause, min(pause * (1 + len(self._waiters)), UNHURRIED))
        if not self.volume.single:
            return left
        held = {node for shares in self._held.values() for node in shares}
        return left._replace(rooms=await self.volume.beside(left.rooms, view.nodes, view.pods, held))

    async def let_go(self) -> None:
        if self._looking is not None:
            with contextlib.suppress(PumasiError):
                await end_task(self._looking)
        await self._lookout.end()

    # ---- who holds what

    def shortage(self, slots: int) -> Shortage:
        """See `Runner.shortage`. Who has to wait hears of every change from now on."""
        self._lookout.follow()
        short, resource = self._shortfall(slots), holding.scarce(wish_of(self._asking).needs)
        volume = f" {self.about_volume()}" if self.volume.single else ""
        said = holding.words(short, resource)
        remark = (f"{said}." if said else "") + volume
        if short.free >= slots:
            return Shortage(remark)  # Not the number is too small, but where they are.
        text, gist = (holding.waiting(short, resource, now) + volume for now in (self._api.now, None))
        return Shortage(remark.strip(), text, gist)

    def _shortfall(self, slots: int) -> holding.Shortfall:
        pods = [pod for pod in self.view.pods if not self._is_leaving(pod)]
        usable = {room.name for room in self.found if not room.out}
        free, there = sum(room.free for room in self.found), self._leave_room(pods, ()).rooms
        kept = sum(room.free for room in there if room.name in usable) - free
        resource = holding.scarce(wish_of(self._asking).needs)
        uses = holding.uses(pods, resource, usable, self._namespace)
        out = {room.name: room.out for room in self.found if room.out and room.total}
        return holding.Shortfall(slots, free, uses, kept, out, sum(not each.placement for each in self._waiters))

    def _ahead(self) -> Sequence[Waiter]:
        """The older runs that wait."""
        others = [each for each in self.view.anchors if not self._is_own(each)]
        self._waiters = ahead_of(self._record.age, others, self._api.now)
        return self._waiters

    def _leave_room(self, pods: Sequence[Object], ahead: Sequence[Waiter]) -> Left:
        foreign = [pod for pod in pods if not self._is_held(pod)]
        alike = {task for task in self._held if self._apart.get(task, self._spec) is self._asking}
        own = [shares for task, shares in self._held.items() if task in alike]
        apart = [
            (shares, wish_of(self._apart.get(task, self._spec)))
            for task, shares in self._held.items()
            if task not in alike
        ]
        wish, avoid = wish_of(self._asking), self.avoided()
        return leave_room(self.view.nodes, foreign, wish, ahead, avoid, own, self._passed(), apart)

    def _passed(self) -> set[Age]:
        """The older runs that could have started for long, and did not."""
        now = time.monotonic()
        return {age for age, since in self._fitting.items() if now - since >= KEPT}

    def avoided(self) -> set[str]:
        return {node for node, at in self.lost_nodes.items() if self._api.now - at < AVOIDED}

    def _is_own(self, thing: Object) -> bool:
        metadata = thing["metadata"]
        return (metadata.get("labels", {}).get(manifests.RUN), metadata["namespace"]) == (self._run, self._namespace)

    def _is_held(self, pod: Object) -> bool:
        """What our own tasks take is known before the scheduler knows it."""
        return self._is_own(pod) and pod["metadata"]["labels"].get(manifests.TASK) in self._held

    def _is_leaving(self, pod: Object) -> bool:
        """That our own have ended is known before the cluster shows it."""
        if self._is_own(pod) and not self._is_held(pod):
            ended = self._over.get(pod["metadata"]["labels"].get(manifests.TASK, ""))
            if ended is not None and time.monotonic() - ended < LEAVING:
                return True
        return is_leaving(pod, self._api.now)

    # ---- holding

    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        """See `Runner.reserve`. The scheduler has the last word, and only our own tasks know before. A container
        numbers its GPUs from 0."""
        if not self.is_blind and not await self._settle(placement):
            return None
        self.hold(task, placement, self._asking)
        self._fitting.clear()
        if self._asking.gpu != "required":
            return {}
        return {node: [str(number) for number in range(share)] for node, share in placement.items()}

    async def _settle(self, placement: Mapping[str, int]) -> bool:
        """Until the scheduler counts as free what pods that have just ended held there; False when it does not."""
        began, told = time.monotonic(), False
        while not self._is_free(placement):
            leaving = [pod for pod in self.view.pods if self._is_leaving(pod)]
            waited = time.monotonic() - began
            if not leaving or waited > SETTLE:
                return False
            if waited > 1 and not told:
                told = True
                self._tell(f"Waiting for the {self._things} of {_names(leaving)}: it has just ended.")
            self._lookout.follow()
            await set_within(self._lookout.moved, 0.5)
            try:
                self.view = await self._lookout.look()
            except (Forbidden, Unreachable):
                return False
        return True

    def _is_free(self, placement: Mapping[str, int]) -> bool:
        """As the scheduler counts at this moment. An older run may have counted the same way a moment ago, and gone to
        other nodes than those that it would be planned for now."""
        free = {room.name: room.free for room in self._leave_room(self.view.pods, self._ahead()).rooms}
        return all(free.get(node, share) >= share for node, share in placement.items())

    @property
    def _things(self) -> str:
        return "GPUs" if self._spec.gpu == "required" else "slots"

    def hold(self, task: str, shares: Mapping[str, int], spec: Spec) -> None:
        self._held[task] = shares
        if spec is not self._spec:
            self._apart[task] = spec

    def release(self, task: str) -> None:
        self._held.pop(task, None)
        self._apart.pop(task, None)

    def vacate(self, task: str) -> None:
        """Its pods have just ended."""
        now = time.monotonic()
        self._over = {each: at for each, at in self._over.items() if now - at < LEAVING}
        self._over[task] = now
        self.release(task)


def _names(pods: Sequence[Object]) -> str:
    """Of their runs, or their own where they are of no run."""
    return ", ".join(
        sorted({pod["metadata"].get("labels", {}).get(manifests.RUN, pod["metadata"]["name"]) for pod in pods})
    )
