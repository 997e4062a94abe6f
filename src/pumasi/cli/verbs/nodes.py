"""pumasi nodes: what there is, what is free, and who holds the rest."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.view.output import columns, paint, say, show, show_json
from pumasi.cli.view.text import count, table
from pumasi.core.printable import clean
from pumasi.errors import ClusterTrouble, Forbidden, UsageError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from pumasi.kube.api import Api
    from pumasi.pools.kubernetes.discovery import NodeState

ON = Option(("--on",), "where: local (default), k8s, or k8s:CONTEXT of your kubeconfig", "POOL", ("local", "k8s"))
GPU_RESOURCE = Option(("--gpu-resource",), "what the cluster calls a GPU (nvidia.com/gpu)", "NAME")
NAMESPACE = Option(("-n", "--namespace"), "accepted as kubectl does; nodes belong to no namespace", "NAME")
VERB = Verb(
    name="nodes",
    usage=("pumasi nodes [options]", "pumasi nodes --on k8s[:CONTEXT] [options]"),
    about="""Lists the GPUs of this machine, or the nodes of a Kubernetes cluster with their accelerators: how many are
    free, which pods hold the others, and which nodes are out, and why. Looks only: nothing is changed.""",
    options=(
        ON,
        GPU_RESOURCE,
        NAMESPACE,
        Option(("--watch",), "look again every 2 seconds, until Ctrl-C"),
        JSON._replace(help="print JSON, for programs; with --watch one line a change"),
    ),
    examples=(
        ("pumasi nodes", "this machine"),
        ("pumasi nodes --on k8s --watch", ""),
        ("pumasi nodes --on k8s:lab --gpu-resource amd.com/gpu", ""),
    ),
)
_HEADS = ("node", "total", "used", "free", "out because", "held by")
NVIDIA = "nvidia.com/gpu"
PAUSE = 2.0

Seen = list[dict[str, Any]]


def main(arguments: Arguments) -> int:
    import asyncio

    pool = arguments.last("on") or "local"
    if pool == "local" and arguments.has("gpu-resource"):
        raise UsageError("--gpu-resource is for clusters, but --on is local.", "Add --on k8s.")
    resource = "" if pool == "local" else arguments.last("gpu-resource") or NVIDIA
    if arguments.has("watch"):
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(pool, resource, Watcher(resource, as_json=arguments.has("json"))))
        return 0
    seen = asyncio.run(_look_once(pool, resource))
    if arguments.has("json"):
        show_json(seen)
    else:
        show(_table(seen))
        say(*_summary(seen, resource))
    return 0


async def _look_once(pool: str, resource: str) -> Seen:
    async with _connected(pool) as api:
        return await _look(api, resource)


async def _watch(pool: str, resource: str, watcher: Watcher) -> None:
    import asyncio

    async with _connected(pool) as api:
        while True:
            try:
                watcher.see(await _look(api, resource))
            except ClusterTrouble as error:
                watcher.miss(error)
            await asyncio.sleep(PAUSE)


class Watcher:
    """Shows what has changed; on a terminal everything, in the place of what was there."""

    def __init__(self, resource: str, *, as_json: bool) -> None:
        self._resource = resource
        self._as_json = as_json
        self._shown: object = None

    def see(self, seen: Seen) -> None:
        if sys.stdout.isatty() and not self._as_json:
            self._draw(seen)
        elif seen != self._shown:
            self._print(seen)
        self._shown = seen

    def miss(self, error: ClusterTrouble) -> None:
        """Whoever has seen something wants to see it again as soon as the cluster is back."""
        if self._shown is None:
            raise error
        if self._shown != error.message:
            say(error.message)
        self._shown = error.message

    def _draw(self, seen: Seen) -> None:
        lines = [*_table(seen), "", *_summary(seen, self._resource)]
        room = os.get_terminal_size(sys.stdout.fileno()).lines
        sys.stdout.write("\x1b[2J\x1b[H")
        show(lines[: room - 1] if room > 1 else lines)
        sys.stdout.flush()

    def _print(self, seen: Seen) -> None:
        import json

        show([json.dumps(seen, ensure_ascii=False)] if self._as_json else [*_table(seen), ""])
        sys.stdout.flush()
        if not self._as_json:
            say(*_summary(seen, self._resource))


def _table(seen: Seen) -> list[str]:
    rows = [
        (
            node["name"],
            str(node["total"]),
            str(node["used"]),
            str(node["free"]),
            clean(node["out"]),
            clean(", ".join(f"{each['namespace']}/{each['pod']} ({each['amount']})" for each in node["holders"])),
        )
        for node in seen
    ]
    head, *lines = table(_HEADS, rows, columns(), right=(1, 2, 3))
    return [paint(head, "dim", sys.stdout), *lines]


def _summary(seen: Seen, resource: str) -> tuple[str, ...]:
    total, free = (sum(node[key] for node in seen) for key in ("total", "free"))
    if total:
        return (f"{free} of {total} {resource or 'GPUs'} are free.",)
    if resource:
        return (f"No node has any {resource}.", "Another name may be right: --gpu-resource amd.com/gpu")
    cores = count(os.cpu_count() or 1, "core")
    return (f"Pumasi sees no GPU here; slots share the {cores} of this machine.", "`pumasi doctor` tells more.")


def _connected(pool: str) -> AbstractAsyncContextManager[Api | None]:
    return contextlib.nullcontext() if pool == "local" else cluster(pool)


async def _look(api: Api | None, resource: str) -> Seen:
    return await _look_here() if api is None else [described(state) for state in await look_with(api, resource)]


async def _look_here() -> Seen:
    """This machine as the local pool sees it: one node. Without GPUs it has room for as many slots as one likes."""
    from pumasi.core.spec import Spec
    from pumasi.pools.local.gpus import list_gpus
    from pumasi.pools.local.pool import LocalPool
    from pumasi.store import default_home

    gpus = list_gpus(os.environ)
    (node,) = await LocalPool(Spec(command=("true",)), default_home(os.environ), gpus).nodes()
    free = node.free if gpus else 0
    return [
        {
            "name": node.name,
            "total": len(gpus),
            "used": len(gpus) - free,
            "free": free,
            "out": "",
            "holders": [],
        }
    ]


def cluster(pool: str) -> Api:
    """The cluster that `--on` names."""
    name, _, context = pool.partition(":")
    if name != "k8s":
        raise UsageError(
            f"'{pool}' is no cluster that has nodes.",
            "Write --on k8s, or --on k8s:CONTEXT with a context of your kubeconfig.",
        )
    from pumasi.kube.api import Api
    from pumasi.kube.config import connect

    return Api(connect(context, os.environ))


async def look_with(
    api: Api, resource: str, tolerations: Sequence[Mapping[str, str]] = (), selector: Mapping[str, str] | None = None
) -> list[NodeState]:
    from pumasi.pools.kubernetes.discovery import NOT_ENDED, look

    try:
        nodes = await api.list("/api/v1/nodes")
        pods = await api.list("/api/v1/pods", fieldSelector=NOT_ENDED)
    except Forbidden as error:
        hint = "To see what is free one must be allowed to list nodes, and the pods of all namespaces."
        raise Forbidden(error.message, hint) from None
    return look(nodes, pods, resource, tolerations=tolerations, selector=selector, now=api.now)


def described(state: NodeState) -> dict[str, Any]:
    return {
        "name": state.name,
        "total": state.total,
        "used": state.used,
        "free": state.free,
        "out": state.out,
        "holders": [holder._asdict() for holder in state.holders],
    }
