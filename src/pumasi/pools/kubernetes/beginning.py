"""How a run begins in a cluster: its record and what it needs are made, for a manager here or for one there; or a
manager takes over what another has left."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.agent.files import installer_files, shim_files
from pumasi.core.events import Note, Restarting
from pumasi.core.flows import MAIN
from pumasi.core.launch import Program
from pumasi.core.person import Person
from pumasi.errors import Forbidden, NotThere, PumasiError, UsageError
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.base import Found, FoundTask, Request, Runner, found_task
from pumasi.pools.kubernetes import manifests, uploading
from pumasi.pools.kubernetes.code_upload import needs_edit
from pumasi.pools.kubernetes.fit import sample
from pumasi.pools.kubernetes.manifests import CodeObjects
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.record import Content, Record
from pumasi.pools.kubernetes.runner import LOST_NODES, KubernetesRunner
from pumasi.registry import FLOWS

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


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
            raise needs_edit(error, record.namespace) from None
        raise
    pool.upload(request.packed)
    return pool


def _check_changes(spec: Spec, framework: str, code: CodeObjects) -> None:
    """Whether what --set asks for can be done to a pod at all is told before anything is made."""
    sample(spec, framework, code, 1)


def _files_to_send(request: Request) -> dict[str, Path]:
    """By their paths on the volume of the run."""
    files: dict[str, Path] = {}
    for place, path in FLOWS.get(request.spec.strategy).files(request.spec).items():
        files |= uploading.files_of(f"pumasi/{request.run}/{place}", Path(request.spec.workdir, path))
    return files


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


def _no_namespace(api: Api, namespace: str) -> NotThere:
    return NotThere(
        f"The cluster has no namespace {namespace}.",
        f"`{api.connection.kubectl()} create namespace {namespace}` makes it; --namespace names another one.",
    )


def _word(api: Api) -> str:
    return f"k8s:{api.connection.context}" if api.connection.context else "k8s"


async def _take_over(api: Api, request: Request, record: Record) -> KubernetesRunner:
    content = await record.claim()
    code = manifests.read_code(content.code)
    pool = KubernetesRunner(api, request.spec, request.program.framework, record, code)
    is_single = FLOWS.get(request.spec.strategy).is_single
    pool.found = _found(content, None if is_single else await record.history.take_over())
    pool.avoid(content.state.get(LOST_NODES, {}))
    await pool.find_volume()
    return pool


def recorded_program(content: Content) -> Program:
    program = Program(**{name: value for name, value in content.program.items() if name in Program._fields})
    shim = shim_files() if content.spec.get("shim", True) else {}
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
