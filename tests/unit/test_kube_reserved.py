"""What --set may not change in a pod, however it is written; and what it may."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumasi.catalogue import parse_spec
from pumasi.core.launch import Program
from pumasi.errors import SpecError
from pumasi.pools.kubernetes import manifests, rendering
from pumasi.pools.kubernetes.manifests import CodeObjects, GangSpec, Owner

SPEC = {"command": ["train.py"], "on": "k8s", "slots": 2, "gpu": "required", "memory": "1Gi", "mounts": ["data:/data"]}
OWNER = Owner("ConfigMap", "train-abcde", "uid")
GANG = GangSpec("train-abcde", "main", 0, OWNER, "hub", True, "", "torch", CodeObjects("train-abcde-code", 0, ("c-0",)))


def pod(*patches: str) -> dict[str, Any]:
    return manifests.pod(parse_spec({**SPEC, "patches": list(patches)}), GANG, 0, "node-0", {"slots": 2})


def a_container(**fields: Any) -> str:
    return json.dumps({"name": "main", "image": "x", **fields})


REFUSED = [
    ("metadata.name=x", "metadata, but for labels and annotations,", "--name"),
    ("metadata.generateName=x", "metadata", "--name"),
    ("metadata['namespace']=x", "metadata", "--namespace"),
    ("metadata.finalizers[+]=example.com/never", "metadata", "--name"),
    ("metadata.ownerReferences=null", "metadata", "--name"),
    ("metadata.ownerReferences[0].controller=false", "metadata", "--name"),
    ('metadata.labels["pumasi.dev/run"]=x', "a label of Pumasi", "--label"),
    ('metadata.labels["pumasi.dev/new"]=x', "a label of Pumasi", "--label"),
    ("metadata.labels['app.kubernetes.io/managed-by']=null", "a label of Pumasi", "--label"),
    ("metadata.labels=null", "a label of Pumasi", "--label"),
    ('metadata.labels={"team": "a"}', "a label of Pumasi", "--label"),
    ("spec.restartPolicy=Always", "spec.restartPolicy", "--restarts"),
    ('spec["restartPolicy"]=OnFailure', "spec.restartPolicy", "--restarts"),
    ("spec.restartPolicy=null", "spec.restartPolicy", "--restarts"),
    ("spec.nodeName=node-9", "spec.nodeName", "--node-selector kubernetes.io/hostname=NODE"),
    ("spec.nodeSelector.disk=ssd", "spec.nodeSelector", "--node-selector"),
    ("spec.affinity=null", "spec.affinity.nodeAffinity", "--node-selector"),
    ("spec.affinity={}", "spec.affinity.nodeAffinity", "podAntiAffinity"),
    (
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchFields[0].values[0]=x",
        "spec.affinity.nodeAffinity",
        "--node-selector",
    ),
    ("spec.tolerations=null", "a toleration of the pod", "spec.tolerations[+]"),
    ("spec.tolerations=[]", "a toleration of the pod", "--toleration"),
    ("spec.tolerations[0].key=other", "a toleration of the pod", "--toleration"),
    ('spec.schedulingGates=[{"name": "example.com/gate"}]', "spec.schedulingGates", "--label"),
    ("spec.activeDeadlineSeconds=60", "spec.activeDeadlineSeconds", "--timeout"),
    ("spec.terminationGracePeriodSeconds=600", "spec.terminationGracePeriodSeconds", "--grace"),
    ("spec.resources.requests.cpu=4", "spec.resources", "--cpus"),
    ("spec.containers=null", "the number of containers", "init container"),
    ("spec.containers=[]", "the number of containers", "init container"),
    (f"spec.containers[+]={a_container()}", "the number of containers", "init container"),
    ("spec.containers[0].name=other", "the first container's name", "Leave it"),
    (f"spec.containers=[{a_container()}]", "the first container's command", "--python"),
    (f"spec.containers[0]={a_container()}", "the first container's command", "--python"),
    ("spec.containers[name=main].command[0]=bash", "the first container's command", "--python"),
    ("spec.containers[0].args[+]=-v", "the first container's args", "after SCRIPT"),
    ("spec.containers[0].env=null", "a variable of Pumasi", "a name of your own"),
    ("spec.containers[0].env[0].value=x", "a variable of Pumasi", "a name of your own"),
    ('spec.containers[0].env[+]={"name": "PUMASI_BOOT_CONFIG"}', "a variable of Pumasi", "a name of your own"),
    ("spec.containers[0].terminationMessagePath=/x", "the first container's terminationMessagePath", "Leave it"),
    ("spec.containers[0].restartPolicy=Always", "the first container's restartPolicy", "--restarts"),
    ("spec.containers[0].restartPolicyRules[+]={}", "the first container's restartPolicyRules", "--restarts"),
    ('spec.containers[0].resources.limits["nvidia.com/gpu"]=1', "what a process asks for", "--gpus"),
    ("spec.containers[0].resources.limits.cpu=1", "what a process asks for", "--cpus"),
    ("spec.containers[0].resources.requests.memory=8Gi", "what a process asks for", "--memory"),
    ("spec.containers[0].resources=null", "what a process asks for", "--gpus"),
    ("spec.volumes=null", "a volume of the pod", "spec.volumes[+]"),
    ("spec.containers[0].volumeMounts=[]", "a mount of the first container", "volumeMounts[+]"),
]


@pytest.mark.parametrize(("text", "field", "instead"), REFUSED)
def test_what_the_run_relies_on_is_refused_by_name(text: str, field: str, instead: str) -> None:
    with pytest.raises(SpecError) as caught:
        pod("spec.dnsPolicy=Default", text)
    assert caught.value.message.startswith(f"--set {text}: {field}")
    assert "can't be changed: " in caught.value.message
    assert instead in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "metadata.labels.team=vision",
        'metadata.annotations["a.b/c"]=d',
        "spec.schedulerName=mine",
        "spec.hostNetwork=true",
        "spec.priorityClassName=high",
        "spec.runtimeClassName=nvidia",
        'spec.tolerations[+]={"key": "more", "operator": "Exists"}',
        "spec.securityContext=null",
        "spec.securityContext.fsGroup=100",
        "spec.imagePullSecrets[+].name=registry",
        f"spec.initContainers[+]={a_container(restartPolicy='Always')}",
        'spec.affinity.podAntiAffinity={"requiredDuringSchedulingIgnoredDuringExecution": []}',
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=[]",
        "spec.containers[0].image=other",
        "spec.containers[0].tty=true",
        'spec.containers[0].env[+]={"name": "MINE", "value": "1"}',
        "spec.containers[0].resources.requests.ephemeral-storage=10Gi",
        'spec.containers[0].resources.limits["rdma/hca"]=1',
        "spec.containers[0].resources.limits.memory=16Gi",
        'spec.volumes[+]={"name": "more", "emptyDir": {}}',
        'spec.containers[0].volumeMounts[+]={"name": "more", "mountPath": "/more"}',
        "spec.restartPolicy=Never",
        "spec.containers[0].name=main",
    ],
)
def test_what_the_run_does_not_rely_on_can_be_changed(text: str) -> None:
    assert pod(text)


@pytest.mark.parametrize("text", ["metadata.labels=x", "spec.containers=x", "spec.containers[0]=7", "spec.volumes={}"])
def test_nonsense_is_refused_and_not_stumbled_over(text: str) -> None:
    with pytest.raises(SpecError, match="can't be changed"):
        pod(text)


def test_a_rendered_file_keeps_to_the_same_rules_but_for_the_nodes_that_nobody_has_planned() -> None:
    program = Program(("python3", "train.py"), "none", "", {})

    def render(text: str) -> list[dict[str, Any]]:
        return rendering.render(parse_spec({**SPEC, "patches": [text]}), program, "", b"", 1)

    with pytest.raises(SpecError, match=r"spec\.restartPolicy can't be changed"):
        render("spec.restartPolicy=Always")
    assert render('spec.affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}')
