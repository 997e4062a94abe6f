"""Why a plan is as it is, in sentences: for `pumasi plan --explain`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pumasi.core.planning.fragmentation import DEFAULT_MIX, Fragmentation
from pumasi.core.planning.planner import Node, Plan
from pumasi.core.ranks import chief_first

_MOST_NAMES = 6


def explain(
    nodes: Sequence[Node],
    slots: int,
    plan: Plan,
    *,
    most_per_node: int | None = None,
    mix: Mapping[int, float] = DEFAULT_MIX,
) -> list[str]:
    """All arguments as `plan` had them, and what it answered."""
    limit = min(slots, most_per_node or slots)
    used = {node.domains[max(plan.level - 1, 0) :] for node in nodes if node.name in plan.placement}
    within = [node for node in nodes if node.domains[max(plan.level - 1, 0) :] in used]
    fragmentation = Fragmentation(mix)
    return [
        f"{_many(slots, 'slot')} on {_many(len(plan.shares), 'node')}: {_placed(plan.placement)}.",
        *_tell_domains(nodes, slots, plan, limit),
        _tell_nodes(within, slots, plan, most_per_node),
        _tell_fragmentation(nodes, plan, fragmentation),
        _tell_best_fit(within, slots, plan, limit, fragmentation),
        _tell_mix(mix),
        _tell_chief(plan.placement),
    ]


def _tell_domains(nodes: Sequence[Node], slots: int, plan: Plan, limit: int) -> list[str]:
    inside = next(node for node in nodes if node.name in plan.placement).domains
    if not inside:
        return []
    around = " in ".join(inside[plan.level :]) or "the whole cluster"
    if plan.level == 0:
        return [f"All of them are in {around}: one of the narrowest domains has room for all."]
    rooms: Counter[tuple[str, ...]] = Counter()
    for node in nodes:
        rooms[node.domains[plan.level - 1 :]] += min(node.free, limit)
    largest, room = min(rooms.items(), key=lambda item: (-item[1], item[0]))
    used = sorted({node.domains[plan.level - 1] for node in nodes if node.name in plan.placement})
    used[_MOST_NAMES:] = [f"{len(used) - _MOST_NAMES} more"] if len(used) > _MOST_NAMES else []
    return [
        f"No single domain has room for {slots}: the largest of level {plan.level - 1}, {' in '.join(largest)}, can "
        f"take {room}. So they span {plan.domains}, the fewest that will do, within {around}: {_list(used)}."
    ]


def _tell_nodes(within: Sequence[Node], slots: int, plan: Plan, most_per_node: int | None) -> str:
    count = len(plan.shares)
    if count == 1:
        return f"One node is enough: {next(iter(plan.placement))} has room for all."
    limit = most_per_node or slots
    rooms = sorted((min(node.free, limit) for node in within), reverse=True)
    most = f" with at most {most_per_node} a node" if most_per_node is not None else ""
    larger = "the largest node" if count == 2 else f"the {count - 1} largest nodes"
    where = " there, and no other choice of domains does with fewer" if within[0].domains else ""
    return f"It takes at least {count} nodes: {larger} can take {sum(rooms[: count - 1])}{most}{where}."


def _tell_fragmentation(nodes: Sequence[Node], plan: Plan, fragmentation: Fragmentation) -> str:
    before = fragmentation.real(sum(fragmentation(node.free) for node in nodes))
    what = (
        f"Fragmentation, the free slots that the next request can probably not use, goes from {before:.2f} to "
        f"{before + plan.added:.2f} ({plan.added:+.2f})"
    )
    if not plan.exact:
        return f"{what}. There are too many choices to look at all of them: another one may leave less."
    return f"{what}: no other choice of so few nodes leaves less."


def _tell_best_fit(within: Sequence[Node], slots: int, plan: Plan, limit: int, fragmentation: Fragmentation) -> str:
    """The alternative: within the same domains, since best-fit knows nothing of them."""
    placement = best_fit(within, slots, limit)
    if placement == plan.placement:
        return "Best-fit, the largest nodes first, would have done the same."
    free = {node.name: node.free for node in within}
    added = sum(fragmentation(free[name] - share) - fragmentation(free[name]) for name, share in placement.items())
    more = fragmentation.real(added) - plan.added
    told = f"Best-fit, the largest nodes first, would have taken {_placed(placement)}"
    return f"{told}, and left {more:.2f} more." if more > 0.005 else f"{told}, which is as good."


def _tell_mix(mix: Mapping[int, float]) -> str:
    parts = [f"{100 * part:g} % need {size}" for size, part in sorted(mix.items()) if part]
    return f"The demand mix that this is reckoned with: of all requests {_list(parts)} slots on one node."


def _tell_chief(placement: Mapping[str, int]) -> str:
    chief = chief_first(placement)[0]
    if len(placement) == 1:
        return f"The chief, rank 0, is on {chief} like all the others."
    return f"The chief, rank 0, is on {chief}: no node has a smaller share than its {placement[chief]}."


def _placed(placement: Mapping[str, int]) -> str:
    if len(placement) <= _MOST_NAMES:
        return _list([f"{share} on {name}" for name, share in placement.items()])
    shares = Counter(placement.values())
    return _list([f"{share} on {_many(shares[share], 'node')}" for share in sorted(shares, reverse=True)])


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _list(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def best_fit(nodes: Iterable[Node], slots: int, limit: int) -> dict[str, int]:
    """What most schedulers do: the nodes with the most room first, and the rest on the smallest node that holds it."""
    by_free: dict[int, list[str]] = defaultdict(list)
    for name, free, _ in nodes:
        by_free[free].append(name)
    placement: dict[str, int] = {}
    for free in sorted(by_free, key=lambda free: (-min(free, limit), free)):
        room = min(free, limit)
        names = sorted(by_free.pop(free))
        whole = min(len(names), -(-slots // room) - 1)
        placement.update(dict.fromkeys(names[:whole], room))
        slots -= room * whole
        if whole < len(names):
            by_free[free] = names[whole:]
            break
    smallest = min(free for free in by_free if free >= slots)
    return {**placement, min(by_free[smallest]): slots}
