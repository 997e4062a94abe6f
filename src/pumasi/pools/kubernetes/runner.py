"""The manager's hands for one run in a cluster. Nothing is installed there: a run is made of plain objects (see
`manifests`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.core.endings import Setting
from pumasi.core.planning import Node
from pumasi.errors import ClusterTrouble, Conflict, Forbidden, NotThere, PumasiError, Rejected, Unreachable
from pumasi.kube.api import Api
from pumasi.pools.base import Order, Runner, Shortage, Sink
from pumasi.pools.kubernetes import manifests, notation, pod_facts, uploading
from pumasi.pools.kubernetes.code_upload import CodeUpload
from pumasi.pools.kubernetes.discovery import has_image
from pumasi.pools.kubernetes.fit import Fit
from pumasi.pools.kubernetes.gang import MARGIN
from pumasi.pools.kubernetes.manifests import CodeObjects
from pumasi.pools.kubernetes.notation import toleration
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.pods import PodGang
from pumasi.pools.kubernetes.queueing import wish_of, write_wish
from pumasi.pools.kubernetes.record import LONGEST, Record, anchor_path
from pumasi.pools.kubernetes.rooms import Rooms
from pumasi.pools.kubernetes.star import Introduction, Stars
from pumasi.waiting import end_task, within

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

LOST_NODES = "lost_nodes"
"""The field of a record that keeps them for a manager that takes over."""


class KubernetesRunner(Runner):
    """For one run, whose record owns what is made here."""

    def __init__(self, api: Api, spec: Spec, framework: str, record: Record, code: CodeObjects) -> None:
        asked = spec[KubernetesOptions]
        self._api = api
        self._namespace = record.namespace
        self._kubectl = api.connection.kubectl(record.namespace)
        self._spec = spec
        self._framework = framework
        self._code = code
        self._record = record
        self._run = record.run
        self._rooms = Rooms(api, spec, record, lambda text: self.tell(text), lambda: self.changed())
        self._fit = Fit(api, spec, framework, record, code, self._rooms)
        self._code_upload = CodeUpload(api, record)
        self._gangs: dict[tuple[str, int], PodGang] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._stars = Stars(api, record.namespace, record.run, lambda: record.owner)
        self._keep = 0.0
        self.copy = record
        self.changed = lambda: None
        memory = (notation.quantity(asked.memory), notation.quantity(2 * asked.memory)) if asked.memory else None
        self.setting = Setting(asked.image, memory, notation.files_mount(asked.mounts) is not None)
        self.confirm = spec.silence + spec.grace + 2 * MARGIN
        record.wish = write_wish(wish_of(spec))
        record.stop = lambda force, by: self.stop(force, by)
        record.dismissed = self._be_dismissed

    def attend(self) -> None:
        self._record.attend()

    def _be_dismissed(self, why: PumasiError) -> None:
        if isinstance(why, NotThere):
            self.lose("Somebody deleted it in the cluster.")
        else:
            self.fail(why)

    def folder(self, home: Path) -> str:
        return manifests.folder_of(self._spec, self._run)

    def _path(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{kind}"

    # ---- before it begins

    @property
    def wants_volume(self) -> bool:
        return self._rooms.volume.is_wanted

    async def find_volume(self) -> None:
        await self._rooms.volume.find()

    async def check_fit(self) -> None:
        await self._fit.check()

    def look_ahead(self) -> None:
        """What will be asked for soon, beside whatever has to be done before."""
        self._rooms.look_ahead()
        if self._spec.slots > 1:
            self._stars.look_ahead()

    async def send_files(self, files: Mapping[str, Path], say: Callable[[str], None]) -> None:
        """What the run needs of this machine, beside its code. It may take long: first, whether there is any use."""
        spec = self._spec
        asked = spec[KubernetesOptions]
        volume = self._rooms.volume
        if not files or volume.found is None:
            return
        await self.check_fit()
        where = uploading.Where(
            self._namespace,
            volume.found,
            asked.image,
            spec.python or manifests.PYTHON,
            asked.node_selector,
            [toleration(text) for text in asked.tolerations],
            as_image_user=asked.as_image_user,
            node=self._rooms.found[0].name if volume.single and self._rooms.found else "",
        )
        await uploading.put(self._api, where, files, say)
        self.look_ahead()

    def upload(self, packed: bytes) -> None:
        """The agent and the user's code, beside whatever else has to be done before the pods can start."""
        self._code_upload.begin(packed)
        if self._fit.is_split and self._record.manager:
            self._stars.make_ahead()

    async def start_manager(self) -> None:
        """Its Job, when all that its pods will need is there."""
        asked = self._spec[KubernetesOptions]
        from pumasi.pools.kubernetes import manager_job

        package = manager_job.package_map(self._run, self._record.owner)
        await asyncio.gather(self._code_upload.finish(), self._api.create(self._path("configmaps"), package))
        tolerations = [toleration(text) for text in asked.tolerations]
        job = manager_job.manager_job(self._run, self._record.owner, asked.image, package, tolerations)
        await self._api.create(anchor_path(self._namespace), job)

    async def see_manager(self, say: Callable[[str], None]) -> None:
        """That it will never start is told to whoever has just asked for it. Where a node has its image, there is
        nothing to wait for."""
        from pumasi.pools.kubernetes import manager_job

        if not has_image(self._rooms.view.nodes, self._spec[KubernetesOptions].image):
            with contextlib.suppress(asyncio.TimeoutError, Forbidden, Unreachable):
                beginning = manager_job.begins(self._api, self._namespace, self._run, say)
                await within(beginning, manager_job.MANAGER_SECONDS)

    def avoid(self, nodes: Mapping[str, float]) -> None:
        """Nodes that were lost, and when by the cluster's clock."""
        self._rooms.lost_nodes |= nodes

    # ---- where there is room

    async def nodes(self, spec: Spec | None = None) -> list[Node]:
        asked = spec or self._spec
        self._record.waits = True
        self._record.extend(asked.start_timeout + asked.grace + self.confirm, self._keep)
        nodes = await self._rooms.nodes(spec)
        self.is_blind = self._rooms.is_blind
        return nodes

    def capacity(self) -> list[Node]:
        return self._rooms.capacity()

    def shortage(self, slots: int) -> Shortage:
        return self._rooms.shortage(slots)

    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        """Each agent learns its own where it runs."""
        return [""] * len(nodes)

    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        return await self._rooms.reserve(task, placement)

    def release(self, task: str) -> None:
        self._rooms.release(task)

    # ---- gangs

    async def launch(self, order: Order, sink: Sink) -> None:
        """What the pods need may be refused, or not get there: then no pod is made, and it is tried anew."""
        self._hold_for(order)
        try:
            pods = await self.make_pods(order)
        except (Conflict, Forbidden, Rejected, Unreachable) as error:
            # A Service of that name: the answer to a first try was lost. The next attempt has another name.
            self._record.waits = False
            self.release(order.task)
            self._stars.spare(order.task, order.attempt)
            sink.refused(order, *_refusal(error, self._kubectl))
            return
        gang = self._gang(order, sink, introduces=self._stars.is_dialled(order.task, order.attempt))
        gang.needs = self._fit.least_needs(order)
        gang.patched = bool((order.spec or self._spec)[KubernetesOptions].patches)
        self._start(gang, gang.run(pods))

    def adopt(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        ran = self.found is not None and self.found.tasks[order.task].state != "starting"
        gang = self._gang(order, sink, introduces=len(order.configs) > 1 and not ran)
        self._hold_for(order)
        self._start(gang, gang.run((), heard, ran=ran))

    def _hold_for(self, order: Order) -> None:
        shares = {node: config["slots"] for node, config in zip(order.nodes, order.configs, strict=True)}
        self._rooms.hold(order.task, shares, order.spec or self._spec)

    def _gang(self, order: Order, sink: Sink, *, introduces: bool) -> PodGang:
        introduction = self._introduction(order) if introduces else None
        return PodGang(self._api, self._namespace, self._run, order, sink, self._whole, self._away, introduction)

    def _introduction(self, order: Order) -> Introduction:
        gang = self._describe(order)._replace(star=order.attempt)
        return Introduction(self._stars, gang, order.configs[0]["gang"])

    def _away(self, why: str) -> None:
        self.tell(why or "The cluster can be reached again.")

    def _whole(self) -> None:
        """From now on it goes on without us, as long as it may."""
        spec = self._spec
        asked = spec[KubernetesOptions]
        limit = LONGEST if spec.timeout is None else spec.timeout + spec.grace + self.confirm
        self._keep = asked.keep
        self._record.extend(limit, asked.keep)

    def _start(self, gang: PodGang, life: Coroutine[Any, Any, None]) -> None:
        key = (gang.order.task, gang.order.attempt)
        self._gangs[key] = gang
        task = self._tasks[key] = asyncio.ensure_future(life)
        task.add_done_callback(lambda _: self._forget(key))

    def _forget(self, key: tuple[str, int]) -> None:
        gang, task = self._gangs.pop(key), self._tasks.pop(key)
        self._rooms.vacate(gang.order.task)
        if gang.lost_nodes:
            self.avoid(dict.fromkeys(gang.lost_nodes, self._api.now))
            self._record.update({LOST_NODES: self._rooms.lost_nodes})
        if gang.turned_away:
            # Whatever it was: there was room, and it is no use to keep it from others. Until we ask again.
            self._record.waits = False
            if not gang.lost_nodes:  # Nobody saw the end of what was there: it may still call that Service.
                self._stars.spare(*key)
        self._stars.forget(*key)
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)

    async def make_pods(self, order: Order) -> list[manifests.Object]:
        """With what they need: the code and the star's secret once a run, a way to meet once an attempt."""
        gang, spec = self._describe(order), order.spec or self._spec
        if len(order.configs) > 1:
            gang = await self._stars.arrange(gang)
        await self._code_upload.finish()
        return [
            manifests.pod(spec, gang, index, order.nodes[index], manifests.agent_config(config, gang, index))
            for index, config in enumerate(order.configs)
        ]

    def _describe(self, order: Order) -> manifests.GangSpec:
        return manifests.GangSpec(
            run=self._run,
            task=order.task,
            attempt=order.attempt,
            owner=self._record.owner,
            hub="",
            pinned=not self.is_blind,
            avoid=tuple(sorted(self._rooms.avoided())),
            single=self._rooms.volume.single,
            framework=self._framework,
            code=self._code,
            user=self._record.user,
        )

    # ---- the end

    async def keep_output(self) -> None:
        """For a manager in the cluster, whose own disk goes with its pod."""
        from pumasi.pools.kubernetes.kept_output import Archive

        self._record.archive = Archive(self._api, self._namespace, self._run, self._record.owner)
        await self._record.archive.open()

    def end(self, task: str, attempt: int, grace: float) -> None:
        gang = self._gangs.get((task, attempt))
        if gang is not None:
            gang.end(grace)

    async def close(self) -> None:
        for gang in self._gangs.values():
            gang.end(0)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=self.confirm)
        await self.let_go()

    async def let_go(self) -> None:
        for task in list(self._tasks.values()):
            await end_task(task)
        await self._rooms.let_go()
        await self._stars.let_go()


def _refusal(error: ClusterTrouble, kubectl: str) -> pod_facts.Refusal:
    """Of what the pods need; a quota that others use up may be free later."""
    if "exceeded quota" in error.said:
        return pod_facts.rejection(error.said, kubectl=kubectl)
    return pod_facts.Refusal(error.message, isinstance(error, (Forbidden, Rejected)), error.hint)
