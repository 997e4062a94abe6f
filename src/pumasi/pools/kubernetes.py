"""A Kubernetes cluster as a pool. Nothing is installed there: a run is made of plain objects (see `kube.manifests`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.agent.files import agent_text, shim_files
from pumasi.core import kubewords
from pumasi.core.flows import MAIN
from pumasi.core.flows.catalogue import sent
from pumasi.core.kubewords import toleration
from pumasi.core.launch import Program
from pumasi.core.planner import Node, plan
from pumasi.errors import Conflict, DoesNotFit, Forbidden, NotThere, PumasiError, Rejected, Unreachable, UsageError
from pumasi.kube import manifests, uploading, volumes
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.kube.discovery import NOT_ENDED, Object, Room
from pumasi.kube.manifests import CodeObjects
from pumasi.kube.queueing import Left, ahead_of, leave_room, wish_of
from pumasi.kube.record import LONGEST, Content, Record, anchor_path, list_waiting, path_of, read
from pumasi.kube.waiting import end_task
from pumasi.pools.base import Found, FoundTask, Order, Pool, Request, Sink, found_task
from pumasi.pools.pods import MARGIN, PodGang

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

AVOIDED = 60.0
"""Seconds for which a node that has lost a pod is left out: Kubernetes may not have noticed yet that it is gone."""
BLIND = (
    "You may not list the nodes and pods of this cluster: its own scheduler places the slots, one a pod, "
    "and all of them start or none."
)


@contextlib.asynccontextmanager
async def open_pool(request: Request, *, adopt: bool) -> AsyncIterator[Pool]:
    """Makes the run's record in the cluster, or takes it over; and closes it when the run has ended."""
    spec = request.spec
    connection = connect(spec.context, os.environ)
    async with Api(connection) as api:
        record = Record(api, spec.namespace or connection.namespace, request.run, _manager_name())
        pool = await (_take_over(api, request, record) if adopt else make_run(api, request, record))
        try:
            yield pool
        finally:
            await (record.finish(spec.keep) if record.has_ended else record.leave())


def _manager_name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


async def make_run(api: Api, request: Request, record: Record) -> KubernetesPool:
    spec, program = request.spec, request.program
    code = manifests.code_objects(request.run, request.packed)
    _check_changes(spec, program.framework, code)
    asked = {
        "spec": spec.dump(),
        "program": program._replace(files={})._asdict(),
        "code": code._asdict(),
    }
    shown = {"slots": spec.slots, "command": " ".join(spec.command)[:200]}
    pool = KubernetesPool(api, spec, program.framework, record, code)
    pool.look_ahead()
    try:
        if pool.wants_volume:
            await pool.check_fit()  # Before one is made for nothing.
            await pool.find_volume()
            pool.look_ahead()
        await pool.send_files(request)
        await record.create(asked, {**request.fields, **shown}, spec.start_timeout + spec.grace)
        await pool.check_fit()
    except BaseException as error:
        await pool.let_go()
        with contextlib.suppress(PumasiError):
            await record.remove()
        if isinstance(error, NotThere):
            raise _no_namespace(record.namespace) from None
        if isinstance(error, Forbidden) and "cannot create" in error.said:
            hint = f"Runs need the right `edit` in the namespace {record.namespace}; --namespace names another one."
            raise Forbidden(error.message, hint, said=error.said) from None
        raise
    pool.upload(request.packed)
    return pool


async def detach(request: Request) -> None:
    """Make the run, and a manager in the cluster that takes it over."""
    spec = request.spec
    connection = connect(spec.context, os.environ)
    async with Api(connection) as api:
        namespace = spec.namespace or connection.namespace
        await _check_account(api, namespace)
        record = Record(api, namespace, request.run, "")
        pool = await make_run(api, request, record)
        try:
            await pool.start_manager()
        except BaseException:
            await record.remove()
            raise


async def _check_account(api: Api, namespace: str) -> None:
    from pumasi.kube.rights import NAME

    try:
        await api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{NAME}")
    except NotThere:
        await _check_namespace(api, namespace)
        raise UsageError(
            f"The namespace {namespace} has no service account for managers.",
            f"`pumasi setup --on {_word(api)} -n {namespace}` makes it, with the rights that it needs; once.",
        ) from None
    except Forbidden:
        pass  # Who may not look may still use it.


async def _check_namespace(api: Api, namespace: str) -> None:
    with contextlib.suppress(Forbidden):
        try:
            await api.get(f"/api/v1/namespaces/{namespace}")
        except NotThere:
            raise _no_namespace(namespace) from None


def _no_namespace(namespace: str) -> NotThere:
    return NotThere(
        f"The cluster has no namespace {namespace}.",
        f"`kubectl create namespace {namespace}` makes it; --namespace names another one.",
    )


def _word(api: Api) -> str:
    return f"k8s:{api.connection.context}" if api.connection.context else "k8s"


def _check_changes(spec: Spec, framework: str, code: CodeObjects) -> None:
    """Whether what --set asks for can be done to a pod at all is told before anything is made."""
    gang = manifests.Gang("run", "main", 0, manifests.Owner("", "", ""), "hub", True, "", framework, code)
    manifests.pod(spec, gang, 0, "node", {"slots": 1})


async def _take_over(api: Api, request: Request, record: Record) -> KubernetesPool:
    content = await record.claim()
    code = CodeObjects(**content.code)
    pool = KubernetesPool(api, request.spec, request.program.framework, record, code)
    pool.found = _found(content)
    await pool.find_volume()
    return pool


def program_of(content: Content) -> Program:
    program = Program(**content.program)
    shim = shim_files() if content.spec["shim"] else {}
    return program._replace(command=tuple(program.command), files=shim, notes=tuple(program.notes))


async def program_left(spec: Spec, run: str, environ: Mapping[str, str]) -> Program:
    """What a run that goes on in the cluster runs."""
    connection = connect(spec.context, environ)
    async with Api(connection) as api:
        content = read(await api.get(path_of(spec.namespace or connection.namespace, run)))
    if content.state.get("ended"):
        raise NotThere(f"{run} has ended already.")
    return program_of(content)


def _found(content: Content) -> Found:
    state = content.state
    if content.spec["strategy"] != "together":
        kept = {name: found_task(task) for name, task in state.get("tasks", {}).items()}
        return Found(state["created"], state.get("started"), kept)
    main = FoundTask(
        state=state["state"],
        attempt=state.get("attempt", 0),
        restarts=max((told["spent"] for _, kind, told in content.events if kind == "restarting"), default=0),
        placement=state.get("placement", {}),
    )
    return Found(state["created"], state.get("started"), {MAIN: main})


class KubernetesPool(Pool):
    """For one run, whose record owns what is made here."""

    def __init__(self, api: Api, spec: Spec, framework: str, record: Record, code: CodeObjects) -> None:
        self._api = api
        self._namespace = record.namespace
        self._spec = spec
        self._framework = framework
        self._code = code
        self._record = record
        self._run = record.run
        self._rooms: list[Room] = []
        self._looking: asyncio.Task[Left] | None = None
        self._lost_nodes: dict[str, float] = {}
        self._gangs: dict[tuple[str, int], PodGang] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._uploads: list[tuple[manifests.Object, asyncio.Future[None]]] = []
        self._has_star = False
        self._volume: volumes.Volume | None = None
        self._has_told = False
        self._held: dict[str, Mapping[str, int]] = {}
        self._keep = 0.0
        self.copy = record
        self.confirm = spec.silence + 2 * MARGIN
        record.stop = lambda force: self.stop(force)
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

    # ---- where there is room

    async def nodes(self) -> list[Node]:
        spec = self._spec
        self._record.waits = True
        self._record.extend(spec.start_timeout + spec.grace + self.confirm, self._keep)
        if not self.is_blind:
            try:
                looking, self._looking = self._looking, None
                self._rooms, ahead = await (looking or self._look())
                self.remark = " ".join(filter(None, (_before_it(ahead), self._single and self._about_volume())))
            except Forbidden:
                self.is_blind = True
                self.tell(BLIND)
        if self._single and not self._has_told:
            self._has_told = True
            self.tell(self._about_volume())
        if self.is_blind:
            return self.capacity()
        return [each.as_free for each in self._rooms]

    @property
    def wants_volume(self) -> bool:
        """One for its files, beside those that are only mounted."""
        return self._spec.volume is not None or self._spec.strategy != "together"

    async def find_volume(self) -> None:
        """That which the tasks of a run share; it may have to be made."""
        spec = self._spec
        if spec.volume is not None:
            name, size = kubewords.volume(spec.volume)
            self._volume = await volumes.ensure(self._api, self._namespace, name, size)
        elif self.wants_volume and (found := kubewords.files_mount(spec.mounts)):
            self._volume = await volumes.find(self._api, self._namespace, found.claim)

    @property
    def _single(self) -> str:
        """The volume that only one node can mount at a time, where it is such a one."""
        return self._volume.name if self._volume and not self._volume.is_shared else ""

    async def send_files(self, request: Request) -> None:
        """What the run needs of this machine, beside its code. It may take long: first, whether there is any use."""
        spec, files = self._spec, sent(self._spec)
        if not files or self._volume is None:
            return
        await self.check_fit()
        where = uploading.Where(
            self._namespace,
            self._volume,
            spec.image,
            spec.python or manifests.PYTHON,
            spec.node_selector,
            [toleration(text) for text in spec.tolerations],
            as_image_user=spec.as_image_user,
            node=self._rooms[0].name if self._single and self._rooms else "",
        )
        named = {f"pumasi/{self._run}/{place}": Path(spec.workdir, path) for place, path in files.items()}
        await uploading.put(self._api, where, dict(_each_file(named)), request.say)
        self.look_ahead()

    def _about_volume(self) -> str:
        where = "one node" if self.is_blind or not self._rooms else self._rooms[0].name
        return f"All of it goes to {where}: only one can mount the volume {self._single} at a time (ReadWriteOnce)."

    def look_ahead(self) -> None:
        """What `nodes` will be asked for soon, beside whatever has to be done before."""
        self._looking = asyncio.ensure_future(self._look())

    async def check_fit(self) -> None:
        """What no wait can help is told at once. Who may not see the nodes, or can't for the moment, will learn it."""
        try:
            self._rooms, _ = await asyncio.shield(self._looking or self._look())
        except (Forbidden, Unreachable):
            return
        try:
            plan(self.capacity(), self._spec.at_once, most_per_node=self._spec.max_per_node)
        except DoesNotFit as error:
            hint = "--gpu-resource, --node-selector and --toleration decide which nodes count."
            reason = f"Even if nobody else used the cluster: {error.message}"
            reason += f" {self._about_volume()}" if self._single else ""
            raise DoesNotFit(reason, hint) from None

    async def _look(self) -> Left:
        nodes, pods, waiting = await asyncio.gather(
            self._api.list("/api/v1/nodes"),
            self._api.list("/api/v1/pods", fieldSelector=NOT_ENDED),
            list_waiting(self._api, self._namespace),
        )
        others = [thing for thing in waiting if thing["metadata"]["name"] != self._run]
        ahead = ahead_of(self._record.age, others, self._api.now)
        avoid = {node for node, at in self._lost_nodes.items() if time.monotonic() - at < AVOIDED}
        foreign = [pod for pod in pods if not self._is_held(pod)]
        left = leave_room(nodes, foreign, wish_of(self._spec), ahead, avoid, self._held.values())
        return await self._beside_volume(left, nodes, pods) if self._single else left

    def _is_held(self, pod: manifests.Object) -> bool:
        """What our own tasks take is known before the scheduler knows it."""
        labels = pod["metadata"].get("labels", {})
        return labels.get(manifests.RUN) == self._run and labels.get(manifests.TASK) in self._held

    async def _beside_volume(self, left: Left, nodes: Sequence[Object], pods: Sequence[Object]) -> Left:
        """Only one node can mount the volume at a time: that which has it; else, of those that can, the one with most
        room."""
        used = volumes.holders(pods, self._namespace, self._single)
        used |= {node for shares in self._held.values() for node in shares}
        if not used:
            terms = await volumes.terms(self._api, self._namespace, self._single)
            fit = {node["metadata"]["name"] for node in nodes if volumes.can_mount(node, terms)}
            rooms = [each for each in left.rooms if each.name in fit]
            least = self._spec.at_once
            used = {max(rooms, key=lambda each: (each.total >= least, each.free, each.total)).name} if rooms else set()
        return Left([each for each in left.rooms if each.name in used], left.ahead)

    def capacity(self) -> list[Node]:
        if self.is_blind:
            return [Node(f"pod-{number}", 1) for number in range(self._spec.slots)]
        return [Node(each.name, each.total, each.domains) for each in self._rooms]

    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        """Each agent learns its own where it runs."""
        return [""] * len(nodes)

    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        """The scheduler has the last word, and only our own tasks know before. A container numbers its GPUs from 0."""
        self._held[task] = placement
        if self._spec.gpu != "required":
            return {}
        return {node: [str(number) for number in range(share)] for node, share in placement.items()}

    def release(self, task: str) -> None:
        self._held.pop(task, None)

    # ---- gangs

    async def launch(self, order: Order, sink: Sink) -> None:
        """What the pods need may be refused, or not get there: then no pod is made, and it is tried anew."""
        self._hold(order)
        try:
            pods = await self.make_pods(order)
        except (Conflict, Forbidden, Rejected, Unreachable) as error:
            # A Service of that name: the answer to a first try was lost. The next attempt has another name.
            hopeless = isinstance(error, (Forbidden, Rejected))
            self._record.waits = False
            self.release(order.task)
            sink.refused(order, error.message, hopeless, error.hint)
            return
        gang = self._gang(order, sink)
        self._start(gang, gang.run(pods))

    def adopt(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        gang = self._gang(order, sink)
        self._hold(order)
        ran = self.found is not None and self.found.tasks[order.task].state != "starting"
        self._start(gang, gang.run((), heard, ran=ran))

    def _hold(self, order: Order) -> None:
        self._held[order.task] = {
            node: config["slots"] for node, config in zip(order.nodes, order.configs, strict=True)
        }

    def _gang(self, order: Order, sink: Sink) -> PodGang:
        return PodGang(self._api, self._namespace, self._run, order, sink, self._whole, self._away)

    def _away(self, why: str) -> None:
        self.tell(why or "The cluster can be reached again.")

    def _whole(self) -> None:
        """From now on it goes on without us, as long as it may."""
        spec = self._spec
        limit = LONGEST if spec.timeout is None else spec.timeout + spec.grace + self.confirm
        self._keep = spec.keep
        self._record.extend(limit, spec.keep)

    def _start(self, gang: PodGang, life: Coroutine[Any, Any, None]) -> None:
        key = (gang.order.task, gang.order.attempt)
        self._gangs[key] = gang
        task = self._tasks[key] = asyncio.ensure_future(life)
        task.add_done_callback(lambda _: self._forget(key))

    def _forget(self, key: tuple[str, int]) -> None:
        gang, task = self._gangs.pop(key), self._tasks.pop(key)
        self.release(gang.order.task)
        self._lost_nodes |= dict.fromkeys(gang.lost_nodes, time.monotonic())
        if gang.turned_away:
            # Whatever it was: there was room, and it is no use to keep it from others. Until we ask again.
            self._record.waits = False
        if not task.cancelled() and (error := task.exception()):
            self.fail(error)

    async def make_pods(self, order: Order) -> list[manifests.Object]:
        """With what they need: the code once a run, the star's Service once an attempt."""
        gang = self._describe(order)
        if len(order.configs) > 1:
            service, _ = await asyncio.gather(
                self._api.create(self._path("services"), manifests.service(gang)), self._make_secret()
            )
            gang = gang._replace(hub=service["spec"]["clusterIP"])
        await self._be_uploaded()
        return [
            manifests.pod(self._spec, gang, index, order.nodes[index], manifests.agent_config(config, gang, index))
            for index, config in enumerate(order.configs)
        ]

    def _describe(self, order: Order) -> manifests.Gang:
        return manifests.Gang(
            run=self._run,
            task=order.task,
            attempt=order.attempt,
            owner=self._record.owner,
            hub="",
            pinned=not self.is_blind,
            single=self._single,
            framework=self._framework,
            code=self._code,
        )

    def upload(self, packed: bytes) -> None:
        """The agent and the user's code, beside whatever else has to be done before the pods can start."""
        things = manifests.code(self._run, self._record.owner, agent_text(), packed)
        self._uploads = [(thing, asyncio.ensure_future(self._upload(thing))) for thing in things]

    async def _upload(self, thing: manifests.Object) -> None:
        with contextlib.suppress(Conflict):  # The answer to a first try was lost.
            await self._api.create(self._path("configmaps"), thing)

    async def _be_uploaded(self) -> None:
        """What did not get there is sent again the next time."""
        try:
            await asyncio.gather(*(sending for _, sending in self._uploads))
        except PumasiError:
            await asyncio.wait([sending for _, sending in self._uploads])
            failed = [thing for thing, sending in self._uploads if sending.exception()]
            self._uploads = [(thing, asyncio.ensure_future(self._upload(thing))) for thing in failed]
            raise

    async def start_manager(self) -> None:
        """Its Job, when all that its pods will need is there."""
        from pumasi.kube import detached

        package = detached.package_map(self._run, self._record.owner)
        await asyncio.gather(self._be_uploaded(), self._api.create(self._path("configmaps"), package))
        tolerations = [toleration(text) for text in self._spec.tolerations]
        job = detached.manager_job(self._run, self._record.owner, self._spec.image, package, tolerations)
        await self._api.create(anchor_path(self._namespace), job)

    async def keep_output(self) -> None:
        """For a manager in the cluster, whose own disk goes with its pod."""
        from pumasi.kube.archive import Archive

        self._record.archive = Archive(self._api, self._namespace, self._run, self._record.owner)
        await self._record.archive.open()

    async def _make_secret(self) -> None:
        """Once a run; of a manager before us it may be there already."""
        if not self._has_star:
            with contextlib.suppress(Conflict):
                thing = manifests.secret(self._run, self._record.owner, secrets.token_hex(32))
                await self._api.create(self._path("secrets"), thing)
            self._has_star = True

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
        if self._looking is not None:
            with contextlib.suppress(PumasiError):
                await end_task(self._looking)


def _each_file(named: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Those of a folder one by one."""
    for place, path in named.items():
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file())
            yield from ((f"{place}/{each.relative_to(path).as_posix()}", each) for each in inside)
        else:
            yield place, path


def _before_it(ahead: int) -> str:
    if not ahead:
        return ""
    return "1 older run is before it." if ahead == 1 else f"{ahead} older runs are before it."
