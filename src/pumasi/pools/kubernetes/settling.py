"""A run on its way to a cluster: the names that the kubeconfig has for it now, and what the user should know before."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from pumasi.core.spec import Spec
from pumasi.kube.config import connect
from pumasi.pools.kubernetes import notation
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.rendering import open_secrets
from pumasi.pools.kubernetes.target import Target
from pumasi.program.site import Image


class ImageWithVolume(Image):
    def cache(self, spec: Spec) -> str:
        volume = notation.files_mount(spec[KubernetesOptions].mounts)
        return f"{volume.path}/pumasi/cache" if volume else ""


def settled(spec: Spec) -> Spec:
    """With the names that the kubeconfig has for the cluster and the namespace now: it may say otherwise tomorrow."""
    found = connect(spec.context, os.environ)
    asked = spec[KubernetesOptions]
    volume = (f"{notation.volume(asked.volume).name}:{notation.VOLUME_PATH}",) if asked.volume else ()
    mounts = (*volume, *(mount for mount in asked.mounts if mount not in volume))
    namespace = asked.namespace or found.namespace
    return spec.changed({"on": Target(found.context).on, "namespace": namespace, "mounts": mounts})


def readable(env: Mapping[str, str]) -> Iterator[str]:
    """What a user may not expect others to see: variables stand in the pods and in the record."""
    if names := open_secrets(env):
        yield (
            f"Who may read the run in the cluster can read {', '.join(names)}. "
            f"A reference keeps the value in a Secret: --env-from-secret {names[0]}=SECRET/KEY"
        )
