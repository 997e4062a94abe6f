"""A model onto a cluster, for people and programs: its files onto the volume, the objects that serve it, and the wait
until they do. What does not get to serve gives way to what did before."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from pumasi.errors import ClusterTrouble, Conflict, NotFound, NotThere, PumasiError, UsageError
from pumasi.kube.api import Api
from pumasi.kube.waiting import within
from pumasi.pools.kubernetes import uploading, volumes
from pumasi.pools.kubernetes.manifests import KIND, Object, Owner
from pumasi.pools.kubernetes.notation import VOLUME_PATH, Wanted
from pumasi.pools.kubernetes.serving import objects
from pumasi.pools.kubernetes.serving.objects import Files, Wish
from pumasi.pools.kubernetes.serving.rollout import Standing, last_lines, since, standing, still_answers
from pumasi.pools.kubernetes.uploading import Say
from pumasi.pools.kubernetes.volumes import Volume
from pumasi.serve.sources import Sources, beside, check

_LOOK_SECONDS = 0.5
_ADDRESS_SECONDS = 120
_LEAVE_SECONDS = 120
_LOG_SECONDS = 10.0
_VOTE = "vote"
_FAILED_MODEL = 2
"""What the server ends with when a file is not what it should be, as `pumasi serve` does here."""


class Asked(NamedTuple):
    """Files of this machine, or of the volume where they begin with /volume/."""

    model: str
    votes: str = ""
    preprocessing: str = ""


class Local(NamedTuple):
    """What has to be put onto the volume: paths there, and the files here."""

    files: Mapping[str, Path]
    digest: str
    size: int


class Address(NamedTuple):
    """`url` is empty where a load balancer has none yet, and for those in the cluster where nothing is exposed."""

    url: str
    token: str
    volume: Volume


class Cluster(NamedTuple):
    api: Api
    namespace: str
    say: Say

    def path(self, kind: str, name: str = "") -> str:
        root = "/apis/apps/v1" if kind == "deployments" else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    @property
    def kubectl(self) -> str:
        """The beginning of a line that leads here."""
        return self.api.connection.kubectl(self.namespace)

    async def find(self, kind: str, name: str) -> Object | None:
        try:
            return await self.api.get(self.path(kind, name))
        except NotThere:
            return None


# ---- what is served


def on_volume(path: str) -> bool:
    return path == VOLUME_PATH or path.startswith(f"{VOLUME_PATH}/")


def gather(asked: Asked) -> Local:
    """The files of this machine, by their places in a folder that is named after their content."""
    found: dict[str, Path] = {}
    model, votes = Path(asked.model), Path(asked.votes) if asked.votes and not on_volume(asked.votes) else None
    if not on_volume(asked.model):
        check(model)
        found[model.name] = model
    for path in Sources(model, votes).models()[1:]:
        check(path)
        found[f"{_VOTE}/{path.name}"] = path
    for place, path in list(found.items()):
        if beside(path).exists():
            found[beside(Path(place)).as_posix()] = beside(path)
    if asked.preprocessing and not on_volume(asked.preprocessing):
        found["preprocessing.json"] = Path(asked.preprocessing)
    sums = []
    for place, path in sorted(found.items()):
        if not path.is_file():
            raise UsageError(f"There is no file {path}.")
        sums.append(f"{place}\0{uploading.digest(path)}\n")
    digest = hashlib.sha256("".join(sums).encode()).hexdigest()[:12] if sums else ""
    return Local(found, digest, sum(path.stat().st_size for path in found.values()))


def folder_of(name: str) -> str:
    return f"serve/{name}"


def files_of(asked: Asked, local: Local, name: str) -> Files:
    folder = f"{VOLUME_PATH}/{folder_of(name)}/{local.digest}"
    nobody_votes = not on_volume(asked.votes) and not any(path.startswith(f"{_VOTE}/") for path in local.files)

    def place(path: str, inside: str) -> str:
        return path if not path or on_volume(path) else f"{folder}/{inside}"

    return Files(
        place(asked.model, Path(asked.model).name),
        "" if nobody_votes else place(asked.votes, _VOTE),
        place(asked.preprocessing, "preprocessing.json"),
        local.digest,
        local.size,
    )


def objects_of(wish: Wish, asked: Asked, volume: Volume) -> list[Object]:
    """For who wants to see them first. Owners are known only when they are there."""
    package = objects.package(wish, None)
    files = files_of(asked, gather(asked), wish.name)
    token = [objects.secret(wish, None, "new at the first deployment")] if wish.has_token else []
    return [objects.service(wish), *token, package, objects.deployment(wish, files, volume, package, None)]


# ---- deploying


async def deploy(cluster: Cluster, wish: Wish, asked: Asked, wanted: Wanted) -> Address:
    api, name = cluster.api, wish.name
    local = await asyncio.to_thread(gather, asked)
    service, former = await _found(cluster, name)
    if local.files:
        volume = await volumes.ensure(api, cluster.namespace, *wanted)
    else:  # What is to be served is said to be there already.
        volume = await volumes.find(api, cluster.namespace, wanted.name)
    if not volume.is_shared:
        cluster.say(f"The volume {volume.name} can be mounted by one node at a time: all pods of {name} share a node.")
    if local.files:
        await _put(cluster, wish, volume, local, former)
    # Where fewer are to reach it, that comes first; where more are, it comes when what it leads to is there.
    if service is None or _narrows(service, wish):
        service = await api.apply(cluster.path("services", name), objects.service(wish))
    started = _time(api.now)
    try:
        new, token = await _make(cluster, wish, files_of(asked, local, name), volume, service)
    except PumasiError:
        if former is None:
            with suppress(PumasiError):
                await remove(cluster, name)
        raise
    try:
        broken = await _rolled_out(cluster, new, former["spec"].get("replicas", 1) if former else 1, started)
    except asyncio.CancelledError:
        cluster.say(f"{name} goes on changing in the cluster. The same command watches it again.")
        raise
    if broken:
        raise await _step_back(cluster, wish, former, new, broken)
    await api.apply(cluster.path("services", name), objects.service(wish))
    await _forget_packages(cluster, name, [new, *([former] if former else [])])
    return Address(await _url(cluster, wish, token), token, volume)


def _narrows(service: Object, wish: Wish) -> bool:
    return objects.EXPOSURES.index(wish.expose) < objects.EXPOSURES.index(service["spec"].get("type", "ClusterIP"))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


async def _make(cluster: Cluster, wish: Wish, files: Files, volume: Volume, service: Object) -> tuple[Object, str]:
    """The Deployment as it is asked for, and the token."""
    owner = Owner("Service", wish.name, service["metadata"]["uid"])
    token = await _token(cluster, wish, owner) if wish.has_token else ""
    package = objects.package(wish, owner)
    with suppress(Conflict):
        await cluster.api.create(cluster.path("configmaps"), package)
    new = objects.deployment(wish, files, volume, package, owner)
    await cluster.api.apply(cluster.path("deployments", wish.name), new)
    return new, token


async def _found(cluster: Cluster, name: str) -> tuple[Object | None, Object | None]:
    """The Service and the Deployment of this name. What is not ours is not touched."""
    kinds = (("services", name), ("deployments", name), ("secrets", objects.token_name(name)))
    service, deployment, secret = [await cluster.find(kind, each) for kind, each in kinds]
    for thing, what in ((service, "Service"), (deployment, "Deployment"), (secret, "Secret")):
        if thing and not objects.is_ours(thing, name):
            what = f"The {what} {thing['metadata']['name']} is there already, and was not made by `pumasi serve`."
            raise UsageError(what, "Choose another name: --name.")
    return service, deployment


async def _put(cluster: Cluster, wish: Wish, volume: Volume, local: Local, former: Object | None) -> None:
    """Of what was there for this name, only what is served now, or is about to be, stays: should the new one fail, that
    goes on."""
    where = uploading.Where(cluster.namespace, volume, wish.image, wish.python, wish.node_selector, wish.tolerations)
    folder = folder_of(wish.name)
    files = {f"{folder}/{local.digest}/{place}": path for place, path in local.files.items()}
    pods = await cluster.api.list(cluster.path("pods"), labelSelector=objects.of_service(wish.name))
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    used = {objects.model_of_pod(pod) for pod in staying} | ({objects.model_of(former)} if former else set())
    keep = {folder: {local.digest, *used} - {""}}
    await uploading.put(cluster.api, where, files, cluster.say, keep=keep)


async def _token(cluster: Cluster, wish: Wish, owner: Owner) -> str:
    """The same as before, so that addresses which people have go on working."""
    if found := await cluster.find("secrets", objects.token_name(wish.name)):
        return base64.b64decode(found["data"]["token"]).decode()
    token = secrets.token_urlsafe(24)
    await cluster.api.create(cluster.path("secrets"), objects.secret(wish, owner, token))
    return token


async def _rolled_out(cluster: Cluster, new: Object, replicas: int, started: str) -> PumasiError | None:
    """Why it will never be, if so. Its pods come one after the other."""
    name, revision = new["metadata"]["name"], objects.revision_of(new)
    limit = objects.START_SECONDS * max(1, replicas)
    waits: list[str] = []
    try:
        return await within(_rolling(cluster, name, revision, started, waits), limit)
    except asyncio.TimeoutError:
        said = await _log(cluster, name, revision)
        what = f"{name} was not ready within {limit} s: {waits[-1] if waits else 'nobody says why'}."
        return ClusterTrouble(f"{what} It said:\n{said}" if said else what)


async def _rolling(cluster: Cluster, name: str, revision: str, started: str, waits: list[str]) -> PumasiError | None:
    """`waits`: for what, in the order in which it came to be."""
    while True:
        found = await _look(cluster, name, revision, started)
        if found.done:
            return None
        if found.broken:
            kind = UsageError if found.code == _FAILED_MODEL else ClusterTrouble
            return kind(found.broken.reason, found.broken.hint)
        if found.waiting not in waits[-1:]:
            waits.append(found.waiting)
            cluster.say(f"{name}: {found.waiting} …")
        await asyncio.sleep(_LOOK_SECONDS)


async def _look(cluster: Cluster, name: str, revision: str, started: str) -> Standing:
    pods = await cluster.api.list(cluster.path("pods"), labelSelector=objects.of_service(name))
    deployment = await cluster.api.get(cluster.path("deployments", name))
    if objects.revision_of(deployment) != revision:
        raise Conflict(f"Somebody else has changed {name} meanwhile.", "What they want to be served wins.")
    new = [pod for pod in pods if pod["metadata"]["labels"].get(objects.REVISION) == revision]
    events = [] if new else since(await _refusals(cluster, name, revision), started)
    now = _time(cluster.api.now)
    former = [pod for pod in pods if pod not in new and still_answers(pod, now)]
    return standing(deployment, new, former, events, cluster.kubectl)


def _new(name: str, revision: str) -> str:
    return f"{objects.of_service(name)},{objects.REVISION}={revision}"


async def _refusals(cluster: Cluster, name: str, revision: str) -> list[Object]:
    """Why the cluster takes no pod: told to what makes it, the ReplicaSet."""
    folder = f"/apis/apps/v1/namespaces/{cluster.namespace}/replicasets"
    for each in await cluster.api.list(folder, metadata_only=True, labelSelector=_new(name, revision)):
        about = f"involvedObject.name={each['metadata']['name']},reason=FailedCreate"
        if events := await cluster.api.list(cluster.path("events"), fieldSelector=about):
            return events
    return []


async def _log(cluster: Cluster, name: str, revision: str) -> str:
    said = b""
    with suppress(ClusterTrouble):
        for pod in await cluster.api.list(cluster.path("pods"), labelSelector=_new(name, revision)):
            lines = cluster.api.log(cluster.namespace, pod["metadata"]["name"], follow=False, idle=_LOG_SECONDS)
            said = b"".join([data async for data in lines])
    lines_only = [line.partition(" ")[2] for line in said.decode(errors="replace").splitlines()]
    return last_lines("\n".join(lines_only))


async def _step_back(
    cluster: Cluster, wish: Wish, former: Object | None, failed: Object, error: PumasiError
) -> PumasiError:
    """As it was before; the error says so."""
    if former is None:
        with suppress(ClusterTrouble):
            await remove(cluster, wish.name)
        after = f"Nothing of {wish.name} is left but its volume."
    elif objects.revision_of(former) == objects.revision_of(failed):
        after = "It is the same as before, so there is nothing to go back to."
    else:
        await cluster.api.apply(cluster.path("deployments", wish.name), objects.as_before(former))
        after = "What was served before goes on."
    return type(error)(error.message, "\n".join(line for line in (error.hint, after) if line))


async def _forget_packages(cluster: Cluster, name: str, used: list[Object]) -> None:
    kept = {objects.package_of(each) for each in used}
    selector = f"{objects.of_service(name)},{KIND}=package"
    for each in await cluster.api.list(cluster.path("configmaps"), metadata_only=True, labelSelector=selector):
        if each["metadata"]["name"] not in kept:
            await cluster.api.delete(cluster.path("configmaps", each["metadata"]["name"]))


# ---- where it is


async def _url(cluster: Cluster, wish: Wish, token: str) -> str:
    if wish.expose == "ClusterIP":
        url = f"http://{wish.name}.{cluster.namespace}.svc/"
    elif wish.expose == "LoadBalancer":
        url = await _balancer(cluster, wish.name)
    else:
        url = await _find_url(cluster, wish.name)
    return f"{url}?token={token}" if url and token else url


async def _find_url(cluster: Cluster, name: str) -> str:
    service = await cluster.api.get(cluster.path("services", name))
    pods = await cluster.api.list(cluster.path("pods"), labelSelector=objects.of_service(name))
    return objects.url_of(service, pods)


async def _balancer(cluster: Cluster, name: str) -> str:
    async def given() -> str:
        while not (url := await _find_url(cluster, name)):
            await asyncio.sleep(1)
        return url

    cluster.say(f"{name}: waiting for the address of its load balancer …")
    with suppress(asyncio.TimeoutError):
        return await within(given(), _ADDRESS_SECONDS)
    return ""


# ---- removing


async def remove(cluster: Cluster, name: str) -> list[str]:
    """All of it, and the answer are the volumes that stay."""
    service = await cluster.find("services", name)
    if service is None or not objects.is_ours(service, name):
        raise NotFound(f"Nothing is served as {name} in the namespace {cluster.namespace}.")
    deployment = await cluster.find("deployments", name)
    await cluster.api.delete(cluster.path("services", name))
    try:
        await within(_left(cluster, name), _LEAVE_SECONDS)
    except asyncio.TimeoutError:
        hint = f"{cluster.kubectl} get all -l {objects.of_service(name)}"
        raise ClusterTrouble(f"The cluster has not removed all of {name} yet.", hint) from None
    return _claims(deployment) if deployment else []


def _claims(deployment: Mapping[str, Any]) -> list[str]:
    sources = [each.get("persistentVolumeClaim") for each in deployment["spec"]["template"]["spec"]["volumes"]]
    return [each["claimName"] for each in sources if each]


async def _left(cluster: Cluster, name: str) -> None:
    """Until nothing of it is there. The cluster's own clean-up takes a moment, and pods may finish what they answer."""
    told = False
    while True:
        kinds = ("deployments", "pods", "configmaps", "secrets")
        selector = objects.of_service(name)
        left = [
            each
            for kind in kinds
            for each in await cluster.api.list(cluster.path(kind), metadata_only=True, labelSelector=selector)
        ]
        if not left:
            return
        if not told:
            told = True
            cluster.say(f"{name}: its pods finish what they are answering …")
        await asyncio.sleep(_LOOK_SECONDS)
