"""Who holds what a run waits for, in the words that people read."""

from __future__ import annotations

from typing import Any

import pytest

from pumasi.pools.kubernetes.holding import Shortfall, Use, scarce, uses, waiting, words
from pumasi.pools.kubernetes.manifests import RUN, USER_NOTE

GPU = "nvidia.com/gpu"
NOW = 1763287200.0
MINUTE_AGO = "2025-11-16T09:59:00Z"


def pod(name: str, node: str, gpus: int, run: str = "", user: str = "", namespace: str = "team") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2025-11-16T09:48:00Z"}
    labels = {"labels": {RUN: run}} if run else {}
    notes = {"annotations": {USER_NOTE: user}} if user else {}
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus), "cpu": "500m"}}}
    return {
        "metadata": {**metadata, **labels, **notes},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", **({"startTime": MINUTE_AGO} if node == "n2" else {})},
    }


def test_the_pods_of_a_run_are_one_holder_since_the_first_of_them_and_others_are_named_each() -> None:
    pods = [
        pod("a-0", "n1", 3, "train-a", "kim"),
        pod("a-1", "n2", 2, "train-a", "kim"),
        pod("notebook", "n1", 1),
        pod("b-0", "n2", 4, "train-b", namespace="other"),
        pod("far-0", "n9", 8, "train-far"),
        pod("web", "n1", 0),
    ]
    assert uses(pods, GPU, {"n1", "n2"}, "team") == [
        Use("train-a", "kim", 5.0, NOW - 720),
        Use("other/train-b", "", 4.0, NOW - 60),
        Use("team/notebook", "", 1.0, NOW - 720),
    ]


def test_a_name_on_a_pod_cannot_steer_the_terminal_or_fill_it() -> None:
    hostile = pod("a-0", "n1", 1, "train-a", "\x1b]0;root\x07\n\x9b2J\u202e" + "k" * 1000)
    (use,) = uses([hostile], GPU, {"n1"}, "team")
    assert use.user.isprintable()
    assert len(use.user) == 60


def test_who_waits_reads_who_holds_what_for_how_long_and_how_many_are_before_it() -> None:
    held = [Use("train-a", "kim", 5, NOW - 720), Use("other/train-b", "", 5, NOW - 30)]
    short = Shortfall(5, 0, held, before=3)
    assert waiting(short, GPU, NOW) == (
        "for 5 GPUs: 5 in use by train-a (kim, 12 min), 5 by other/train-b (30 s); 3 runs before this one."
    )
    assert waiting(short, GPU) == "for 5 GPUs: 5 in use by train-a (kim), 5 by other/train-b; 3 runs before this one."
    assert words(short, GPU) == "5 GPUs in use by train-a (kim), 5 by other/train-b; 3 runs before this one"


def test_at_most_five_are_named() -> None:
    held = [Use(f"run-{number}", "", 1, 0.0) for number in range(8)]
    assert words(Shortfall(2, 1, held), GPU) == (
        "1 GPU in use by run-0, 1 by run-1, 1 by run-2, 1 by run-3, 1 by run-4, and 3 more"
    )


def test_what_is_free_kept_or_out_of_use_is_told_too() -> None:
    out = {"node-1": "it was lost a moment ago", "node-2": "taint node.kubernetes.io/disk-pressure:NoSchedule"}
    short = Shortfall(6, 2, [], kept=3, out=out, before=1)
    assert waiting(short, GPU) == (
        "for 6 GPUs (2 free): 3 kept for older runs; node-1: it was lost a moment ago; "
        "node-2: taint node.kubernetes.io/disk-pressure:NoSchedule; 1 run before this one."
    )
    assert waiting(Shortfall(1, 0, []), GPU) == "for 1 GPU."


def test_slots_without_gpus_lack_cpus_or_memory() -> None:
    held = [Use("train-a", "", 7.5, 0.0), Use("team/web", "", 0.25, 0.0)]
    assert (
        waiting(Shortfall(8, 1, held), "cpu") == "for 8 slots (1 free): 7.5 CPUs in use by train-a, 0.25 by team/web."
    )
    much = [Use("train-a", "", 2.0**34, 0.0)]
    assert waiting(Shortfall(1, 0, much), "memory") == "for 1 slot: 16 GiB memory in use by train-a."


@pytest.mark.parametrize(
    ("needs", "resource"),
    [
        ({"cpu": 1.0, GPU: 1.0}, GPU),
        ({"cpu": 1.0, "memory": 1e9}, "cpu"),
        ({"memory": 1e9}, "memory"),
        ({"amd.com/gpu": 1.0}, "amd.com/gpu"),
    ],
)
def test_what_people_ask_for_is_what_is_told(needs: dict[str, float], resource: str) -> None:
    assert scarce(needs) == resource
