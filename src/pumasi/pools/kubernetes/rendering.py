"""A run as a file: objects that train without Pumasi being there. Pure: values in, plain objects out.

    Service (the hub's address), Secrets (agent, code, what each agent has to know), an Indexed Job

Nobody is there to plan, so every pod has the same share; nobody can hand out a secret, so the agents know each other by
the Job's uid, which Kubernetes draws by lot and tells every pod.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.spec import run_name
from pumasi.errors import UsageError
from pumasi.kube.kubectl import kubectl
from pumasi.pools.kubernetes import manifests, reserved
from pumasi.pools.kubernetes.manifests import Object
from pumasi.pools.kubernetes.options import KubernetesOptions

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

JOB_LABEL = "batch.kubernetes.io/job-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
UID_LABEL = "batch.kubernetes.io/controller-uid"
LARGEST_APPLY = 250_000
"""Bytes of an object: `kubectl apply` writes a copy of it into an annotation, which takes 262,144."""
MARK = "Made by `pumasi render`"
"""How a rendered file begins: what is packed into such a file must not be one itself, or each would hold all before."""
_SECRET_WORDS = re.compile(r"(TOKEN|KEY|PASSWORD|PASSPHRASE|SECRET|CREDENTIALS)(_|$)")


def render(spec: Spec, program: Program, agent: str, packed: bytes, pods: int | None = None) -> list[Object]:
    """In the order in which they have to be made. The same input gives the same objects."""
    shares = equal_shares(spec, pods)
    name = run_name(spec)
    hub = f"hub-{name}" if len(shares) > 1 else ""
    gang = _gang(spec, program, name, hub, packed)
    configs = _configs(spec, program, gang, shares)
    code = [_unowned(thing) for thing in manifests.code(name, gang.owner, agent, packed)]
    code[0]["stringData"]["config"] = _in_one(configs)
    objects = [*([_service(name, hub)] if hub else []), *code, _job(spec, gang, configs)]
    return [_placed(thing, spec[KubernetesOptions].namespace) for thing in objects]


def equal_shares(spec: Spec, pods: int | None) -> dict[str, int]:
    """A slot a pod, or as many as a node may have, unless the number of pods is told."""
    most = spec[KubernetesOptions].max_per_node
    if pods is None:
        return _divide(spec.slots, -(-spec.slots // (most or 1)), f"--max-per-node {most}")
    shares = _divide(spec.slots, pods, f"--pods {pods}")
    if most is not None and spec.slots // pods > most:
        raise UsageError(
            f"{spec.slots} slots in {pods} pods are {spec.slots // pods} a pod, but --max-per-node is {most}.",
            f"Take more pods: --pods {-(-spec.slots // most)}",
        )
    return shares


def _divide(slots: int, pods: int, why: str) -> dict[str, int]:
    if slots % pods:
        ways = [number for number in range(1, slots + 1) if slots % number == 0]
        hint = f"{slots} slots can be {_or(ways)} pods; `pumasi run` has no such limit."
        raise UsageError(f"{slots} slots do not make equal pods with {why}: all pods of a Job are alike.", hint)
    return {f"pod-{number}": slots // pods for number in range(pods)}


def _or(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


def remarks(spec: Spec, objects: Sequence[Object], version: str) -> list[str]:
    """What whoever finds the file should know."""
    asked = spec[KubernetesOptions]
    name, pods = run_name(spec), objects[-1]["spec"]["completions"]
    begin = kubectl("", asked.namespace or "")
    server_side = " --server-side" if needs_server_side(objects) else ""
    follow = f"{begin} logs -f -l {JOB_LABEL}={name} --prefix --max-log-requests {max(5, pods)}"
    lines = [
        f"{MARK} {version}. Needs Kubernetes 1.29 or newer, and nothing of Pumasi.",
        "",
        f"  {begin} apply{server_side} -f FILE",
        f"  {follow}",
        f"  {begin} delete -f FILE",
        "",
        "A Job can't be changed: delete it before a changed file is applied, or give the new one another --name.",
        f"It is removed {_days(asked.keep)} after its end (--keep). What keeps a file applied (Argo CD, Flux) makes it",
        "anew then, and trains again.",
    ]
    if spec.restarts:
        lines += [
            "",
            f"Started again up to {spec.restarts} times, as a whole: when one process fails, all pods end and fail,",
            "and the Job replaces each of them, after 10 seconds, then 20, and so on. Unlike with `pumasi run`, a pod",
            "that is evicted counts too, and PUMASI_ATTEMPT stays 0.",
        ]
    elif pods > 1:
        lines += ["", "When one process fails, all pods end, and the Job has failed."]
    return lines


def needs_server_side(objects: Sequence[Object]) -> bool:
    return any(len(json.dumps(thing)) > LARGEST_APPLY for thing in objects)


def open_secrets(env: Mapping[str, str]) -> list[str]:
    """Variables that look as if nobody should read them. TOKENIZERS_PARALLELISM and MAX_TOKENS do not."""
    return [name for name in env if _SECRET_WORDS.search(name.upper())]


def _days(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} seconds"


def _gang(spec: Spec, program: Program, name: str, hub: str, packed: bytes) -> manifests.GangSpec:
    return manifests.GangSpec(
        run=name,
        task="main",
        attempt=0,
        owner=manifests.Owner("Job", name, ""),
        hub=hub,
        pinned=False,
        single="",
        framework=program.framework,
        code=manifests.code_objects(name, packed),
    )


def _configs(spec: Spec, program: Program, gang: manifests.GangSpec, shares: Mapping[str, int]) -> list[dict[str, Any]]:
    seen = {pod: [str(number) for number in range(share)] for pod, share in shares.items()}
    gpus = seen if spec.gpu == "required" else {}
    folder = manifests.folder_of(spec, gang.run)
    attempt = Attempt(gang.run, 0, shares, gpus, "", "0", folder, [""] * len(shares))
    configs = agent_configs(spec, program, attempt, gang_of(spec, program, attempt))
    return [manifests.agent_config(config, gang, index) for index, config in enumerate(configs)]


def _in_one(configs: Sequence[Mapping[str, Any]]) -> str:
    """What all agents have in common once, and what each has for itself: see `agent/pod.py`."""
    first = configs[0]
    shared = {key for key in first if all(config[key] == first[key] for config in configs)}
    each = [{key: value for key, value in config.items() if key not in shared} for config in configs]
    text = manifests.squeezed(json.dumps({**{key: first[key] for key in first if key in shared}, "each": each}))
    if len(text) > manifests.PIECE:
        raise UsageError("That many processes are too many for one file.", "`pumasi run --on k8s` starts them.")
    return text


def _service(name: str, hub: str) -> Object:
    spec = {"selector": {JOB_LABEL: name, INDEX_LABEL: "0"}, "ports": [{"port": manifests.HUB_PORT}]}
    metadata = {"name": hub, "labels": manifests.labels(name, "rendered")}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _job(spec: Spec, gang: manifests.GangSpec, configs: Sequence[Mapping[str, Any]]) -> Object:
    job: Object = {
        "completionMode": "Indexed",
        "completions": len(configs),
        "parallelism": len(configs),
        **_patience(spec),
        "ttlSecondsAfterFinished": int(spec[KubernetesOptions].keep),
        **({} if spec.timeout is None else {"activeDeadlineSeconds": max(1, int(spec.timeout))}),
        "template": _template(spec, gang, configs[0]),
    }
    metadata = {"name": gang.run, "labels": manifests.labels(gang.run, "rendered")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}


def _patience(spec: Spec) -> Object:
    """When one rank fails the star ends all, so every pod fails, and a restart of each is a restart of all. Counted a
    pod, since together they would be counted, and waited for, that many times."""
    if not spec.restarts:
        return {"backoffLimit": 0}
    return {"backoffLimitPerIndex": spec.restarts, "maxFailedIndexes": 0}


def _template(spec: Spec, gang: manifests.GangSpec, config: Mapping[str, Any]) -> Object:
    """A pod as `pumasi run` would make it, but for what differs from one pod to the next. --set comes last here too."""
    pod = manifests.pod(spec.changed({"patches": ()}), gang._replace(hub=""), 0, "", config)
    pod["metadata"] = _metadata(pod["metadata"])
    container = pod["spec"]["containers"][0]
    container["env"] = [_shared(entry, gang) for entry in container["env"]]
    if gang.hub:
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{UID_LABEL}']"}}
        container["env"].append({"name": "PUMASI_BOOT_SECRET", "valueFrom": source})
    made = reserved.patched(spec[KubernetesOptions].patches, pod, manifests.counted(spec))
    return {"metadata": made["metadata"], "spec": made["spec"]}


def _metadata(metadata: Mapping[str, Any]) -> Object:
    labels = {key: value for key, value in metadata["labels"].items() if not key.startswith(manifests.DOMAIN)}
    own = {manifests.RUN: metadata["labels"][manifests.RUN], manifests.KIND: "rendered"}
    notes = {"annotations": metadata["annotations"]} if "annotations" in metadata else {}
    return {"labels": {**labels, **own}, **notes}


def _shared(entry: Object, gang: manifests.GangSpec) -> Object:
    if entry["name"] != "PUMASI_BOOT_CONFIG":
        return entry
    source = {"secretKeyRef": {"name": gang.code.boot, "key": "config"}}
    return {"name": entry["name"], "valueFrom": source}


def _unowned(thing: Object) -> Object:
    """A file can't name an owner, whose uid is not known before it is made."""
    metadata = {key: value for key, value in thing["metadata"].items() if key != "ownerReferences"}
    run = metadata["labels"][manifests.RUN]
    return {**thing, "metadata": {**metadata, "labels": manifests.labels(run, "rendered")}}


def _placed(thing: Object, namespace: str | None) -> Object:
    if namespace is None:
        return thing
    metadata = thing["metadata"]
    return {**thing, "metadata": {"name": metadata["name"], "namespace": namespace, **metadata}}
