"""A Kubernetes cluster as a pool. Nothing is installed there: a run is made of plain objects (see `kube.manifests`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.agent.files import agent_text, installer_files, shim_files
from pumasi.core.endings import Setting
from pumasi.core.events import Note, Restarting
from pumasi.core.flows import MAIN
from pumasi.core.launch import Program
from pumasi.core.person import Person
from pumasi.core.planning import Node, plan
from pumasi.errors import (
    ClusterTrouble,
    Conflict,
    DoesNotFit,
    Forbidden,
    NotThere,
    PumasiError,
    Rejected,
    Unreachable,
    UsageError,
)
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.base import Found, FoundTask, Order, Request, Runner, Shortage, Sink, found_task
from pumasi.pools.kubernetes import holding, manifests, notation, pod_facts, quotas, uploading, volumes
from pumasi.pools.kubernetes.discovery import LEAVING, Object, Room, has_image, is_leaving, unlabelled
from pumasi.pools.kubernetes.gang import MARGIN
from pumasi.pools.kubernetes.lookout import Lookout, View
from pumasi.pools.kubernetes.manifests import CodeObjects
from pumasi.pools.kubernetes.notation import toleration
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.pods import PodGang
from pumasi.pools.kubernetes.queueing import Left, Waiter, ahead_of, leave_room, wish_of, write_wish
from pumasi.pools.kubernetes.record import LONGEST, Age, Content, Record, anchor_path
from pumasi.pools.kubernetes.star import Introduction, Stars
from pumasi.registry import FLOWS
from pumasi.waiting import end_task, set_within, within

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

MANAGER_SECONDS = 8.0
"""For which the manager of a detached run is watched, where its image may have to be pulled."""
AVOIDED = 60.0
"""Seconds for which a node that has lost a pod is left out: Kubernetes may not have noticed yet that it is gone."""
KEPT = 30.0
"""Seconds for which room is kept for an older run that could take it and does not: something that only it knows of may
be in its way, such as a volume on another node, or it is not what it says."""
UNHURRIED = 1.0
"""Seconds between two looks of a run that has others before it, where they cost little."""
SETTLE = 5.0
"""Seconds that the pods of a gang that has just ended may go on to count, for the scheduler."""
_LOST_NODES = "lost_nodes"
BLIND = (
    "You may not list the nodes and pods of this cluster: its own scheduler places the slots, one a pod, "
    "and all of them start or none."
)


@contextlib.asynccontextmanager
async def open_runner(request: Request, *, adopt: bool) -> AsyncIterator[Runner]:
    """Makes the run's record in the cluster, or takes it over; and closes it when the run has ended."""
    spec = request.spec
    asked = spec[KubernetesOptions]
    connection = connect(spec.context, os.environ)
    async with Api(connection) as api:
        record = Record(api, asked.namespace or connection.namespace, request.run, _manager_name())
        pool = await (_take_over(api, request, record) if adopt else make_run(api, request, record))
        try:
            yield pool
        finally:
            await (record.finish(asked.keep) if record.has_ended else record.leave())


def _manager_name() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


async def _signed(api: Api, request: Request) -> dict[str, Any]:
    """The fields of its record, with the name that the cluster has for the user."""
    person = Person(request.fields.get("user", ""), request.fields.get("host", "")).known_as(await api.user())
    return {**request.fields, "user": person.name}


async def make_run(api: Api, request: Request, record: Record) -> KubernetesRunner:
    spec, program = request.spec, request.program
    code = manifests.code_objects(request.run, request.packed)
    _check_changes(spec, program.framework, code)
    files = _files_to_send(request)
    asked = {
        "spec": spec.dump(),
        "program": program._replace(files={})._asdict(),
        "code": code._asdict(),
    }
    shown = {"slots": spec.slots, "command": " ".join(spec.command)[:200]}
    pool = KubernetesRunner(api, spec, program.framework, record, code)
    pool.look_ahead()
    try:
        fields = await _signed(api, request)
        pool.user = fields["user"]
        if pool.wants_volume:
            await pool.check_fit()  # Before one is made for nothing.
            await pool.find_volume()
            pool.look_ahead()
        await pool.send_files(files, request.say)
        await record.create(asked, {**fields, **shown}, spec.start_timeout + spec.grace)
        await pool.check_fit()
    except BaseException as error:
        await pool.let_go()
        with contextlib.suppress(PumasiError):
            await record.remove()
        if isinstance(error, NotThere):
            raise _no_namespace(api, record.namespace) from None
        if isinstance(error, Forbidden) and "cannot create" in error.said:
            raise _needs_edit(error, record.namespace) from None
        raise
    pool.upload(request.packed)
    return pool


async def make_detached(request: Request, api: Api, namespace: str) -> None:
    """Make the run, and a manager in the cluster that takes it over."""
    await _check_account(api, namespace)
    record = Record(api, namespace, request.run, "")
    for note in request.program.notes:  # The manager finds the run begun, and does not tell them again.
        record.event(time.time(), Note(text=note))
    pool = await make_run(api, request, record)
    try:
        await pool.start_manager()
        await pool.see_manager(request.say)
    except BaseException:
        await record.remove()
        raise
    finally:
        await pool.let_go()


async def _check_account(api: Api, namespace: str) -> None:
    from pumasi.pools.kubernetes.rights import NAME

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
            raise _no_namespace(api, namespace) from None


def _needs_edit(error: Forbidden, namespace: str) -> Forbidden:
    hint = f"Runs need the right `edit` in the namespace {namespace}; --namespace names another one."
    return Forbidden(error.message, hint, said=error.said)


def _no_namespace(api: Api, namespace: str) -> NotThere:
    return NotThere(
        f"The cluster has no namespace {namespace}.",
        f"`{api.connection.kubectl()} create namespace {namespace}` makes it; --namespace names another one.",
    )


def _word(api: Api) -> str:
    return f"k8s:{api.connection.context}" if api.connection.context else "k8s"


def _check_changes(spec: Spec, framework: str, code: CodeObjects) -> None:
    """Whether what --set asks for can be done to a pod at all is told before anything is made."""
    _sample(spec, framework, code, 1)


def _sample(spec: Spec, framework: str, code: CodeObjects, share: int) -> manifests.Object:
    """A pod with that many slots, as it would be made."""
    gang = manifests.GangSpec("run", "main", 0, manifests.Owner("", "", ""), "hub", True, "", framework, code)
    return manifests.pod(spec, gang, 0, "node", {"slots": share})


async def _take_over(api: Api, request: Request, record: Record) -> KubernetesRunner:
    content = await record.claim()
    code = manifests.read_code(content.code)
    pool = KubernetesRunner(api, request.spec, request.program.framework, record, code)
    is_single = FLOWS.get(request.spec.strategy).is_single
    pool.found = _found(content, None if is_single else await record.history.take_over())
    pool.avoid(content.state.get(_LOST_NODES, {}))
    await pool.find_volume()
    return pool


def recorded_program(content: Content) -> Program:
    program = Program(**content.program)
    shim = shim_files() if content.spec["shim"] else {}
    files = {**shim, **(installer_files() if program.setup else {})}
    return program._replace(command=tuple(program.command), files=files, notes=tuple(program.notes))


def _found(content: Content, history: Sequence[Mapping[str, Any]] | None) -> Found:
    """Without a history: of a run of one task."""
    state = content.state
    if history is not None:
        kept = {name: found_task(task) for name, task in state.get("tasks", {}).items()}
        return Found(state["created"], state.get("started"), kept, history)
    main = FoundTask(
        state=state["state"],
        attempt=state.get("attempt", 0),
        restarts=max((event.spent for _, event in content.events if isinstance(event, Restarting)), default=0),
        placement=state.get("placement", {}),
    )
    return Found(state["created"], state.get("started"), {MAIN: main})


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
        self._rooms: list[Room] = []
        self._looking: asyncio.Task[Left] | None = None
        self._lookout = Lookout(api, record.namespace, lambda: self.changed())
        self._view = View((), (), ())
        self._waiters: Sequence[Waiter] = ()
        self._fitting: dict[Age, float] = {}
        """The older runs that could start now, and since when that was seen."""
        self._terms: tuple[float, Sequence[Object]] | None = None
        self._over: dict[str, float] = {}
        self._lost_nodes: dict[str, float] = {}
        self._gangs: dict[tuple[str, int], PodGang] = {}
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._uploads: list[tuple[manifests.Object, asyncio.Future[None]]] = []
        self._stars = Stars(api, record.namespace, record.run, lambda: record.owner)
        self._volume: volumes.Volume | None = None
        self._has_told = False
        self._is_split = False
        """Whether it will have several pods at a time, wherever they go."""
        self._held: dict[str, Mapping[str, int]] = {}
        self._asking = spec
        """What room was looked for last."""
        self._apart: dict[str, Spec] = {}
        """Tasks that hold something, and ask for something else than the run does."""
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

    def avoid(self, nodes: Mapping[str, float]) -> None:
        """Nodes that were lost, and when by the cluster's clock."""
        self._lost_nodes |= nodes

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

    async def nodes(self, spec: Spec | None = None) -> list[Node]:
        self._asking = spec = spec or self._spec
        self._record.waits = True
        self._record.extend(spec.start_timeout + spec.grace + self.confirm, self._keep)
        if not self.is_blind:
            try:
                looking, self._looking = self._looking, None
                if looking is not None and spec is not self._spec:
                    await end_task(looking)
                    looking = None
                self._rooms, _ = await (looking or self._look())
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
        return self._spec[KubernetesOptions].volume is not None or FLOWS.get(self._spec.strategy).shares_files

    async def find_volume(self) -> None:
        """That which the tasks of a run share; it may have to be made."""
        spec = self._spec
        asked = spec[KubernetesOptions]
        if asked.volume is not None:
            name, size = notation.volume(asked.volume)
            self._volume = await volumes.ensure(self._api, self._namespace, name, size)
        elif self.wants_volume and (found := notation.files_mount(asked.mounts)):
            self._volume = await volumes.find(self._api, self._namespace, found.claim)

    @property
    def _single(self) -> str:
        """The volume that only one node can mount at a time, where it is such a one."""
        return self._volume.name if self._volume and not self._volume.is_shared else ""

    async def send_files(self, files: Mapping[str, Path], say: Callable[[str], None]) -> None:
        """What the run needs of this machine, beside its code. It may take long: first, whether there is any use."""
        spec = self._spec
        asked = spec[KubernetesOptions]
        if not files or self._volume is None:
            return
        await self.check_fit()
        where = uploading.Where(
            self._namespace,
            self._volume,
            asked.image,
            spec.python or manifests.PYTHON,
            asked.node_selector,
            [toleration(text) for text in asked.tolerations],
            as_image_user=asked.as_image_user,
            node=self._rooms[0].name if self._single and self._rooms else "",
        )
        await uploading.put(self._api, where, files, say)
        self.look_ahead()

    def _about_volume(self) -> str:
        where = "one node" if self.is_blind or not self._rooms else self._rooms[0].name
        return f"All of it goes to {where}: only one can mount the volume {self._single} at a time (ReadWriteOnce)."

    def look_ahead(self) -> None:
        """What `nodes` will be asked for soon, beside whatever has to be done before."""
        self._looking = asyncio.ensure_future(self._look())
        if self._spec.slots > 1:
            self._stars.look_ahead()

    async def check_fit(self) -> None:
        """What no wait can help is told at once. Who may not see the nodes, or can't for the moment, will learn it."""
        try:
            self._rooms, _ = await asyncio.shield(self._looking or self._look())
        except Forbidden:
            self._is_split = self._spec.slots > 1
            await self._check_quotas([1] * self._spec.at_once)
            return
        except Unreachable:
            return
        try:
            shares = self._best_shares(self._spec.at_once)
        except DoesNotFit as error:
            if said := unlabelled(self._view.nodes, self._spec[KubernetesOptions].node_selector):
                raise DoesNotFit(said, "Check --node-selector: kubectl get nodes --show-labels") from None
            hint = f"{_asked_for(self._spec)} --node-selector and --toleration decide which nodes count."
            reason = f"Even if nobody else used the cluster: {error.message}"
            reason += f" {self._about_volume()}" if self._single else ""
            raise DoesNotFit(reason, hint) from None
        self._is_split = FLOWS.get(self._spec.strategy).is_single and len(shares) > 1
        await self._check_quotas(shares)

    def _best_shares(self, slots: int) -> list[int]:
        """Those of the fewest nodes that it takes, if nobody else uses them."""
        return list(
            plan(self.capacity(), slots, most_per_node=self._spec[KubernetesOptions].max_per_node).placement.values()
        )

    async def _check_quotas(self, shares: Iterable[int]) -> None:
        """Who may not list them learns it when the pods are refused."""
        try:
            found = await self._api.list(self._path("resourcequotas"))
        except (Forbidden, NotThere, Unreachable):
            return
        if not found:
            return
        pods = self._samples(shares)
        if not self._record.manager:
            from pumasi.pools.kubernetes.manager_job import RESOURCES

            pods.append({"spec": {"containers": [{"resources": RESOURCES}]}})
        if said := quotas.never(found, quotas.asked_by(pods)):
            manager = "" if self._record.manager else " One of the pods is the run's manager."
            raise DoesNotFit(f"{said}{manager}", quotas.hint(self._kubectl))

    def _samples(self, shares: Iterable[int], spec: Spec | None = None) -> list[manifests.Object]:
        return [_sample(spec or self._spec, self._framework, self._code, share) for share in shares]

    def _least_needs(self, order: Order) -> dict[str, float]:
        try:
            shares = self._best_shares(sum(config["slots"] for config in order.configs))
        except DoesNotFit:  # A node has gone meanwhile.
            shares = [config["slots"] for config in order.configs]
        return quotas.asked_by(self._samples(shares, order.spec))

    def shortage(self, slots: int) -> Shortage:
        """Who has to wait hears of every change from now on."""
        self._lookout.follow()
        short, resource = self._shortfall(slots), holding.scarce(wish_of(self._asking).needs)
        volume = f" {self._about_volume()}" if self._single else ""
        said = holding.words(short, resource)
        remark = (f"{said}." if said else "") + volume
        if short.free >= slots:
            return Shortage(remark)  # Not the number is too small, but where they are.
        text, gist = (holding.waiting(short, resource, now) + volume for now in (self._api.now, None))
        return Shortage(remark.strip(), text, gist)

    def _shortfall(self, slots: int) -> holding.Shortfall:
        pods = [pod for pod in self._view.pods if not self._is_leaving(pod)]
        usable = {room.name for room in self._rooms if not room.out}
        free, there = sum(room.free for room in self._rooms), self._leave_room(pods, ()).rooms
        kept = sum(room.free for room in there if room.name in usable) - free
        resource = holding.scarce(wish_of(self._asking).needs)
        uses = holding.uses(pods, resource, usable, self._namespace)
        out = {room.name: room.out for room in self._rooms if room.out and room.total}
        return holding.Shortfall(slots, free, uses, kept, out, sum(not each.placement for each in self._waiters))

    async def _look(self) -> Left:
        view = self._view = await self._lookout.look()
        began, used = time.monotonic(), time.thread_time()
        pods = [pod for pod in view.pods if not self._is_leaving(pod)]
        left = self._leave_room(pods, self._ahead())
        self._fitting = {age: self._fitting.get(age, began) for age in left.fitting}
        # A large cluster changes all the time: spend at most a tenth of a processor on planning (finding out who holds
        # what takes twice as long as planning). Runs that are not first in line look less often: they rarely start
        # next, and many of them may share a machine.
        pause = 30 * (time.thread_time() - used)
        self._lookout.pause = max(pause, min(pause * (1 + len(self._waiters)), UNHURRIED))
        return await self._beside_volume(left, view.nodes, view.pods) if self._single else left

    def _ahead(self) -> Sequence[Waiter]:
        """The older runs that wait."""
        others = [each for each in self._view.anchors if not self._is_own(each)]
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
        wish, avoid = wish_of(self._asking), self._avoided()
        return leave_room(self._view.nodes, foreign, wish, ahead, avoid, own, self._passed(), apart)

    def _passed(self) -> set[Age]:
        """The older runs that could have started for long, and did not."""
        now = time.monotonic()
        return {age for age, since in self._fitting.items() if now - since >= KEPT}

    def _avoided(self) -> set[str]:
        return {node for node, at in self._lost_nodes.items() if self._api.now - at < AVOIDED}

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

    async def _beside_volume(self, left: Left, nodes: Sequence[Object], pods: Sequence[Object]) -> Left:
        """Only one node can mount the volume at a time: that which has it; else, of those that can, the one with most
        room."""
        used = volumes.holders(pods, self._namespace, self._single)
        used |= {node for shares in self._held.values() for node in shares}
        if not used:
            terms = await self._find_terms()
            fit = {node["metadata"]["name"] for node in nodes if volumes.can_mount(node, terms)}
            rooms = [each for each in left.rooms if each.name in fit]
            least = self._spec.at_once
            used = {max(rooms, key=lambda each: (each.total >= least, each.free, each.total)).name} if rooms else set()
        return left._replace(rooms=[each for each in left.rooms if each.name in used])

    async def _find_terms(self) -> Sequence[Object]:
        """Asked for again after a while only: who waits looks often."""
        if self._terms is None or time.monotonic() - self._terms[0] > AVOIDED:
            self._terms = time.monotonic(), await volumes.terms(self._api, self._namespace, self._single)
        return self._terms[1]

    def capacity(self) -> list[Node]:
        if self.is_blind:
            return [Node(f"pod-{number}", 1) for number in range(self._asking.slots)]
        return [Node(each.name, each.total, each.domains) for each in self._rooms]

    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        """Each agent learns its own where it runs."""
        return [""] * len(nodes)

    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        """The scheduler has the last word, and only our own tasks know before. A container numbers its GPUs from 0."""
        if not self.is_blind and not await self._settle(placement):
            return None
        self._hold(task, placement, self._asking)
        self._fitting.clear()
        if self._asking.gpu != "required":
            return {}
        return {node: [str(number) for number in range(share)] for node, share in placement.items()}

    async def _settle(self, placement: Mapping[str, int]) -> bool:
        """Until the scheduler counts as free what pods that have just ended held there; False when it does not."""
        began, told = time.monotonic(), False
        while not self._is_free(placement):
            leaving = [pod for pod in self._view.pods if self._is_leaving(pod)]
            waited = time.monotonic() - began
            if not leaving or waited > SETTLE:
                return False
            if waited > 1 and not told:
                told = True
                self.tell(f"Waiting for the {self._things} of {_names(leaving)}: it has just ended.")
            self._lookout.follow()
            await set_within(self._lookout.moved, 0.5)
            try:
                self._view = await self._lookout.look()
            except (Forbidden, Unreachable):
                return False
        return True

    def _is_free(self, placement: Mapping[str, int]) -> bool:
        """As the scheduler counts at this moment. An older run may have counted the same way a moment ago, and gone to
        other nodes than those that it would be planned for now."""
        free = {room.name: room.free for room in self._leave_room(self._view.pods, self._ahead()).rooms}
        return all(free.get(node, share) >= share for node, share in placement.items())

    @property
    def _things(self) -> str:
        return "GPUs" if self._spec.gpu == "required" else "slots"

    def release(self, task: str) -> None:
        self._held.pop(task, None)
        self._apart.pop(task, None)

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
        gang.needs = self._least_needs(order)
        gang.patched = bool((order.spec or self._spec)[KubernetesOptions].patches)
        self._start(gang, gang.run(pods))

    def adopt(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        ran = self.found is not None and self.found.tasks[order.task].state != "starting"
        gang = self._gang(order, sink, introduces=len(order.configs) > 1 and not ran)
        self._hold_for(order)
        self._start(gang, gang.run((), heard, ran=ran))

    def _hold_for(self, order: Order) -> None:
        shares = {node: config["slots"] for node, config in zip(order.nodes, order.configs, strict=True)}
        self._hold(order.task, shares, order.spec or self._spec)

    def _hold(self, task: str, shares: Mapping[str, int], spec: Spec) -> None:
        self._held[task] = shares
        if spec is not self._spec:
            self._apart[task] = spec

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
        self._over = {task: at for task, at in self._over.items() if time.monotonic() - at < LEAVING}
        self._over[gang.order.task] = time.monotonic()
        self.release(gang.order.task)
        if gang.lost_nodes:
            self._lost_nodes |= dict.fromkeys(gang.lost_nodes, self._api.now)
            self._record.update({_LOST_NODES: self._lost_nodes})  # for a manager that takes over
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
        await self._be_uploaded()
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
            avoid=tuple(sorted(self._avoided())),
            single=self._single,
            framework=self._framework,
            code=self._code,
            user=self._record.user,
        )

    def upload(self, packed: bytes) -> None:
        """The agent and the user's code, beside whatever else has to be done before the pods can start."""
        things = manifests.code(self._run, self._record.owner, agent_text(), packed)
        self._uploads = [(thing, self._send(thing)) for thing in things]
        if self._is_split and self._record.manager:
            self._stars.make_ahead()

    def _send(self, thing: manifests.Object) -> asyncio.Future[None]:
        """Whether it got there is asked later, or never, if the run ends before."""
        sending = asyncio.ensure_future(self._upload(thing))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return sending

    async def _upload(self, thing: manifests.Object) -> None:
        try:
            await self._api.create(self._path("secrets"), thing)
        except Conflict:
            pass  # The answer to a first try was lost.
        except Forbidden as error:
            raise _needs_edit(error, self._namespace) from None

    async def _be_uploaded(self) -> None:
        """What did not get there is sent again the next time."""
        try:
            await asyncio.gather(*(sending for _, sending in self._uploads))
        except PumasiError:
            await asyncio.wait([sending for _, sending in self._uploads])
            failed = [thing for thing, sending in self._uploads if sending.exception()]
            self._uploads = [(thing, self._send(thing)) for thing in failed]
            raise

    async def start_manager(self) -> None:
        """Its Job, when all that its pods will need is there."""
        asked = self._spec[KubernetesOptions]
        from pumasi.pools.kubernetes import manager_job

        package = manager_job.package_map(self._run, self._record.owner)
        await asyncio.gather(self._be_uploaded(), self._api.create(self._path("configmaps"), package))
        tolerations = [toleration(text) for text in asked.tolerations]
        job = manager_job.manager_job(self._run, self._record.owner, asked.image, package, tolerations)
        await self._api.create(anchor_path(self._namespace), job)

    async def see_manager(self, say: Callable[[str], None]) -> None:
        """That it will never start is told to whoever has just asked for it. Where a node has its image, there is
        nothing to wait for."""
        if not has_image(self._view.nodes, self._spec[KubernetesOptions].image):
            with contextlib.suppress(asyncio.TimeoutError, Forbidden, Unreachable):
                await within(self._manager_begins(say), MANAGER_SECONDS)

    async def _manager_begins(self, say: Callable[[str], None]) -> None:
        selector = f"{manifests.of_run(self._run)},{manifests.KIND}=manager"
        changes = self._api.watch(self._path("pods"), patience=MANAGER_SECONDS, labelSelector=selector)
        async for kind, pod in changes:
            if kind == "SYNCED":
                continue
            why = pod_facts.hindrance(pod, self._kubectl)
            if why and why.hopeless:
                raise ClusterTrouble(f"The run's manager can't start. {why.reason}", why.hint)
            if pod_facts.has_begun(pod):
                return
            if facts := pod_facts.stuck(pod, 2):
                say(f"{facts['reason']} The cluster tries again; `pumasi show` says whether it helps.")
                return

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
        if self._looking is not None:
            with contextlib.suppress(PumasiError):
                await end_task(self._looking)
        await self._lookout.end()
        await self._stars.let_go()


def _refusal(error: ClusterTrouble, kubectl: str) -> pod_facts.Refusal:
    """Of what the pods need; a quota that others use up may be free later."""
    if "exceeded quota" in error.said:
        return pod_facts.rejection(error.said, kubectl=kubectl)
    return pod_facts.Refusal(error.message, isinstance(error, (Forbidden, Rejected)), error.hint)


def _files_to_send(request: Request) -> dict[str, Path]:
    """By their paths on the volume of the run."""
    files: dict[str, Path] = {}
    for place, path in FLOWS.get(request.spec.strategy).files(request.spec).items():
        files |= uploading.files_of(f"pumasi/{request.run}/{place}", Path(request.spec.workdir, path))
    return files


def _names(pods: Sequence[Object]) -> str:
    """Of their runs, or their own where they are of no run."""
    return ", ".join(
        sorted({pod["metadata"].get("labels", {}).get(manifests.RUN, pod["metadata"]["name"]) for pod in pods})
    )


def _asked_for(spec: Spec) -> str:
    """Each slot asks for 1 CPU (less with --cpus 0.5). Or, where the user has said how many: (set by --cpus)."""
    options = spec[KubernetesOptions]
    cores, asked = manifests.cores_of(spec), []
    if spec.gpu == "required":
        asked.append(f"1 {options.gpu_resource} (another kind with --gpu-resource)")
    if cores:
        why = "less with --cpus 0.5" if options.cpus is None else "set by --cpus"
        asked.append(f"{cores:g} CPU{'s' * (cores > 1)} ({why})")
    if options.memory:
        asked.append(f"{notation.quantity(options.memory)} of memory (set by --memory)")
    return f"Each slot asks for {', '.join(asked)}."
