"""Clusters come and go, and leave nothing behind, whatever happens to them or to those who hold them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.owning import session_name
from tests.cluster.traces import Traces
from tests.harness import wait_for
from tools.cluster.blueprint import GPU
from tools.cluster.cluster import Cluster
from tools.common import CHECKOUT, CLUSTERS, locked

pytestmark = pytest.mark.own

NAME = f"{session_name()}-life"


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tools.cluster", *words, "--name", NAME]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=CHECKOUT, capture_output=True, text=True, timeout=200)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    call("down")
    before = Traces.seen(NAME)
    yield
    down = call("down")
    assert down.returncode == 0, down.stderr
    before.must_be_all()


def test_a_cluster_is_what_was_asked_for_and_can_be_asked_for_again() -> None:
    gates = "GenericWorkload=true"
    up = call("up", "--gpus", "4", "--simulated", "20", "--feature-gates", gates)
    assert up.returncode == 0, up.stderr
    cluster = Cluster(NAME)
    assert f"export KUBECONFIG={cluster.kubeconfig}" in up.stdout
    nodes = {
        each["metadata"]["name"]: each for each in json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    }
    gpus = {name: node["status"]["allocatable"][GPU] for name, node in nodes.items()}
    assert gpus == {"node-0": "4", **{f"simulated-{index}": "8" for index in range(20)}}
    for metrics in ("/metrics", "/api/v1/nodes/node-0/proxy/metrics"):
        assert 'name="GenericWorkload",stage="ALPHA"} 1' in cluster.kubectl("get", "--raw", metrics)
    assert "workloads" in cluster.kubectl("api-resources", "-o", "name")

    again = call("up", "--gpus", "4", "--simulated", "20", "--feature-gates", gates)
    assert again.returncode == 0
    assert "is up already" in again.stderr
    other = call("up", "--gpus", "1,1")
    assert other.returncode == 1
    assert "with other settings" in other.stderr
    assert "Traceback" not in other.stderr


def test_a_cluster_whose_maker_is_killed_at_any_moment_is_taken_down_without_a_trace() -> None:
    stages = [
        "keys/ca.crt",
        "index",
        "logs/init-control.log",
        "logs/kube-apiserver-control.log",
        "logs/kubelet-node-0.log",
    ]
    for stage in stages:
        before = Traces.seen(NAME)
        maker = subprocess.Popen(command("up", "--gpus", "1"), cwd=CHECKOUT, stderr=subprocess.DEVNULL)
        wait_for((CLUSTERS / NAME / stage).exists, f"{stage} to be there")
        maker.kill()
        maker.wait()
        assert Cluster(NAME).down()
        before.must_be_all()


def test_a_cluster_that_was_killed_itself_is_cleared_away_by_the_next_one() -> None:
    maker = subprocess.Popen(command("up", "--gpus", "1"), cwd=CHECKOUT, stderr=subprocess.DEVNULL)
    wait_for((CLUSTERS / NAME / "logs" / "kubelet-node-0.log").exists, "the first node")
    os.kill(Cluster(NAME).control.pid, signal.SIGKILL)
    maker.kill()
    maker.wait()
    up = call("up", "--gpus", "2")
    assert up.returncode == 0, up.stderr
    assert Cluster(NAME).blueprint.gpus == (2,)


def test_a_maker_that_is_interrupted_twice_takes_away_what_it_has_made() -> None:
    before = Traces.seen(NAME)
    maker = subprocess.Popen(
        command("up", "--gpus", "1"),
        cwd=CHECKOUT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_for((CLUSTERS / NAME / "logs" / "kube-apiserver-control.log").exists, "the API server")
    words = maker.stderr
    assert words
    maker.send_signal(signal.SIGINT)
    wait_for(lambda: "taking it down" in words.readline(), "the first to be heard")
    maker.send_signal(signal.SIGINT)
    _, complaint = maker.communicate(timeout=60)
    assert maker.returncode == 130
    assert complaint.endswith("cluster: stopped\n")
    before.must_be_all()


def test_the_cluster_of_a_test_session_ends_with_the_session_however_that_ends() -> None:
    """Whoever holds it is killed with -9; its keeper does the rest."""
    holder = f"""
import sys, time
from tests.cluster.owning import own_cluster
from tools.cluster.blueprint import Blueprint
with own_cluster(Blueprint({NAME!r}, (1,))):
    print("up", flush=True)
    time.sleep(600)
"""
    before = Traces.seen(NAME)
    process = subprocess.Popen(
        [sys.executable, "-c", holder], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.communicate()
    wait_for(lambda: not (CLUSTERS / NAME).exists(), "the keeper to take it down")
    with locked(f"{NAME}.session", 60):
        before.must_be_all()
