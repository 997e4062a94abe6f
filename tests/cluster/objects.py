"""The few objects that tests of the cluster itself are made of, as plain values."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.cluster.subject import GPU, IMAGE


def python(text: str, **container: Any) -> dict[str, Any]:
    """A container that runs this program."""
    command = ["python3", "-u", "-c", textwrap.dedent(text)]
    return {"name": "main", "image": IMAGE.rpartition("/")[2], "command": command, **container}


def pod(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    settings = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": settings}


def on(node: str) -> dict[str, Any]:
    """Only there, and still by the scheduler."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def gpus(count: int) -> dict[str, Any]:
    return {"limits": {GPU: str(count)}}


def headless_service(name: str, selector: dict[str, str]) -> dict[str, Any]:
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def service(name: str, selector: dict[str, str], port: int) -> dict[str, Any]:
    spec = {"selector": selector, "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def claim(name: str, mode: str = "ReadWriteOnce") -> dict[str, Any]:
    spec = {"accessModes": [mode], "resources": {"requests": {"storage": "10Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def volume_of(claim_name: str) -> dict[str, Any]:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]}


SLEEPER = "import time; print('awake'); time.sleep(3600)"
