"""The best placement across a given, least number of domains: which racks, when no single rack has room.

There can be hundreds of racks, but few of them can be in the best choice. `prices` tell how much a choice with a
certain domain, or without it, can gain at most: a domain with which that is less than what another choice gains is out,
one without which it is less is in. What remains is searched exactly, the most promising domains first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nlargest
from math import inf

from pumasi.core.planning.choice import TooLong
from pumasi.core.planning.fragmentation import Fragmentation
from pumasi.core.planning.group import Kinds, Placement, largest_first, merge, place, room, sizes
from pumasi.core.planning.narrowing import Narrowing
from pumasi.core.planning.prices import Market, Prices
from pumasi.core.planning.search import Search, excesses, least_nodes

_CORE = 4
"""How many domains more than will be chosen are searched at first."""


def place_across(groups: Iterable[Sequence[Kinds]], many: int, slots: int, fragmentation: Fragmentation) -> Placement:
    """The best placement of `slots` on `many` domains of one of these groups, the fewest that have room for it."""
    rivals = [_Group(parts, many, slots, fragmentation) for parts in groups]
    return _Contest(rivals, slots, fragmentation).best()


class _Contest:
    """Between groups of domains, the racks of each zone perhaps. One that can't gain as much as another is left out."""

    def __init__(self, groups: Sequence[_Group], slots: int, fragmentation: Fragmentation) -> None:
        self._exact = True
        self._nodes = self._fewest_nodes(groups)
        self._rivals = [group for group in groups if group.fewest <= self._nodes]
        kinds = {kind for group in self._rivals for part in group.parts for kind in part}
        self._market = Market(kinds, slots, self._nodes, fragmentation)

    def _fewest_nodes(self, groups: Sequence[_Group]) -> int:
        known = min(group.known for group in groups)
        for nodes in range(min(group.fewest for group in groups), known):
            if any(group.fewest <= nodes and self._reaches(group, nodes) for group in groups):
                return nodes
        return known

    def _reaches(self, group: _Group, nodes: int) -> bool:
        try:
            return group.reaches(nodes)
        except TooLong:
            group.fewest, self._exact = group.known, False
            return False

    def best(self) -> Placement:
        found: list[Placement] = []
        aim, prices = -inf, None
        for group in sorted(self._rivals, key=lambda group: group.known):
            if prices is None or group.ceiling(self._market, prices) >= aim:
                found += self._best_of(group, aim)
                aim = max((each.gain for each in found if len(each.shares) == self._nodes), default=-inf)
                prices = group.prices
        return min(found, key=Placement.key)._replace(exact=self._exact)

    def _best_of(self, group: _Group, aim: float) -> list[Placement]:
        """None where it gains less than `aim`, or where the group needs more nodes."""
        try:
            found = group.best(self._market, self._nodes, aim)
        except TooLong:
            found = group.likely()._replace(exact=False)
        self._exact = self._exact and (found is None or found.exact)
        return [found] if found else []


class _Group:
    """Domains, `many` of which are chosen. No choice needs fewer nodes than `fewest`; a likely one needs `known`."""

    def __init__(self, parts: Sequence[Kinds], many: int, slots: int, fragmentation: Fragmentation) -> None:
        self.parts, self._many, self._slots, self._fragmentation = parts, many, slots, fragmentation
        self._sizes = [sizes(kinds) for kinds in parts]
        self._rooms = [room(kinds) for kinds in parts]
        self.prices = Prices(0, 0)
        excess = excesses(self._sizes)
        self.fewest, pivot = least_nodes(excess, many, slots)
        by_excess = nlargest(many, range(len(parts)), key=lambda index: (excess[pivot][index], self._rooms[index]))
        by_room = nlargest(many, range(len(parts)), key=self._rooms.__getitem__)
        ways = [way for way in (by_excess, by_room) if self._room(way) >= slots]
        self.known, self._likely = min((self._nodes(way), way) for way in ways)

    def _room(self, chosen: Iterable[int]) -> int:
        return sum(self._rooms[index] for index in chosen)

    def _nodes(self, chosen: Iterable[int]) -> int:
        counts: Counter[int] = Counter()
        for index in chosen:
            counts.update(self._sizes[index])
        return largest_first(counts.items(), self._slots).nodes

    def reaches(self, nodes: int) -> bool:
        """Whether some choice does with so many nodes: if so, it is the likely one from now on."""
        chosen = Search(self.parts, self._many, self._slots, self._fragmentation).reach(nodes)
        self.known, self._likely = (nodes, chosen) if chosen else (self.known, self._likely)
        return chosen is not None

    def likely(self) -> Placement:
        return self._place(self._likely)

    def _place(self, chosen: Iterable[int]) -> Placement:
        return place(merge(self.parts[index] for index in chosen), self._slots, self._fragmentation)

    def ceiling(self, market: Market, prices: Prices) -> int:
        """No choice gains more."""
        surpluses = market.surpluses(map(market.stock, self.parts), prices)
        return market.ceiling(sum(nlargest(self._many, surpluses)), prices)

    def best(self, market: Market, nodes: int, aim: float) -> Placement | None:
        """The best placement on so many nodes, unless it gains less than `aim`."""
        narrowing = Narrowing(self.parts, self._many, market)
        narrowing.raise_aim(max(aim, self.likely().gain) if self.known == nodes else aim)
        narrowing.tighten(self._likely)
        self.prices, more = narrowing.prices, _CORE
        while True:
            inside, doubtful = narrowing.split()
            wanted = self._many - len(inside)
            if wanted < 1 or len(doubtful) <= wanted:
                return self._only([*inside, *doubtful[: max(wanted, 0)]], nodes)
            tried = doubtful[: wanted + more]
            search = self._search(inside, tried)
            found = search.find(nodes)
            if found:
                narrowing.raise_aim(found.gain)
            left = set().union(*narrowing.split())
            if left == {*inside, *tried}:
                return search.settle() if found and (found.gain >= narrowing.aim or not found.exact) else None
            more = more if left < {*inside, *tried} else 4 * more

    def _only(self, chosen: Sequence[int], nodes: int) -> Placement | None:
        """The placement on the only domains that come into question."""
        if len(chosen) != self._many or self._room(chosen) < self._slots or self._nodes(chosen) > nodes:
            return None
        return self._place(chosen)

    def _search(self, inside: Sequence[int], tried: Sequence[int]) -> Search:
        """Domains that are in for sure become one. A choice without that one is of too few domains to have room."""
        many, parts = self._many, [self.parts[index] for index in inside]
        if len(inside) > 1:
            many, parts = many - len(inside) + 1, [merge(parts)]
        return Search([*parts, *(self.parts[index] for index in tried)], many, self._slots, self._fragmentation)
