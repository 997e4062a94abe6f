"""The Kubernetes that the tests run against: one of our own making, or one that is there already."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness import wait_for
from tools.cluster.blueprint import GPU, IMAGE
from tools.cluster.cluster import Cluster

__all__ = ["GPU", "IMAGE", "Kubernetes", "Namespace", "Refused"]

EXISTING = "PUMASI_TEST_KUBECONFIG"
EVERYWHERE = "namespaces,persistentvolumes,storageclasses,clusterroles,clusterrolebindings,priorityclasses,crd"


class Refused(AssertionError):
    """kubectl's own words."""


@dataclass(frozen=True)
class Kubernetes:
    """`own` is the cluster behind it, where it is ours to break."""

    kubeconfig: Path
    kubectl_program: str
    own: Cluster | None

    def kubectl(self, *arguments: str, feed: str = "", seconds: float = 60) -> str:
        command = [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", *arguments]
        cache = {"KUBECACHEDIR": str(self.own.kubectl_cache)} if self.own else {}
        environ = {**os.environ, **cache}
        result = subprocess.run(command, input=feed, capture_output=True, text=True, timeout=seconds, env=environ)
        if result.returncode:
            raise Refused(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def get(self, *what: str) -> Any:
        return json.loads(self.kubectl("get", *what, "-o", "json"))

    def open_nodes(self) -> list[str]:
        """Those that take ordinary pods."""
        nodes = self.get("nodes")["items"]
        return [each["metadata"]["name"] for each in nodes if not each["spec"].get("taints")]

    def node(self, name: str) -> dict[str, Any]:
        node: dict[str, Any] = self.get("node", name)
        return node

    def condition(self, node: str, kind: str) -> str:
        conditions = self.node(node)["status"]["conditions"]
        return str(next(each["status"] for each in conditions if each["type"] == kind))

    def footprint(self) -> dict[str, Any]:
        """All that belongs to no namespace, and in what state the nodes are: a test must leave both as they were."""
        nodes = {node["metadata"]["name"]: _state(node) for node in self.get("nodes")["items"]}
        objects = sorted(self.kubectl("get", EVERYWHERE, "-o", "name").split())
        return {"nodes": nodes, "objects": objects}


@dataclass(frozen=True)
class Namespace:
    """A place for one test."""

    name: str
    cluster: Kubernetes

    def open(self) -> None:
        self.cluster.kubectl("create", "namespace", self.name)
        wait_for(lambda: "default" in self.kubectl("get", "serviceaccounts", "-o", "name"), "its service account")

    def close(self) -> None:
        """Kubernetes takes five seconds before it begins to empty a namespace; the pods go meanwhile."""
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")
        self.kubectl("delete", "pods", "--all", "--grace-period=1", "--timeout=60s", seconds=90)
        self.cluster.kubectl("wait", "--for=delete", f"namespace/{self.name}", "--timeout=90s", seconds=120)
        wait_for(lambda: not self.living_containers(), "its last container to end")
        wait_for(lambda: not self.volumes(), "its volumes to go")

    def kubectl(self, *arguments: str, feed: str = "", seconds: float = 60) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments, feed=feed, seconds=seconds)

    def get(self, *what: str) -> Any:
        return self.cluster.get("-n", self.name, *what)

    def create(self, *objects: dict[str, Any]) -> None:
        self.kubectl("create", "-f", "-", feed=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pod(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = self.get("pod", name)
        return pod

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def logs(self, pod: str) -> str:
        return self.kubectl("logs", pod)

    def wait_for_phase(self, pod: str, *phases: str, seconds: float = 60) -> None:
        wait_for(lambda: self.phase(pod) in phases, f"the pod {pod} to be {' or '.join(phases)}", seconds)

    def volumes(self) -> list[str]:
        """Those that were made for its claims."""
        volumes = self.cluster.get("persistentvolumes")["items"]
        return [each["metadata"]["name"] for each in volumes if _claimed_in(each) == self.name]

    def volume_folder(self, claim: str) -> Path:
        """Where the volume is on this machine: our own cluster's nodes all share it."""
        assert self.cluster.own
        volume = self.cluster.get("persistentvolume", self.get("pvc", claim)["spec"]["volumeName"])
        return self.cluster.own.folder / "volumes" / Path(volume["spec"]["hostPath"]["path"]).name

    def processes(self, pod: str) -> set[int]:
        """Of the pod's containers, as the machine sees them."""
        assert self.cluster.own
        containers = self.pod(pod)["status"]["containerStatuses"]
        ids = [container["containerID"].removeprefix("containerd://") for container in containers]
        return {pid for each in ids for pid in self.cluster.own.processes_of(each)}

    def living_containers(self) -> list[str]:
        """Those of this namespace that live on a node of our own cluster, whatever the API says."""
        own = self.cluster.own
        return own.living_containers(self.name) if own else []


def _claimed_in(volume: dict[str, Any]) -> str:
    return str(volume["spec"].get("claimRef", {}).get("namespace"))


def _state(node: dict[str, Any]) -> dict[str, Any]:
    conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
    return {
        "conditions": conditions,
        "taints": sorted(f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in node["spec"].get("taints", [])),
        "cordoned": node["spec"].get("unschedulable", False),
        "gpus": node["status"]["allocatable"].get(GPU, "0"),
    }


def existing_kubeconfig() -> Path | None:
    value = os.environ.get(EXISTING)
    return Path(value).expanduser().resolve() if value else None
