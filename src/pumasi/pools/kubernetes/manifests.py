"""The objects that a run on a cluster is made of: values in, plain objects out, one function a kind.

    anchor (Job) ─► record (ConfigMap) ─► code (Secrets), star's secret, star's Service, Pods

Each arrow is an owner reference: deleting the anchor deletes everything, whoever does it. The anchor never starts a
pod; it is there because Kubernetes itself ends and removes a Job in time when nobody else is left to do it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pumasi.core.frameworks import needs_shared_memory
from pumasi.pools.kubernetes import reserved
from pumasi.pools.kubernetes.notation import (
    OWN_DOMAIN,
    OWN_FOLDER,
    files_mount,
    mount,
    quantity,
    secret_use,
    toleration,
)
from pumasi.pools.kubernetes.options import KubernetesOptions

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

Object = dict[str, Any]

DOMAIN = f"{OWN_DOMAIN}/"
RUN, KIND, TASK, ATTEMPT, INDEX = (DOMAIN + word for word in ("run", "kind", "task", "attempt", "index"))
WAITING, CLAIM, STAR = DOMAIN + "waiting", DOMAIN + "claim", DOMAIN + "star"
USER_NOTE = DOMAIN + "user"
"""An annotation of pods: who has started the run, for those who wait for what it holds."""
FOLDER = OWN_FOLDER
WORK = f"{FOLDER}/work"
HUB_PORT = 7700
DOOR_PORT = 7701
"""Where the chief's agent is told of its members, and these are called by it."""
CALL_AFTER = 5.0
"""Seconds after which members that nobody has called turn to the Service."""
PYTHON = "python3"
USER = 1000
WAY_IN = (
    f"Pods run as user and group {USER}. Use a storage class that lets this group write (fsGroup), or have an "
    f"administrator open the volume (chgrp {USER}, chmod g+rwx)."
)
"""To a volume that lets nobody but its owner write."""
LOST_AFTER = 30
"""Seconds after which Kubernetes deletes the pods of a node that it can't reach. Its own default is 300."""
PIECE = 128_000
"""Bytes of one environment variable: Linux takes 131,072 with its name."""
MOST_PIECES = 7
"""In one Secret, which takes 1 MiB."""
CHUNK = 1_000_000
"""Bytes of code in one Secret that is mounted."""
# Written to be short: it stands in every pod, and only fetches the agent, which does the rest. In the same process: a
# second Python would take as long to start as this one. The agent of a run that an older Pumasi began is one program.
BOOT = (
    "import base64,json,os,sys,zlib;"
    "text=zlib.decompress(base64.b64decode(os.environ.pop('PUMASI_BOOT_AGENT')));"
    f"__file__='{FOLDER}/package/pumasi/agent/__main__.py';"
    "sys.argv=[__file__,'pod'];"
    "exec(json.loads(text)['pumasi/agent/carried.py'] if text[:1]==b'{' else text);"
    f"install(json.loads(text),'{FOLDER}/package');"
    "from pumasi.agent.starting import main;"
    "sys.exit(main(sys.argv[1:]))"
)


class Owner(NamedTuple):
    kind: str
    name: str
    uid: str

    @property
    def reference(self) -> Object:
        """`controller`: otherwise `kubectl drain` refuses to touch the pods. Never `blockOwnerDeletion`: that takes a
        right which ordinary users do not have."""
        version = "batch/v1" if self.kind == "Job" else "v1"
        return {"apiVersion": version, "kind": self.kind, "name": self.name, "uid": self.uid, "controller": True}


class GangSpec(NamedTuple):
    """What the pods of one attempt have in common. `secret` and `hub` are empty for a gang of one pod. `star` is the
    attempt whose Service it has: one that got no place leaves it to the next. `dialled`: the chief's agent calls the
    others, and `hub` is the name of a Service that may be made later. `pinned` is False where the cluster's
    scheduler chooses the nodes, then without those in `avoid`; `single` is a volume that one node can mount at a
    time."""

    run: str
    task: str
    attempt: int
    owner: Owner
    hub: str
    pinned: bool
    single: str
    framework: str
    code: CodeObjects
    user: str = ""
    avoid: tuple[str, ...] = ()
    star: int = 0
    dialled: bool = False


class CodeObjects(NamedTuple):
    """Names of the Secrets with the agent and the user's code, and how that is handed over: `pieces` environment
    variables, or files. `kind` is "configMap" for runs of an older Pumasi, which may be started again by a newer
    one."""

    boot: str
    pieces: int
    chunks: tuple[str, ...]
    kind: str = "secret"


def read_code(recorded: Mapping[str, Any]) -> CodeObjects:
    """As a run's record has it; that of an older Pumasi does not say of which kind they are."""
    return CodeObjects(**{"kind": "configMap", **recorded})


def labels(run: str, kind: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "pumasi", RUN: run, KIND: kind}


def of_run(run: str) -> str:
    """A selector of all that belongs to it."""
    return f"{RUN}={run}"


def of_attempt(run: str, task: str, attempt: int) -> str:
    return f"{RUN}={run},{KIND}=rank,{TASK}={task},{ATTEMPT}={attempt}"


def _metadata(name: str, run: str, kind: str, owner: Owner | None = None) -> Object:
    owned = {"ownerReferences": [owner.reference]} if owner else {}
    return {"name": name, "labels": labels(run, kind), **owned}


def anchor(run: str, deadline: int, keep: int, annotations: Mapping[str, str] = {}) -> Object:
    """Of a run that waits, since it has only just begun. Indexed, because only then may its completions be set to 0
    later, which completes it."""
    template = {
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": restricted_pod(),
            "containers": [{"name": "none", "image": "none", "securityContext": restricted_container()}],
        }
    }
    spec = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 0,
        "activeDeadlineSeconds": deadline,
        "ttlSecondsAfterFinished": keep,
        "template": template,
    }
    metadata = {**_metadata(run, run, "anchor"), "annotations": dict(annotations)}
    metadata["labels"] |= {WAITING: "yes"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def record(run: str, owner: Owner, annotations: Mapping[str, str], data: Mapping[str, str]) -> Object:
    metadata = {**_metadata(run, run, "record", owner), "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}


def secret(run: str, owner: Owner, value: str) -> Object:
    metadata = _metadata(secret_name(run), run, "star", owner)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"secret": value}}


def secret_name(run: str) -> str:
    return f"{run}-star"


def hub_name(gang: GangSpec) -> str:
    """It begins with a letter, which a run's need not."""
    return f"hub-{gang.run}-{gang.star}"


def service(gang: GangSpec) -> Object:
    """How members reach the chief's agent."""
    selector = {RUN: gang.run, TASK: gang.task, STAR: str(gang.star), INDEX: "0"}
    spec = {"selector": selector, "ports": [{"port": HUB_PORT}]}
    metadata = _metadata(hub_name(gang), gang.run, "star", gang.owner)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def code_objects(run: str, packed: bytes) -> CodeObjects:
    pieces = -(-len(encoded(packed)) // PIECE)
    if pieces <= MOST_PIECES:
        return CodeObjects(f"{run}-code", pieces, ())
    chunks = tuple(f"{run}-code-{number}" for number in range(-(-len(packed) // CHUNK)))
    return CodeObjects(f"{run}-code", 0, chunks)


def code(run: str, owner: Owner, agent: str, packed: bytes) -> list[Object]:
    """The agent and, while it is small, the user's code as text: environment variables cost no time at a pod's start,
    and a volume does. Larger code as files. In Secrets, which not everybody who may look at a run may read."""
    names = code_objects(run, packed)
    text = encoded(packed)
    data = {"agent": squeezed(agent)}
    data |= {f"code{number}": text[number * PIECE : (number + 1) * PIECE] for number in range(names.pieces)}
    things: list[tuple[str, Object]] = [(names.boot, {"stringData": data})]
    things += [
        (name, {"data": {"code": encoded(packed[number * CHUNK : (number + 1) * CHUNK])}})
        for number, name in enumerate(names.chunks)
    ]
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(name, run, "code", owner), **content}
        for name, content in things
    ]


def squeezed(text: str) -> str:
    return encoded(zlib.compress(text.encode(), 9))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def pod_name(run: str, task: str, attempt: int, index: int) -> str:
    return f"{run}-{task}-{attempt}-{index}"


def pod(spec: Spec, gang: GangSpec, index: int, node: str, config: Mapping[str, Any]) -> Object:
    """The agent of one node, with the slots that it has. Whatever the user sets with --set comes last."""
    asked = spec[KubernetesOptions]
    own = {TASK: gang.task, ATTEMPT: str(gang.attempt), INDEX: str(index)}
    own |= {CLAIM: gang.single} if gang.single else {}
    own |= {STAR: str(gang.star)} if gang.hub else {}
    metadata = _metadata(pod_name(gang.run, gang.task, gang.attempt, index), gang.run, "rank", gang.owner)
    metadata["labels"] = {**asked.labels, **metadata["labels"], **own}
    annotations = {**asked.annotations, **({USER_NOTE: gang.user} if gang.user else {})}
    if annotations:
        metadata["annotations"] = annotations
    body: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_of(spec),
        "tolerations": [*map(toleration, asked.tolerations), *brief_patience()],
        "containers": [_container(spec, gang, config)],
    }
    if affinity := _affinity(gang, node):
        body["affinity"] = affinity
    if asked.node_selector:
        body["nodeSelector"] = dict(asked.node_selector)
    if asked.priority_class:
        body["priorityClassName"] = asked.priority_class
    if not asked.as_image_user:
        body["securityContext"] = restricted_pod(fs_group=bool(asked.mounts))
    if volumes := _volumes(spec, gang):
        body["volumes"] = volumes
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
    return reserved.patched(asked.patches, made, counted(spec))


def _affinity(gang: GangSpec, node: str) -> Object:
    if gang.pinned:
        return pin(node)
    return {**(beside(gang.single) if gang.single else {}), **(away_from(gang.avoid) if gang.avoid else {})}


def grace_of(spec: Spec) -> int:
    """The agent needs some seconds more than the program, to see that all is gone and to say so."""
    return int(spec.grace) + 12


def _container(spec: Spec, gang: GangSpec, config: Mapping[str, Any]) -> Object:
    asked = spec[KubernetesOptions]
    container: Object = {
        "name": "main",
        "image": asked.image,
        "command": [spec.python or PYTHON, "-I", "-S", "-c", BOOT],
        "env": [*_boot_env(gang, config), *_user_env(spec)],
    }
    uses = [secret_use(text) for text in asked.env_from_secret]
    whole = [{"secretRef": {"name": use.secret}} for use in uses if not use.variable]
    if whole:
        container["envFrom"] = whole
    if resources := resources_of(spec, config["slots"]):
        container["resources"] = resources
    if mounts := _mounts(spec, gang):
        container["volumeMounts"] = mounts
    if not asked.as_image_user:
        container["securityContext"] = restricted_container()
    return container


def _boot_env(gang: GangSpec, config: Mapping[str, Any]) -> list[Object]:
    env: list[Object] = [
        _from_code("PUMASI_BOOT_AGENT", gang.code, "agent"),
        {"name": "PUMASI_BOOT_CONFIG", "value": squeezed(json.dumps(config))},
        {"name": "PUMASI_BOOT_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PUMASI_BOOT_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        *(_from_code(f"PUMASI_BOOT_CODE_{n}", gang.code, f"code{n}") for n in range(gang.code.pieces)),
    ]
    if gang.hub:
        env.append(_from_secret("PUMASI_BOOT_SECRET", secret_name(gang.run), "secret"))
    return env


def _from_code(name: str, code: CodeObjects, key: str) -> Object:
    return {"name": name, "valueFrom": {f"{code.kind}KeyRef": {"name": code.boot, "key": key}}}


def _from_secret(name: str, secret: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _user_env(spec: Spec) -> list[Object]:
    """Without a name in the image's own files, Python asks these who and where it is."""
    asked = spec[KubernetesOptions]
    home = [] if asked.as_image_user else [("HOME", f"{FOLDER}/home"), ("USER", "pumasi"), ("LOGNAME", "pumasi")]
    uses = [use for use in map(secret_use, asked.env_from_secret) if use.variable]
    given = [{"name": name, "value": value} for name, value in home]
    return [*given, *(_from_secret(use.variable, use.secret, use.key) for use in uses)]


def resources_of(spec: Spec, share: int) -> Object:
    """GPUs can't be overcommitted, and memory should not be: what is asked for is also the limit. CPUs are shared."""
    options = spec[KubernetesOptions]
    requests, limits = {}, {}
    if spec.gpu == "required":
        limits[options.gpu_resource] = str(share)
    if options.memory is not None:
        requests["memory"] = limits["memory"] = quantity(options.memory * share)
    cores = cores_of(spec)
    if cores:
        requests["cpu"] = quantity(cores * share)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def cores_of(spec: Spec) -> float:
    """One a slot where no GPU does the work, if not told otherwise."""
    asked = spec[KubernetesOptions]
    if asked.cpus is not None:
        return asked.cpus
    return 0.0 if spec.gpu == "required" else 1.0


def needs_of(spec: Spec) -> dict[str, float]:
    """What one slot takes of a node."""
    asked = spec[KubernetesOptions]
    needs = {"cpu": cores_of(spec), "memory": float(asked.memory or 0)}
    if spec.gpu == "required":
        needs[asked.gpu_resource] = 1.0
    return {resource: need for resource, need in needs.items() if need}


def counted(spec: Spec) -> set[str]:
    """The resources of which the plan knows how much there is."""
    return {"cpu", "memory", spec[KubernetesOptions].gpu_resource}


def pin(node: str) -> Object:
    """By its name, one value a term: anything less exact lets the scheduler put two pods on one node."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeAffinity": _required({"matchFields": [field]})}


def away_from(nodes: Iterable[str]) -> Object:
    """A field takes one value."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    return {"nodeAffinity": _required({"matchFields": fields})}


def _required(term: Object) -> Object:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def beside(claim: str) -> Object:
    """Where another pod of ours has that volume, if there is one: no other node can mount it meanwhile."""
    term = {"labelSelector": {"matchLabels": {CLAIM: claim}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def brief_patience() -> list[Object]:
    return [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for what, seconds in (("not-ready", LOST_AFTER), ("unreachable", LOST_AFTER))
    ]


def _volumes(spec: Spec, gang: GangSpec) -> list[Object]:
    volumes: list[Object] = []
    if gang.code.chunks:
        sources = [
            {gang.code.kind: {"name": name, "items": [{"key": "code", "path": f"{number:03}"}]}}
            for number, name in enumerate(gang.code.chunks)
        ]
        volumes.append({"name": "code", "projected": {"sources": sources}})
    if needs_shared_memory(gang.framework):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    for number, (claim, _, read_only) in enumerate(map(mount, spec[KubernetesOptions].mounts)):
        source = {"claimName": claim, **({"readOnly": True} if read_only else {})}
        volumes.append({"name": f"mount{number}", "persistentVolumeClaim": source})
    return volumes


def _mounts(spec: Spec, gang: GangSpec) -> list[Object]:
    mounts: list[Object] = []
    if gang.code.chunks:
        mounts.append({"name": "code", "mountPath": "/pumasi/code", "readOnly": True})
    if needs_shared_memory(gang.framework):
        # Docker's 64 MB are too few for what PyTorch's loaders and NCCL put there.
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    for number, (_, path, read_only) in enumerate(map(mount, spec[KubernetesOptions].mounts)):
        mounts.append({"name": f"mount{number}", "mountPath": path, **({"readOnly": True} if read_only else {})})
    return mounts


def restricted_pod(*, fs_group: bool = False) -> Object:
    """What the Pod Security level `restricted` asks for."""
    user: Object = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
    return {**user, **({"fsGroup": USER} if fs_group else {}), "seccompProfile": {"type": "RuntimeDefault"}}


def restricted_container() -> Object:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def folder_of(spec: Spec, run: str) -> str:
    """Where checkpoints go: on the first volume that can be written to, else in the pod, with which they are lost."""
    found = files_mount(spec[KubernetesOptions].mounts)
    return FOLDER if found is None else f"{found.path}/pumasi/{run}"


def agent_config(config: Mapping[str, Any], gang: GangSpec, index: int) -> dict[str, Any]:
    """What `core.launch` has prepared, for a pod: the chief listens on all its addresses and calls the others, or these
    call the Service; each learns its own address where it runs."""
    own: dict[str, Any] = {"secret": "", "address": "", "hub": ["" if index == 0 else gang.hub, HUB_PORT]}
    own |= {"door": ["", DOOR_PORT], "call_after": CALL_AFTER} if gang.dialled else {}
    where = {"cwd": WORK, "dir": f"{FOLDER}/agent", "testament": "/dev/termination-log"}
    return {**config, **own, **where}
