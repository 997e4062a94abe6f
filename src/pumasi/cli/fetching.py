"""How to fetch what a run has left on a volume of a cluster: with kubectl, by a pod that mounts the volume."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from pumasi.kube.kubectl import kubectl

_SECONDS = 3600
"""Until the pod ends by itself, should nobody delete it."""


def fetch_lines(run: str, result: Mapping[str, Any]) -> list[str]:
    """`result` is what `results` says."""
    path, pod, is_model = result["path"], f"{run}-files", result["kind"] == "model"
    what = "The final model" if is_model else "What it has written to PUMASI_CHECKPOINT_DIR"
    to = path.rpartition("/")[2] if is_model else f"{run}-checkpoints"
    begin = kubectl(result["context"], result["namespace"])
    overrides = json.dumps(_overrides(pod, result), separators=(",", ":"))
    return [
        f"{what} is on the volume {result['claim']}: {path}. To fetch it:",
        f"{begin} run {pod} --image={shlex.quote(result['image'])} --overrides={shlex.quote(overrides)}",
        f"{begin} wait --for=condition=Ready pod/{pod}",
        f"{begin} cp {shlex.quote(f'{pod}:{path}')} {shlex.quote(to)}",
        f"{begin} delete pod {pod} --now",
    ]


def _overrides(pod: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A pod that the strictest namespaces take, with the rights that the run had."""
    from pumasi.pools.kubernetes.manifests import restricted_container, restricted_pod

    container: dict[str, Any] = {
        "name": pod,
        "image": result["image"],
        "command": ["sleep", str(_SECONDS)],
        "volumeMounts": [{"name": "volume", "mountPath": result["mount"]}],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": result["claim"]}}],
    }
    if not result["as_image_user"]:
        container["securityContext"] = restricted_container()
        spec["securityContext"] = restricted_pod(fs_group=True)
    return {"spec": spec}
