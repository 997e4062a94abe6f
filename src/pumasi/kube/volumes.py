"""A volume that the tasks of a run share: found, or made with what the cluster's storage can do.

It is the user's: it stays when the run is gone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pumasi.core.kubewords import quantity
from pumasi.errors import Conflict, Forbidden, NotThere, UsageError
from pumasi.kube.api import Api

SHARED, SINGLE = "ReadWriteMany", "ReadWriteOnce"
_DEFAULT = "storageclass.kubernetes.io/is-default-class"
_SHARED_STORAGE = re.compile(
    r"nfs|cephfs|efs\.|filestore|azurefile|file\.csi|gluster|beegfs|lustre|juicefs|netapp", re.I
)
"""Provisioners of volumes that many nodes can mount at once. The API does not tell: it is in their names."""


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


def _seen(thing: dict[str, Any]) -> Volume:
    return Volume(thing["metadata"]["name"], SHARED in thing["spec"]["accessModes"])


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
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": quantity(size)}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
