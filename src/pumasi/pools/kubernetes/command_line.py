"""What the command line has for clusters: flags, examples, and hints for users of other tools."""

from __future__ import annotations

from collections.abc import Mapping

from pumasi.cli.grammar import Option
from pumasi.cli.pools import Words
from pumasi.errors import SpecError, UsageError
from pumasi.pools.kubernetes.target import Target

GPU_RESOURCE = Option(("--gpu-resource",), "what the cluster calls a GPU (nvidia.com/gpu)", "NAME")
NAMESPACE = Option(("-n", "--namespace"), "accepted as kubectl does; nodes belong to no namespace", "NAME")
_POD = "On a cluster: kubectl get pods -l pumasi.dev/run=RUN, then kubectl"


def _plan() -> tuple[Option, ...]:
    from pumasi.cli.options import options_of
    from pumasi.pools.kubernetes.options import CLUSTER, KubernetesOptions

    places = options_of(KubernetesOptions, "node_selector", "tolerations", "topology")
    return (GPU_RESOURCE._replace(group=CLUSTER), NAMESPACE._replace(group=CLUSTER), *places)


WORDS = Words(
    flags=(
        Option(("-n", "--namespace"), "in that namespace of the cluster", "NAME"),
        Option(("-A", "--all-namespaces"), "in all namespaces of the cluster"),
    ),
    nodes=(GPU_RESOURCE, NAMESPACE),
    plan=_plan,
    examples={
        "run": (("pumasi run --on k8s --gpus 6 --image IMG train.py", "on the GPUs of a cluster"),),
        "ps": (
            ("pumasi ps --on k8s -A", "all runs of a cluster"),
            ("pumasi ps --watch --mine --state running --on k8s", ""),
        ),
        "stop": (("pumasi stop --all --on k8s", "all that you have started there"),),
        "delete": (("pumasi delete --state failed --on k8s -y", "without a question"),),
        "nodes": (
            ("pumasi nodes --on k8s --watch", ""),
            ("pumasi nodes --on k8s:lab --gpu-resource amd.com/gpu", ""),
        ),
        "plan": (
            ("pumasi plan --gpus 6 --on k8s --explain", "for what a cluster has free now"),
            ("pumasi plan --gpus 6 --on k8s --topology example.com/rack", "in one rack, if one has room"),
        ),
    },
    verb_hints={
        "top": (
            "'pumasi nodes --watch' shows the GPUs (add --on k8s for a cluster), 'pumasi attach RUN' what a run does."
        ),
        "init": "There is nothing to prepare: pumasi run train.py. 'pumasi setup' is for runs with -d on a cluster.",
        "exec": f"{_POD} exec -it POD -- sh",
        "cp": f"{_POD} cp POD:FILE FILE",
    },
    option_hints={
        "--hosts": (
            "Pumasi takes the number of processes in all, --slots N, and places them itself: on a cluster with "
            "--on k8s."
        ),
    },
    harmless=frozenset(("namespace",)),
)


def target(context: str, flags: Mapping[str, str]) -> Target:
    """What --on and the flags beside it name."""
    name = flags.get("namespace", "")
    if "namespace" in flags:
        from pumasi.pools.kubernetes import notation

        try:
            notation.namespace(name)
        except SpecError as error:
            raise UsageError(f"--namespace: {error.message}.", f"{error.hint.capitalize()}.") from None
    return Target(context, name, "all-namespaces" in flags)
