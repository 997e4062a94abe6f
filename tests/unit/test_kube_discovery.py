from __future__ import annotations

from typing import Any

import pytest

from pumasi.core.planner import Node
from pumasi.kube.discovery import Holder, amount, as_planner_nodes, asked_for, look, tolerates

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
