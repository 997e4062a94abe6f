"""How far a Deployment has come with its new pods, and why not further. Pure: objects in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.pools.kubernetes import pod_facts
from pumasi.pools.kubernetes.discovery import has_ended

Object = Mapping[str, Any]
_TAIL = 12
_KILLED_FOR_MEMORY = "OOMKilled"


class Standing(NamedTuple):
    """`broken`: it will not get any further, because of that; `code` is what its process ended with, if it did.
    `waiting`: for what, in a few words."""

    done: bool = False
    broken: pod_facts.Refusal | None = None
    code: int = 0
    waiting: str = ""


def standing(
    deployment: Object,
    pods: Sequence[Object],
    former: Sequence[Object],
    events: Sequence[Object],
    kubectl: str = "kubectl",
) -> Standing:
    """`pods`: the new ones; `former`: those that were there before. `events`: what was told where no new ones are.
    It is done when only the new ones are left to answer. `kubectl`: as in `pod_facts.refusal`."""
    if _is_done(deployment):
        return Standing(waiting="the former pod finishes what it is answering") if former else Standing(done=True)
    for pod in pods:
        if ended := _end(pod):
            return _broken_by(ended)
        if why := pod_facts.hindrance(pod, kubectl):
            return Standing(broken=why) if why.hopeless else Standing(waiting=why.reason.rstrip("."))
    if not pods and events:
        why = pod_facts.rejection(max(events, key=_last)["message"], kubectl=kubectl)
        return Standing(broken=why) if why.hopeless else Standing(waiting=why.reason.rstrip("."))
    return Standing(waiting=_phase(pods))


def _is_done(deployment: Object) -> bool:
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    counts = [status.get(key, 0) for key in ("updatedReplicas", "availableReplicas", "replicas")]
    return bool(seen and counts == [wanted] * 3)


def _last(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def since(events: Sequence[Object], moment: str) -> list[Object]:
    """Those that were told from then on: of an earlier try there may be others. Times as the API writes them."""
    return [event for event in events if _last(event) >= moment]


def still_answers(pod: Object, now: str) -> bool:
    """Not one that has ended, nor one that should have by now and whose node does not say so."""
    until = pod["metadata"].get("deletionTimestamp")
    return not has_ended(pod) and (until is None or until >= now)


def _status(pod: Object) -> Object:
    found: Object = next(iter(pod.get("status", {}).get("containerStatuses") or ()), {})
    return found


def _end(pod: Object) -> Object | None:
    """How its process ended, now or before it was started again."""
    status = _status(pod)
    for state in (status.get("state", {}), status.get("lastState", {})):
        if "terminated" in state:
            ended: Object = state["terminated"]
            return ended
    return None


def _broken_by(ended: Object) -> Standing:
    code = int(ended.get("exitCode", 0))
    if ended.get("reason") == _KILLED_FOR_MEMORY:
        return Standing(broken=pod_facts.Refusal("The new pod ran out of memory.", True), code=code)
    said = str(ended.get("message", "")).strip().splitlines()[-_TAIL:]
    words = "\n".join(said) or f"exit code {code}"
    return Standing(broken=pod_facts.Refusal(f"The new pod failed:\n{words}", True), code=code)


def _phase(pods: Sequence[Object]) -> str:
    if not pods:
        return "the cluster makes a pod"
    pod, status = pods[0], _status(pods[0])
    node = pod["spec"].get("nodeName")
    if not node:
        return "the scheduler looks for a node"
    if "running" in status.get("state", {}):
        return "the model is being loaded"
    return f"the image is being fetched, or the volume mounted, on {node}"


def last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL:])
