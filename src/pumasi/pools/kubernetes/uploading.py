"""Files of this machine onto a volume, through nothing but the cluster's API server.

    Job (ends by itself, and is gone then) ─► pod with the volume: agent/loader.py
     └─► Secret (its token)                    ▲
    put ──── pieces ───► API server ───────────┘ pods/proxy

Pieces that were lost on the way are sent again, from where the pod says that it is; a file is there whole, with the
right checksum, or not at all. The pod goes when it is done with. If we are killed, it hears nothing more, removes what
is unfinished, and ends; then the cluster removes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pumasi.agent.files import loader_text
from pumasi.errors import ClusterTrouble, Forbidden, NotThere, SystemTrouble, Unreachable, UsageError
from pumasi.kube.api import Api
from pumasi.kube.waiting import within
from pumasi.pools.kubernetes import manifests, pod_facts
from pumasi.pools.kubernetes.discovery import NOT_ENDED
from pumasi.pools.kubernetes.manifests import DOMAIN, PYTHON, Object, Owner
from pumasi.pools.kubernetes.notation import VOLUME_PATH
from pumasi.pools.kubernetes.volumes import Volume, holders

Say = Callable[[str], None]
"""Is told what is done, in one sentence; what is still going on ends in "…"."""
UPLOAD = DOMAIN + "upload"
PORT = 7710
PIECE = 4 * 2**20
START_SECONDS = 600
"""Until the pod runs: its image may have to be pulled."""
SILENCE = 120
"""Seconds without a word after which the pod takes us for dead."""
_SLOWEST = 100 * 1024
"""Bytes a second. One that is even slower runs into the Job's deadline, which is there for nodes that are lost."""
_A_FILE = 2
"""Seconds that each may take beside its bytes."""
_MANY = 500
"""Files, of which not every one is told."""
_SHOWN = 5
"""Names in a message."""
_ANSWER_SECONDS = 60.0
_CHECK_SECONDS = 900.0
"""For the pod to read a large file once more."""
_LARGE = 256 * 2**20
"""Bytes that take longer than a moment to read."""
_TRIES = 6
"""How often a piece is sent, each time for as long as the API is patient."""
_FIRST_WORD, _NEXT_WORD = 1.0, 5.0


class Where(NamedTuple):
    """The volume, and what its pod needs: an image with Python, and perhaps certain nodes. `node`: where it is to be
    mounted, unless it is already. With an `owner`, the pod goes at the latest when the owner does."""

    namespace: str
    volume: Volume
    image: str
    python: str = PYTHON
    node_selector: Mapping[str, str] = {}
    tolerations: Sequence[Object] = ()
    owner: Owner | None = None
    as_image_user: bool = False
    node: str = ""


class _File(NamedTuple):
    source: Path
    size: int
    sha256: str


async def put(
    api: Api, where: Where, files: Mapping[str, Path], say: Say, *, keep: Mapping[str, Collection[str]] | None = None
) -> None:
    """`files`: paths on the volume, and what is to be there. `keep`: folders on the volume, and all that may stay in
    them, once the files are there; names in a folder, not paths."""
    for path in (*files, *(keep or ())):
        check_path(path)
    found = {path: await _look_at(source, say) for path, source in files.items()}
    size = sum(each.size for each in found.values())
    async with _loader(api, where, len(found) * _A_FILE + size // _SLOWEST, say) as loader:
        for number, (path, file) in enumerate(found.items(), start=1):
            said = await loader.put(path, file)
            if len(found) <= _MANY:
                say(said)
            elif number % _MANY == 0 or number == len(found):
                say(f"{number:,} of {len(found):,} files are on the volume" + (" …" if number < len(found) else "."))
        for folder, names in (keep or {}).items():
            await loader.ask("keep", {"folder": folder}, json.dumps(sorted(names)).encode())


def files_of(place: str, path: Path) -> dict[str, Path]:
    """The file, or the files of a folder one by one, by their paths on a volume.

    A link to a file in the folder is sent as that file, and one to a folder in it is left out. UsageError for a link
    that leads out of it: what is there may be nothing that should travel, and without it the run might work with half
    of its data.
    """
    if not path.is_dir():
        return {place: path}
    root, files, outside = path.resolve(), [], []
    for folder, folders, names in os.walk(root):
        for each in (Path(folder, name) for name in (*folders, *names)):
            if each.is_symlink() and each.exists() and not each.resolve().is_relative_to(root):
                outside.append(str(each.relative_to(root)))
            elif each.is_file():
                files.append(each)
    if outside:
        more = f" and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
        raise UsageError(
            f"{path} has links that lead out of it: {', '.join(sorted(outside)[:_SHOWN])}{more}.",
            f"They are not followed. Send a copy that has the files themselves: cp -rL {root.name} {root.name}-copy",
        )
    return {f"{place}/{each.relative_to(root).as_posix()}": each for each in sorted(files)}


def check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    if (
        not parts
        or path.startswith("/")
        or ".." in parts
        or any(mark in path for mark in "\0\r\n")
        or not _is_text(path)
    ):
        raise UsageError(f"{path!r} is no path on a volume.", "Give one that is relative and has no '..' in it.")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(PIECE):
            found.update(block)
    return found.hexdigest()


async def _look_at(path: Path, say: Say) -> _File:
    try:
        size = path.stat().st_size
        if size > _LARGE:
            say(f"reading {path.name}, {shown_bytes(size)} …")
        return _File(path, size, await asyncio.to_thread(digest, path))
    except FileNotFoundError:
        raise UsageError(f"There is no file {path}.") from None
    except OSError as error:
        raise SystemTrouble(f"{path} can't be read: {error.strerror}.") from None


class _Loader:
    def __init__(self, api: Api, where: Where, pod: str, token: str, say: Say) -> None:
        self._api, self._where, self._say = api, where, say
        self._address = f"/api/v1/namespaces/{where.namespace}/pods/{pod}:{PORT}/proxy"
        self._headers = {"X-Pumasi-Token": token}

    async def put(self, path: str, file: _File) -> str:
        """What became of it."""
        about = {"path": path, "sha256": file.sha256}
        answer = await self.ask("begin", {**about, "size": str(file.size)})
        if answer.get("there"):
            return f"{file.source.name} is on the volume already."
        await self._send(file, int(answer["has"]), about)
        if file.size > _LARGE:
            self._say(f"checking {file.source.name} on the volume …")
        await self.ask("finish", about)
        return f"{file.source.name} is on the volume ({shown_bytes(file.size)})."

    async def _send(self, file: _File, has: int, about: Mapping[str, str]) -> None:
        """The pod says where to go on. That may be before what was sent, but not for ever."""
        due, setbacks = time.monotonic() + _FIRST_WORD, 0
        with file.source.open("rb") as source:
            while has < file.size:
                source.seek(has)
                piece = await asyncio.to_thread(source.read, PIECE)
                if not piece:
                    raise SystemTrouble(f"{file.source} became shorter while it was sent.", "Send it again.")
                before, has = has, int((await self.ask("piece", {**about, "at": str(has)}, piece))["has"])
                setbacks += has <= before
                if setbacks > _TRIES:
                    raise ClusterTrouble(f"{file.source} does not arrive: somebody else sends the same.", "Try again.")
                if time.monotonic() > due:
                    due = time.monotonic() + _NEXT_WORD
                    self._say(f"sending {file.source.name}: {has / file.size:.0%} of {shown_bytes(file.size)} …")

    async def ask(self, action: str, query: Mapping[str, str], body: bytes = b"") -> Object:
        """Insists for a while; what is asked twice does no harm."""
        seconds = _ANSWER_SECONDS if action == "piece" else _CHECK_SECONDS
        for left in reversed(range(_TRIES)):
            try:
                address = f"{self._address}/{action}"
                answer = await self._api.send(address, query, self._headers, body, seconds=seconds)
                break
            except Unreachable as error:
                if not left:
                    hint = "The network of the cluster has to let the API server reach pods."
                    raise Unreachable(f"The files can't be sent: {error.message}", hint) from None
            except Forbidden as error:
                raise Forbidden(error.message, _RIGHT) from None
            except NotThere:
                raise ClusterTrouble(
                    "The pod that takes the files is gone.", "Was its node drained? Try again."
                ) from None
        if "error" in answer:
            raise self._trouble(answer, query)
        return answer

    def _trouble(self, answer: Object, query: Mapping[str, str]) -> Exception:
        path, volume, details = query.get("path", query.get("folder")), self._where.volume.name, answer["details"]
        if answer["error"] == "full":
            what = f"{path} does not fit onto the volume {volume}: {details}."
            return ClusterTrouble(what, "Make room there, or take another one: --volume NAME:SIZE.")
        if answer["error"] == "refused":
            what = f"{path} can't be written to the volume {volume}: {details}."
            return ClusterTrouble(what, manifests.WAY_IN)
        if answer["error"] == "damaged":
            return ClusterTrouble(f"{path} arrived damaged, or was changed while it was sent.", "Send it again.")
        if answer["error"] == "outside":
            return UsageError(f"{path} is not on the volume {volume}: a link there leads elsewhere.")
        return ClusterTrouble(f"{path} can't be written to the volume {volume}: {details}.")


_RIGHT = "Your role needs the right to create pods/proxy; the role `edit` has it."


@asynccontextmanager
async def _loader(api: Api, where: Where, seconds: int, say: Say) -> AsyncGenerator[_Loader, None]:
    name, token = f"upload-{secrets.token_hex(5)}", secrets.token_urlsafe(24)
    folder = f"/api/v1/namespaces/{where.namespace}"
    jobs = f"/apis/batch/v1/namespaces/{where.namespace}/jobs"
    node = "" if where.volume.is_shared else await holder_of(api, where) or where.node
    try:
        made = await api.create(jobs, job(name, where, node, START_SECONDS + seconds))
        await api.create(f"{folder}/secrets", secret(name, Owner("Job", name, made["metadata"]["uid"]), token))
        pod = await _started(api, where.namespace, name, say)
        yield _Loader(api, where, pod, token, say)
    finally:
        with suppress(ClusterTrouble):
            await api.delete(f"{jobs}/{name}")


async def holder_of(api: Api, where: Where) -> str:
    """The node that has the volume already: no other one can mount it meanwhile."""
    pods = await api.list(f"/api/v1/namespaces/{where.namespace}/pods", fieldSelector=NOT_ENDED)
    return next(iter(holders(pods, where.namespace, where.volume.name)), "")


def job(name: str, where: Where, node: str, deadline: int) -> Object:
    token = {"secretKeyRef": {"name": name, "key": "token"}}
    container = {
        "name": "loader",
        "image": where.image,
        "command": [where.python, "-I", "-S", "-c", loader_text(), VOLUME_PATH, str(PORT), str(SILENCE)],
        "env": [{"name": "PUMASI_LOADER_TOKEN", "valueFrom": token}],
        "ports": [{"containerPort": PORT}],
        "volumeMounts": [{"name": "volume", "mountPath": VOLUME_PATH}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **({} if where.as_image_user else {"securityContext": manifests.restricted_container()}),
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 10,
        "tolerations": [*where.tolerations, *manifests.brief_patience()],
        "nodeSelector": dict(where.node_selector),
        **({} if where.as_image_user else {"securityContext": manifests.restricted_pod(fs_group=True)}),
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": where.volume.name}}],
        **({"affinity": manifests.pin(node)} if node else {}),
    }
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": deadline,
        "ttlSecondsAfterFinished": 0,
        "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
    }
    metadata = _metadata(name, where.owner)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def secret(name: str, owner: Owner, token: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(name, owner), "stringData": {"token": token}}


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "pumasi", UPLOAD: name}


def _metadata(name: str, owner: Owner | None) -> Object:
    owned = {"ownerReferences": [owner.reference]} if owner else {}
    return {"name": name, "labels": _labels(name), **owned}


async def _started(api: Api, namespace: str, name: str, say: Say) -> str:
    """The name of its pod, which runs."""
    told = _Told(say)
    try:
        return await within(_running(api, namespace, name, told), START_SECONDS)
    except asyncio.TimeoutError:
        why = told.last or "nobody says why"
        raise ClusterTrouble(f"The pod that takes the files did not start within {START_SECONDS} s: {why}.") from None


class _Told:
    """Nothing is said of a pod that starts at once, and nothing twice."""

    def __init__(self, say: Say) -> None:
        self._say, self._since = say, time.monotonic()
        self.last = ""

    def __call__(self, text: str) -> None:
        if text != self.last and time.monotonic() - self._since > _FIRST_WORD:
            self._say(f"waiting for the pod that takes the files: {text} …")
            self.last = text


async def _running(api: Api, namespace: str, name: str, told: _Told) -> str:
    folder, kubectl = f"/api/v1/namespaces/{namespace}", api.connection.kubectl(namespace)
    while True:
        pods = await api.list(f"{folder}/pods", labelSelector=f"{UPLOAD}={name}")
        if pods and pods[0].get("status", {}).get("phase") == "Running":
            return str(pods[0]["metadata"]["name"])
        about = f"involvedObject.name={name},type=Warning"
        events = [] if pods else await api.list(f"{folder}/events", fieldSelector=about)
        why = pod_facts.hindrance(pods[0], kubectl) if pods else None
        if events:
            why = pod_facts.rejection(events[-1]["message"], kubectl=kubectl)
        if why and why.hopeless:
            raise ClusterTrouble(f"The pod that takes the files can't start. {why.reason}", why.hint)
        if pods and pods[0].get("status", {}).get("phase") in ("Failed", "Succeeded"):
            raise ClusterTrouble(f"The pod that takes the files has ended: {pod_facts.last_words(pods[0])}.")
        told(why.reason.rstrip(".") if why else "it is being started")
        await asyncio.sleep(0.3)


def shown_bytes(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
