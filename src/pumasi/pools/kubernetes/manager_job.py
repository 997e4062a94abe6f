"""A manager inside the cluster: a Job whose pod runs this very package, which travels there as the user's code does.

It needs an image with Python and nothing else: what it imports there is the standard library and our own modules.
"""

from __future__ import annotations

from collections.abc import Callable

from pumasi.errors import ClusterTrouble
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import bundle, manifests, pod_facts
from pumasi.pools.kubernetes.bundle import SOURCE
from pumasi.pools.kubernetes.manifests import KIND, PYTHON, RUN, Object, Owner
from pumasi.pools.kubernetes.rights import NAME

MANAGER_SECONDS = 8.0
"""For which the manager of a detached run is watched, where its image may have to be pulled."""
TRIES = 20
"""How often its pod is started again when it fails; being evicted does not count."""
_PARTS = ("agent", "core", "data", "kube", "models", "pools", "store")
_MODULES = (
    *("__init__", "catalogue", "errors", "registry", "report", "waiting"),
    *(
        f"runs/{name}"
        for name in ("__init__", "adoption", "detached", "listener", "lives", "manager", "placing", "recorder")
    ),
)
_LEFT_OUT = (
    *("core/credentials.py", "core/ignoring.py", "kube/documents.py", "pools/processes.py"),
    *(f"pools/local/{name}.py" for name in ("looking", "runner", "site")),
    *(f"pools/kubernetes/{name}.py" for name in ("copying", "fetching", "nodes", "reach", "rehearsal", "rendering")),
    *(f"pools/kubernetes/{name}.py" for name in ("command_line", "runs", "settling", "stopping", "target")),
    *("pools/kubernetes/serving/", "pools/kubernetes/verbs/"),
)
"""What is for the user's side only, and may need more than the standard library."""


RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}}
"""Of a manager's pod."""


def package() -> bytes:
    """The modules that a manager needs."""
    files = [path for part in _PARTS for path in sorted((SOURCE / part).rglob("*.py"))]
    files += [SOURCE / f"{name}.py" for name in _MODULES]
    return bundle.packed(path for path in files if not path.relative_to(SOURCE).as_posix().startswith(_LEFT_OUT))


def package_map(run: str, owner: Owner) -> Object:
    labels = manifests.labels(run, "package")
    metadata = {"name": f"{run}-package", "labels": labels, "ownerReferences": [owner.reference]}
    return bundle.config_map(metadata, package())


def manager_job(run: str, owner: Owner, image: str, package: Object, tolerations: list[Object]) -> Object:
    """Its pod may be evicted, and lost with its node: the Job starts another one, which adopts the run."""
    labels = manifests.labels(run, "manager")
    container = {
        "name": "manager",
        "image": image,
        "command": [PYTHON, "-c", bundle.boot("The manager", "pumasi.runs.detached"), "k8s", run],
        "env": bundle.environment(package),
        "resources": RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": manifests.restricted_container(),
    }
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 20,
        "enableServiceLinks": False,
        "tolerations": [*tolerations, *manifests.brief_patience()],
        "securityContext": manifests.restricted_pod(),
        "containers": [container],
    }
    evictions = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    spec = {
        "backoffLimit": TRIES,
        "podFailurePolicy": {"rules": [evictions]},
        "template": {"metadata": {"labels": {RUN: run, KIND: "manager"}}, "spec": pod},
    }
    metadata = {"name": f"{run}-manager", "labels": labels, "ownerReferences": [owner.reference]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


async def begins(api: Api, namespace: str, run: str, say: Callable[[str], None]) -> None:
    """Return when the pod of the manager has begun, or goes on trying, which is told. ClusterTrouble: it never will."""
    selector = f"{manifests.of_run(run)},{manifests.KIND}=manager"
    changes = api.watch(f"/api/v1/namespaces/{namespace}/pods", patience=MANAGER_SECONDS, labelSelector=selector)
    async for kind, pod in changes:
        if kind == "SYNCED":
            continue
        why = pod_facts.hindrance(pod, api.connection.kubectl(namespace))
        if why and why.hopeless:
            raise ClusterTrouble(f"The run's manager can't start. {why.reason}", why.hint)
        if pod_facts.has_begun(pod):
            return
        if facts := pod_facts.stuck(pod, 2):
            say(f"{facts['reason']} The cluster tries again; `pumasi show` says whether it helps.")
            return
