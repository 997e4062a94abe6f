"""Free slots and a request in, a placement out: the least in

    (topology level spanned, number of domains, number of nodes, fragmentation added, node names)

The answer is exact: see `group` for why that is cheap. Domains of level 0 are the narrowest, racks perhaps: a
placement of level 0 stays within one of them. One of level 1 stays within one domain of level 1, a zone perhaps, and
its number of domains counts the racks. So it goes on up to the whole cluster, one level above the widest domains.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from pumasi.core.planning.fragmentation import DEFAULT_MIX, Fragmentation, Kind
from pumasi.core.planning.group import Kinds, Placement, largest_first, merge, place, room
from pumasi.errors import DoesNotFit, UsageError

Path = tuple[str, ...]
"""A domain with all that are around it, from narrow to wide; the whole cluster is ()."""

_ByFree = Mapping[int, Sequence[str]]
"""Free slots ─► the names of the nodes that have so many."""


class Node(NamedTuple):
    """`domains` from narrow to wide: ("rack-1", "zone-a"). Racks of one name in two zones are two racks."""

    name: str
    free: int
    domains: tuple[str, ...] = ()


class Plan(NamedTuple):
    """`placement` has only nodes with a share, in the order of the nodes; `shares` are the same, descending.

    `added` is the fragmentation that the placement adds (less than 0: it tidies up). `level` and `domains` say how far
    it reaches. `exact` is False only where numbers are so large that the search was cut short: then the nodes are the
    fewest within their domains, but other nodes might leave less fragmentation.
    """

    placement: dict[str, int]
    shares: tuple[int, ...]
    added: float
    level: int
    domains: int
    exact: bool


def plan(
    nodes: Sequence[Node],
    slots: int,
    *,
    most_per_node: int | None = None,
    mix: Mapping[int, float] = DEFAULT_MIX,
    idle: bool = False,
) -> Plan:
    """Where `slots` go, at most `most_per_node` on one node. DoesNotFit says what is missing; `idle`: nothing is in
    use, so that there is nobody to wait for."""
    fragmentation = Fragmentation(mix)
    _check_request(slots, most_per_node)
    order = dict(zip((node.name for node in nodes), range(len(nodes)), strict=True))
    by_free = _sort_out(nodes)
    _check_nodes(nodes, len(order), by_free)
    _check_fit(by_free, slots, most_per_node, idle)
    limit = min(slots, most_per_node or slots)
    kind_of = {free: _kind(free, limit, fragmentation) for free in set().union(*by_free.values())}
    narrowest = {path: _kinds(frees, kind_of) for path, frees in by_free.items() if any(frees)}
    level, domains, best = _walk(narrowest, slots, fragmentation)
    placement = {name: best.shares[name] for name in sorted(best.shares, key=order.__getitem__)}
    shares = tuple(sorted(placement.values(), reverse=True))
    return Plan(placement, shares, fragmentation.real(-best.gain), level, domains, best.exact)


def _sort_out(nodes: Iterable[Node]) -> dict[Path, _ByFree]:
    """One pass over the nodes; whatever follows goes over what they have in common."""
    by_free: dict[Path, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, free, path in nodes:
        by_free[path][free].append(name)
    return dict(by_free)


def _kinds(by_free: _ByFree, kind_of: Mapping[int, Kind]) -> Kinds:
    kinds: dict[Kind, Sequence[str]] = {}
    for free, names in by_free.items():
        if free:
            kind = kind_of[free]
            kinds[kind] = [*kinds[kind], *names] if kind in kinds else names
    return kinds


def _kind(free: int, limit: int, fragmentation: Fragmentation) -> Kind:
    """What stays free beyond the largest request costs nothing, however much it is: such nodes are of one kind."""
    most = min(free, limit)
    return Kind(most, min(free - most, fragmentation.largest))


def _walk(domains: Mapping[Path, Kinds], slots: int, fragmentation: Fragmentation) -> tuple[int, int, Placement]:
    """The narrowest level at which one domain has room for all, and the best that can be done there."""
    alone = [kinds for kinds in domains.values() if room(kinds) >= slots]
    if len(alone) == 1:
        return 0, 1, place(alone[0], slots, fragmentation)
    # Most requests end above: the search among domains is loaded only when there are some to choose from.
    if alone:
        from pumasi.core.planning.alone import place_alone

        return 0, 1, place_alone(alone, slots, fragmentation)
    return _climb(domains, slots, fragmentation)


def _climb(domains: Mapping[Path, Kinds], slots: int, fragmentation: Fragmentation) -> tuple[int, int, Placement]:
    """The same where none of the narrowest domains has room."""
    from pumasi.core.planning.domains import place_across

    level = 0
    while True:
        level += 1
        inside: dict[Path, list[Kinds]] = defaultdict(list)
        for path, kinds in domains.items():
            inside[path[1:]].append(kinds)
        fewest = {path: _fewest(parts, slots) for path, parts in inside.items()}
        many = min(fewest.values())
        if many < inf:
            groups = [parts for path, parts in inside.items() if fewest[path] == many]
            return level, int(many), place_across(groups, int(many), slots, fragmentation)
        domains = {path: merge(parts) for path, parts in inside.items()}


def _fewest(parts: Iterable[Kinds], slots: int) -> float:
    """How many of these domains have room for it, at the least; no number of them is enough where all have not."""
    rooms = Counter(map(room, parts))
    enough = sum(size * count for size, count in rooms.items()) >= slots
    return largest_first(rooms.items(), slots).nodes if enough else inf


def _check_request(slots: int, most_per_node: int | None) -> None:
    if slots < 1:
        raise UsageError(f"{slots} slots were asked for.", "Ask for at least 1 slot.")
    if most_per_node is not None and most_per_node < 1:
        raise UsageError(f"At most {most_per_node} slots a node leaves none.", "Allow at least 1 slot a node.")


def _check_nodes(nodes: Sequence[Node], names: int, by_free: Mapping[Path, _ByFree]) -> None:
    if names < len(nodes):
        name, count = Counter(node.name for node in nodes).most_common(1)[0]
        raise UsageError(f"{count} nodes have the name {name}.", "Give each node a name of its own.")
    for frees in by_free.values():
        if min(frees) < 0:
            raise UsageError(f"Node {frees[min(frees)][0]} has {min(frees)} free slots.", "Give 0 where none is free.")
    shortest, longest = min(by_free, key=len, default=()), max(by_free, key=len, default=())
    if len(shortest) < len(longest):
        few, more = (next(node.name for node in nodes if node.domains == path) for path in (shortest, longest))
        raise UsageError(
            f"Node {more} is in {len(longest)} domains ({', '.join(longest)}), but node {few} in {len(shortest)}.",
            "Name the same levels of domains for all nodes, from narrow to wide, or for none.",
        )


def _check_fit(by_free: Mapping[Path, _ByFree], slots: int, most_per_node: int | None, idle: bool) -> None:
    counts = Counter[int]()
    for frees in by_free.values():
        counts.update({free: len(names) for free, names in frees.items()})
    free, usable = (_usable(counts, limit) for limit in (max(counts, default=0), most_per_node or slots))
    what = f"{slots} slot does" if slots == 1 else f"{slots} slots do"
    nodes = f"{counts.total()} node" + ("" if counts.total() == 1 else "s")
    if free < slots:
        raise DoesNotFit(
            f"{what} not fit: {_are(free)} free on {nodes}, so {_are(slots - free)} missing.",
            _advice(*([f"ask for at most {free}"] if free else []), idle=idle),
        )
    if most_per_node is not None and usable < slots:
        raise DoesNotFit(
            f"{what} not fit with at most {most_per_node} a node: {_are(free)} free on {nodes}, but only {usable} of "
            f"them within that limit, so {_are(slots - usable)} missing.",
            _advice(f"ask for at most {usable}", f"allow {_enough(counts, slots)} a node", idle=idle),
        )


def _advice(*ways: str, idle: bool) -> str:
    text = ", or ".join([*ways, *([] if idle else ["wait until others have ended"])])
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _usable(counts: Mapping[int, int], limit: int) -> int:
    return sum(min(free, limit) * nodes for free, nodes in counts.items())


def _enough(counts: Counter[int], slots: int) -> int:
    """The least limit a node with which the slots would fit."""
    held, nodes = 0, counts.total()
    for free in sorted(counts):
        if held + free * nodes >= slots:
            break
        held, nodes = held + free * counts[free], nodes - counts[free]
    return -(-(slots - held) // nodes)


def _are(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'}"
