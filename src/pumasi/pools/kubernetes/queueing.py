"""Which runs that wait for room come first, and what they leave to the others. Pure: anchors as the cluster keeps them
go in, rooms come out.

The older a run, the earlier its turn. It keeps from younger ones exactly what it could take now, planned as its own
manager will plan it: where it does not fit yet, the younger ones go ahead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.core.planning import plan
from pumasi.core.spec import MOST_SLOTS, Spec
from pumasi.errors import DoesNotFit
from pumasi.pools.kubernetes.discovery import Object, Room, Taken, room, taken
from pumasi.pools.kubernetes.manifests import RUN, needs_of
from pumasi.pools.kubernetes.notation import toleration
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.record import BEAT_NOTE, CREATED, PLACEMENT, STALE, WISH, Age

_LEAST_NEED, _MOST_NEED = 1e-3, 1e18
"""What a slot may need of a resource: from a thousandth, which is the least that Kubernetes counts, to an exabyte."""


class Wish(NamedTuple):
    """What a run asks of the nodes; `needs` are those of one slot."""

    slots: int
    needs: Mapping[str, float]
    most_per_node: int | None = None
    tolerations: Sequence[Object] = ()
    selector: Mapping[str, str] = {}
    topology: Sequence[str] = ()


class Waiter(NamedTuple):
    """A run that waits. `placement` is where it is about to start, if it is: its pods may not be there yet."""

    age: Age
    wish: Wish
    placement: Mapping[str, int] = {}

    @property
    def run(self) -> str:
        return self.age[-1]


class Left(NamedTuple):
    """The rooms, without what is kept for older runs; `fitting` are the ages of the older runs that could start now,
    whether or not room is kept for them."""

    rooms: list[Room]
    fitting: tuple[Age, ...] = ()


def wish_of(spec: Spec) -> Wish:
    asked = spec[KubernetesOptions]
    return Wish(
        slots=spec.at_once,
        needs=needs_of(spec),
        most_per_node=asked.max_per_node,
        tolerations=[toleration(text) for text in asked.tolerations],
        selector=asked.node_selector,
        topology=asked.topology,
    )


def write_wish(wish: Wish) -> str:
    return json.dumps(wish._asdict())


def read_wish(text: str) -> Wish:
    """Raises what Python raises where somebody else has written something else."""
    said = json.loads(text)
    most = said["most_per_node"]
    wish = Wish(
        slots=_read_slots(said["slots"]),
        needs={str(resource): _read_need(need) for resource, need in said["needs"].items()},
        most_per_node=None if most is None else _read_slots(most),
        tolerations=[{str(key): str(value) for key, value in each.items()} for each in said["tolerations"]],
        selector={str(key): str(value) for key, value in said["selector"].items()},
        topology=tuple(str(label) for label in said["topology"]),
    )
    if not wish.needs:
        raise ValueError(f"It asks for nothing: {text}")
    return wish


def _read_slots(said: Any) -> int:
    slots = int(said)
    if not 1 <= slots <= MOST_SLOTS:
        raise ValueError(f"No number of slots: {said}")
    return slots


def _read_need(said: Any) -> float:
    need = float(said)
    if not _LEAST_NEED <= need <= _MOST_NEED:
        raise ValueError(f"No amount that a slot can need: {said}")
    return need


def ahead_of(own: Age | None, anchors: Iterable[Object], now: float) -> list[Waiter]:
    """Those that wait, have a manager that lives, and are older than `own`, the oldest first. None: all are older."""
    waiters = [waiter for waiter in (_waiter(anchor, now) for anchor in anchors) if waiter]
    return sorted((each for each in waiters if own is None or each.age < own), key=lambda each: each.age)


def _waiter(anchor: Object, now: float) -> Waiter | None:
    """None also for what cannot be understood: another version of ours may have written it, or somebody by hand."""
    try:
        metadata = anchor["metadata"]
        notes = metadata["annotations"]
        placement = json.loads(notes.get(PLACEMENT, "{}"))
        waiter = Waiter(
            age=(metadata["creationTimestamp"], float(notes[CREATED]), metadata["name"]),
            wish=read_wish(notes[WISH]),
            placement={str(node): _read_slots(share) for node, share in placement.items()},
        )
        is_alive = now - float(notes[BEAT_NOTE]) < STALE
        return waiter if is_alive and math.isfinite(waiter.age[1]) else None
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def leave_room(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    wish: Wish,
    ahead: Sequence[Waiter],
    avoid: Collection[str] = (),
    own: Iterable[Mapping[str, int]] = (),
    passed: Collection[Age] = (),
    apart: Sequence[tuple[Mapping[str, int], Wish]] = (),
) -> Left:
    """What there is for `wish` when those before it have taken what they can. It does without the nodes in `avoid`, and
    `own` are the shares of its pods that are not there yet, `apart` those of pods of the same run that ask for other
    things. No room is kept for the runs in `passed`."""
    wishes = (wish, *(waiter.wish for waiter in ahead), *(other for _, other in apart))
    resources = {resource for each in wishes for resource in each.needs}
    held = taken(pods, resources)
    there = {(pod["metadata"].get("labels", {}).get(RUN), pod["spec"].get("nodeName")) for pod in pods}
    for shares, asked in (*((each, wish) for each in own), *apart):
        _take(held, shares, asked)
    fitting = []
    for waiter in ahead:
        if waiter.placement:
            shares = {node: n for node, n in waiter.placement.items() if (waiter.run, node) not in there}
        else:
            shares = _plan(_rooms(nodes, held, waiter.wish), waiter.wish)
        fitting += [waiter.age] if shares else []
        if waiter.age not in passed:
            _take(held, shares, waiter.wish)
    return Left(_rooms(nodes, held, wish, avoid), tuple(fitting))


def _take(held: Taken, shares: Mapping[str, int], wish: Wish) -> None:
    for node, share in shares.items():
        for resource, need in wish.needs.items():
            held[node][resource] += need * share


def _plan(rooms: Iterable[Room], wish: Wish) -> dict[str, int]:
    """Empty where it does not fit."""
    try:
        return plan([each.as_free for each in rooms], wish.slots, most_per_node=wish.most_per_node).placement
    except DoesNotFit:
        return {}


def _rooms(nodes: Sequence[Object], held: Taken, wish: Wish, avoid: Collection[str] = ()) -> list[Room]:
    return room(
        nodes,
        held,
        wish.needs,
        tolerations=wish.tolerations,
        selector=wish.selector,
        avoid=avoid,
        topology=wish.topology,
    )
