"""The nodes of a cluster as `pumasi nodes` shows them, and as `pumasi plan` plans with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pumasi.errors import Forbidden, SpecError, UsageError
from pumasi.kube.api import Api
from pumasi.pools.kubernetes.discovery import NOT_ENDED, NodeState, as_planner_nodes, look
from pumasi.pools.kubernetes.notation import label_value, qualified, toleration
from pumasi.pools.kubernetes.reach import ask, connected
from pumasi.pools.kubernetes.target import Target
from pumasi.pools.pool import Room, Seen

NVIDIA = "nvidia.com/gpu"
T = TypeVar("T")


@asynccontextmanager
async def looking(target: Target, flags: Mapping[str, str]) -> AsyncIterator[Callable[[], Awaitable[Seen]]]:
    resource = flags.get("gpu-resource") or NVIDIA
    async with connected(target.context) as api:

        async def look_again() -> Seen:
            return [described(state) for state in await look_with(api, resource)]

        yield look_again


def summary(seen: Seen, flags: Mapping[str, str]) -> tuple[str, ...]:
    resource = flags.get("gpu-resource") or NVIDIA
    total, free = (sum(node[key] for node in seen) for key in ("total", "free"))
    if total:
        return (f"{free} of {total} {resource} are free.",)
    return (f"No node has any {resource}.", "Another name may be right: --gpu-resource amd.com/gpu")


async def look_with(
    api: Api, resource: str, tolerations: Sequence[Mapping[str, str]] = (), selector: Mapping[str, str] | None = None
) -> list[NodeState]:
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


def room(target: Target, flags: Mapping[str, Sequence[str]]) -> Room:
    """`flags` are those of `pumasi plan`, each with all its values."""
    labels = _each(flags, "topology", _labels)
    tolerations = _each(flags, "toleration", toleration)
    selector = dict(_each(flags, "node-selector", _label))
    resource = [*flags.get("gpu-resource", ())][-1:] or [NVIDIA]

    async def look_there(api: Api, _: str) -> list[NodeState]:
        return await look_with(api, resource[0], tolerations, selector)

    states = ask(target, look_there)
    nodes = as_planner_nodes(states, [label for several in labels for label in several])
    left_out = [f"{each.name} is left out: {each.out}." for each in states if each.out]
    return Room(nodes, left_out, not any(each.used for each in states))


def _each(flags: Mapping[str, Sequence[str]], key: str, read: Callable[[str], T]) -> list[T]:
    """What `read` makes of all values of an option; its mistakes with the option's name."""
    try:
        return [read(text) for text in flags.get(key, ())]
    except SpecError as error:
        raise UsageError(f"--{key}: {error.message}.", f"{error.hint[:1].upper()}{error.hint[1:]}.") from None


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f'"{text}" has no "="', "give KEY=VALUE")
    return qualified(key), label_value(value)


def _labels(text: str) -> list[str]:
    return [qualified(label.strip()) for label in text.split(",")]
