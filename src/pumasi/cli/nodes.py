"""pumasi nodes: what a cluster has, what is free, and who holds the rest."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pumasi.cli.output import columns, paint, say, show, show_json
from pumasi.cli.parsing import Arguments
from pumasi.cli.text import clean, table
from pumasi.cli.verbs import JSON, Option, Verb
from pumasi.errors import Forbidden, UsageError

if TYPE_CHECKING:
    from pumasi.kube.discovery import NodeState

ON = Option(("--on",), "the cluster: k8s, or k8s:CONTEXT of your kubeconfig", "POOL")
GPU_RESOURCE = Option(("--gpu-resource",), "what the cluster calls a GPU (nvidia.com/gpu)", "NAME")
VERB = Verb(
    name="nodes",
    usage=("pumasi nodes --on k8s[:CONTEXT] [options]",),
    about="""Lists the nodes of a Kubernetes cluster with their accelerators: how many are free, which pods hold the
    others, and which nodes are out, and why. Looks only: nothing is changed.""",
    options=(ON, GPU_RESOURCE, JSON),
    examples=(
        ("pumasi nodes --on k8s", ""),
        ("pumasi nodes --on k8s:lab --gpu-resource amd.com/gpu", ""),
    ),
)
_HEADS = ("node", "total", "used", "free", "out because", "held by")
NVIDIA = "nvidia.com/gpu"
_PATIENCE = 2.0
"""Somebody sits there and waits."""


def main(arguments: Arguments) -> int:
    resource = arguments.last("gpu-resource") or NVIDIA
    states = look_at(arguments.last("on") or "", resource)
    if arguments.has("json"):
        show_json([described(state) for state in states])
        return 0
    rows = [
        (
            state.name,
            str(state.total),
            str(state.used),
            str(state.free),
            clean(state.out),
            clean(", ".join(f"{each.namespace}/{each.pod} ({each.amount})" for each in state.holders)),
        )
        for state in states
    ]
    head, *lines = table(_HEADS, rows, columns(), right=(1, 2, 3))
    show([paint(head, "dim", sys.stdout), *lines])
    total, free = sum(state.total for state in states), sum(state.free for state in states)
    if total:
        say(f"{free} of {total} {resource} are free.")
    else:
        say(f"No node has any {resource}.", "Another name may be right: --gpu-resource amd.com/gpu")
    return 0


def look_at(pool: str, resource: str) -> list[NodeState]:
    """The nodes of the cluster that `--on` names."""
    import asyncio

    name, _, context = pool.partition(":")
    if name != "k8s":
        raise UsageError(
            f"'{pool}' is no cluster that has nodes." if pool else "Which cluster? --on says it.",
            "Write --on k8s, or --on k8s:CONTEXT with a context of your kubeconfig.",
        )
    try:
        return asyncio.run(_look(context, resource))
    except Forbidden as error:
        raise Forbidden(
            error.message, "To see what is free one must be allowed to list nodes, and the pods of all namespaces."
        ) from None


async def _look(context: str, resource: str) -> list[NodeState]:
    from pumasi.kube.api import Api
    from pumasi.kube.config import connect
    from pumasi.kube.discovery import look

    async with Api(connect(context, os.environ), patience=_PATIENCE) as api:
        nodes = await api.list("/api/v1/nodes")
        pods = await api.list("/api/v1/pods", fieldSelector="status.phase!=Succeeded,status.phase!=Failed")
    return look(nodes, pods, resource)


def described(state: NodeState) -> dict[str, Any]:
    return {
        "name": state.name,
        "total": state.total,
        "used": state.used,
        "free": state.free,
        "out": state.out,
        "holders": [holder._asdict() for holder in state.holders],
    }
