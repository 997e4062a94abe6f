from __future__ import annotations

from typing import Any

import pytest

from pumasi.core.planning import Node
from pumasi.pools.kubernetes.discovery import (
    Holder,
    amount,
    as_planner_nodes,
    asked_for,
    has_image,
    is_leaving,
    look,
    tolerates,
    unlabelled,
)

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 0, *, ready: str = "True", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "rack": "r1"}},
        "spec": spec,
        "status": {"allocatable": {GPU: str(gpus)}, "conditions": [{"type": "Ready", "status": ready}]},
    }


def container(gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": {GPU: str(gpus)}}, **more}


def pod(
    name: str, where: str | None, *containers: dict[str, Any], phase: str = "Running", **spec: Any
) -> dict[str, Any]:
    bound = {"nodeName": where} if where else {}
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {**bound, "containers": list(containers), **spec},
        "status": {"phase": phase},
    }


def test_free_is_what_is_there_without_what_pods_hold() -> None:
    pods = [pod("a", "n1", container(1), container(2)), pod("b", "n2", container(1))]
    first, second = look([node("n2", 3), node("n1", 5)], pods, GPU)
    assert (first.name, first.total, first.used, first.free) == ("n1", 5, 3, 2)
    assert first.holders == (Holder("team", "a", 3),)
    assert (second.name, second.free) == ("n2", 2)


def test_a_pod_holds_from_the_moment_it_is_bound_until_it_has_ended() -> None:
    pods = [
        pod("bound", "n", container(1), phase="Pending"),
        pod("unbound", None, container(2), phase="Pending"),
        pod("done", "n", container(2), phase="Succeeded"),
        pod("failed", "n", container(2), phase="Failed"),
    ]
    [state] = look([node("n", 8)], pods, GPU)
    assert state.used == 1


def test_init_containers_count_as_the_scheduler_counts_them() -> None:
    sidecar = container(1, restartPolicy="Always")
    assert asked_for(pod("p", "n", container(2), initContainers=[container(5)]), GPU) == 5
    assert asked_for(pod("p", "n", container(2), initContainers=[container(1)]), GPU) == 2
    assert asked_for(pod("p", "n", container(2), initContainers=[sidecar]), GPU) == 3
    assert asked_for(pod("p", "n", container(1), initContainers=[sidecar, container(4)]), GPU) == 5
    assert asked_for(pod("p", "n", container(1), initContainers=[container(4), sidecar]), GPU) == 4
    assert asked_for(pod("p", "n", {"name": "c"}), GPU) == 0


def test_a_request_without_a_limit_counts_too() -> None:
    asking = {"name": "c", "resources": {"requests": {GPU: "2"}}}
    assert asked_for(pod("p", "n", asking), GPU) == 2


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (node("n", 4, ready="Unknown"), "not ready"),
        (node("n", 4, unschedulable=True), "cordoned"),
        (node("n", 4, taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]), "taint k=v:NoSchedule"),
        (node("n", 4, taints=[{"key": "k", "effect": "NoExecute"}]), "taint k:NoExecute"),
        (node("n", 4, taints=[{"key": "k", "effect": "PreferNoSchedule"}]), ""),
        ({**node("n", 4), "status": {"allocatable": {GPU: "4"}}}, "not ready"),
    ],
)
def test_a_node_that_takes_nothing_new_has_nothing_free_and_a_reason(where: dict[str, Any], why: str) -> None:
    [state] = look([where], [], GPU)
    assert (state.out, state.free) == (why, 0 if why else 4)


def test_tolerations_and_selectors_decide_who_is_out() -> None:
    tainted = node("n", 4, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    [state] = look([tainted], [], GPU, tolerations=[{"key": "gpu", "operator": "Exists"}])
    assert state.free == 4
    [state] = look([node("n", 4)], [], GPU, selector={"rack": "r2"})
    assert (state.out, state.free) == ("not rack=r2", 0)


@pytest.mark.parametrize(
    ("toleration", "does"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "value": "v", "effect": "NoSchedule"}, True),
    ],
)
def test_a_toleration_is_read_as_kubernetes_reads_it(toleration: dict[str, str], does: bool) -> None:
    assert tolerates(toleration, {"key": "k", "value": "v", "effect": "NoSchedule"}) is does


def test_more_held_than_there_is_leaves_nothing_free() -> None:
    """A GPU that fell ill is taken off the node's list while a pod still holds it."""
    [state] = look([node("n", 1)], [pod("p", "n", container(2))], GPU)
    assert state.free == 0


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("8", 8), ("1k", 1000), ("2M", 2_000_000)])
def test_quantities_of_whole_things(text: str, number: int) -> None:
    assert amount(text) == number


def test_the_planner_gets_names_what_is_free_and_domains() -> None:
    states = look([node("a", 2), node("b", 4, unschedulable=True)], [], GPU)
    assert as_planner_nodes(states, ["rack"]) == [Node("a", 2, ("r1",)), Node("b", 0, ("r1",))]


NOW = 1763287200.0  # 2025-11-16T10:00:00Z


def ended(name: str, at: str, *, policy: str = "Never", running: bool = False) -> dict[str, Any]:
    """Its containers have terminated, but its phase does not say so yet."""
    statuses = [{"name": "c", "state": {"terminated": {"exitCode": 0, "finishedAt": at}}}]
    statuses += [{"name": "sidecar", "state": {"running": {}}}] if running else []
    sidecars = [{"name": "sidecar", "restartPolicy": "Always"}] if running else []
    made = pod(name, "n1", container(2), restartPolicy=policy, initContainers=sidecars)
    return {
        **made,
        "status": {"phase": "Running", "containerStatuses": statuses[:1], "initContainerStatuses": statuses[1:]},
    }


@pytest.mark.parametrize(
    ("fields", "leaves"),
    [
        ({"at": "2025-11-16T09:59:59Z"}, True),
        ({"at": "2025-11-16T10:00:02Z"}, True),  # by the clock of its node
        ({"at": "2025-11-16T09:59:00Z"}, False),  # its kubelet has a problem: who knows for how long
        ({"at": "2025-11-16T09:59:59Z", "policy": "Always"}, False),
        ({"at": "2025-11-16T09:59:59Z", "running": True}, False),
    ],
)
def test_a_pod_whose_containers_have_just_terminated_holds_nothing_any_more(
    fields: dict[str, Any], leaves: bool
) -> None:
    leaving = ended("p", **fields)
    assert is_leaving(leaving, NOW) is leaves
    (state,) = look([node("n1", 5)], [leaving], GPU, now=NOW)
    assert state.free == (5 if leaves else 3)


def test_one_that_is_deleted_is_not_started_again_whatever_its_policy() -> None:
    leaving = ended("p", "2025-11-16T09:59:59Z", policy="Always")
    leaving["metadata"]["deletionTimestamp"] = "2025-11-16T09:59:58Z"
    assert is_leaving(leaving, NOW)


def test_one_that_has_not_begun_is_not_leaving() -> None:
    assert not is_leaving(pod("p", "n1", container(2), restartPolicy="Never"), NOW)


@pytest.mark.parametrize(
    ("image", "there"),
    [
        ("python:3.12-slim", True),
        ("docker.io/library/python:3.12-slim", True),
        ("python:3.12", False),
        ("team/train", True),
        ("team/train:1", False),
        ("registry.example:5000/train:2", True),
        ("registry.example:5000/train", False),
    ],
)
def test_an_image_that_a_node_has_is_known_by_its_short_name_too(image: str, there: bool) -> None:
    names = ["docker.io/library/python:3.12-slim", "docker.io/team/train:latest", "registry.example:5000/train:2"]
    node = {"status": {"images": [{"names": [name]} for name in names]}}
    assert has_image([{"status": {}}, node], image) is there


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ({}, ""),
        ({"rack": "r1"}, ""),
        ({"a": "b"}, "No node has the label a=b."),
        ({"a": "b", "rack": "r2"}, "No node has the labels a=b, rack=r2."),
        ({"a": "b", "rack": "r1"}, "No node has the label a=b."),
        (
            {"kubernetes.io/hostname": "n1", "zone": "z"},
            "No node has all of the labels kubernetes.io/hostname=n1, zone=z.",
        ),
    ],
)
def test_labels_that_no_node_has_are_told(selector: dict[str, str], said: str) -> None:
    other = node("n2")
    other["metadata"]["labels"]["zone"] = "z"
    assert unlabelled([node("n1"), other], selector) == said
    assert unlabelled([], selector) == ""
