"""Who holds what a run waits for, in words. Pure: pods as the cluster shows them go in, sentences come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pumasi.core.person import read_name
from pumasi.pools.kubernetes.discovery import Object, asked_for, has_ended, seconds
from pumasi.pools.kubernetes.manifests import RUN, USER_NOTE

MOST = 5
"""Holders that are named."""
_GIB = 2.0**30


class Use(NamedTuple):
    """What somebody holds of a resource, and since when by the cluster's clock; `user` is empty where nobody knows."""

    who: str
    user: str
    amount: float
    since: float


class Shortfall(NamedTuple):
    """What a run waits for: so many slots. `free` are those that it could take, `kept` those that older runs could;
    `out` names the nodes that nobody can use now, and why; `before` is how many older runs wait."""

    slots: int
    free: int
    uses: Sequence[Use]
    kept: int = 0
    out: Mapping[str, str] = {}
    before: int = 0


def scarce(needs: Mapping[str, float]) -> str:
    """The resource of those that a slot needs that people ask for: an accelerator, else CPUs."""
    return next((each for each in needs if each not in ("cpu", "memory")), "cpu" if "cpu" in needs else "memory")


def uses(pods: Iterable[Object], resource: str, nodes: Collection[str], namespace: str) -> list[Use]:
    """What is held on these nodes, by run; pods of no run by themselves. The largest first. Those of other namespaces
    than `namespace` are called by theirs too."""
    found: dict[str, Use] = {}
    for pod in pods:
        amount = 0.0 if has_ended(pod) or pod["spec"].get("nodeName") not in nodes else asked_for(pod, resource)
        if amount:
            use = _use(pod, amount, namespace)
            other = found.get(use.who, use._replace(amount=0.0))
            found[use.who] = use._replace(amount=amount + other.amount, since=min(use.since, other.since))
    return sorted(found.values(), key=lambda use: (-use.amount, use.who))


def _use(pod: Object, amount: float, namespace: str) -> Use:
    metadata = pod["metadata"]
    run = metadata.get("labels", {}).get(RUN)
    elsewhere = f"{metadata['namespace']}/" if metadata["namespace"] != namespace or not run else ""
    user = read_name(metadata.get("annotations", {}).get(USER_NOTE, ""))
    started = pod.get("status", {}).get("startTime") or metadata.get("creationTimestamp")
    return Use(elsewhere + (run or metadata["name"]), user, amount, seconds(started) if started else 0.0)


def words(short: Shortfall, resource: str, now: float | None = None) -> str:
    """8 GPUs in use by train-a (kim, 12 min), 2 by train-b; 3 runs before this one. Without `now` no times: what is
    the same then is no news."""
    return _join(short, resource, now, _amount)


def _join(short: Shortfall, resource: str, now: float | None, first: Callable[[float, str], str]) -> str:
    held = [f"{first(use.amount, resource)} in use by {_who(use, now)}" for use in short.uses[:1]]
    held += [f"{_number(use.amount, resource)} by {_who(use, now)}" for use in short.uses[1:MOST]]
    held += [f"and {len(short.uses) - MOST} more"] if len(short.uses) > MOST else []
    parts = [", ".join(held)]
    parts += [f"{short.kept} kept for older runs"] if short.kept else []
    parts += [f"{node}: {why}" for node, why in sorted(short.out.items())[:MOST]]
    parts += [f"{short.before} {'run' if short.before == 1 else 'runs'} before this one"] if short.before else []
    return "; ".join(part for part in parts if part)


def waiting(short: Shortfall, resource: str, now: float | None = None) -> str:
    """for 5 GPUs: 10 in use by …"""
    is_gpu = resource not in ("cpu", "memory")
    what = f"for {short.slots} {'GPU' if is_gpu else 'slot'}{'' if short.slots == 1 else 's'}"
    free = f" ({short.free} free)" if short.free else ""
    told = _join(short, resource, now, _number if is_gpu else _amount)
    return f"{what}{free}: {told}." if told else f"{what}{free}."


def _who(use: Use, now: float | None) -> str:
    about = [use.user] if use.user else []
    about += [_for_how_long(now - use.since)] if now is not None and use.since else []
    return f"{use.who} ({', '.join(about)})" if about else use.who


def _amount(amount: float, resource: str) -> str:
    unit = {"cpu": "CPU", "memory": "memory"}.get(resource, "GPU")
    return f"{_number(amount, resource)} {unit}{'' if amount == 1 or resource == 'memory' else 's'}"


def _number(amount: float, resource: str) -> str:
    return f"{amount / _GIB:.3g} GiB" if resource == "memory" else f"{amount:.4g}"


def _for_how_long(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
