"""What --set may not change in a pod, because Pumasi relies on it; and what to use instead. Pure.

A pod is compared with what it was before each change, so that it does not matter how the change was written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pumasi.errors import SpecError
from pumasi.pools.kubernetes.notation import OWN_DOMAIN
from pumasi.pools.kubernetes.patching import apply, parse_patch

Object = dict[str, Any]

_MANAGED_BY = "app.kubernetes.io/managed-by"
_OPEN_METADATA = ("labels", "annotations")


class Rule(NamedTuple):
    """`read` gets the part of a pod that must stay as it is."""

    field: str
    read: Callable[[Object], Any]
    why: str
    instead: str


def patched(texts: Iterable[str], pod: Object, counted: Collection[str]) -> Object:
    """The pod with these changes made. `counted` are the resources that the plan counts. SpecError for a change that
    leads nowhere, or to what is reserved."""
    rules = (*RULES, _resources(counted))
    for text in texts:
        changed = apply([parse_patch(text)], pod)
        for rule in rules:
            if not _is_kept(rule.read(pod), rule.read(changed)):
                raise SpecError(f"--set {text}: {rule.field} can't be changed: {rule.why}.", rule.instead)
        pod = changed
    return pod


def _is_kept(before: Any, after: Any) -> bool:
    """Of a set, all that was there."""
    return bool(before <= after if isinstance(before, frozenset) else before == after)


def _at(thing: Any, *steps: str | int) -> Any:
    """None where the steps lead nowhere."""
    for step in steps:
        if isinstance(step, int):
            thing = thing[step] if isinstance(thing, list) and len(thing) > step else None
        else:
            thing = thing.get(step) if isinstance(thing, Mapping) else None
    return thing


def _field(*steps: str | int) -> Callable[[Object], Any]:
    return lambda pod: _at(pod, *steps)


def _of_agent(name: str) -> Callable[[Object], Any]:
    return _field("spec", "containers", 0, name)


def _count_containers(pod: Object) -> int:
    containers = _at(pod, "spec", "containers")
    return len(containers) if isinstance(containers, list) else 0


def _closed_metadata(pod: Object) -> Object:
    return {name: value for name, value in pod["metadata"].items() if name not in _OPEN_METADATA}


def _own_labels(pod: Object) -> Object:
    labels = _at(pod, "metadata", "labels")
    found = labels.items() if isinstance(labels, Mapping) else ()
    return {name: value for name, value in found if name == _MANAGED_BY or name.startswith(f"{OWN_DOMAIN}/")}


def _own_variables(pod: Object) -> list[Any]:
    found = _at(pod, "spec", "containers", 0, "env")
    names = [(_at(each, "name"), each) for each in found] if isinstance(found, list) else []
    return [each for name, each in names if str(name).startswith("PUMASI_")]


def _names(*steps: str | int) -> Callable[[Object], frozenset[str]]:
    def read(pod: Object) -> frozenset[str]:
        found = _at(pod, *steps)
        return frozenset(str(_at(each, "name")) for each in found) if isinstance(found, list) else frozenset()

    return read


def _tolerations(pod: Object) -> frozenset[str]:
    found = _at(pod, "spec", "tolerations")
    return frozenset(json.dumps(each, sort_keys=True) for each in found) if isinstance(found, list) else frozenset()


def _pins(pod: Object) -> frozenset[str]:
    """A pod that has none may get one."""
    terms = _at(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    return frozenset() if terms is None else frozenset((str(terms),))


def _resources(counted: Collection[str]) -> Rule:
    def read(pod: Object) -> Object:
        asked: Object = {}
        for group in ("limits", "requests"):  # A limit alone is a request, too.
            found = _at(pod, "spec", "containers", 0, "resources", group)
            asked |= dict(found) if isinstance(found, Mapping) else {}
        return {name: value for name, value in asked.items() if name in counted}

    return Rule(
        "what a process asks for",
        read,
        "the plan would count something else than the pod asks for",
        "Use --cpus, --memory and --gpus, which are per process.",
    )


_EVERY_CONTAINER_ENDS = "a container that is restarted in place never ends, and keeps its GPUs"
RULES = (
    Rule(
        "metadata, but for labels and annotations,",
        _closed_metadata,
        "Pumasi finds and removes pods by it",
        "Use --name for the run's name, and --namespace.",
    ),
    Rule("a label of Pumasi", _own_labels, "pods are found by it", "Choose a label of your own: --label KEY=VALUE."),
    Rule("spec.restartPolicy", _field("spec", "restartPolicy"), _EVERY_CONTAINER_ENDS, "Use --restarts N."),
    Rule(
        "spec.nodeName",
        _field("spec", "nodeName"),
        "it bypasses the scheduler, and a node without room kills the pod",
        "Use --node-selector kubernetes.io/hostname=NODE.",
    ),
    Rule(
        "spec.nodeSelector",
        _field("spec", "nodeSelector"),
        "the plan would count nodes where the pod can't go",
        "Use --node-selector KEY=VALUE.",
    ),
    Rule(
        "spec.affinity.nodeAffinity",
        _pins,
        "each pod goes to the node that was planned for it",
        "Use --node-selector KEY=VALUE; other affinities can be set: --set spec.affinity.podAntiAffinity=….",
    ),
    Rule(
        "a toleration of the pod",
        _tolerations,
        "the plan counts nodes by it, and it says when Kubernetes gives up a lost node",
        "Leave out --toleration, or add one with spec.tolerations[+]=….",
    ),
    Rule(
        "spec.schedulingGates",
        _field("spec", "schedulingGates"),
        "no scheduler looks at the pod before somebody removes them, and Pumasi does not",
        "A queue such as Kueue adds and removes its own; --label names the queue.",
    ),
    Rule(
        "spec.activeDeadlineSeconds",
        _field("spec", "activeDeadlineSeconds"),
        "the pod would be killed without a chance to save anything",
        "Use --timeout.",
    ),
    Rule(
        "spec.terminationGracePeriodSeconds",
        _field("spec", "terminationGracePeriodSeconds"),
        "it follows from --grace",
        "Use --grace.",
    ),
    Rule(
        "spec.resources",
        _field("spec", "resources"),
        "the plan would count something else than the pod asks for",
        "Use --cpus, --memory and --gpus, which are per process.",
    ),
    Rule(
        "the number of containers",
        _count_containers,
        "the pod would live, and keep its GPUs, until the last of them has ended",
        "A helper can be an init container with restartPolicy Always: it ends with the pod.",
    ),
    Rule("the first container's name", _of_agent("name"), "Pumasi reads its output by it", "Leave it as it is."),
    Rule("the first container's command", _of_agent("command"), "it starts Pumasi's agent", "Use --python, or SCRIPT."),
    Rule("the first container's args", _of_agent("args"), "it starts Pumasi's agent", "Put them after SCRIPT."),
    Rule("a variable of Pumasi", _own_variables, "the agent is told by it what to do", "Choose a name of your own."),
    Rule(
        "the first container's terminationMessagePath",
        _of_agent("terminationMessagePath"),
        "the agent says there how it ended",
        "Leave it as it is.",
    ),
    Rule("the first container's restartPolicy", _of_agent("restartPolicy"), _EVERY_CONTAINER_ENDS, "Use --restarts N."),
    Rule(
        "the first container's restartPolicyRules",
        _of_agent("restartPolicyRules"),
        _EVERY_CONTAINER_ENDS,
        "Use --restarts N.",
    ),
    Rule("a volume of the pod", _names("spec", "volumes"), "the run needs it", "Add one with spec.volumes[+]=…."),
    Rule(
        "a mount of the first container",
        _names("spec", "containers", 0, "volumeMounts"),
        "the run needs it",
        "Add one with spec.containers[0].volumeMounts[+]=….",
    ),
)
