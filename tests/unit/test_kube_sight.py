"""Pods as clusters show them, and what is made of each: who failed, who was taken away, and what will never be."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pumasi.core.endings import outcome_of
from pumasi.core.outcome import Verdict
from pumasi.pools.kubernetes import pod_facts
from pumasi.pools.kubernetes.manifests import INDEX
from pumasi.pools.kubernetes.pod_facts import Facts, Seen, see

IMAGE = "registry.example/team/train:1.4"
NODES = ("gpu-a", "gpu-b", "gpu-c")
Pod = dict[str, Any]

CONDITIONS = [
    {"type": "PodReadyToStartContainers", "status": "True"},
    {"type": "Initialized", "status": "True"},
    {"type": "Ready", "status": "True"},
    {"type": "ContainersReady", "status": "True"},
    {"type": "PodScheduled", "status": "True"},
]


def pod(number: int = 0, phase: str = "Running", state: Pod | None = None, **status: Any) -> Pod:
    """As `kubectl get pod -o json` shows it, without what nobody looks at."""
    container = {
        "name": "main",
        "image": IMAGE,
        "ready": phase == "Running",
        "restartCount": 0,
        "state": state if state is not None else {"running": {"startedAt": "2026-11-16T10:00:00Z"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"train-abcde-main-0-{number}", "namespace": "team", "labels": {INDEX: str(number)}},
        "spec": {"nodeName": NODES[number], "containers": [{"name": "main", "image": IMAGE}]},
        "status": {
            "phase": phase,
            "conditions": copy.deepcopy(CONDITIONS),
            "containerStatuses": [container],
            "qosClass": "Burstable",
            **status,
        },
    }


def ended(number: int, code: int, testament: Facts | None = None, reason: str = "", **status: Any) -> Pod:
    terminated = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
    if testament is not None:
        terminated["message"] = json.dumps(testament)
    return pod(number, "Failed" if code else "Succeeded", {"terminated": terminated}, **status)


def waiting(reason: str, message: str = "", number: int = 0) -> Pod:
    return pod(number, "Pending", {"waiting": {"reason": reason, **({"message": message} if message else {})}})


def unplaced(message: str) -> Pod:
    made = pod(0, "Pending")
    del made["spec"]["nodeName"], made["status"]["containerStatuses"]
    made["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    return made


def disrupted(made: Pod, reason: str, message: str) -> Pod:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    made["status"]["conditions"].append(condition)
    return deleted(made)


def deleted(made: Pod) -> Pod:
    made["metadata"] |= {"deletionTimestamp": "2026-11-16T10:00:30Z", "deletionGracePeriodSeconds": 27}
    return made


def verdict(*pods: Pod, told: Facts | None = None, asked: bool = False) -> tuple[Verdict, str]:
    outcome = outcome_of(pod_facts.verdict_on([see(each) for each in pods], told, asked), NODES, len(pods))
    return outcome.verdict, outcome.reason


# ---- one pod


def test_a_pod_that_waits_has_neither_started_nor_ended() -> None:
    seen = see(waiting("ContainerCreating"))
    assert (seen.started, seen.ended, seen.code, seen.testament) == (False, False, None, None)
    assert (seen.number, seen.name, seen.node) == (0, "train-abcde-main-0-0", "gpu-a")


def test_a_pod_without_a_node_and_without_a_status_can_be_seen() -> None:
    bare = {"metadata": {"name": "p", "labels": {INDEX: "3"}}, "spec": {"containers": [{"name": "main"}]}}
    assert see(bare) == Seen(3, "p", "", False, False, False, None, False, "", None)


def test_a_pod_that_runs_has_started() -> None:
    seen = see(pod(1))
    assert (seen.started, seen.ended, seen.deleting, seen.disruption) == (True, False, False, "")


def conditions(ready: str, reason: str = "", containers: str = "True") -> list[Pod]:
    about = {"type": "Ready", "status": ready, **({"reason": reason} if reason else {})}
    return [about, {"type": "ContainersReady", "status": containers}]


@pytest.mark.parametrize(
    ("made", "away"),
    [
        (pod(conditions=conditions("True")), False),
        (pod(conditions=conditions("False")), True),
        (pod(conditions=conditions("False", "ReadinessGatesNotReady")), False),
        (pod(conditions=conditions("False", "ContainersNotReady", "False")), False),
        (pod(conditions=[]), False),
    ],
)
def test_the_cluster_marks_the_pods_of_a_node_that_does_not_answer(made: Pod, away: bool) -> None:
    assert see(made).away is see(made).is_lost is away


def test_a_pod_that_has_ended_is_not_away_but_its_node_may_have_been() -> None:
    """The node came back, after the cluster had given up its pods."""
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint"}
    seen = see(ended(0, 143, conditions=[*conditions("False"), taken]))
    assert not seen.away
    assert seen.is_lost


def test_a_pod_that_succeeded_has_ended_with_0() -> None:
    seen = see(ended(0, 0, {"cause": "done"}))
    assert (seen.started, seen.ended, seen.code, seen.testament) == (True, True, 0, {"cause": "done"})


def test_what_the_agent_left_behind_is_read_and_anything_else_is_not() -> None:
    testament = {"cause": "exit", "rank": 1, "node": 1, "code": 3, "tail": []}
    assert see(ended(0, 1, testament)).testament == testament
    for message in ("", "Traceback", "[1]", '{"torn": ', '{"other": 1}', "null"):
        made = ended(0, 1)
        made["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = message
        assert see(made).testament is None


def test_a_sidecar_of_others_is_not_mistaken_for_the_agent() -> None:
    made = pod()
    sidecar = {"name": "istio-proxy", "state": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}}}
    made["status"]["containerStatuses"].insert(0, sidecar)
    seen = see(made)
    assert (seen.started, seen.ended, seen.oom) == (True, False, False)


def test_a_pod_that_its_node_has_given_up_has_ended_though_its_container_has_not() -> None:
    made = pod(0, "Failed", {"waiting": {"reason": "ContainerCreating"}}, reason="Evicted", message="The node was low.")
    seen = see(made)
    assert (seen.started, seen.ended, seen.code) == (False, True, None)


# ---- what the cluster took away


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (ended(1, 137), ""),
        (
            pod(
                1,
                "Failed",
                {},
                reason="Evicted",
                message="The node was low on resource: memory. Threshold quantity: 100Mi, available: 92Mi. ",
            ),
            "was evicted: The node was low on resource: memory. Threshold quantity: 100Mi, available: 92Mi",
        ),
        (
            disrupted(
                pod(1), "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"
            ),
            "was displaced by a pod of a higher priority: "
            "default-scheduler: preempting to accommodate a higher priority pod",
        ),
        (
            disrupted(pod(1), "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
            "was lost: its node can't be reached, or sends its pods away: "
            "Taint manager: deleting due to NoExecute taint",
        ),
        (
            disrupted(pod(1), "DeletionByPodGC", "PodGC: node no longer exists"),
            "was lost with its node: PodGC: node no longer exists",
        ),
        (
            disrupted(pod(1), "EvictionByEvictionAPI", "Eviction API: evicting"),
            "was evicted: Eviction API: evicting",
        ),
        (
            disrupted(pod(1), "TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."),
            "was ended by its node: Pod was terminated in response to imminent node shutdown",
        ),
        (pod(1, "Running", None, reason="NodeLost"), "was lost with its node"),
        (
            pod(1, "Failed", {"terminated": {"exitCode": 255, "reason": "Unknown"}}),
            "was lost: its node has restarted, or its container runtime has",
        ),
        (
            pod(1, "Failed", {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}),
            "was lost: its node has restarted, or its container runtime has",
        ),
        (deleted(pod(1)), ""),
    ],
)
def test_why_the_cluster_took_a_pod_away(made: Pod, words: str) -> None:
    assert see(made).disruption == words


def test_a_disruption_that_did_not_come_to_pass_is_none() -> None:
    made = pod()
    made["status"]["conditions"].append({"type": "DisruptionTarget", "status": "False", "reason": "Whatever"})
    assert see(made).disruption == ""


# ---- no place


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector. no new claims to "
            "deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod.",
            "of 3 nodes, 1 has too little nvidia.com/gpu free",
        ),
        ("2 Insufficient cpu, 1 Too many pods.", "of 3 nodes, 2 have too little cpu free, 1 has too many pods"),
        (
            "1 node(s) had untolerated taint {only: me}, 1 node(s) had untolerated taint {gone: }, "
            "1 node(s) were unschedulable. preemption: 0/3 nodes are available: 3 Preemption is not helpful.",
            "of 3 nodes, 1 has the taint only: me, 1 has the taint gone, 1 has been cordoned",
        ),
        ("3 node(s) had volume node affinity conflict.", "of 3 nodes, 3 had volume node affinity conflict"),
        (
            "3 node(s) didn't match Pod's node affinity/selector.",
            "it may go to none of 3 nodes (node selector, affinity)",
        ),
        ('persistentvolumeclaim "data" not found.', 'persistentvolumeclaim "data" not found'),
    ],
)
def test_what_the_scheduler_says_is_told_in_words(said: str, words: str) -> None:
    refusal = pod_facts.refusal(unplaced(f"0/3 nodes are available: {said}"))
    assert refusal is not None
    assert refusal.reason == f"The cluster's scheduler has no place for it: {words}."
    assert refusal.hopeless is ("not found" in said)


@pytest.mark.parametrize(
    "said",
    [
        '0/3 nodes are available: persistentvolumeclaim "data" not found. preemption: 0/3 nodes are available.',
        "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: not helpful.",
    ],
)
def test_a_claim_that_is_not_there_will_not_come_by_waiting(said: str) -> None:
    refusal = pod_facts.refusal(unplaced(said))
    assert refusal is not None
    assert refusal.hopeless
    assert "kubectl get pvc" in refusal.hint


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu, requested: 2, used: 3, capacity: 4"),
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 4000, used: 7000, capacity: 8000"),
        ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present; cannot allocate, unexpected"),
        ("NodeAffinity", "Predicate NodeAffinity failed"),
        ("TopologyAffinityError", "Resources cannot be allocated with Topology locality"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
    ],
)
def test_a_node_may_turn_away_what_the_scheduler_sent(reason: str, message: str) -> None:
    made = pod(1, "Failed", {}, reason=reason, message=message)
    refusal = pod_facts.refusal(made)
    assert refusal == pod_facts.Refusal(f"Node gpu-b turned it away: {message.rstrip('.')}.")


@pytest.mark.parametrize(
    "made",
    [pod(), ended(0, 1), waiting("ContainerCreating"), pod(0, "Failed", {}, reason="Evicted", message="Low.")],
)
def test_a_pod_that_has_a_place_is_not_refused(made: Pod) -> None:
    assert pod_facts.refusal(made) is None


@pytest.mark.parametrize(
    ("said", "reason", "hopeless"),
    [
        (
            'pods "train-abcde-main-0-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, '
            "used: requests.nvidia.com/gpu=6, limited: requests.nvidia.com/gpu=6",
            "The quota gpus does not allow it: requested requests.nvidia.com/gpu=2, "
            "limited to requests.nvidia.com/gpu=6.",
            False,
        ),
        (
            'pods "p" is forbidden: exceeded quota: small, requested: memory=40Gi,pods=1, used: memory=0,pods=0, '
            "limited: memory=32Gi,pods=10",
            "The quota small does not allow it: requested memory=40Gi,pods=1, limited to memory=32Gi,pods=10.",
            True,
        ),
        (
            'pods "p" is forbidden: exceeded quota: small, requested: requests.cpu=2500m, used: requests.cpu=1, '
            "limited: requests.cpu=3",
            "The quota small does not allow it: requested requests.cpu=2500m, limited to requests.cpu=3.",
            False,
        ),
        (
            'pods "p" is forbidden: failed quota: strict: must specify limits.memory for: main',
            'The cluster does not take the pods: pods "p" is forbidden: failed quota: strict: '
            "must specify limits.memory for: main.",
            True,
        ),
        (
            'pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            'The cluster does not take the pods: pods "p" is forbidden: violates PodSecurity "restricted:latest": '
            "runAsNonRoot != true.",
            True,
        ),
        (
            'pods "p" is forbidden: no PriorityClass with name nosuch was found',
            "The cluster has no priority class nosuch.",
            True,
        ),
    ],
)
def test_what_the_api_does_not_take_may_be_taken_later_or_never(said: str, reason: str, hopeless: bool) -> None:
    refusal = pod_facts.rejection(said)
    assert (refusal.reason, refusal.hopeless) == (reason, hopeless)
    assert bool(refusal.hint) is hopeless


def test_a_hint_begins_its_line_for_kubectl_as_it_is_told_to() -> None:
    quota = "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0"
    begin = "kubectl --context lab -n team"
    assert pod_facts.rejection(quota, kubectl=begin).hint.endswith(f": {begin} describe quota")
    missing = unplaced('0/3 nodes are available: persistentvolumeclaim "data" not found.')
    refused, hindered = pod_facts.refusal(missing, begin), pod_facts.hindrance(missing, begin)
    assert refused is not None
    assert refused.hint.endswith(f": {begin} get pvc")
    assert hindered is not None
    assert hindered.hint == refused.hint


def test_a_priority_class_that_is_not_there_is_told_with_where_to_find_one() -> None:
    hint = pod_facts.rejection('pods "p" is forbidden: no PriorityClass with name nosuch was found').hint
    assert hint == "--priority-class takes one of those that `kubectl get priorityclasses` lists."


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        (
            "limits.memory for: main",
            "The quota mem wants to know how much is asked for: add --memory (as in --memory 4Gi).",
        ),
        ("requests.cpu for: main", "The quota mem wants to know how much is asked for: add --cpus (as in --cpus 1)."),
        (
            "limits.cpu for: main; requests.memory for: main",
            "The quota mem wants to know how much is asked for: add --memory (as in --memory 4Gi), and "
            "--cpus 1 and --set spec.containers[0].resources.limits.cpu=N (N for all slots of a pod).",
        ),
        ("limits.memory for: a", "--set can add what the quota mem wants each container to name."),
    ],
)
def test_a_quota_that_wants_an_amount_named_is_answered_with_the_option_that_names_it(missing: str, hint: str) -> None:
    said = f'pods "p" is forbidden: failed quota: mem: must specify {missing}'
    assert pod_facts.rejection(said, patched=False).hint == hint


@pytest.mark.parametrize(
    "said",
    [
        'Pod "p" is invalid: spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None',
        'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field',
    ],
)
def test_an_invalid_object_is_no_matter_for_an_administrator_but_for_who_set_it(said: str) -> None:
    assert pod_facts.rejection(said, patched=True).hint == "Check what --set changes: kubectl explain pod.spec"
    assert pod_facts.rejection(said, patched=False).hint == ""


def test_what_a_policy_forbids_an_administrator_can_allow() -> None:
    said = 'pods "p" is forbidden: ValidatingAdmissionPolicy "x" denied request: this is invalid: no'
    assert pod_facts.rejection(said, patched=True).hint.startswith("An administrator of the namespace can allow it")


# ---- init containers


def init_failed(**terminated: Any) -> Pod:
    state = {"terminated": {"exitCode": 3, "reason": "Error", **terminated}}
    made = pod(1, "Failed", {"waiting": {"reason": "PodInitializing"}})
    made["spec"]["initContainers"] = [{"name": "a", "image": IMAGE}]
    made["status"]["initContainerStatuses"] = [{"name": "a", "state": state}]
    return made


def test_an_init_container_that_fails_is_told_by_name_with_its_code_and_its_last_words() -> None:
    facts = pod_facts.failed_init(init_failed(message="no such\x1b bucket\n"))
    assert facts is not None
    outcome = outcome_of(facts, NODES, 2)
    assert (outcome.verdict, outcome.code) == (Verdict.FAILED, 3)
    assert outcome.reason == "The init container a of the pod on gpu-b failed, with exit code 3."
    assert len(outcome.tail) == 1
    assert "\x1b" not in outcome.tail[0]


def test_an_init_container_whose_memory_ran_out_is_told_as_that() -> None:
    facts = pod_facts.failed_init(init_failed(exitCode=137, reason="OOMKilled"))
    assert facts is not None
    assert facts["reason"] == "The init container a of the pod on gpu-b failed, because memory ran out."


def test_an_init_container_that_was_taken_away_or_runs_beside_has_not_failed() -> None:
    beside = init_failed()
    beside["spec"]["initContainers"][0]["restartPolicy"] = "Always"
    evicted = init_failed()
    evicted["status"] |= {"reason": "Evicted", "message": "The node was low on memory"}
    begun = init_failed()
    begun["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1}}
    unknown = init_failed(exitCode=137, reason="ContainerStatusUnknown")
    for made in (deleted(init_failed()), beside, evicted, begun, unknown, init_failed(exitCode=0)):
        assert pod_facts.failed_init(made) is None


def test_an_init_container_that_never_starts_is_told_with_its_image() -> None:
    made = init_failed()
    made["status"] |= {"phase": "Pending"}
    made["spec"]["initContainers"].append({"name": "b", "image": "tools:7"})
    waiting = {"reason": "ErrImageNeverPull", "message": "it is not here"}
    made["status"]["initContainerStatuses"] = [
        {"name": "a", "state": {"terminated": {"exitCode": 0}}},
        {"name": "b", "state": {"waiting": waiting}},
    ]
    facts = pod_facts.stuck(made, 0)
    assert facts is not None
    assert facts["reason"] == "The image tools:7 can't be pulled: it is not here."
    waiting["reason"] = "PodInitializing"
    assert pod_facts.stuck(made, 0) is None


# ---- containers that do not start

PULL = 'failed to pull and unpack image "registry.example/team/train:1.4": failed to resolve reference: '


@pytest.mark.parametrize(
    ("reason", "message", "pulls", "is_stuck"),
    [
        ("ErrImagePull", f"rpc error: {PULL}net/http: TLS handshake timeout", 1, False),
        ("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"', 1, False),
        ("ErrImagePull", f"rpc error: {PULL}net/http: TLS handshake timeout", 2, True),
        ("ErrImagePull", f"rpc error: {PULL}{IMAGE}: not found", 1, True),
        ("ErrImagePull", f"{PULL}pull access denied, repository does not exist", 1, True),
        ("ErrImagePull", f"{PULL}unexpected status from HEAD request: 401 Unauthorized", 1, True),
        ("ErrImagePull", f"{PULL}dial tcp: lookup registry.example: no such host", 1, True),
        ("InvalidImageName", "couldn't parse image name", 0, True),
        ("ErrImageNeverPull", f'Container image "{IMAGE}" is not present with pull policy of Never', 0, True),
        ("ContainerCreating", "", 0, False),
        ("PodInitializing", "", 0, False),
    ],
)
def test_an_image_that_may_still_come_and_one_that_will_not(
    reason: str, message: str, pulls: int, is_stuck: bool
) -> None:
    facts = pod_facts.stuck(waiting(reason, message, number=1), pulls)
    assert (facts is not None) is is_stuck
    if facts is not None:
        assert (facts["cause"], facts["verdict"], facts["node"]) == ("cluster", "failed", 1)
        assert facts["reason"] == f"The image {IMAGE} can't be pulled: {message}."
        assert "pull secret" in facts["hint"]


@pytest.mark.parametrize(
    ("reason", "message", "is_stuck"),
    [
        ("CreateContainerConfigError", 'secret "hub" not found', True),
        ("CreateContainerConfigError", "couldn't find key token in Secret team/hub", True),
        ("CreateContainerConfigError", "failed to sync configmap cache: timed out waiting for the condition", False),
        ("CreateContainerError", "context deadline exceeded", False),
        ("RunContainerError", "connection error: desc = transport: dial unix: connection refused", False),
        ("CreateContainerError", "failed to generate container spec: path /data is not shared", True),
        ("CrashLoopBackOff", "back-off 10s restarting failed container", False),
    ],
)
def test_a_container_whose_configuration_may_still_come_and_one_that_will_not(
    reason: str, message: str, is_stuck: bool
) -> None:
    facts = pod_facts.stuck(waiting(reason, message), 0)
    assert (facts is not None) is is_stuck
    if facts is not None:
        assert facts["reason"] == f"The container can't be started: {message}."
        assert facts["hint"] == ""


def test_what_a_restricted_namespace_refuses_is_not_answered_with_the_option_that_caused_it() -> None:
    said = 'pods "p" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
    assert pod_facts.rejection(said).hint.startswith("Without --as-image-user and --set, pods keep to the Pod Security")


def test_an_image_that_wants_to_be_root_is_told_what_to_do() -> None:
    said = "container has runAsNonRoot and image will run as root (pod: train, container: main)"
    facts = pod_facts.stuck(waiting("CreateContainerConfigError", said), 0)
    assert facts is not None
    assert facts["hint"] == "Without --as-image-user the container runs as user 1000."


@pytest.mark.parametrize(
    ("message", "reason", "hint"),
    [
        (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            'failed: unable to start container process: exec: "python3": executable file not found in $PATH: unknown',
            f"The image {IMAGE} has no python3.",
            True,
        ),
        (
            "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container "
            'process: exec: "/opt/bin/python": stat /opt/bin/python: no such file or directory: unknown',
            f"The image {IMAGE} has no /opt/bin/python.",
            True,
        ),
        (
            "failed to create shim task: OCI runtime create failed: permission denied: unknown.",
            "The container can't be started: failed to create shim task: OCI runtime create failed: "
            "permission denied: unknown.",
            False,
        ),
    ],
)
def test_a_container_that_ended_before_the_agent_was_there(message: str, reason: str, hint: bool) -> None:
    terminated = {"exitCode": 128, "reason": "StartError", "message": message}
    facts = pod_facts.broken_start(pod(0, "Failed", {"terminated": terminated}))
    assert facts is not None
    assert (facts["verdict"], facts["reason"], bool(facts["hint"])) == ("failed", reason, hint)


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        (
            "/no/python",
            "--python is the place of Python in the image, not on this machine; without it python3 is taken.",
        ),
        ("python3", "--image names one that has it (python:3.12-slim has), --python the place of it in the image."),
    ],
)
def test_a_python_that_is_not_in_the_image_is_told_with_the_option_that_names_it(program: str, hint: str) -> None:
    said = f'runc create failed: exec: "{program}": stat {program}: no such file or directory: unknown'
    broken = pod(0, "Failed", {"terminated": {"exitCode": 128, "reason": "StartError", "message": said}})
    facts = pod_facts.broken_start(broken)
    assert facts is not None
    assert facts["hint"] == hint


def test_a_container_that_a_dying_node_did_not_get_to_start_is_tried_again() -> None:
    stopped = {"exitCode": 128, "reason": "StartError", "message": "failed to start containerd task: context canceled"}
    broken = pod(1, "Failed", {"terminated": stopped})
    refusal = pod_facts.refusal(broken)
    assert refusal is not None
    assert not refusal.hopeless
    assert pod_facts.broken_start(broken) is None


# ---- managers that are not there

SETUP = "pumasi setup -n team"
RIGHTS = "`pumasi setup -n team` gives managers the rights that they need."


def of_manager(made: Pod, at: int = 0) -> Pod:
    made["metadata"] |= {"labels": {}, "creationTimestamp": f"2026-11-16T10:00:{at:02}Z"}
    return made


def failed(message: str, code: int = 7) -> Pod:
    return pod(0, "Failed", {"terminated": {"exitCode": code, "reason": "Error", "message": message}})


FORBIDDEN = 'configmaps "x" is forbidden: User "system:serviceaccount:team:pumasi-manager" cannot get it'


@pytest.mark.parametrize(
    ("made", "reason", "hint"),
    [
        (waiting("ImagePullBackOff", "not found."), f"The image {IMAGE} can't be pulled: not found.", "Check --image"),
        (unplaced("0/2 nodes are available."), "The cluster's scheduler has no place for it: 0/2 nodes", ""),
        (
            pod(
                0,
                "Failed",
                {"terminated": {"reason": "StartError", "message": 'exec: "python3": executable file not found'}},
            ),
            f"The image {IMAGE} has no python3.",
            "Managers run in the same --image, and need python3 there.",
        ),
        (failed(f"12.5 note {{}}\n{FORBIDDEN}.\n"), f"Its pod failed: {FORBIDDEN}.", RIGHTS),
        (failed("The manager needs Python 3.10.", 1), "Its pod failed: The manager needs Python 3.10.", ""),
        (failed("", 137), "Its pod failed: exit code 137.", ""),
    ],
)
def test_why_a_manager_is_not_there(made: Pod, reason: str, hint: str) -> None:
    why = pod_facts.absence([of_manager(made)], [], SETUP)
    assert why is not None
    assert why.reason.startswith(reason)
    assert why.hint.startswith(hint)
    assert bool(why.hint) is bool(hint)


def test_a_manager_that_starts_or_runs_or_is_done_is_not_missed() -> None:
    fine = [waiting("ContainerCreating"), pod(), ended(0, 0)]
    assert pod_facts.absence([of_manager(made) for made in fine], [], SETUP) is None
    assert pod_facts.absence([], [], SETUP) is None


def test_the_newest_pod_of_a_manager_that_tells_anything_is_believed() -> None:
    pods = [of_manager(failed("old"), 1), of_manager(failed("new"), 2), of_manager(waiting("ContainerCreating"), 3)]
    why = pod_facts.absence(pods, [], SETUP)
    assert why is not None
    assert why.reason == "Its pod failed: new."


@pytest.mark.parametrize(
    ("said", "reason", "hint"),
    [
        (
            'Error creating: pods "x-manager-" is forbidden: exceeded quota: few, requested: pods=1, used: pods=0, '
            "limited: pods=0",
            "The quota few does not allow it: requested pods=1, limited to pods=0.",
            "An administrator of the namespace can change that.",
        ),
        (
            'Error creating: pods "x-manager-" is forbidden: error looking up service account team/pumasi-manager: '
            'serviceaccount "pumasi-manager" not found',
            "The cluster does not take the pods: Error creating",
            RIGHTS,
        ),
    ],
)
def test_why_a_manager_has_no_pod(said: str, reason: str, hint: str) -> None:
    why = pod_facts.absence([], [{"message": "an old one"}, {"message": said}], SETUP)
    assert why is not None
    assert why.reason.startswith(reason)
    assert why.hint == hint


def test_a_pod_that_is_late_is_named_with_what_the_cluster_says_about_it() -> None:
    late = waiting("ContainerCreating", number=1)
    event = {"message": 'MountVolume.SetUp failed: configmap "nothing" not found'}
    with_event = pod_facts.lateness(see(late), late, [event])
    assert with_event == 'the pod on gpu-b did not start: MountVolume.SetUp failed: configmap "nothing" not found'
    assert pod_facts.lateness(see(late), late, []) == "the pod on gpu-b did not start: ContainerCreating"
    hostile = pod_facts.lateness(see(late), late, [{"message": "\x1b[2J\x07failed"}])
    assert hostile == "the pod on gpu-b did not start: [2J failed"
    told = outcome_of({"cause": "late", "who": with_event}, NODES, 2)
    assert (told.verdict, told.node, told.rank) == (Verdict.LOST, None, None)


def test_a_pod_that_no_scheduler_has_looked_at_is_late_because_of_the_one_that_it_names() -> None:
    late = pod()
    del late["spec"]["nodeName"]
    late["spec"]["schedulerName"] = "foo"
    late["status"] = {"phase": "Pending"}
    said = pod_facts.lateness(see(late), late, [])
    assert said == f"the pod {late['metadata']['name']} did not start: the scheduler foo has not answered"
    gated = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
    late["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", **gated}]
    assert pod_facts.lateness(see(late), late, []).endswith(
        " did not start: Scheduling is blocked due to non-empty scheduling gates"
    )
    late["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    assert pod_facts.lateness(see(late), late, []).endswith(" did not start")


@pytest.mark.parametrize("made", [pod(), ended(0, 1), ended(0, 0), waiting("ContainerCreating")])
def test_a_container_that_has_started_has_no_broken_start(made: Pod) -> None:
    assert pod_facts.broken_start(made) is None
    assert pod_facts.stuck(made, 0) is None


# ---- the gang

SILENT = {"cause": "silent", "node": 1}
EXIT = {"cause": "exit", "rank": 1, "node": 1, "code": 3, "tail": ["ValueError: no"]}
KILLED = {"cause": "signal", "rank": 1, "node": 1, "signal": "SIGKILL", "tail": ["epoch 3"]}


def test_the_chiefs_testament_stands_where_its_words_did_not_come() -> None:
    assert verdict(ended(0, 1, EXIT), ended(1, 1)) == (
        Verdict.FAILED,
        "Rank 1 on gpu-b failed first, with exit code 3.",
    )
    assert verdict(ended(0, 0, {"cause": "done"}), ended(1, 0))[0] is Verdict.DONE


@pytest.mark.parametrize(
    ("member", "told"),
    [
        (ended(1, 137, reason="OOMKilled"), SILENT),
        (ended(1, 1, KILLED, reason="OOMKilled"), KILLED),
        (ended(1, 137, reason="OOMKilled"), None),
    ],
)
def test_memory_that_ran_out_is_the_reason_whatever_the_agents_saw(member: Pod, told: Facts | None) -> None:
    outcome, reason = verdict(ended(0, 1, told), member, told=told)
    assert outcome is Verdict.LOST
    assert reason.endswith("was killed because memory ran out.")
    assert "gpu-b" in reason


def test_the_rank_that_was_killed_for_its_memory_is_named_with_its_last_lines() -> None:
    facts = pod_facts.verdict_on([see(ended(0, 1)), see(ended(1, 1, reason="OOMKilled"))], KILLED, False)
    assert facts == {"cause": "oom", "node": 1, "rank": 1, "tail": ["epoch 3"]}


@pytest.mark.parametrize(
    "member",
    [ended(1, 0, reason="OOMKilled"), disrupted(ended(1, 143), "EvictionByEvictionAPI", "Eviction API: evicting")],
)
def test_a_gang_that_was_done_is_done_whatever_happened_to_its_pods(member: Pod) -> None:
    done = {"cause": "done"}
    assert verdict(ended(0, 0, done), member, told=done)[0] is Verdict.DONE


@pytest.mark.parametrize("told", [None, SILENT, EXIT, {"cause": "stopped"}, {"cause": "hub lost"}])
def test_what_the_cluster_took_away_outranks_all_but_success_and_our_own_wish(told: Facts | None) -> None:
    away = disrupted(ended(1, 143), "PreemptionByScheduler", "Preempted")
    facts = pod_facts.verdict_on([see(ended(0, 1)), see(away)], told, False)
    assert facts["reason"] == "The pod on gpu-b was displaced by a pod of a higher priority: Preempted."
    assert (facts["verdict"], facts["node"], facts["spends"]) == ("lost", 1, False)


@pytest.mark.parametrize("told", [None, {"cause": "stopped"}, SILENT, {"cause": "hub lost"}])
def test_an_end_that_we_asked_for_is_a_stop_whatever_the_agents_saw_of_it(told: Facts | None) -> None:
    pods = [ended(0, 137), deleted(ended(1, 143, told))]
    assert verdict(*pods, told=told, asked=True)[0] is Verdict.STOPPED


def test_a_failure_that_came_before_the_stop_is_told() -> None:
    assert verdict(ended(0, 1, EXIT), deleted(ended(1, 1)), told=EXIT, asked=True)[0] is Verdict.FAILED
    assert verdict(ended(0, 0), deleted(ended(1, 0)), told={"cause": "done"}, asked=True)[0] is Verdict.DONE


@pytest.mark.parametrize("told", [None, {"cause": "stopped"}, SILENT])
def test_a_pod_that_somebody_deleted_is_named(told: Facts | None) -> None:
    assert verdict(ended(0, 1), deleted(ended(1, 143)), told=told) == (
        Verdict.LOST,
        "The pod on gpu-b was deleted by somebody.",
    )


@pytest.mark.parametrize(
    ("made", "told"),
    [(deleted(pod(1)), None), (deleted(pod(1)), SILENT), (deleted(pod(1)), {"cause": "stopped"}), (pod(1), SILENT)],
)
def test_a_pod_that_never_ended_was_lost_with_its_node(made: Pod, told: Facts | None) -> None:
    assert verdict(ended(0, 1), made, told=told) == (
        Verdict.LOST,
        "The pod on gpu-b was lost: its node does not answer.",
    )


def test_a_pod_that_never_had_a_node_is_named_by_its_own_name() -> None:
    made = deleted(unplaced("0/3 nodes are available."))
    assert verdict(made)[1] == "The pod train-abcde-main-0-0 was lost: its node does not answer."


def test_an_agent_that_was_killed_is_the_one_without_a_testament() -> None:
    pods = [ended(0, 1, SILENT), ended(1, 1, {"cause": "hub lost"}), ended(2, 137)]
    assert verdict(*pods, told=SILENT) == (Verdict.LOST, "Node gpu-c was lost: its agent was killed.")


def test_a_member_that_had_last_words_was_cut_off() -> None:
    pods = [ended(0, 1, SILENT), ended(1, 1, {"cause": "hub lost"})]
    assert verdict(*pods, told=SILENT) == (Verdict.LOST, "The pod on gpu-b was cut off from the others.")


def test_a_chief_that_said_nothing_was_killed() -> None:
    facts = pod_facts.verdict_on([see(ended(0, 137)), see(ended(1, 1))], None, False)
    assert facts == {"cause": "agent died", "node": 0, "code": 137}


def test_a_chief_that_said_nothing_was_killed_whatever_the_others_saw() -> None:
    saw = {"cause": "hub lost"}
    pods = [ended(0, 137), ended(1, 1, saw)]
    assert verdict(*pods, told=saw) == (Verdict.LOST, "Node gpu-a was lost: its agent was killed.")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/volume/pumasi'", True),
        ("PermissionError: [Errno 13] Permission denied: '/volume'", True),
        ("PermissionError: [Errno 13] Permission denied: '/volumes/x'", False),
        ("PermissionError: [Errno 13] Permission denied: '/ro/x'", False),
        ("PermissionError: [Errno 13] Permission denied: '/etc/x'", False),
        ("ValueError: '/volume/pumasi'", False),
    ],
)
def test_a_volume_that_does_not_let_its_group_write_is_told_with_the_ways_out(line: str, hint: bool) -> None:
    made = pod()
    claim: Pod = {"persistentVolumeClaim": {"claimName": "files"}}
    made["spec"]["volumes"] = [{"name": "a", **claim}, {"name": "b", **claim}, {"name": "shm", "emptyDir": {}}]
    made["spec"]["containers"][0]["volumeMounts"] = [
        {"name": "a", "mountPath": "/volume"},
        {"name": "b", "mountPath": "/ro", "readOnly": True},
        {"name": "shm", "mountPath": "/etc"},
    ]
    said = pod_facts.closed_volume(made, ["Traceback", line])
    assert bool(said) is hint
    if hint:
        assert "fsGroup" in said
        assert "--as-image-user" in said
    assert pod_facts.closed_volume(pod(), [line]) == ""


def test_every_verdict_can_be_told() -> None:
    """Whatever the mixture, there is a sentence."""
    states = [pod(1), ended(1, 0), ended(1, 137), ended(1, 1, {"cause": "hub lost"}), deleted(ended(1, 143))]
    states += [disrupted(pod(1), "DeletionByPodGC", ""), ended(1, 137, reason="OOMKilled")]
    words: list[Facts | None] = [None, SILENT, EXIT, KILLED]
    words += [{"cause": cause} for cause in ("done", "stopped", "hub lost", "no hub")]
    for state in states:
        for told in words:
            for asked in (False, True):
                _, reason = verdict(ended(0, 1), state, told=told, asked=asked)
                assert reason.endswith(".")
                assert ".." not in reason
                assert ":." not in reason
