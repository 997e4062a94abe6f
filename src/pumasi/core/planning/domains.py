"""The best placement across a given, least number of domains: which racks, when no single rack has room.

Choosing the largest domains gives room, but not always the fewest nodes, nor the least fragmentation. `choice` answers
whether some choice of domains reaches a number of nodes and a fragmentation, with certain nodes in it; it is asked in
that order, and names are settled one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop

from pumasi.core.planning.choice import Bound, Choice, Entry, TooLong
from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.group import Kinds, Placement, merge, place, room, sizes


def place_across(parts: Sequence[Kinds], many: int, slots: int, fragmentation: Fragmentation) -> Placement:
    """The best placement of `slots` on `many` of these domains, the fewest that have room for it."""
    try:
        return _Across(parts, many, slots, fragmentation).best()
    except TooLong:
        largest = sorted(parts, key=room, reverse=True)[:many]
        return place(merge(largest), slots, fragmentation)._replace(exact=False)


class _Across:
    def __init__(self, parts: Sequence[Kinds], many: int, slots: int, fragmentation: Fragmentation) -> None:
        # Of equal choices the first is found: with the least names first, few questions about names remain.
        self._parts = sorted(parts, key=lambda kinds: min(map(min, kinds.values())))
        self._many, self._slots, self._fragmentation = many, slots, fragmentation
        self._sizes = [sizes(kinds) for kinds in self._parts]

    def best(self) -> Placement:
        bound = self._fewest_nodes()
        price, gap = self._price(bound), 0
        while True:
            choice = Choice(self._parts, bound, self._fragmentation, price, gap)
            entry, dream = choice.find()
            if entry is not None and entry.worth >= dream - gap:
                return self._least_names(choice, entry)
            gap = 4 * gap + self._fragmentation.unit

    def _fewest_nodes(self) -> Bound:
        """The bound for the fewest nodes with which some choice of domains has room."""
        excess = {pivot: self._excess(pivot) for pivot in set().union(*self._sizes)}
        most = {pivot: sum(sorted(excess[pivot])[-self._many :]) for pivot in excess}
        nodes = max(-(-(self._slots - most[pivot]) // pivot) for pivot in excess)
        while True:
            bounds = [
                Bound(
                    self._many, nodes, pivot, nodes * pivot + most[pivot] - self._slots, each, sorted(each)[-self._many]
                )
                for pivot, each in excess.items()
            ]
            bound = min(bounds, key=_width)
            if Choice(self._parts, bound, self._fragmentation).find()[0]:
                return bound
            nodes += 1

    def _excess(self, pivot: int) -> list[int]:
        return [sum((most - pivot) * count for most, count in s.items() if most > pivot) for s in self._sizes]

    def _price(self, bound: Bound) -> int:
        """What the last node gains in a likely choice: nodes that gain as much can make up any number."""
        likely = sorted(range(len(self._parts)), key=bound.excess.__getitem__)[-self._many :]
        above, gains = 0, []
        for kind, names in merge(self._parts[index] for index in likely).items():
            above += len(names) if kind.most > bound.pivot else 0
            gains += [kind.gain(self._fragmentation)] * len(names) if kind.most == bound.pivot else []
        if not gains:
            return Kind(bound.pivot, 0).gain(self._fragmentation)
        return sorted(gains, reverse=True)[min(max(bound.nodes - above, 1), len(gains)) - 1]

    def _least_names(self, choice: Choice, entry: Entry) -> Placement:
        best, settling = self._place(entry), _Settling(choice, entry.worth)
        nodes = [(name, index, kind) for index in choice.menus for kind, name in _named(self._parts[index])]
        heapify(nodes)
        # Once every domain has a node that is settled, the domains are; within them `place` has seen to the names.
        while len(settling.settled) < self._many:
            name, index, kind = heappop(nodes)
            if name not in best.shares:
                try:
                    found = settling.find_with(index, kind)
                except TooLong:
                    return best._replace(exact=False)
                if found is None:
                    continue
                best = self._place(found)
            settling.settle(index, kind)
        return best

    def _place(self, entry: Entry) -> Placement:
        return place(merge(self._parts[index] for index in entry.chosen), self._slots, self._fragmentation)


def _width(bound: Bound) -> tuple[int, int]:
    """Every pivot gives a bound that holds; that one is best which leaves the fewest ways to look at."""
    open_domains = sum(excess >= bound.fair - bound.slack for excess in bound.excess)
    return open_domains * (bound.slack + 1), bound.pivot


def _named(kinds: Kinds) -> list[tuple[Kind, str]]:
    return [(kind, name) for kind, names in kinds.items() for name in names]


class _Settling:
    """The nodes that the best placement has for sure, by domain and kind; and which it can't have."""

    def __init__(self, choice: Choice, worth: int) -> None:
        self.settled: dict[int, Counter[Kind]] = {}
        self._choice, self._worth = choice, worth
        self._refused: set[tuple[int, Kind | None]] = set()

    def settle(self, index: int, kind: Kind) -> None:
        self.settled.setdefault(index, Counter())[kind] += 1

    def find_with(self, index: int, kind: Kind) -> Entry | None:
        """A choice that is worth as much and takes one node more of this kind. A no is a no for good, since what is
        settled only grows; so the domain is asked about first, as a whole."""
        known = self.settled.get(index, Counter())
        if (index, None) in self._refused or (index, kind) in self._refused:
            return None
        if not known and self._find(index, known) is None:
            self._refused.add((index, None))
            return None
        entry = self._find(index, known + Counter({kind: 1}))
        if entry is None:
            self._refused.add((index, kind))
        return entry

    def _find(self, index: int, least: Counter[Kind]) -> Entry | None:
        if not self._choice.promises(self._worth, index, least):
            return None
        entry, _ = self._choice.find({**self.settled, index: least})
        return entry if entry is not None and entry.worth >= self._worth else None
