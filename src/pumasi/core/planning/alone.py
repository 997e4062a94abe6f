"""The best placement within one of several domains, each of which has room for all.

To search each of hundreds would take long, and most can't be the best. What one of them can gain is bounded by
`prices`, and by what a domain could gain that had the best of all of them. Where the gain may be the same the names
decide, and the first of them can't come before all names of the domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.group import Kinds, Placement, largest_first, place, sizes
from pumasi.core.planning.narrowing import Narrowing
from pumasi.core.planning.prices import Market

_FEW = 4
"""So few domains are searched one by one; more of them once all together first, unless that makes for more than so many
times the kinds of nodes that one of them has."""


def place_alone(domains: Sequence[Kinds], slots: int, fragmentation: Fragmentation) -> Placement:
    """The best placement of `slots` within one of these domains."""
    counts = [largest_first(sizes(kinds).items(), slots).nodes for kinds in domains]
    rivals = [kinds for kinds, count in zip(domains, counts, strict=True) if count == min(counts)]
    if len(rivals) == 1:
        return place(rivals[0], slots, fragmentation)
    return _Contest(rivals, slots, min(counts), fragmentation).best()


class _Contest:
    """Between domains that need equally few nodes."""

    def __init__(self, rivals: Sequence[Kinds], slots: int, nodes: int, fragmentation: Fragmentation) -> None:
        self._rivals, self._slots, self._fragmentation = rivals, slots, fragmentation
        kinds = _union(rivals)
        self._market = Market(kinds, slots, nodes, fragmentation)
        self._limit, self._likely = inf, 0
        if len(rivals) > _FEW and len(kinds) <= _FEW * max(map(len, rivals)):
            ideal = place(kinds, slots, fragmentation)
            self._limit = ideal.gain if ideal.exact and len(ideal.shares) == nodes else inf
            self._likely = self._most_like({kind: len(ideal.shares.keys() & names) for kind, names in kinds.items()})

    def _most_like(self, ideal: Mapping[Kind, int]) -> int:
        """The domain that lacks the fewest of these nodes."""
        wanted = {kind: count for kind, count in ideal.items() if count}
        lacks = [sum(max(wanted[kind] - len(kinds.get(kind, ())), 0) for kind in wanted) for kinds in self._rivals]
        return lacks.index(min(lacks))

    def best(self) -> Placement:
        best = self._place(self._likely)
        exact = best.exact
        for ceiling, name, index in sorted(self._ranked(best.gain)):
            if (ceiling, name) > (-best.gain, min(best.shares)):
                break
            found = self._place(index)
            best, exact = min(best, found, key=Placement.key), exact and found.exact
        return best._replace(exact=exact)

    def _ranked(self, aim: int) -> list[tuple[float, str, int]]:
        """Those that can gain so much: what they can gain at most, negative, and the least name."""
        narrowing = Narrowing(self._rivals, 1, self._market)
        narrowing.raise_aim(aim)
        narrowing.tighten([self._likely])
        return [
            (-min(ceiling, self._limit), min(map(min, self._rivals[index].values())), index)
            for index, ceiling in narrowing.ceilings.items()
            if index != self._likely
        ]

    def _place(self, index: int) -> Placement:
        return place(self._rivals[index], self._slots, self._fragmentation)


def _union(domains: Sequence[Kinds]) -> Kinds:
    """Of each kind the nodes of the domain that has most of them."""
    union: dict[Kind, Sequence[str]] = {}
    for kinds in domains:
        for kind, names in kinds.items():
            if len(names) > len(union.get(kind, ())):
                union[kind] = names
    return union
