"""What the quotas of a namespace can never allow, however little others use of them. Pure.

A gang is counted as a whole: its pods may fit one by one, and never together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pumasi.pools.kubernetes.discovery import amount

Object = Mapping[str, Any]
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
"""Resources whose requests a quota may name without a prefix."""


def hint(kubectl: str) -> str:
    """`kubectl`: how a line that leads to the namespace begins."""
    return f"Ask for less, or have the quota raised: {kubectl} describe quota"


def asked_by(pods: Sequence[Object]) -> dict[str, float]:
    """By the names that quotas have for it."""
    asked: dict[str, float] = defaultdict(float, {"pods": len(pods), "count/pods": len(pods)})
    for container in (each for pod in pods for each in pod["spec"]["containers"]):
        limits, requests = (_mapping(container.get("resources"), group) for group in ("limits", "requests"))
        for resource, value in {**limits, **requests}.items():  # A limit alone is a request, too.
            asked[f"requests.{resource}"] += amount(str(value))
        for resource, value in limits.items():
            asked[f"limits.{resource}"] += amount(str(value))
    return {**asked, **{each: asked[f"requests.{each}"] for each in _COMPUTE if f"requests.{each}" in asked}}


def _mapping(resources: Any, group: str) -> Object:
    """Empty for what is none: the API server refuses it, in words."""
    found = resources.get(group) if isinstance(resources, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def never(quotas: Iterable[Object], asked: Mapping[str, float]) -> str:
    """A sentence for the first quota that is smaller than what is asked for, if there is one. A quota for some pods
    only (a priority, say) is left to the API server, which knows whether these are such pods."""
    for quota in quotas:
        if not (quota["spec"].get("scopes") or quota["spec"].get("scopeSelector")):
            hard = quota.get("status", {}).get("hard") or quota["spec"].get("hard", {})
            if said := beyond(quota["metadata"]["name"], asked, hard):
                return said
    return ""


def beyond(name: str, asked: Mapping[str, float], hard: Mapping[str, str]) -> str:
    over = [resource for resource in sorted(hard) if asked.get(resource, 0.0) > amount(str(hard[resource])) + 1e-6]
    if not over:
        return ""
    requested = ", ".join(f"{resource}={_shown(asked[resource], hard[resource])}" for resource in over)
    limited = ", ".join(f"{resource}={hard[resource]}" for resource in over)
    return f"The quota {name} does not allow it: requested {requested} in all, limited to {limited}."


def _shown(value: float, like: str) -> str:
    """In the unit of the limit, where it has one: 12Gi, not 12884901888."""
    unit = str(like).lstrip("0123456789.")
    whole = value / (amount(f"1{unit}") or 1.0)
    return f"{whole:.10g}{unit}"
