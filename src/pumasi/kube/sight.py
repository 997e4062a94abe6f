"""What a pod's object says about its gang. Pure: objects in, values out.

Facts have the form of the agents' own (`core.endings` makes sentences of both); `cluster` is a cause that only
Kubernetes knows of, and comes with its sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.kube.discovery import amount
from pumasi.kube.manifests import INDEX, PYTHON

Object = Mapping[str, Any]
Facts = Mapping[str, Any]

_BAD_IMAGE = frozenset(("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"))
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
_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.+), used: (.+), limited: (.+)")
_NO_PRIORITY = re.compile(r"no PriorityClass with name (\S+) was found")
_UNBOUND = re.compile("unbound immediate PersistentVolumeClaims", re.I)
_NEVER = re.compile(rf'persistentvolumeclaim "[^"]+" not found|{_UNBOUND.pattern}', re.I)


class Seen(NamedTuple):
    """One pod of a gang, as the API shows it. `ended`: its container has, or never will start; `testament` is what the
    agent left behind."""

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


class Refusal(NamedTuple):
    """There is no room, which may change, or (`hopeless`) will not."""

    reason: str
    hopeless: bool = False
    hint: str = ""


def see(pod: Object) -> Seen:
    status, metadata = pod.get("status", {}), pod["metadata"]
    state = _state(pod)
    terminated = state.get("terminated") or {}
    return Seen(
        number=int(metadata["labels"][INDEX]),
        name=metadata["name"],
        node=pod["spec"].get("nodeName", ""),
        started=bool(terminated or state.get("running")),
        ended=bool(terminated) or status.get("phase") in ("Succeeded", "Failed"),
        deleting="deletionTimestamp" in metadata,
        code=terminated.get("exitCode"),
        oom=terminated.get("reason") == "OOMKilled",
        disruption=_disruption(pod),
        testament=_testament(terminated),
    )


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


_DISRUPTIONS = {
    "PreemptionByScheduler": "was displaced by a pod of a higher priority",
    "DeletionByTaintManager": "was lost: its node can't be reached, or sends its pods away",
    "DeletionByPodGC": "was lost with its node",
    "EvictionByEvictionAPI": "was evicted",
    "TerminationByKubelet": "was ended by its node",
}


def refusal(pod: Object) -> Refusal | None:
    """Why the pod got no place: from the scheduler, or from the node that it was sent to."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            said = _plain(condition.get("message", ""))
            never = _NEVER.search(said) is not None
            hint = "See that the volume claim exists and is bound: kubectl get pvc" if never else ""
            return Refusal(f"The cluster's scheduler has no place for it: {said}.", never, hint)
    terminated = _state(pod).get("terminated") or {}
    if terminated.get("reason") in _NEVER_BEGUN and _MAY_PASS.search(terminated.get("message", "")):
        said = _plain(terminated["message"])
        return Refusal(f"Node {pod['spec'].get('nodeName')} did not get to start it: {said}.")
    if status.get("phase") == "Failed" and _TURNED_AWAY.search(status.get("reason", "")):
        return Refusal(f"Node {pod['spec'].get('nodeName')} turned it away: {_plain(status.get('message', ''))}.")
    return None


def rejection(said: str) -> Refusal:
    """What the API answered to a pod that it did not take."""
    if quota := _QUOTA.search(said):
        name, requested, _, limited = quota.groups()
        beyond = _beyond(requested, limited)
        hint = "Ask for less, or have the quota raised: kubectl describe quota" if beyond else ""
        return Refusal(
            f"The quota {name} does not allow it: requested {requested}, limited to {limited}.", beyond, hint
        )
    if missing := _NO_PRIORITY.search(said):
        hint = "--priority-class takes one of those that `kubectl get priorityclasses` lists."
        return Refusal(f"The cluster has no priority class {missing[1]}.", True, hint)
    hint = "An administrator of the namespace can allow it; --as-image-user and --set change what is asked for."
    return Refusal(f"The cluster does not take the pods: {_plain(said)}.", True, hint)


def _beyond(requested: str, limited: str) -> bool:
    """Whether it would not fit even if nobody else used anything."""
    limits = dict(part.split("=", 1) for part in limited.split(","))
    asked = dict(part.split("=", 1) for part in requested.split(","))
    return any(amount(asked[name]) > amount(limits[name]) for name in asked if name in limits)


def stuck(pod: Object, pulls: int) -> Facts | None:
    """Why the container will never start; `pulls` counts how often its image could not be pulled so far."""
    waiting = _state(pod).get("waiting") or {}
    reason, said = waiting.get("reason", ""), _plain(waiting.get("message", ""))
    image = pod["spec"]["containers"][0]["image"]
    if reason in _BAD_IMAGE and (pulls > 1 or _HOPELESS_IMAGE.search(said) or reason in _NO_IMAGE):
        hint = "Check its name, that the cluster reaches its registry, and pull secret (--set spec.imagePullSecrets…)."
        return _told("failed", f"The image {image} can't be pulled: {said}.", hint, pod)
    if reason in _BAD_START and not _MAY_PASS.search(said):
        hint = "--as-image-user runs it as the image's own user." if "runAsNonRoot" in said else ""
        return _told("failed", f"The container can't be started: {said}.", hint, pod)
    return None


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


def hindrance(pod: Object) -> Refusal | None:
    """Why a pod that somebody waits for has not started: hopeless, or in a way that may pass."""
    if refused := refusal(pod):
        # A volume that was asked for only just now may still be made.
        return refused._replace(hopeless=refused.hopeless and not _UNBOUND.search(refused.reason))
    facts = stuck(pod, 0) or broken_start(pod)
    return Refusal(facts["reason"], True, facts["hint"]) if facts else None


def last_words(pod: Object) -> str:
    """Of a container that has failed; empty where it has not."""
    terminated = _state(pod).get("terminated") or {}
    if not terminated.get("exitCode"):
        return ""
    said = _plain(str(terminated.get("message", "")).rstrip().rpartition("\n")[2])
    return said or f"exit code {terminated['exitCode']}"


def absence(pods: Sequence[Object], events: Sequence[Object], setup: str) -> Refusal | None:
    """Why a run's manager is not in the cluster: what the newest of its pods tells, or its Job that could make none.
    `setup` is the command that gives managers their rights."""
    rights = f"`{setup}` gives managers the rights that they need."
    if not pods and events:
        said = events[-1].get("message", "")
        hint = rights if "serviceaccount" in said else "An administrator of the namespace can change that."
        return Refusal(rejection(said).reason, hint=hint)
    newest = sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)
    return next((why for pod in newest if (why := _absence(pod, rights))), None)


def _absence(pod: Object, rights: str) -> Refusal | None:
    if refused := refusal(pod):
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
    which = _which(seen).replace("The", "the", 1)
    return f"{which} did not start: {_plain(said)}" if said else f"{which} did not start"


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
    """On one line, and without the full stop that our own sentences have."""
    return " ".join(text.split()).rstrip(".")
