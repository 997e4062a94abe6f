"""What `pumasi render` and `pumasi run --dry-run` write, in front of a real cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from pumasi.pools.kubernetes.rendering import INDEX_LABEL
from tests.cluster.objects import SLEEPER, gpus, on, pod, python
from tests.cluster.place import Place
from tests.cluster.subject import Namespace
from tests.harness import Workplace, wait_for

HELLO = """
import os
print("rank", os.environ["PUMASI_RANK"], "of", os.environ["WORLD_SIZE"], "in", os.environ["PUMASI_NODE"])
"""
MEETING = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", address[1])) as server:
        print("met", sorted(server.accept()[0].recv(9).decode() for _ in range(world - 1)))
else:
    deadline = time.monotonic() + 100
    while True:
        try:
            socket.create_connection(address, 5).sendall(str(rank).encode())
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
"""
FAILING = """
import os, sys, time
print("begun", flush=True)
if os.environ["PUMASI_RANK"] == "1":
    time.sleep(2)  # the others have begun by then, however slow the machine
    sys.exit("no way")
time.sleep(600)
"""
SMALL = ("--cpus", "0.1", "--grace", "2s")


def render(workplace: Workplace, script: str, *words: str) -> str:
    workplace.script(script)
    told = workplace.run("render", *SMALL, *words, "train.py")
    assert told.returncode == 0, told.stderr
    return told.stdout


def job_ends(namespace: Namespace, seconds: float = 120) -> str:
    """How the Job ended."""

    def ended() -> list[str]:
        conditions = namespace.get("job", "train")["status"].get("conditions", [])
        return [each["type"] for each in conditions if each["type"] in ("Complete", "Failed")]

    found: list[str] = wait_for(ended, "the end of the Job", seconds)
    return found[0]


def output(namespace: Namespace) -> list[str]:
    """What the ranks wrote, without the agents' numbers."""
    text = namespace.kubectl("logs", "-l", "batch.kubernetes.io/job-name=train", "--tail=-1")
    return sorted(re.findall(r"^\d+\.\d+ \d{13}[|:](.*)$", text, re.MULTILINE))


def pods(namespace: Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = namespace.get("pods", "-l", "batch.kubernetes.io/job-name=train")["items"]
    return found


def spread() -> tuple[str, ...]:
    """No two pods on one node."""
    match = {"matchLabels": {"pumasi.dev/run": "train"}}
    rule = {"topologyKey": "kubernetes.io/hostname", "labelSelector": match}
    terms = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}
    return ("--set", f"spec.affinity={json.dumps(terms)}")


def test_a_rendered_file_runs_every_rank_once_and_completes(namespace: Namespace, workplace: Workplace) -> None:
    text = render(workplace, HELLO, "--slots", "3", "--pods", "3")
    namespace.kubectl("apply", "-f", "-", feed=text)
    assert job_ends(namespace) == "Complete"
    nodes = {int(each["metadata"]["labels"][INDEX_LABEL]): each["spec"]["nodeName"] for each in pods(namespace)}
    assert output(namespace) == [f"rank {number} of 3 in {nodes[number]}" for number in range(3)]
    namespace.kubectl("delete", "-f", "-", feed=text)
    assert "train" not in namespace.kubectl("get", "jobs,services,secrets", "-o", "name")


def test_ranks_of_two_nodes_meet_at_the_address_that_they_are_told(namespace: Namespace, workplace: Workplace) -> None:
    text = render(workplace, MEETING, "--slots", "4", "--pods", "2", "-n", namespace.name, *spread())
    namespace.cluster.kubectl("apply", "-f", "-", feed=text)
    assert job_ends(namespace) == "Complete"
    assert output(namespace) == ["met ['1', '2', '3']"]
    assert len({each["spec"]["nodeName"] for each in pods(namespace)}) == 2


def test_a_rank_that_fails_ends_all_and_the_job(namespace: Namespace, workplace: Workplace) -> None:
    namespace.kubectl("apply", "-f", "-", feed=render(workplace, FAILING, "--slots", "3"))
    assert job_ends(namespace) == "Failed"
    # Kubernetes deletes pods of a Job that has failed, if they have not ended before by themselves.
    wait_for(lambda: {each["status"]["phase"] for each in pods(namespace)} == {"Failed"}, "the end of all pods")
    assert "no way" in output(namespace)


def test_a_gang_with_restarts_is_started_again_as_a_whole(namespace: Namespace, workplace: Workplace) -> None:
    namespace.kubectl("apply", "-f", "-", feed=render(workplace, FAILING, "--slots", "2", "--restarts", "1"))
    assert job_ends(namespace, 180) == "Failed"
    assert output(namespace).count("no way") == 2


def test_large_code_is_taken_by_a_server_side_apply(namespace: Namespace, workplace: Workplace) -> None:
    (workplace.folder / "weights.bin").write_bytes(random_bytes(1_500_000))
    text = render(workplace, "import os; print(os.path.getsize('weights.bin'))")
    assert "apply --server-side" in text
    namespace.kubectl("apply", "--server-side", "-f", "-", feed=text)
    assert job_ends(namespace) == "Complete"
    assert output(namespace) == ["1500000"]


def random_bytes(count: int) -> bytes:
    """The same every time, and hardly to be compressed."""
    import random

    return random.Random(1).randbytes(count)


# ---- run --dry-run


@pytest.mark.own
def test_a_dry_run_shows_what_would_be_made_and_makes_nothing(namespace: Namespace, workplace: Workplace) -> None:
    place = Place(workplace, namespace)
    place.script(HELLO)
    before = namespace.kubectl("get", "jobs,configmaps,secrets,services,pods", "-o", "name")
    told = place.train("--gpus", "6", "--dry-run", "--json", "train.py")
    objects = json.loads(told.stdout)
    kinds = [each["kind"] for each in objects]
    assert kinds == ["Job", "ConfigMap", "Secret", "Secret", "Pod", "Pod"]
    shares = {pinned_to(each): each["spec"]["containers"][0]["resources"]["limits"] for each in objects[-2:]}
    assert {node: limits["nvidia.com/gpu"] for node, limits in shares.items()} == {"node-1": "1", "node-0": "5"}
    code, secret = (each["stringData"] for each in objects if each["kind"] == "Secret")
    assert secret == {"secret": "(given when it is made)"}
    shown = place.train("--gpus", "6", "--dry-run", "train.py")
    assert [each["kind"] for each in yaml.safe_load_all(shown.stdout)] == kinds
    assert len(shown.stdout) < 20_000
    assert code["code0"] not in shown.stdout
    assert namespace.kubectl("get", "jobs,configmaps,secrets,services,pods", "-o", "name") == before
    assert not workplace.runs()


def pinned_to(thing: dict[str, Any]) -> str:
    rule = thing["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = rule["nodeSelectorTerms"]
    (node,) = term["matchFields"][0]["values"]
    return str(node)


@pytest.mark.own
def test_a_dry_run_of_what_does_not_fit_says_so(namespace: Namespace, workplace: Workplace) -> None:
    place = Place(workplace, namespace)
    place.script(HELLO)
    never = place.run("--gpus", "11", "--dry-run", "train.py")
    assert (never.returncode, never.stdout) == (2, "")
    assert "11 slots do not fit" in never.stderr
    namespace.create(pod("holder", python(SLEEPER, resources=gpus(4)), **on("node-0")))
    namespace.wait_for_phase("holder", "Running")
    busy = place.run("--gpus", "7", "--dry-run", "train.py")
    assert (busy.returncode, busy.stdout) == (2, "")
    assert "would wait" in busy.stderr
