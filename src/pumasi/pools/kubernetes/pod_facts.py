"""What a pod's object says about its gang. Pure: objects in, values out.

Facts have the form of the agents' own (`core.endings` makes sentences of both); `cluster` is a cause that only
Kubernetes knows of, and comes with its sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.core.printable import clean
from pumasi.pools.kubernetes import quotas
from pumasi.pools.kubernetes.discovery import amount
from pumasi.pools.kubernetes.manifests import INDEX, PYTHON, USER, WAY_IN

Object = Mapping[str, Any]
Facts = Mapping[str, Any]

_BAD_IMAGE = frozenset(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"))
_IMAGE_HINT = (
    "Check the image's name, that the cluster reaches its registry, and its pull secret (--set spec.imagePullSecrets…)."
)
_NO_IMAGE = frozenset(("InvalidImageName", "ErrImageNeverPull"))
_HOPELESS_IMAGE = re.compile(r"not found|unauthorized|denied|invalid|forbidden|no such host|manifest unknown", re.I)
_BAD_START = frozenset(("CreateContainerConfigError", "CreateContainerError", "RunContainerError"))
_MAY_PASS = re.compile(
    r"context canceled|ttrpc: closed|failed to sync|timed? ?out|deadline exceeded|connection refused|unavailable", re.I
)
_UNKNOWN_END = ("Unknown", "ContainerStatusUnknown")
"""What containerd and the kubelet say of a container that they find no more."""
_NEVER_BEGUN = ("StartError", "ContainerCannotRun")
_NO_PROGRAM = re.compile(r'exec: "([^"]+)": (?:executable file not found|stat .*no such file)')
_TURNED_AWAY = re.compile(r"^(OutOf|NodeAffinity|UnexpectedAdmissionError|TopologyAffinityError|NodeShutdown)")
_COUNTED = re.compile(r"0/(\d+) nodes are available: (.+)")
_REMARKS = re.compile(r"[.,]? (?:preemption:|no new claims to deallocate)")
_REASONS = (
    (re.compile(r"(\d+) Insufficient (\S+)"), "{0} {have} too little {1} free"),
    (re.compile(r"(\d+) Too many pods"), "{0} {have} too many pods"),
    (re.compile(r"(\d+) node\(s\) had untolerated taint\(?s?\)? ?\{(.*?):? ?\}"), "{0} {have} the taint {1}"),
    (re.compile(r"(\d+) node\(s\) were unschedulable"), "{0} {have} been cordoned"),
    (re.compile(r"(\d+) node\(s\) didn't match Pod's node affinity/selector"), ""),
)
_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.+), used: (.+), limited: (.+)")
_UNSPECIFIED = re.compile(r"failed quota: ([^:]+): must specify (.+)")
_RESOURCE = re.compile(r"\b(?:(?:limits|requests)\.)?(?:cpu|memory)\b(?! for: (?!main\b))")
_INVALID = re.compile(r" is invalid: |cannot be handled as an? |cannot unmarshal")
"""An object that no cluster would take, as opposed to one that this cluster's rules forbid."""
_NO_PRIORITY = re.compile(r"no PriorityClass with name (\S+) was found")
_DEFAULT_SCHEDULER = "default-scheduler"
_UNBOUND = re.compile("unbound immediate PersistentVolumeClaims", re.I)
_DENIED = re.compile(r"Permission denied:? '(/[^']*)'")
_NEVER = re.compile(rf'persistentvolumeclaim "[^"]+" not found|{_UNBOUND.pattern}', re.I)


class Seen(NamedTuple):
    """One pod of a gang, as the API shows it. `ended`: its container has, or never will start; `testament` is what the
    agent left behind; `away`: the cluster can't reach its node (NotReady)."""

    number: int
    name: str
    node: str
    started: bool
    ended: bool
    deleting: bool
    code: int | None
    oom: bool
    disruption: str
    testament: Facts | None
    away: bool = False

    @property
    def is_lost(self) -> bool:
        """With its node, which new pods had better avoid."""
        return self.away or self.disruption.startswith(_OUT_OF_REACH)


class Refusal(NamedTuple):
    """There is no room, which may change, or (`hopeless`) will not."""

    reason: str
    hopeless: bool = False
    hint: str = ""


def see(pod: Object) -> Seen:
    status, metadata = pod.get("status", {}), pod["metadata"]
    state = _state(pod)
    terminated = state.get("terminated") or {}
    ended = bool(terminated) or status.get("phase") in ("Succeeded", "Failed")
    return Seen(
        number=int(metadata["labels"][INDEX]),
        name=metadata["name"],
        node=pod["spec"].get("nodeName", ""),
        started=bool(terminated or state.get("running")),
        ended=ended,
        deleting="deletionTimestamp" in metadata,
        code=terminated.get("exitCode"),
        oom=terminated.get("reason") == "OOMKilled",
        disruption=_disruption(pod),
        testament=_testament(terminated),
        away=not ended and _is_away(pod),
    )


def _is_away(pod: Object) -> bool:
    """When a node becomes NotReady, the cluster marks its pods as not ready, though their containers still are. A
    kubelet that marks a pod so gives a reason."""
    conditions = {each["type"]: each for each in pod.get("status", {}).get("conditions") or ()}
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    return ready.get("status") == "False" and not ready.get("reason") and containers.get("status") == "True"


def _state(pod: Object) -> Object:
    """Of the container that is ours: sidecars of others may be there too."""
    containers = pod.get("status", {}).get("containerStatuses") or ()
    ours = [each for each in containers if each["name"] == pod["spec"]["containers"][0]["name"]]
    state: Object = ours[0].get("state", {}) if ours else {}
    return state


def _testament(terminated: Object) -> Facts | None:
    try:
        words = json.loads(terminated.get("message") or "null")
    except ValueError:
        return None
    return words if isinstance(words, dict) and "cause" in words else None


def _disruption(pod: Object) -> str:
    """Why the cluster took the pod away, in words; empty where it did not."""
    status = pod.get("status", {})
    if status.get("reason") == "Evicted":
        return f"was evicted: {_plain(status.get('message', ''))}"
    for condition in status.get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            words = _DISRUPTIONS.get(condition.get("reason", ""), "was evicted")
            return f"{words}: {_plain(condition.get('message', ''))}"
    if (_state(pod).get("terminated") or {}).get("reason") in _UNKNOWN_END:
        return "was lost: its node has restarted, or its container runtime has"
    return "was lost with its node" if status.get("reason") == "NodeLost" else ""


_OUT_OF_REACH = "was lost: its node can't be reached, or sends its pods away"
_DISRUPTIONS = {
    "PreemptionByScheduler": "was displaced by a pod of a higher priority",
    "DeletionByTaintManager": _OUT_OF_REACH,
    "DeletionByPodGC": "was lost with its node",
    "EvictionByEvictionAPI": "was evicted",
    "TerminationByKubelet": "was ended by its node",
}


def refusal(pod: Object, kubectl: str = "kubectl") -> Refusal | None:
    """Why the pod got no place: from the scheduler, or from the node that it was sent to. `kubectl`: how a line that
    leads to its namespace begins."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            said = _plain(condition.get("message", ""))
            never = _NEVER.search(said) is not None
            hint = f"See that the volume claim exists and is bound: {kubectl} get pvc" if never else ""
            return Refusal(f"The cluster's scheduler has no place for it: {_in_words(said)}.", never, hint)
    terminated = _state(pod).get("terminated") or {}
    if terminated.get("reason") in _NEVER_BEGUN and _MAY_PASS.search(terminated.get("message", "")):
        said = _plain(terminated["message"])
        return Refusal(f"Node {pod['spec'].get('nodeName')} did not get to start it: {said}.")
    if status.get("phase") == "Failed" and _TURNED_AWAY.search(status.get("reason", "")):
        return Refusal(f"Node {pod['spec'].get('nodeName')} turned it away: {_plain(status.get('message', ''))}.")
    return None


def _in_words(said: str) -> str:
    """A scheduler's own line counts nodes by reasons, and ends in remarks about preemption. A pod that is pinned to a
    node does not match any other: that is none to tell of."""
    line = _REMARKS.split(said)[0].rstrip(" .,")
    counted = _COUNTED.fullmatch(line)
    if counted is None:
        return line
    nodes, reasons = counted.groups()
    if not reasons[0].isdigit():
        return reasons.replace("not found. not found", "not found")  # So the scheduler says it of a claim.
    told = ", ".join(filter(None, map(_reason, reasons.split(", "))))
    return f"of {nodes} nodes, {told}" if told else f"it may go to none of {nodes} nodes (node selector, affinity)"


def _reason(part: str) -> str:
    for pattern, words in _REASONS:
        if found := pattern.fullmatch(part):
            have = "has" if found[1] == "1" else "have"
            return words.format(*found.groups(), have=have)
    return part.replace("node(s) ", "")


def rejection(said: str, asked: Mapping[str, float] = {}, kubectl: str = "kubectl", *, patched: bool = True) -> Refusal:
    """What the API answered to a pod that it did not take. `asked`: what its whole gang asks for, as quotas count;
    `kubectl`: as in `refusal`; `patched`: --set may have changed the pod."""
    if quota := _QUOTA.search(said):
        name, requested, _, limited = quota.groups()
        if never := quotas.beyond(name, asked, _amounts(limited)):
            return Refusal(never, True, quotas.hint(kubectl))
        beyond = _beyond(requested, limited)
        return Refusal(
            f"The quota {name} does not allow it: requested {requested}, limited to {limited}.",
            beyond,
            quotas.hint(kubectl) if beyond else "",
        )
    if missing := _NO_PRIORITY.search(said):
        hint = "--priority-class takes one of those that `kubectl get priorityclasses` lists."
        return Refusal(f"The cluster has no priority class {missing[1]}.", True, hint)
    hint = "An administrator of the namespace can allow it; --as-image-user and --set change what is asked for."
    if unspecified := _UNSPECIFIED.search(said):
        hint = _how_to_specify(unspecified[1], unspecified[2])
    elif "violates PodSecurity" in said:
        hint = (
            "Without --as-image-user and --set, pods keep to the Pod Security level restricted; an administrator of "
            "the namespace can allow more."
        )
    elif "unknown field" in said:
        hint = "Check the paths that --set names: kubectl explain pod.spec"
    elif _INVALID.search(said) and " is forbidden: " not in said:
        hint = "Check what --set changes: kubectl explain pod.spec" if patched else ""
    elif "not found" in said:
        hint = "Check the names that are asked for, in --set too."
    return Refusal(f"The cluster does not take the pods: {_plain(said)}.", True, hint)


def _how_to_specify(quota: str, missing: str) -> str:
    """What a quota counts, every container has to name. --memory is a limit, too; --cpus is none."""
    named = set(_RESOURCE.findall(missing))
    ways = []
    if any(each.endswith("memory") for each in named):
        ways.append("--memory (as in --memory 4Gi)")
    if "limits.cpu" in named:
        ways.append("--cpus 1 and --set spec.containers[0].resources.limits.cpu=N (N for all slots of a pod)")
    elif named & {"cpu", "requests.cpu"}:
        ways.append("--cpus (as in --cpus 1)")
    if not ways:
        return f"--set can add what the quota {quota} wants each container to name."
    return f"The quota {quota} wants to know how much is asked for: add {', and '.join(ways)}."


def _beyond(requested: str, limited: str) -> bool:
    """Whether it would not fit even if nobody else used anything."""
    limits, asked = _amounts(limited), _amounts(requested)
    return any(amount(asked[name]) > amount(limits[name]) for name in asked if name in limits)


def _amounts(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(","))


def stuck(pod: Object, pulls: int) -> Facts | None:
    """Why the container will never start, or an init container before it; `pulls` counts how often an image of the pod
    could not be pulled so far."""
    image, waiting = _next_to_start(pod)
    reason, said = waiting.get("reason", ""), _plain(waiting.get("message", ""))
    if reason in _BAD_IMAGE and (pulls > 1 or _HOPELESS_IMAGE.search(said) or reason in _NO_IMAGE):
        return _told("failed", f"The image {image} can't be pulled: {said}.", _IMAGE_HINT, pod)
    if reason in _BAD_START and not _MAY_PASS.search(said):
        hint = f"Without --as-image-user the container runs as user {USER}." if "runAsNonRoot" in said else ""
        return _told("failed", f"The container can't be started: {said}.", hint, pod)
    return None


def _next_to_start(pod: Object) -> tuple[str, Object]:
    """The image of the container that the pod is waiting for, and what is said of it."""
    images = {each["name"]: each["image"] for each in pod["spec"].get("initContainers") or ()}
    for each in pod.get("status", {}).get("initContainerStatuses") or ():
        if (waiting := each.get("state", {}).get("waiting")) and each["name"] in images:
            return images[each["name"]], waiting
    return pod["spec"]["containers"][0]["image"], _state(pod).get("waiting") or {}


def broken_start(pod: Object) -> Facts | None:
    """A container that ended before the agent was there."""
    terminated = _state(pod).get("terminated") or {}
    if terminated.get("reason") not in _NEVER_BEGUN or _MAY_PASS.search(terminated.get("message", "")):
        return None
    said = _plain(terminated.get("message", ""))
    image = pod["spec"]["containers"][0]["image"]
    missing = _NO_PROGRAM.search(said)
    if missing:
        hint = "--image names one that has it (python:3.12-slim has), --python the place of it in the image."
        if missing[1] != PYTHON:
            hint = f"--python is the place of Python in the image, not on this machine; without it {PYTHON} is taken."
        return _told("failed", f"The image {image} has no {missing[1]}.", hint, pod)
    return _told("failed", f"The container can't be started: {said}.", "", pod)


def failed_init(pod: Object) -> Facts | None:
    """An init container that failed by itself, so that ours never starts. One that ends because the pod is taken away
    has not failed."""
    status = pod.get("status", {})
    if status.get("phase") != "Failed" or "deletionTimestamp" in pod["metadata"] or has_begun(pod) or _disruption(pod):
        return None
    beside = {each["name"] for each in pod["spec"].get("initContainers") or () if each.get("restartPolicy") == "Always"}
    for each in status.get("initContainerStatuses") or ():
        terminated = each.get("state", {}).get("terminated") or {}
        code = terminated.get("exitCode")
        if not code or each["name"] in beside or terminated.get("reason") in _UNKNOWN_END:
            continue
        how = "because memory ran out" if terminated.get("reason") == "OOMKilled" else f"with exit code {code}"
        who = _which(see(pod)).replace("The", "the", 1)
        facts = _told("failed", f"The init container {each['name']} of {who} failed, {how}.", "", pod)
        said = str(terminated.get("message") or "").splitlines()
        return {**facts, "code": code, "tail": [clean(line) for line in said if line.strip()], "init": each["name"]}
    return None


def hindrance(pod: Object, kubectl: str = "kubectl") -> Refusal | None:
    """Why a pod that somebody waits for has not started: hopeless, or in a way that may pass. `kubectl`: as in
    `refusal`."""
    if refused := refusal(pod, kubectl):
        # A volume that was asked for only just now may still be made.
        return refused._replace(hopeless=refused.hopeless and not _UNBOUND.search(refused.reason))
    facts = stuck(pod, 0) or broken_start(pod)
    return Refusal(facts["reason"], True, facts["hint"]) if facts else None


def has_begun(pod: Object) -> bool:
    """Its container runs, or has ended."""
    return bool(_state(pod).get("running") or _state(pod).get("terminated"))


def last_words(pod: Object) -> str:
    """Of a container that has failed; empty where it has not."""
    terminated = _state(pod).get("terminated") or {}
    if not terminated.get("exitCode"):
        return ""
    said = _plain(str(terminated.get("message", "")).rstrip().rpartition("\n")[2])
    return said or f"exit code {terminated['exitCode']}"


def absence(pods: Sequence[Object], events: Sequence[Object], setup: str, kubectl: str = "kubectl") -> Refusal | None:
    """Why a run's manager is not in the cluster: what the newest of its pods tells, or its Job that could make none.
    `setup` is the command that gives managers their rights; `kubectl`: as in `refusal`."""
    rights = f"`{setup}` gives managers the rights that they need."
    if not pods and events:
        said = events[-1].get("message", "")
        hint = rights if "serviceaccount" in said else "An administrator of the namespace can change that."
        return Refusal(rejection(said).reason, hint=hint)
    newest = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
    return next((why for pod in newest if (why := _absence(pod, rights, kubectl))), None)


def _absence(pod: Object, rights: str, kubectl: str) -> Refusal | None:
    if refused := refusal(pod, kubectl):
        return refused
    if facts := stuck(pod, 2):
        hint = "Check --image; a pull secret for it has to be in the ServiceAccount of managers, too."
        return Refusal(facts["reason"], hint=hint)
    if facts := broken_start(pod):
        return Refusal(facts["reason"], hint=f"Managers run in the same --image, and need {PYTHON} there.")
    said = last_words(pod)
    if not said:
        return None
    return Refusal(f"Its pod failed: {said}.", hint=rights if "is forbidden: User" in said else "")


def lateness(seen: Seen, pod: Object, events: Sequence[Object]) -> str:
    """Why this pod has not started, as far as anybody knows."""
    waiting = _state(pod).get("waiting") or {}
    said = events[-1].get("message", "") if events else waiting.get("message") or waiting.get("reason", "")
    said = said or _unscheduled(pod)
    which = _which(seen).replace("The", "the", 1)
    return f"{which} did not start: {_plain(said)}" if said else f"{which} did not start"


def _unscheduled(pod: Object) -> str:
    """What keeps the pod from a node; empty for one that has a node. Where nobody has looked at it, --set
    spec.schedulerName may name a scheduler that is not there."""
    scheduled = [each for each in pod.get("status", {}).get("conditions") or () if each["type"] == "PodScheduled"]
    if pod["spec"].get("nodeName") or scheduled:
        return next((each.get("message", "") for each in scheduled if each["status"] == "False"), "")
    return f"the scheduler {pod['spec'].get('schedulerName', _DEFAULT_SCHEDULER)} has not answered"


def late_hint(lateness: str) -> str:
    """What to do about it; empty where more time may help."""
    return _IMAGE_HINT if any(reason in lateness for reason in _BAD_IMAGE) else ""


def closed_volume(pod: Object, tail: Sequence[str]) -> str:
    """What to do about a volume of the pod that does not let the program write; empty where that is not the matter."""
    denied = [found[1] for line in tail if (found := _DENIED.search(line))]
    spec = pod["spec"]
    claims = {each["name"] for each in spec.get("volumes") or () if "persistentVolumeClaim" in each}
    mounts = [each for each in spec["containers"][0].get("volumeMounts") or () if each["name"] in claims]
    writable = [each["mountPath"].rstrip("/") for each in mounts if not each.get("readOnly")]
    if not any(f"{path}/".startswith(f"{place}/") for path in denied for place in writable):
        return ""
    return f"{WAY_IN} --as-image-user runs the program as the image's own user, who may be root."


def verdict_on(pods: Sequence[Seen], told: Facts | None, asked: bool) -> Facts:
    """How the gang ended, once all its pods have. `told` are the chief's own words, if they came; `asked` says that we
    had asked for the end. What the cluster did to a pod comes first: whatever the agents tell is an echo of that."""
    chief = next((pod for pod in pods if pod.number == 0), None)
    told = told or (chief.testament if chief else None)
    if told is not None and told["cause"] == "done":
        return told
    disrupted = [pod for pod in pods if pod.disruption]
    if asked and not (told and told["cause"] not in ("stopped", "silent", "hub lost")):
        return {"cause": "stopped"}
    if disrupted:
        return _lost(disrupted[0], disrupted[0].disruption)
    full = [pod for pod in pods if pod.oom]
    if full:
        return {"cause": "oom", "node": full[0].number, **_rank_of(told)}
    if told is not None and told["cause"] in ("silent", "hub lost", "stopped"):
        return _why_silent(pods, told)
    return told or _unexplained(pods)


def _rank_of(told: Facts | None) -> dict[str, Any]:
    return {key: told[key] for key in ("rank", "tail") if told and told.get(key) is not None}


def _taken_away(pods: Sequence[Seen]) -> Facts | None:
    away = [pod for pod in pods if not pod.ended]
    if away:
        return _lost(away[0], "was lost: its node does not answer")
    deleted = [pod for pod in pods if pod.deleting]
    if deleted:
        return _lost(deleted[0], "was deleted by somebody")
    return None


def _why_silent(pods: Sequence[Seen], told: Facts) -> Facts:
    """A member that fell silent: killed, deleted by somebody, or gone with its node."""
    if taken := _taken_away(pods):
        return taken
    if told["cause"] == "stopped":
        return {**told, "cause": "agent died", "tail": ()}
    killed = [pod for pod in pods if pod.code and pod.testament is None]
    if killed:
        return {"cause": "agent died", "node": killed[0].number}
    cut_off = [pod for pod in pods if pod.testament and pod.testament["cause"] == "hub lost"]
    return _lost(cut_off[0], "was cut off from the others") if cut_off and told["cause"] == "silent" else told


def _unexplained(pods: Sequence[Seen]) -> Facts:
    """The chief said nothing."""
    if taken := _taken_away(pods):
        return taken
    chief = next((pod for pod in pods if pod.number == 0), None)
    if chief is None:
        reason = "The chief's pod is gone: somebody deleted it."
        return {"cause": "cluster", "verdict": "lost", "reason": reason, "hint": "", "spends": False}
    return {"cause": "agent died", "node": 0, "code": chief.code}


def _lost(pod: Seen, how: str) -> Facts:
    """Nobody's failure: it costs no restart."""
    reason = f"{_which(pod)} {how}".rstrip(" .:") + "."
    return {"cause": "cluster", "verdict": "lost", "reason": reason, "hint": "", "node": pod.number, "spends": False}


def _which(pod: Seen) -> str:
    return f"The pod on {pod.node}" if pod.node else f"The pod {pod.name}"


def _told(verdict: str, reason: str, hint: str, pod: Object) -> Facts:
    index = pod["metadata"]["labels"].get(INDEX)
    return {"cause": "cluster", "verdict": verdict, "reason": reason, "hint": hint, "node": index and int(index)}


def _plain(text: str) -> str:
    """On one line, without control characters, and without the full stop that our own sentences have."""
    return " ".join(clean(text).split()).rstrip(".")
