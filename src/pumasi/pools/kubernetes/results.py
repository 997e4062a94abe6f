"""Where the result of a run lies, if it is on a volume of a cluster, and what it takes to reach it there. Pure."""

from __future__ import annotations

from typing import Any

from pumasi.core.spec import Spec
from pumasi.pools.kubernetes.notation import mount
from pumasi.pools.kubernetes.options import KubernetesOptions


def result_on_volume(spec: Spec, folder: str, final: str | None) -> dict[str, Any] | None:
    """`folder` is the run's own, `final` a model that it has made; without one its checkpoints count. None where the
    result is on this machine, or went with the pods."""
    asked = spec[KubernetesOptions]
    path = final or spec.env.get("PUMASI_CHECKPOINT_DIR") or f"{folder}/checkpoints"
    mounts = [each for each in map(mount, asked.mounts) if f"{path}/".startswith(f"{each.path}/")]
    found = max(mounts, key=lambda each: len(each.path), default=None)
    if found is None or spec.pool == "local":
        return None
    return {
        "kind": "model" if final else "checkpoints",
        "path": path,
        "claim": found.claim,
        "mount": found.path,
        "context": spec.context,
        "namespace": asked.namespace or "",
        "image": asked.image,
        "as_image_user": asked.as_image_user,
    }
