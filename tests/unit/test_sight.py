"""What the objects of a gang's pods say, told apart as the cluster writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumasi.core.endings import outcome_of
from pumasi.core.outcome import Verdict
from pumasi.kube import sight
from pumasi.kube.manifests import INDEX

NODES = ("node-0", "node-1")


def pod(number: int, state: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    container = {"name": "main", "state": state or {"running": {}}}
    return {
        "metadata": {"name": f"run-main-0-{number}", "labels": {INDEX: str(number)}},
        "spec": {"nodeName": f"node-{number}", "containers": [{"name": "main", "image": "python:3.12-slim"}]},
        "status": {"phase": "Running", "containerStatuses": [container], **status},
    }


def ended(number: int, code: int, last_words: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": "Error", **more}
    if last_words is not None:
        terminated["message"] = json.dumps(last_words)
    return pod(number, {"terminated": terminated})


def verdict(*pods: dict[str, Any], told: dict[str, Any] | None = None, asked: bool = False) -> tuple[Verdict, str]:
    facts = sight.verdict_on([sight.see(each) for each in pods], told, asked)
    outcome = outcome_of(facts, NODES, 2)
    return outcome.verdict, outcome.reason


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API"}


def test_a_member_that_went_without_a_word_was_killed_and_one_that_had_words_was_cut_off() -> None:
    silent = {"cause": "silent", "node": 1}
    killed = verdict(ended(0, 1, silent), ended(1, 137), told=silent)
    assert killed == (Verdict.LOST, "Node node-1 was lost: its agent was killed.")
    cut = verdict(ended(0, 1, silent), ended(1, 1, {"cause": "hub lost"}), told=silent)
    assert cut == (Verdict.LOST, "The pod on node-1 was cut off from the others.")


def test_a_chief_that_went_without_a_word_was_killed_whatever_the_others_saw() -> None:
    seen = verdict(ended(0, 137), ended(1, 1, {"cause": "hub lost"}), told={"cause": "hub lost"})
    assert seen == (Verdict.LOST, "Node node-0 was lost: its agent was killed.")


def test_what_the_cluster_did_to_a_pod_outranks_what_the_others_make_of_it() -> None:
    gone = {**pod(1), "status": {"phase": "Failed", "conditions": [DISRUPTED]}}
    facts = sight.verdict_on([sight.see(ended(0, 1)), sight.see(gone)], {"cause": "silent", "node": 1}, False)
    assert facts["reason"] == "The pod on node-1 was evicted: Eviction API."
    assert facts["spends"] is False


def test_a_gang_that_was_done_is_done_whatever_happened_to_its_pods() -> None:
    gone = {**pod(1), "status": {"phase": "Failed", "conditions": [DISRUPTED]}}
    assert verdict(ended(0, 0), gone, told={"cause": "done"})[0] is Verdict.DONE


def test_a_member_on_a_node_that_does_not_answer_is_lost_with_it() -> None:
    seen = verdict(ended(0, 1), pod(1), told={"cause": "silent", "node": 1})
    assert seen == (Verdict.LOST, "The pod on node-1 was lost: its node does not answer.")


def test_the_end_that_we_asked_for_is_no_failure_of_anybody() -> None:
    assert verdict(ended(0, 137), ended(1, 137), asked=True)[0] is Verdict.STOPPED
    failed = {"cause": "exit", "rank": 1, "node": 1, "code": 3, "tail": []}
    assert verdict(ended(0, 1), ended(1, 1), told=failed, asked=True)[0] is Verdict.FAILED


@pytest.mark.parametrize(
    ("said", "hopeless"),
    [
        (
            "exceeded quota: few, requested: requests.nvidia.com/gpu=5, used: x=0, limited: requests.nvidia.com/gpu=4",
            True,
        ),
        (
            "exceeded quota: few, requested: requests.nvidia.com/gpu=5, used: x=3, limited: requests.nvidia.com/gpu=6",
            False,
        ),
        ('violates PodSecurity "restricted:latest"', True),
    ],
)
def test_a_quota_that_others_use_may_be_waited_for(said: str, hopeless: bool) -> None:
    assert sight.rejection(said).hopeless is hopeless


def test_a_pod_that_is_late_is_named_with_what_the_cluster_says_about_it() -> None:
    late = pod(1, {"waiting": {"reason": "ContainerCreating"}})
    event = {"message": 'MountVolume.SetUp failed: configmap "nothing" not found'}
    with_event = sight.lateness(sight.see(late), late, [event])
    assert with_event == 'the pod on node-1 did not start: MountVolume.SetUp failed: configmap "nothing" not found'
    assert sight.lateness(sight.see(late), late, []) == "the pod on node-1 did not start: ContainerCreating"
    told = outcome_of({"cause": "late", "who": with_event}, NODES, 2)
    assert (told.verdict, told.node, told.rank) == (Verdict.LOST, None, None)


def test_a_container_that_a_dying_node_did_not_get_to_start_is_tried_again() -> None:
    stopped = {"exitCode": 128, "reason": "StartError", "message": "failed to start containerd task: context canceled"}
    statuses = [{"name": "main", "state": {"terminated": stopped}}]
    broken = {**pod(1), "status": {"phase": "Failed", "containerStatuses": statuses}}
    refusal = sight.refusal(broken)
    assert refusal is not None
    assert not refusal.hopeless
    assert sight.broken_start(broken) is None
