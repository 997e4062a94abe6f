"""What breaks does break, as it would elsewhere; and is well again afterwards, or the namespace's own check fails."""

from __future__ import annotations

import pytest

from tests.cluster import breaking
from tests.cluster.objects import SLEEPER, gpus, on, pod, python
from tests.cluster.subject import Kubernetes, Namespace, Refused
from tests.harness import wait_for
from tools.common import ToolError

NODE = "node-1"
TICKER = """
import itertools, time
for count in itertools.count():
    print(count)
    time.sleep(0.1)
"""


def not_ready(kubernetes: Kubernetes, seconds: float = 60) -> None:
    wait_for(lambda: kubernetes.condition(NODE, "Ready") != "True", f"{NODE} to be not ready", seconds)


def lines(namespace: Namespace, name: str) -> int:
    return len(namespace.logs(name).splitlines())


def restarts(namespace: Namespace, name: str) -> int:
    return int(namespace.pod(name)["status"]["containerStatuses"][0]["restartCount"])


@pytest.mark.own
def test_a_killed_kubelet_makes_its_node_not_ready_in_time(namespace: Namespace, kubernetes: Kubernetes) -> None:
    with breaking.killed(kubernetes, NODE, "kubelet"):
        not_ready(kubernetes, seconds=35)  # by itself Kubernetes takes 40 and more
    assert kubernetes.condition(NODE, "Ready") == "True"


@pytest.mark.own
def test_a_frozen_kubelet_makes_its_node_not_ready_and_its_pods_go_on(
    namespace: Namespace, kubernetes: Kubernetes
) -> None:
    namespace.create(pod("ticker", python(TICKER), **on(NODE)))
    namespace.wait_for_phase("ticker", "Running")
    before = lines(namespace, "ticker")
    with breaking.frozen(kubernetes, NODE, "kubelet"):
        not_ready(kubernetes)
    assert lines(namespace, "ticker") > before + 50
    assert restarts(namespace, "ticker") == 0


@pytest.mark.own
def test_a_node_that_is_cut_off_lives_on_alone(namespace: Namespace, kubernetes: Kubernetes) -> None:
    namespace.create(pod("ticker", python(TICKER), **on(NODE)))
    namespace.wait_for_phase("ticker", "Running")
    before = lines(namespace, "ticker")
    with breaking.cut_off(kubernetes, NODE):
        not_ready(kubernetes)
        with pytest.raises(Refused):
            namespace.kubectl("logs", "ticker", "--request-timeout=3s")
    assert lines(namespace, "ticker") > before + 50
    assert restarts(namespace, "ticker") == 0


@pytest.mark.own
def test_a_node_without_power_loses_its_pods_and_boots_again(namespace: Namespace, kubernetes: Kubernetes) -> None:
    namespace.create(pod("sleeper", python(SLEEPER), **on(NODE)), pod("other", python(SLEEPER), **on("node-0")))
    namespace.wait_for_phase("sleeper", "Running")
    namespace.wait_for_phase("other", "Running")
    with breaking.powered_off(kubernetes, NODE):
        not_ready(kubernetes)
    wait_for(lambda: namespace.phase("sleeper") == "Failed", "the lost pod to be told")
    assert namespace.phase("other") == "Running"
    namespace.create(pod("next", python("print('hello')"), **on(NODE)))
    namespace.wait_for_phase("next", "Succeeded")


@pytest.mark.own
@pytest.mark.parametrize("how", [breaking.killed, breaking.frozen])
def test_without_containerd_pods_go_on_and_no_new_one_starts(
    namespace: Namespace, kubernetes: Kubernetes, how: breaking.Breaker
) -> None:
    namespace.create(pod("ticker", python(TICKER), **on(NODE)))
    namespace.wait_for_phase("ticker", "Running")
    before = namespace.processes("ticker")
    with how(kubernetes, NODE, "containerd"):
        namespace.create(pod("late", python("print('at last')"), **on(NODE)))
        wait_for(lambda: namespace.pod("late")["spec"].get("nodeName") == NODE, "it to be scheduled")
        namespace.create(pod("later", python("print('on another node')"), **on("node-0")))
        namespace.wait_for_phase("later", "Succeeded")
        assert namespace.phase("late") == "Pending"
    namespace.wait_for_phase("late", "Succeeded")
    assert namespace.processes("ticker") == before
    assert restarts(namespace, "ticker") == 0


@pytest.mark.own
@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
@pytest.mark.parametrize("how", [breaking.killed, breaking.frozen])
def test_without_the_api_server_nobody_gets_an_answer_and_pods_go_on(
    namespace: Namespace, kubernetes: Kubernetes, how: breaking.Breaker, program: str
) -> None:
    namespace.create(pod("ticker", python(TICKER), **on(NODE)))
    namespace.wait_for_phase("ticker", "Running")
    before = lines(namespace, "ticker")
    with how(kubernetes, "control", program):
        with pytest.raises(Refused):
            namespace.kubectl("create", "configmap", "note", "--request-timeout=3s")
        assert len(namespace.living_containers()) == 2
    wait_for(lambda: lines(namespace, "ticker") > before, "the ticker to tick on")
    assert restarts(namespace, "ticker") == 0


@pytest.mark.own
def test_a_full_disk_takes_no_byte_more_and_its_node_evicts_pods(namespace: Namespace, kubernetes: Kubernetes) -> None:
    namespace.create(pod("sleeper", python(SLEEPER), **on(NODE)))
    namespace.wait_for_phase("sleeper", "Running")
    with breaking.full_disk(kubernetes, NODE):
        with pytest.raises(ToolError, match="No space left on device"):
            breaking.own(kubernetes).machine(NODE).run("dd", "if=/dev/zero", "of=/var/lib/more", "bs=1M", "count=16")
        wait_for(lambda: kubernetes.condition(NODE, "DiskPressure") == "True", "the node to be under pressure")
        wait_for(lambda: namespace.phase("sleeper") == "Failed", "the sleeper to be evicted")
    breaking.own(kubernetes).machine(NODE).run("rm", "/var/lib/more")
    assert namespace.pod("sleeper")["status"]["reason"] == "Evicted"


@pytest.mark.own
def test_a_drained_node_is_empty_and_takes_nothing_until_it_is_back(
    namespace: Namespace, kubernetes: Kubernetes
) -> None:
    namespace.create(pod("sleeper", python(SLEEPER), **on(NODE)))
    namespace.wait_for_phase("sleeper", "Running")
    with breaking.drained(kubernetes, NODE):
        wait_for(lambda: not namespace.get("pods")["items"], "the node to be empty")
        namespace.create(pod("next", python("print('in')"), **on(NODE)))
        wait_for(lambda: namespace.get("events", "--field-selector=reason=FailedScheduling")["items"], "a refusal")
    namespace.wait_for_phase("next", "Succeeded")


@pytest.mark.own
@pytest.mark.parametrize("way", ["cordoned", "tainted"])
def test_a_node_that_is_closed_takes_no_new_pod_and_keeps_those_it_has(
    namespace: Namespace, kubernetes: Kubernetes, way: str
) -> None:
    namespace.create(pod("sleeper", python(SLEEPER), **on(NODE)))
    namespace.wait_for_phase("sleeper", "Running")
    closed = breaking.cordoned(kubernetes, NODE)
    if way == "tainted":
        closed = breaking.tainted(kubernetes, NODE, "pumasi.test/closed=yes:NoSchedule")
    with closed:
        namespace.create(pod("next", python("print('in')"), **on(NODE)))
        wait_for(lambda: namespace.get("events", "--field-selector=reason=FailedScheduling")["items"], "a refusal")
        assert namespace.phase("sleeper") == "Running"
    namespace.wait_for_phase("next", "Succeeded")


def test_an_evicted_pod_is_gone(namespace: Namespace) -> None:
    namespace.create(pod("sleeper", python(SLEEPER)))
    namespace.wait_for_phase("sleeper", "Running")
    breaking.evict(namespace, "sleeper")
    wait_for(lambda: not namespace.get("pods")["items"], "the pod to go")


@pytest.mark.own
def test_a_killed_pod_fails_with_the_signal(namespace: Namespace) -> None:
    namespace.create(pod("sleeper", python(SLEEPER, resources=gpus(1))))
    namespace.wait_for_phase("sleeper", "Running")
    breaking.kill_pod(namespace, "sleeper")
    namespace.wait_for_phase("sleeper", "Failed")
    [container] = namespace.pod("sleeper")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 137
