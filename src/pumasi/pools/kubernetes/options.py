"""What may be asked of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from pumasi.core.fields import amount, distinct, group, many, optional, seconds, switch, text
from pumasi.core.options import Contradiction, PoolOptions, option
from pumasi.core.spec import NONE, SHARE, YEAR, Spec
from pumasi.errors import SpecError
from pumasi.pools.kubernetes import notation
from pumasi.pools.kubernetes.patching import parse_patch
from pumasi.registry import FLOWS

CLUSTER = "On a cluster"

_WEEK = 7 * 86400.0
_KEY = text(notation.qualified)
_OWN_KEY = text(notation.own_key)
_LABEL_VALUE = text(notation.label_value)


def _to_labels(value: object) -> object:
    """Each text may hold several labels, with commas between them."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        return value
    return [label.strip() for each in value for label in each.split(",")]


@dataclass(frozen=True)
class KubernetesOptions(PoolOptions):
    is_elsewhere: ClassVar[bool] = True
    namespace: str | None = option(
        optional(text(notation.namespace)),
        "the namespace",
        example="team-a",
        default=None,
        short="n",
        value="NAME",
        group=CLUSTER,
        default_text="that of the kubeconfig",
        description="the namespace to run in; by default that of the kubeconfig",
    )
    image: str = option(
        text(notation.image),
        "the container image",
        example="ghcr.io/team/train:1.4",
        default="python:3.12-slim",
        value="IMAGE",
        group=CLUSTER,
        default_text="python:3.12-slim",
        description="the container image, which has the Python and the packages that the script needs",
    )
    cpus: float | None = option(
        optional(amount(notation.cores), NONE),
        "CPUs a slot: 2, 0.5, 500m",
        example="2",
        default=None,
        value="N",
        group=CLUSTER,
    )
    memory: int | None = option(
        optional(amount(notation.size), NONE),
        "memory a slot: 8Gi, 500M, 16G",
        example="8Gi",
        default=None,
        value="SIZE",
        group=CLUSTER,
    )
    gpu_resource: str = option(
        text(notation.resource),
        "what the cluster calls a GPU",
        example="amd.com/gpu",
        default="nvidia.com/gpu",
        value="NAME",
        group=CLUSTER,
        default_text="nvidia.com/gpu",
    )
    max_per_node: int | None = option(
        optional(SHARE, NONE),
        "at most so many slots on one node",
        example=4,
        default=None,
        value="N",
        group=CLUSTER,
    )
    node_selector: dict[str, str] = option(
        group(_KEY, _LABEL_VALUE),
        "only nodes with this label",
        example={"disk": "ssd"},
        default={},
        value="KEY=VALUE",
        group=CLUSTER,
        description="labels that a node must have",
    )
    tolerations: tuple[str, ...] = option(
        many(text(notation.toleration)),
        "nodes with this taint too; KEY alone: any value; all: any taint",
        example="gpu=only:NoSchedule",
        default=(),
        flag="toleration",
        value="KEY[=VALUE][:EFFECT]",
        group=CLUSTER,
        description="taints to put up with: KEY, KEY=VALUE or KEY=VALUE:EFFECT; all of them: all",
    )
    topology: tuple[str, ...] = option(
        distinct(many(_KEY, _to_labels)),
        "labels of nodes that say what is near to what, from narrow to wide",
        example="topology.kubernetes.io/zone",
        default=(),
        value="LABEL",
        group=CLUSTER,
        variable=True,
    )
    env_from_secret: tuple[str, ...] = option(
        many(text(notation.secret_use)),
        "variables from a Secret: all its keys, or NAME=SECRET/KEY for one",
        example="TOKEN=hub/token",
        default=(),
        value="SECRET",
        group=CLUSTER,
    )
    mounts: tuple[str, ...] = option(
        distinct(many(text(notation.mount)), lambda mount: notation.mount(mount).path),
        "mount a volume, given by its claim; :ro to read only",
        example="data:/data",
        default=(),
        flag="mount",
        value="CLAIM:/PATH",
        group=CLUSTER,
        description="volumes to mount: CLAIM:/path, or CLAIM:/path:ro to read only",
    )
    volume: str | None = option(
        optional(text(notation.volume)),
        "a volume for the run's files, by its claim; made where it is not there: imdb, imdb:20Gi",
        example="imdb:20Gi",
        default=None,
        value="NAME[:SIZE]",
        group=CLUSTER,
    )
    priority_class: str | None = option(
        optional(text(notation.dns_name)),
        "the priority class of the pods",
        example="high",
        default=None,
        value="NAME",
        group=CLUSTER,
    )
    labels: dict[str, str] = option(
        group(_OWN_KEY, _LABEL_VALUE),
        "a label for the pods",
        example={"team": "vision"},
        default={},
        flag="label",
        value="KEY=VALUE",
        group=CLUSTER,
        description="labels for the pods",
    )
    annotations: dict[str, str] = option(
        group(_OWN_KEY, text()),
        "an annotation for the pods",
        example={"example.com/owner": "kim"},
        default={},
        flag="annotation",
        value="KEY=VALUE",
        group=CLUSTER,
        description="annotations for the pods",
    )
    patches: tuple[str, ...] = option(
        many(text(parse_patch)),
        "change any field of the pods: spec.dnsPolicy=None, spec.containers[0].tty=true; null removes",
        example="spec.dnsPolicy=Default",
        default=(),
        flag="set",
        written="set",
        value="PATH=VALUE",
        group=CLUSTER,
    )
    as_image_user: bool = option(
        switch(),
        "run as the image's own user, not as an ordinary one",
        example=True,
        default=False,
        group=CLUSTER,
    )
    keep: float = option(
        seconds(0.0, YEAR),
        "how long a finished run stays in the cluster",
        example="7d",
        default=_WEEK,
        value="TIME",
        group=CLUSTER,
        default_text="7d",
    )

    def contradictions(self, spec: Spec) -> Iterator[Contradiction]:
        needs_volume = FLOWS.get(spec.strategy).shares_files
        if spec.place == self and needs_volume and not self.volume and not notation.files_mount(self.mounts):
            why = "the trainers' files need a place that all of them see"
            yield Contradiction("strategy", why, "on", "add --volume NAME")

    @property
    def most_per_node(self) -> int | None:
        return self.max_per_node

    def keeps(self, path: str) -> bool:
        """On a volume of the run."""
        return any(PurePosixPath(path).is_relative_to(notation.mount(each).path) for each in self.mounts)

    def result(self, spec: Spec, folder: str, final: str | None) -> dict[str, Any] | None:
        from pumasi.pools.kubernetes.results import result_on_volume

        return result_on_volume(spec, folder, final)

    def placed(self, path: str) -> str:
        files = notation.files_mount(self.mounts)
        if files is None:
            return path
        there = str(PurePosixPath(files.path, path))
        if not self.keeps(there) or ".." in PurePosixPath(there).parts:
            raise SpecError(
                f"{path} is on no volume: the model would be lost with its pod.",
                f"A path that does not begin with / is one on the volume, which the pods see as {files.path}.",
            )
        return there
