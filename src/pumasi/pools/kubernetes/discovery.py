"""What a cluster has free, out of what its API tells about nodes and pods. Pure: plain objects in, values out.

Counted as the scheduler counts: a pod that is bound to a node holds what it asks for from that moment until it has
ended, started or not; its init containers run one after the other, before the others, except for those that go on
beside them (sidecars).

A pod whose containers have all terminated goes on to count until its kubelet says that it has ended, a second later or
two: the scheduler refuses others for as long. Such a pod is *leaving*: its share is planned with, and waited for.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pumasi.core.planning import Node

Object = Mapping[str, Any]
Taken = defaultdict[str, defaultdict[str, float]]
"""Node ─► resource ─► how much of it is in use."""
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
_UNITS |= {letter: 1000.0**power for power, letter in enumerate("kMGTPE", start=1)}
_UNITS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([num]|[kMGTPE]|[KMGTPE]i|)")
_ENDED = ("Succeeded", "Failed")
NOT_ENDED = ",".join(f"status.phase!={phase}" for phase in _ENDED)
"""The field selector of pods that may hold something."""
LEAVING = 10.0
"""Seconds after the end of its last container in which a pod counts as leaving; by then it has left, or its node has a
problem."""
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


class Room(NamedTuple):
    """`free` and `total` count slots; `out` says why nothing new can go there."""

    name: str
    free: int
    total: int
    out: str
    domains: tuple[str, ...] = ()

    @property
    def as_free(self) -> Node:
        return Node(self.name, self.free, self.domains)


def look(
    nodes: Iterable[Object],
    pods: Iterable[Object],
    resource: str,
    *,
    tolerations: Sequence[Object] = (),
    selector: Mapping[str, str] | None = None,
    now: float = 0.0,
) -> list[NodeState]:
    """Every node, sorted by name, with what it has of `resource`. `now` is the cluster's time: what is leaving then is
    free."""
    holders: dict[str, list[Holder]] = defaultdict(list)
    for pod in pods:
        where = pod["spec"].get("nodeName")
        count = int(asked_for(pod, resource)) if where and not has_ended(pod) and not is_leaving(pod, now) else 0
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
    total = int(amount(node.get("status", {}).get("allocatable", {}).get(resource, "0")))
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


def unlabelled(nodes: Sequence[Object], selector: Mapping[str, str]) -> str:
    """A sentence where no node has all the labels that `selector` names; empty where one has, or none is there."""
    wanted = selector.items()
    labels = [node["metadata"].get("labels", {}).items() for node in nodes]
    if not nodes or any(wanted <= each for each in labels):
        return ""
    nowhere = [pair for pair in wanted if not any(pair in each for each in labels)]
    names = ", ".join(f"{key}={value}" for key, value in nowhere or wanted)
    if nowhere:
        return f"No node has the label{'s' * (len(nowhere) > 1)} {names}."
    return f"No node has all of the labels {names}."


def tolerates(toleration: Object, taint: Object) -> bool:
    """An empty effect or, with Exists, an empty key stands for all."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or bool(toleration["key"] == taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def has_ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in _ENDED


def is_leaving(pod: Object, now: float) -> bool:
    """All its containers have terminated a moment ago, and none of them will be started again."""
    ends = _ends(pod)
    return bool(ends) and all(ends) and abs(now - max(map(seconds, ends))) < LEAVING


def _ends(pod: Object) -> list[str]:
    """When each container has terminated; empty strings for those that have not, or may be started again."""
    spec, status = pod["spec"], pod.get("status", {})
    if spec.get("restartPolicy") != "Never" and "deletionTimestamp" not in pod["metadata"]:
        return []
    named = {each["name"]: each for each in (*status.get("initContainerStatuses", ()), *_statuses(status))}
    sidecars = [each for each in spec.get("initContainers", ()) if each.get("restartPolicy") == "Always"]
    states = [named.get(each["name"], {}).get("state", {}) for each in (*sidecars, *spec["containers"])]
    return [(state.get("terminated") or {}).get("finishedAt") or "" for state in states]


def _statuses(status: Object) -> Sequence[Object]:
    return status.get("containerStatuses") or ()


def seconds(text: str) -> float:
    """A time as the API writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def asked_for(pod: Object, resource: str) -> float:
    """The most that the pod holds at any moment of its life."""
    spec = pod["spec"]
    beside = most_at_start = 0.0
    for container in spec.get("initContainers", ()):
        own = _limit(container, resource)
        if container.get("restartPolicy") == "Always":
            beside += own
            most_at_start = max(most_at_start, beside)
        else:
            most_at_start = max(most_at_start, beside + own)
    together = beside + sum(_limit(container, resource) for container in spec["containers"])
    return max(together, most_at_start) + amount(spec.get("overhead", {}).get(resource, "0"))


def _limit(container: Object, resource: str) -> float:
    """What it requests. Extended resources can't be overcommitted: a limit that stands alone is a request too."""
    resources = container.get("resources", {})
    return amount((resources.get("requests") or resources.get("limits") or {}).get(resource, "0"))


def has_image(nodes: Iterable[Object], image: str) -> bool:
    """Whether a node has it already. Nodes write its whole name, and name their largest fifty only."""
    name = image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"
    wanted = {name, f"docker.io/{name}", f"docker.io/library/{name}"}
    images = (each for node in nodes for each in node.get("status", {}).get("images") or ())
    return any(wanted.intersection(each.get("names") or ()) for each in images)


@functools.lru_cache(maxsize=4096)
def amount(text: str) -> float:
    """A quantity as the API writes it: 4, 500m, 16Gi, 1e3."""
    found = _QUANTITY.fullmatch(text)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def taken(pods: Iterable[Object], resources: Collection[str]) -> Taken:
    """How much pods hold of each of these resources, a node."""
    held: Taken = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        where = pod["spec"].get("nodeName")
        if where and not has_ended(pod):
            for resource in resources:
                held[where][resource] += asked_for(pod, resource)
    return held


def room(
    nodes: Iterable[Object],
    held: Taken,
    needs: Mapping[str, float],
    *,
    tolerations: Sequence[Object] = (),
    selector: Mapping[str, str] | None = None,
    avoid: Collection[str] = (),
    topology: Sequence[str] = (),
) -> list[Room]:
    """How many slots fit on each node, when each of them `needs` so much of what, never nothing; `topology` names
    labels, from narrow to wide."""
    rooms = []
    for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
        name, labels = node["metadata"]["name"], node["metadata"].get("labels", {})
        has = node.get("status", {}).get("allocatable", {})
        total = {resource: amount(has.get(resource, "0")) for resource in needs}
        free = {resource: total[resource] - held[name][resource] for resource in needs}
        out = why_out(node, tolerations, selector or {}) or ("it was lost a moment ago" if name in avoid else "")
        domains = tuple(labels.get(label, "") for label in topology)
        most = 0 if _stays_out(out) else _fit(total, needs)
        rooms.append(Room(name, 0 if out else _fit(free, needs), most, out, domains))
    return rooms


def _stays_out(why: str) -> bool:
    """A node that is not ready, or cordoned, may return; a taint of an administrator and a missing label will stay."""
    return ("=" in why and why.startswith("not ")) or (why.startswith("taint ") and "node.kubernetes.io/" not in why)


def _fit(amounts: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Quantities are decimal, so that 3 × 0.1 may be a hair more than 0.3: a millionth is forgiven."""
    return max(0, min(int(amounts[resource] / need + 1e-6) for resource, need in needs.items()))


def as_planner_nodes(states: Iterable[NodeState], topology: Sequence[str] = ()) -> list[Node]:
    """`topology` names labels, from narrow to wide."""
    return [Node(each.name, each.free, tuple(each.labels.get(label, "") for label in topology)) for each in states]
