"""A served model as objects of Kubernetes. Pure: values in, plain objects out.

    Service ─► Secret (token), ConfigMaps (our server), Deployment ─► pods

`─►` is ownership: who deletes the Service deletes everything but the volume, which is the user's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.pools.kubernetes import bundle, manifests
from pumasi.pools.kubernetes.bundle import SOURCE
from pumasi.pools.kubernetes.manifests import DOMAIN, KIND, PYTHON, Object, Owner
from pumasi.pools.kubernetes.notation import VOLUME_PATH, quantity
from pumasi.pools.kubernetes.volumes import Volume
from pumasi.serve.inside import NOTICE, PORT, TOKEN

SERVICE, REVISION, MODEL = (DOMAIN + word for word in ("service", "revision", "model"))
EXPOSURES = ("ClusterIP", "NodePort", "LoadBalancer")
START_SECONDS = 600
"""Until a new pod answers: its image may have to be pulled, and frameworks take a while to load."""
_HTTP = 80
_GRACE = 30
_MEBIBYTE = 2**20
_MEMORY = 256 * _MEBIBYTE
_REVISIONS = 2


class Files(NamedTuple):
    """Where the model and what belongs to it are in a pod; `digest` and `size` of what we have put there, if any."""

    model: str
    votes: str = ""
    preprocessing: str = ""
    digest: str = ""
    size: int = 0


class Wish(NamedTuple):
    """`rate`: requests a second of each client; 0: no limit."""

    name: str
    image: str
    python: str = PYTHON
    expose: str = "ClusterIP"
    rate: float = 0
    has_token: bool = True
    node_selector: Mapping[str, str] = {}
    tolerations: Sequence[Object] = ()


def labels(name: str, kind: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "pumasi", "app.kubernetes.io/name": name, SERVICE: name, KIND: kind}


def of_service(name: str) -> str:
    """A selector of all that belongs to it."""
    return f"{SERVICE}={name}"


def is_ours(thing: Mapping[str, Any], name: str) -> bool:
    return bool((thing["metadata"].get("labels") or {}).get(SERVICE) == name)


def _metadata(name: str, wish: Wish, kind: str, owner: Owner | None) -> Object:
    owned = {"ownerReferences": [owner.reference]} if owner else {}
    return {"name": name, "labels": labels(wish.name, kind), **owned}


def service(wish: Wish) -> Object:
    port = {"name": "http", "port": _HTTP, "targetPort": PORT}
    spec = {"type": wish.expose, "selector": {SERVICE: wish.name, KIND: "server"}, "ports": [port]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(wish.name, wish, "service", None),
        "spec": spec,
    }


def token_name(name: str) -> str:
    return f"{name}-token"


def secret(wish: Wish, owner: Owner | None, token: str) -> Object:
    metadata = _metadata(token_name(wish.name), wish, "token", owner)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": token}}


def package(wish: Wish, owner: Owner | None) -> Object:
    """Our server. Its name changes with its content: pods of another revision keep what they began with."""
    files = [path for path in sorted((SOURCE / "serve").rglob("*")) if path.is_file() and path.suffix != ".pyc"]
    packed = bundle.packed([SOURCE / "__init__.py", SOURCE / "errors.py", *files])
    name = f"{wish.name}-package-{hashlib.sha256(packed).hexdigest()[:8]}"
    return bundle.config_map(_metadata(name, wish, "package", owner), packed)


def deployment(wish: Wish, files: Files, volume: Volume, package: Object, owner: Owner | None) -> Object:
    """The replicas are left to whoever wants to change them: one, until then."""
    template = _template(wish, files, volume, package)
    revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    template["metadata"]["labels"][REVISION] = revision
    spec = {
        "selector": {"matchLabels": {SERVICE: wish.name, KIND: "server"}},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "progressDeadlineSeconds": START_SECONDS,
        "revisionHistoryLimit": _REVISIONS,
        "template": template,
    }
    metadata = _metadata(wish.name, wish, "deployment", owner)
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _template(wish: Wish, files: Files, volume: Volume, package: Object) -> Object:
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(NOTICE) + _GRACE + 5,
        "tolerations": [*wish.tolerations, *manifests.brief_patience()],
        "nodeSelector": dict(wish.node_selector),
        "securityContext": manifests.restricted_pod(fs_group=True),
        "containers": [_container(wish, files, package)],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": volume.name}}],
    }
    if not volume.is_shared:
        pod["affinity"] = manifests.beside(volume.name)
    own = {**labels(wish.name, "server"), manifests.CLAIM: volume.name}
    return {"metadata": {"labels": own, "annotations": {MODEL: files.digest}}, "spec": pod}


def _container(wish: Wish, files: Files, package: Object) -> Object:
    asked = {"model": files.model, "votes": files.votes, "preprocessing": files.preprocessing, "rate": wish.rate}
    token = {"secretKeyRef": {"name": token_name(wish.name), "key": "token"}}
    boot = bundle.boot("The server", "pumasi.serve.inside")
    return {
        "name": "server",
        "image": wish.image,
        "command": [wish.python, "-c", boot, json.dumps(asked)],
        "env": [*bundle.environment(package), *([{"name": TOKEN, "valueFrom": token}] if wish.has_token else [])],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": {"cpu": "100m", "memory": quantity(_memory(files.size))}},
        "startupProbe": _probe("/readyz", 1, START_SECONDS),
        "readinessProbe": _probe("/readyz", 2, 2),
        "livenessProbe": _probe("/healthz", 10, 3),
        "volumeMounts": [{"name": "volume", "mountPath": VOLUME_PATH, "readOnly": True}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": manifests.restricted_container(),
    }


def _memory(size: int) -> int:
    """For Python and a framework, and twice what the models are as files, in whole mebibytes."""
    return _MEMORY + -(-2 * size // _MEBIBYTE) * _MEBIBYTE


def _probe(path: str, period: int, failures: int) -> Object:
    get = {"path": path, "port": PORT}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def package_of(thing: Mapping[str, Any]) -> str:
    """The ConfigMap that a Deployment's pods run."""
    env = thing["spec"]["template"]["spec"]["containers"][0]["env"]
    return str(next(each["valueFrom"]["configMapKeyRef"]["name"] for each in env if "valueFrom" in each))


def model_of(thing: Mapping[str, Any]) -> str:
    """The digest of the files that we have put onto the volume for a Deployment; empty where we have put none."""
    return str((thing["spec"]["template"]["metadata"].get("annotations") or {}).get(MODEL, ""))


def model_of_pod(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(MODEL, ""))


def revision_of(thing: Mapping[str, Any]) -> str:
    return str(thing["spec"]["template"]["metadata"]["labels"].get(REVISION, ""))


def as_before(thing: Mapping[str, Any]) -> Object:
    """A Deployment that we have read, to be applied again."""
    metadata = {
        key: thing["metadata"][key] for key in ("name", "labels", "ownerReferences") if key in thing["metadata"]
    }
    spec = {key: value for key, value in thing["spec"].items() if key != "replicas"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def url_of(service: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> str:
    """Where it is reached from outside the cluster. Empty where only pods of the cluster reach it, and where it has no
    address yet; a node's address is that of one of its pods."""
    kind, hosts = service["spec"].get("type"), []
    if kind == "NodePort":
        port = service["spec"]["ports"][0]["nodePort"]
        hosts = [f"{_host(pod['status']['hostIP'])}:{port}" for pod in pods if pod.get("status", {}).get("hostIP")]
    elif kind == "LoadBalancer":
        given = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
        hosts = [_host(str(each.get("ip") or each["hostname"])) for each in given]
    return f"http://{hosts[0]}/" if hosts else ""


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
