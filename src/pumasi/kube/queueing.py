"""Which runs of a namespace that wait for room come first, and what they leave to the others. Pure: records as the
cluster keeps them go in, rooms come out.

The older a run, the earlier its turn. It keeps from younger ones exactly what it could take now, planned as its own
manager will plan it: where it does not fit yet, the younger ones go ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pumasi.core.kubewords import toleration
from pumasi.core.planner import plan
from pumasi.core.spec import Spec, parse_spec
from pumasi.errors import DoesNotFit, PumasiError
from pumasi.kube.discovery import Object, Room, Taken, room, taken
from pumasi.kube.manifests import RUN, needs_of
from pumasi.kube.record import STALE, Age, read


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
    """The rooms, without what is kept for `ahead` older runs."""

    rooms: list[Room]
    ahead: int


def wish_of(spec: Spec) -> Wish:
    return Wish(
        slots=spec.at_once,
        needs=needs_of(spec),
        most_per_node=spec.max_per_node,
        tolerations=[toleration(text) for text in spec.tolerations],
        selector=spec.node_selector,
        topology=spec.topology,
    )


def ahead_of(own: Age | None, records: Iterable[Object], now: float) -> list[Waiter]:
    """Those that wait, have a manager that lives, and are older than `own`, the oldest first. None: all are older."""
    waiters = [waiter for waiter in (_waiter(record, now) for record in records) if waiter]
    return sorted((each for each in waiters if own is None or each.age < own), key=lambda each: each.age)


def _waiter(record: Object, now: float) -> Waiter | None:
    """None also for what cannot be understood: another version of ours may have written it, or somebody by hand."""
    try:
        content = read(record)
        placement = content.state.get("placement", {}) if content.state["state"] == "starting" else {}
        waiter = Waiter(content.age, wish_of(parse_spec(content.spec)), placement)
    except (KeyError, TypeError, ValueError, PumasiError):
        return None
    return waiter if now - content.beat < STALE else None


def leave_room(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    wish: Wish,
    ahead: Sequence[Waiter],
    avoid: Collection[str] = (),
    own: Iterable[Mapping[str, int]] = (),
) -> Left:
    """What there is for `wish` when those before it have taken what they can. It does without the nodes in `avoid`, and
    `own` are the shares of its pods that are not there yet."""
    resources = {resource for each in (wish, *(waiter.wish for waiter in ahead)) for resource in each.needs}
    held = taken(pods, resources)
    there = {(pod["metadata"].get("labels", {}).get(RUN), pod["spec"].get("nodeName")) for pod in pods}
    for shares in own:
        _take(held, shares, wish)
    count = 0
    for waiter in ahead:
        if waiter.placement:
            shares = {node: n for node, n in waiter.placement.items() if (waiter.run, node) not in there}
        else:
            shares = _plan(_rooms(nodes, held, waiter.wish), waiter.wish)
        count += bool(shares)
        _take(held, shares, waiter.wish)
    return Left(_rooms(nodes, held, wish, avoid), count)


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
