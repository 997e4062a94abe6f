"""A volume that the tasks of a run share: found, or made with what the cluster's storage can do.

It is the user's: it stays when the run is gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.errors import Conflict, Forbidden, NotThere, UsageError
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import notation
from pumasi.pools.kubernetes.discovery import Object, Room, has_ended
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.registry import FLOWS

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

SHARED, SINGLE = "ReadWriteMany", "ReadWriteOnce"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_SHARED_STORAGE = re.compile(
    r"nfs|cephfs|efs\.|filestore|azurefile|file\.csi|gluster|beegfs|lustre|juicefs|netapp", re.I
)
"""Provisioners of volumes that many nodes can mount at once. The API does not tell: it is in their names."""
REMEMBERED = 60.0
"""Seconds for which the terms of a volume are not asked for again: who waits looks often."""


class Volume(NamedTuple):
    """`is_shared`: several nodes can mount it at once."""

    name: str
    is_shared: bool


async def ensure(api: Api, namespace: str, name: str, size: int) -> Volume:
    folder = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    try:
        return _seen(await api.get(f"{folder}/{name}"))
    except NotThere:
        pass
    try:
        classes = await api.list("/apis/storage.k8s.io/v1/storageclasses")
    except Forbidden:
        classes = None
    try:
        return _seen(await api.create(folder, claim(name, size, mode_of(name, classes))))
    except Conflict:  # Somebody else has made it meanwhile.
        return _seen(await api.get(f"{folder}/{name}"))


async def find(api: Api, namespace: str, name: str) -> Volume:
    try:
        return _seen(await api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"))
    except NotThere:
        raise UsageError(
            f"There is no volume claim {name} in the namespace {namespace}.",
            f"Check the name: {api.connection.kubectl(namespace)} get pvc. A run makes a claim that is not there: "
            f"--volume {name}",
        ) from None


def _seen(thing: Object) -> Volume:
    name, modes = thing["metadata"]["name"], thing["spec"]["accessModes"]
    if SHARED not in modes and SINGLE not in modes:
        raise UsageError(
            f"The volume {name} is no place for a run's files: it is {' and '.join(modes)}.",
            f"It has to be {SHARED} or {SINGLE}; --volume makes one where there is none of that name.",
        )
    return Volume(name, SHARED in modes)


def mode_of(name: str, classes: Sequence[dict[str, Any]] | None) -> str:
    """What the default storage can do. None: nobody tells us; one node at a time is what all can do."""
    if classes is None:
        return SINGLE
    default = [each for each in classes if each["metadata"].get("annotations", {}).get(_DEFAULT) == "true"]
    if not default:
        raise UsageError(
            f"The volume {name} can't be made: the cluster has no default storage class.",
            "Make the claim yourself (kubectl get storageclasses lists what there is), and name it again.",
        )
    return SHARED if _SHARED_STORAGE.search(default[0].get("provisioner", "")) else SINGLE


def claim(name: str, size: int, mode: str) -> dict[str, Any]:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": notation.quantity(size)}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


async def terms(api: Api, namespace: str, name: str) -> Sequence[Object]:
    """Which nodes can mount it at all, in the words of a node's affinity: a disk of one zone, a folder of one node.
    Empty: any, or nobody knows yet, or tells us."""
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
        volume = found["spec"].get("volumeName")
        thing = await api.get(f"/api/v1/persistentvolumes/{volume}") if volume else {"spec": {}}
    except (Forbidden, NotThere):
        return ()
    required: Sequence[Object] = thing["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms", ())
    return required


def holders(pods: Iterable[Object], namespace: str, name: str) -> set[str]:
    """The nodes that have it mounted, or are about to."""
    return {
        pod["spec"]["nodeName"]
        for pod in pods
        if pod["metadata"]["namespace"] == namespace
        and pod["spec"].get("nodeName")
        and not has_ended(pod)
        and any(_claims(volume) == name for volume in pod["spec"].get("volumes", ()))
    }


def _claims(volume: Object) -> str | None:
    name: str | None = volume.get("persistentVolumeClaim", {}).get("claimName")
    return name


def can_mount(node: Object, terms: Sequence[Object]) -> bool:
    return not terms or any(all(_matches(node, each) for each in _expressions(term)) for term in terms)


def _expressions(term: Object) -> list[Object]:
    fields = [{**each, "key": f"fields/{each['key']}"} for each in term.get("matchFields", ())]
    return [*term.get("matchExpressions", ()), *fields]


def _matches(node: Object, expression: Object) -> bool:
    labels: Mapping[str, str] = {
        **node["metadata"].get("labels", {}),
        "fields/metadata.name": node["metadata"]["name"],
    }
    value, values = labels.get(expression["key"]), expression.get("values", ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt and Lt: the scheduler will tell.
            return True


class RunVolume:
    """The volume that the tasks of one run share, if they do; `found` once it was looked for."""

    def __init__(self, api: Api, namespace: str, spec: Spec) -> None:
        self._api = api
        self._namespace = namespace
        self._spec = spec
        self._terms: tuple[float, Sequence[Object]] | None = None
        self.found: Volume | None = None

    @property
    def is_wanted(self) -> bool:
        """One for its files, beside those that are only mounted."""
        return self._spec[KubernetesOptions].volume is not None or FLOWS.get(self._spec.strategy).shares_files

    async def find(self) -> None:
        """That which the tasks of a run share; it may have to be made."""
        asked = self._spec[KubernetesOptions]
        if asked.volume is not None:
            name, size = notation.volume(asked.volume)
            self.found = await ensure(self._api, self._namespace, name, size)
        elif self.is_wanted and (found := notation.files_mount(asked.mounts)):
            self.found = await find(self._api, self._namespace, found.claim)

    @property
    def single(self) -> str:
        """The volume that only one node can mount at a time, where it is such a one."""
        return self.found.name if self.found and not self.found.is_shared else ""

    async def beside(
        self, rooms: list[Room], nodes: Sequence[Object], pods: Sequence[Object], held: Iterable[str]
    ) -> list[Room]:
        """Only one node can mount the volume at a time: that which has it, or is in `held`; else, of those that can,
        the one with most room."""
        used = holders(pods, self._namespace, self.single) | set(held)
        if not used:
            required = await self._find_terms()
            fit = {node["metadata"]["name"] for node in nodes if can_mount(node, required)}
            fitting = [each for each in rooms if each.name in fit]
            least = self._spec.at_once
            best = max(fitting, key=lambda each: (each.total >= least, each.free, each.total), default=None)
            used = {best.name} if best else set()
        return [each for each in rooms if each.name in used]

    async def _find_terms(self) -> Sequence[Object]:
        if self._terms is None or time.monotonic() - self._terms[0] > REMEMBERED:
            self._terms = time.monotonic(), await terms(self._api, self._namespace, self.single)
        return self._terms[1]
