"""What is free, seen from the command line, is what the cluster's own scheduler sees."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import breaking
from tests.cluster.objects import SLEEPER, gpus, on, pod, python
from tests.cluster.subject import Kubernetes, Namespace
from tests.harness import Workplace

pytestmark = pytest.mark.own


def pumasi(workplace: Workplace, kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return workplace.run(*words, env={"KUBECONFIG": str(kubeconfig)})


def seen(workplace: Workplace, kubernetes: Kubernetes) -> dict[str, dict[str, Any]]:
    told = pumasi(workplace, kubernetes.kubeconfig, "nodes", "--on", "k8s", "--json")
    assert told.returncode == 0, told.stderr
    return {node["name"]: node for node in json.loads(told.stdout)}


def free(workplace: Workplace, kubernetes: Kubernetes) -> list[int]:
    return [node["free"] for node in seen(workplace, kubernetes).values()]


def test_gpus_are_free_until_a_pod_is_bound_and_again_when_it_has_ended(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    assert free(workplace, kubernetes) == [5, 3, 2]
    namespace.create(
        pod("holder", python(SLEEPER, resources=gpus(4)), **on("node-0")),
        pod("passer", python("print('by')", resources=gpus(1)), **on("node-1")),
    )
    namespace.wait_for_phase("holder", "Running")
    namespace.wait_for_phase("passer", "Succeeded")
    assert free(workplace, kubernetes) == [1, 3, 2]
    holders = seen(workplace, kubernetes)["node-0"]["holders"]
    assert holders == [{"namespace": namespace.name, "pod": "holder", "amount": 4}]
    table = pumasi(workplace, kubernetes.kubeconfig, "nodes", "--on", "k8s")
    assert f"{namespace.name}/holder (4)" in table.stdout
    assert "6 of 10 nvidia.com/gpu are free." in table.stderr


def test_nodes_that_are_out_have_nothing_free_and_the_plan_goes_round_them(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    with breaking.cordoned(kubernetes, "node-0"), breaking.tainted(kubernetes, "node-2", "a=b:NoSchedule"):
        told = seen(workplace, kubernetes)
        assert [node["out"] for node in told.values()] == ["cordoned", "", "taint a=b:NoSchedule"]
        assert [node["free"] for node in told.values()] == [0, 3, 0]
        plan = ("plan", "--on", "k8s", "--explain", "--gpus")
        fits = pumasi(workplace, kubernetes.kubeconfig, *plan, "3")
        assert fits.stdout.startswith("[3]")
        assert "node-0 is left out: cordoned." in fits.stdout
        too_many = pumasi(workplace, kubernetes.kubeconfig, *plan, "6")
        assert too_many.returncode == 2
        assert "3 are missing" in too_many.stderr
    assert free(workplace, kubernetes) == [5, 3, 2]


def test_who_may_not_list_nodes_is_told_so_and_who_is_not_known_too(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    namespace.kubectl("create", "serviceaccount", "stranger")
    token = namespace.kubectl("create", "token", "stranger").strip()
    for secret, sentence in ((token, "cannot list resource"), ("wrong", "does not know who you are")):
        config = json.loads(kubernetes.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": secret}
        file = workplace.folder / "kubeconfig"
        file.write_text(json.dumps(config))
        told = pumasi(workplace, file, "nodes", "--on", "k8s")
        assert told.returncode == 7
        assert sentence in told.stderr


def test_a_program_may_know_the_token(namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace) -> None:
    config = json.loads(kubernetes.kubeconfig.read_text())
    answer = json.dumps({"status": {"token": config["users"][0]["user"]["token"]}})
    helper = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer]}
    config["users"][0]["user"] = {"exec": helper}
    file = workplace.folder / "kubeconfig"
    file.write_text(json.dumps(config))
    assert pumasi(workplace, file, "nodes", "--on", "k8s").returncode == 0
    config["users"][0]["user"] = {"exec": {**helper, "command": "no-such-program", "installHint": "Get it."}}
    file.write_text(json.dumps(config))
    told = pumasi(workplace, file, "nodes", "--on", "k8s")
    assert told.returncode == 7
    assert "Get it." in told.stderr


def test_a_cluster_that_does_not_answer_is_told_within_a_deadline(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    with breaking.killed(kubernetes, "control", "kube-apiserver"):
        told = pumasi(workplace, kubernetes.kubeconfig, "nodes", "--on", "k8s")
        assert told.returncode == 7
        assert "can't be reached" in told.stderr
