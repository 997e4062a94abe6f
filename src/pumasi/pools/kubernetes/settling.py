"""A run on its way to a cluster: the names that the kubeconfig has for it now, and what the user should know before."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pumasi.core import kubewords
from pumasi.core.spec import Spec
from pumasi.kube.config import connect
from pumasi.pools.kubernetes.rendering import open_secrets
from pumasi.pools.kubernetes.target import Target
from pumasi.program.site import Image


class ImageWithVolume(Image):
    def cache(self, spec: Spec) -> str:
        volume = kubewords.files_mount(spec.mounts)
        return f"{volume.path}/pumasi/cache" if volume else ""


def settled(spec: Spec) -> Spec:
    """With the names that the kubeconfig has for the cluster and the namespace now: it may say otherwise tomorrow."""
    found = connect(spec.context, os.environ)
    volume = (f"{kubewords.volume(spec.volume).name}:{kubewords.VOLUME_PATH}",) if spec.volume else ()
    mounts = (*volume, *(mount for mount in spec.mounts if mount not in volume))
    return replace(spec, on=Target(found.context).on, namespace=spec.namespace or found.namespace, mounts=mounts)


def readable(env: Mapping[str, str]) -> Iterator[str]:
    """What a user may not expect others to see: variables stand in the pods and in the record."""
    if names := open_secrets(env):
        yield (
            f"Who may read the run in the cluster can read {', '.join(names)}. "
            f"A reference keeps the value in a Secret: --env-from-secret {names[0]}=SECRET/KEY"
        )
