"""What a cluster has free, out of what its API tells about nodes and pods. Pure: plain objects in, values out.

Counted as the scheduler counts: a pod that is bound to a node holds what it asks for from that moment until it has
ended, started or not; its init containers run one after the other, before the others, except for those that go on
beside them (sidecars).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.core.planner import Node

Object = Mapping[str, Any]
_ENDED = ("Succeeded", "Failed")
_REPELLING = ("NoSchedule", "NoExecute")


class Holder(NamedTuple):
    """A pod that holds some of a node's accelerators."""

    namespace: str
    pod: str
    amount: int


class NodeState(NamedTuple):
    """`out` says why nothing new can go there; empty where it can. Then `free` is 0, whatever is unused."""

    name: str
    total: int
    holders: tuple[Holder, ...]
    out: str
    labels: Mapping[str, str]

    @property
    def used(self) -> int:
        return sum(holder.amount for holder in self.holders)

    @property
    def free(self) -> int:
        return 0 if self.out else max(0, self.total - self.used)


def look(
    nodes: Iterable[Object],
    pods: Iterable[Object],
    resource: str,
    *,
    tolerations: Sequence[Object] = (),
    selector: Mapping[str, str] | None = None,
) -> list[NodeState]:
    """Every node, sorted by name, with what it has of `resource`."""
    holders: dict[str, list[Holder]] = defaultdict(list)
    for pod in pods:
        where = pod["spec"].get("nodeName")
        count = asked_for(pod, resource) if where and pod.get("status", {}).get("phase") not in _ENDED else 0
        if count:
            holders[where].append(Holder(pod["metadata"]["namespace"], pod["metadata"]["name"], count))
    states = [_state(node, holders, resource, tolerations, selector or {}) for node in nodes]
    return sorted(states, key=lambda state: state.name)


def _state(
    node: Object,
    holders: Mapping[str, list[Holder]],
    resource: str,
    tolerations: Sequence[Object],
    selector: Mapping[str, str],
) -> NodeState:
    name = node["metadata"]["name"]
    labels = node["metadata"].get("labels", {})
    total = quantity(node.get("status", {}).get("allocatable", {}).get(resource, "0"))
    held = tuple(sorted(holders.get(name, ())))
    return NodeState(name, total, held, why_out(node, tolerations, selector), labels)


def why_out(node: Object, tolerations: Sequence[Object], selector: Mapping[str, str]) -> str:
    """The first reason why the scheduler would leave the node out, in the order in which people look for them."""
    spec, labels = node.get("spec", {}), node["metadata"].get("labels", {})
    ready = [each for each in node.get("status", {}).get("conditions", ()) if each["type"] == "Ready"]
    if not ready or ready[0]["status"] != "True":
        return "not ready"
    if spec.get("unschedulable"):
        return "cordoned"
    for taint in spec.get("taints", ()):
        if taint["effect"] in _REPELLING and not any(tolerates(each, taint) for each in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint['key']}{value}:{taint['effect']}"
    missing = [f"{key}={value}" for key, value in selector.items() if labels.get(key) != value]
    return f"not {', '.join(missing)}" if missing else ""


def tolerates(toleration: Object, taint: Object) -> bool:
    """An empty effect or, with Exists, an empty key stands for all."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or bool(toleration["key"] == taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def asked_for(pod: Object, resource: str) -> int:
    """The most that the pod holds at any moment of its life."""
    spec = pod["spec"]
    beside = most_at_start = 0
    for container in spec.get("initContainers", ()):
        own = _limit(container, resource)
        if container.get("restartPolicy") == "Always":
            beside += own
            most_at_start = max(most_at_start, beside)
        else:
            most_at_start = max(most_at_start, beside + own)
    together = beside + sum(_limit(container, resource) for container in spec["containers"])
    return max(together, most_at_start) + quantity(spec.get("overhead", {}).get(resource, "0"))


def _limit(container: Object, resource: str) -> int:
    """Extended resources can't be overcommitted: request and limit are one number, and either may stand alone."""
    resources = container.get("resources", {})
    return quantity((resources.get("requests") or resources.get("limits") or {}).get(resource, "0"))


def quantity(text: str) -> int:
    """Extended resources come in whole numbers; the API writes large ones as 1k."""
    thousands = {"k": 10**3, "M": 10**6, "G": 10**9}
    return int(text[:-1]) * thousands[text[-1]] if text[-1] in thousands else int(text)


def as_planner_nodes(states: Iterable[NodeState], topology: Sequence[str] = ()) -> list[Node]:
    """`topology` names labels, from narrow to wide."""
    return [Node(each.name, each.free, tuple(each.labels.get(label, "") for label in topology)) for each in states]
