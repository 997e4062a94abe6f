"""What a manager inside a cluster may do there, why, and the objects that allow it.

ServiceAccount ◄─ RoleBinding ─► Role                      in the namespace: all that a manager needs
               ◄─ ClusterRoleBinding ─► ClusterRole        everywhere: to see what is free; may be missing

Whoever starts a run makes its anchor, record and code with rights of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]

NAME = "pumasi-manager"
MANAGED = {"app.kubernetes.io/managed-by": "pumasi"}
RBAC = "rbac.authorization.k8s.io"


class Right(NamedTuple):
    """`group` is empty for the API's first objects: pods, Secrets, …"""

    group: str
    resource: str
    verb: str
    why: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


RIGHTS = (
    Right("batch", "jobs", "get", "to learn how long the run that it takes over may go on"),
    Right(
        "batch", "jobs", "patch", "to let a run go on for longer, to say that it waits, and to complete it at its end"
    ),
    Right("", "configmaps", "create", "to keep the output of a run"),
    Right("", "configmaps", "get", "to take over a run, and to see who else has written its record"),
    Right("", "configmaps", "list", "the beginning of every watch"),
    Right("", "configmaps", "watch", "to hear a wish to stop, or that the run was deleted"),
    Right("", "configmaps", "patch", "to write down how the run stands"),
    Right("", "configmaps", "delete", "to drop the oldest output of a run that writes without end"),
    Right("", "secrets", "create", "what the pods of a run know each other by; it can't read any"),
    Right("", "services", "create", "how the pods of a run reach the first of them"),
    Right("", "persistentvolumeclaims", "get", "to know whether one node or many can mount the volume of a run"),
    Right("", "pods", "create", "to start"),
    Right("", "pods", "list", "the beginning of every watch"),
    Right("", "pods", "watch", "to see what becomes of them"),
    Right("", "pods", "delete", "to let go of a pod whose node is dead"),
    Right("", "pods", "deletecollection", "to stop"),
    Right("", "pods/log", "get", "output and metrics"),
    Right("", "events", "list", "to say why a pod does not start"),
)
CLUSTER_RIGHTS = (
    Right("", "nodes", "list", "to see which nodes there are, and how much they have"),
    Right("", "nodes", "watch", "to see when that changes"),
    Right("", "pods", "list", "to see how much of that is taken"),
    Right("", "pods", "watch", "to see at once when something becomes free"),
    Right("batch", "jobs", "list", "to see which older runs wait, in all namespaces"),
    Right("batch", "jobs", "watch", "to see when they do not wait any more"),
    Right("", "persistentvolumes", "get", "to see which nodes can mount the volume of a run"),
)


def rules(rights: Sequence[Right]) -> list[Object]:
    """One rule a resource."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(each)}
        for (group, resource), each in verbs.items()
    ]


def of_namespace(namespace: str, rights: Sequence[Right] = RIGHTS) -> list[Object]:
    """In the order in which they can be made."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(NAME, namespace)}
    role = {**_rbac("Role"), "metadata": _metadata(NAME, namespace), "rules": rules(rights)}
    return [account, role, _binding("RoleBinding", _metadata(NAME, namespace), "Role", namespace)]


def of_cluster(namespace: str, uid: str = "") -> list[Object]:
    """The ClusterRole is the same for all namespaces; each has a binding of its own, which goes with the namespace
    where its `uid` is known."""
    role = {**_rbac("ClusterRole"), "metadata": _metadata(NAME), "rules": rules(CLUSTER_RIGHTS)}
    metadata = _metadata(f"{NAME}-{namespace}")
    if uid:
        owner = {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": uid}
        metadata["ownerReferences"] = [owner]
    return [role, _binding("ClusterRoleBinding", metadata, "ClusterRole", namespace)]


def path_of(thing: Object, *, collection: bool = False) -> str:
    version, metadata = thing["apiVersion"], thing["metadata"]
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    where = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    return f"{root}{where}/{thing['kind'].lower()}s" + ("" if collection else f"/{metadata['name']}")


def _rbac(kind: str) -> Object:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind}


def _metadata(name: str, namespace: str = "") -> Object:
    return {"name": name, **({"namespace": namespace} if namespace else {}), "labels": dict(MANAGED)}


def _binding(kind: str, metadata: Object, role: str, namespace: str) -> Object:
    return {
        **_rbac(kind),
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role, "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
    }
