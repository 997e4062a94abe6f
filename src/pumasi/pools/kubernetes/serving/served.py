"""What a cluster serves: a list of it, and the token of one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.errors import NotFound
from pumasi.pools.kubernetes.discovery import seconds
from pumasi.pools.kubernetes.manifests import KIND
from pumasi.pools.kubernetes.serving import objects
from pumasi.pools.kubernetes.serving.deploying import Cluster, folder_of

Object = Mapping[str, Any]
_OURS = "app.kubernetes.io/managed-by=pumasi"
UNKNOWN = "unknown"


class Served(NamedTuple):
    """`model` is a file on the volume, or `UNKNOWN`. `url` is empty where only pods of the cluster reach it, and where
    it has no address yet."""

    namespace: str
    name: str
    model: str
    replicas: int
    ready: int
    created: float
    expose: str
    url: str


async def list_served(cluster: Cluster) -> list[Served]:
    """All that `pumasi serve` has deployed in the namespace, by name."""
    things: list[list[Any]] = []
    for kind, ours in (("deployments", "deployment"), ("services", "service"), ("pods", "server")):
        things.append(await cluster.api.list(cluster.path(kind), labelSelector=f"{_OURS},{KIND}={ours}"))
    deployments, services, pods = things
    by_name = {service["metadata"]["name"]: service for service in services}
    found = (each for each in deployments if each["metadata"]["name"] in by_name)
    rows = [_served(cluster.namespace, each, by_name[each["metadata"]["name"]], pods) for each in found]
    return sorted(rows, key=lambda row: row.name)


def _served(namespace: str, deployment: Object, service: Object, pods: Sequence[Object]) -> Served:
    metadata, spec = deployment["metadata"], deployment["spec"]
    own = [pod for pod in pods if objects.is_ours(pod, metadata["name"])]
    return Served(
        namespace,
        metadata["name"],
        _model(deployment),
        int(spec.get("replicas", 1)),
        int(deployment.get("status", {}).get("availableReplicas", 0)),
        seconds(metadata["creationTimestamp"]),
        service["spec"].get("type", "ClusterIP"),
        objects.url_of(service, own),
    )


def _model(deployment: Object) -> str:
    """By its name alone where Pumasi has chosen the folder; unknown where somebody has changed the command by hand."""
    try:
        path = str(json.loads(deployment["spec"]["template"]["spec"]["containers"][0]["command"][-1])["model"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return UNKNOWN
    own_folder = f"/{folder_of(deployment['metadata']['name'])}/"
    return path.rpartition("/")[2] if own_folder in path else path


async def token_of(cluster: Cluster, name: str) -> str:
    """What its clients need. NotFound where nothing is served under that name, or it needs none."""
    service = await cluster.find("services", name)
    if service is None or not objects.is_ours(service, name):
        raise NotFound(f"Nothing is served as {name} in the namespace {cluster.namespace}.")
    secret = await cluster.find("secrets", objects.token_name(name))
    if secret is None:
        raise NotFound(f"{name} has no token: everybody who reaches it may ask.")
    return base64.b64decode(secret["data"]["token"]).decode()
