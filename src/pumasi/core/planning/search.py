"""The best choice among few domains, by the dynamic programme of `choice`.

Choosing the largest domains gives room, but not always the fewest nodes, nor the least fragmentation. `choice` answers
whether some choice of domains reaches a number of nodes and a fragmentation, with certain nodes in it; it is asked in
that order, and names are settled one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop

from pumasi.core.planning.choice import Bound, Choice, Entry, TooLong
from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.group import Kinds, Placement, merge, place, sizes


def excesses(counts: Sequence[Mapping[int, int]]) -> dict[int, list[int]]:
    """By pivot, what the nodes of each domain can take above it. `counts`: what a node can take ─► such nodes."""
    pivots = sorted(set().union(*counts), reverse=True)
    above: dict[int, list[int]] = {pivot: [] for pivot in pivots}
    for each in counts:
        held = nodes = 0
        for pivot in pivots:
            above[pivot].append(held - nodes * pivot)
            count = each.get(pivot, 0)
            held, nodes = held + count * pivot, nodes + count
    return above


def least_nodes(excess: Mapping[int, Sequence[int]], many: int, slots: int) -> tuple[int, int]:
    """No choice of `many` domains does with fewer nodes; and the pivot that says so."""
    return max((-(-(slots - sum(sorted(each)[-many:])) // pivot), pivot) for pivot, each in excess.items())


class Search:
    """For placements of `slots` on `many` of these domains, the fewest that have room for it. TooLong may be raised."""

    def __init__(self, parts: Sequence[Kinds], many: int, slots: int, fragmentation: Fragmentation) -> None:
        # Of equal choices the first is found: with the least names first, few questions about names remain.
        self._order = sorted(range(len(parts)), key=lambda index: min(map(min, parts[index].values())))
        self._parts = [parts[index] for index in self._order]
        self._many, self._slots, self._fragmentation = many, slots, fragmentation
        self._excesses = excesses(list(map(sizes, self._parts)))
        self._fewest, _ = least_nodes(self._excesses, many, slots)
        self._found: tuple[Choice, Entry] | None = None

    def reach(self, nodes: int) -> list[int] | None:
        """Some choice that does with so many nodes, if there is one."""
        entry = self._reach(self._bound(nodes)) if nodes >= self._fewest else None
        return [self._order[index] for index in entry.chosen] if entry else None

    def find(self, nodes: int) -> Placement | None:
        """A placement on so many nodes, the fewest, that gains the most, if there is one. Others may have names that
        come first."""
        if nodes < self._fewest:
            return None
        bound = self._bound(nodes)
        price, gap = self._price(bound), 0
        while True:
            choice = Choice(self._parts, bound, self._fragmentation, price, gap)
            entry, dream = choice.find()
            if entry is not None and entry.worth >= dream - gap:
                self._found = choice, entry
                return self._place(entry)
            if entry is None and gap == 0 and self._reach(bound) is None:
                return None
            gap = 4 * gap + self._fragmentation.unit

    def settle(self) -> Placement:
        """After `find`: of those that gain as much the one whose names come first."""
        assert self._found is not None
        return self._least_names(*self._found)

    def _reach(self, bound: Bound) -> Entry | None:
        return Choice(self._parts, bound, self._fragmentation).find()[0]

    def _bound(self, nodes: int) -> Bound:
        """Every pivot gives a bound that holds; that one is best which leaves the fewest ways to look at."""
        return min((self._bound_by(pivot, nodes) for pivot in self._excesses), key=_width)

    def _bound_by(self, pivot: int, nodes: int) -> Bound:
        excess = self._excesses[pivot]
        greatest = sorted(excess)[-self._many :]
        return Bound(self._many, nodes, pivot, nodes * pivot + sum(greatest) - self._slots, excess, fair=greatest[0])

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
