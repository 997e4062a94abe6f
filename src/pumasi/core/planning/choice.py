"""The dynamic programme that chooses domains: is there a choice that is worth so much, with these nodes in it?

Let `pivot` be the share of the smallest nodes that count. The most that m nodes in so many domains can take is m times
`pivot` plus the excess above `pivot` of all nodes in the domains with the greatest excess. That bound leaves a slack,
as largest-first does within one group of nodes, and every deviation uses some of it up: a domain with less excess, a
node above the pivot that is left out, a node below it that is taken. So the tables are indexed by (domains chosen,
slack used).

The number of nodes is no index, because nodes at the pivot can make up nearly any number: each entry carries the range
of numbers that it can reach. Entries that are worth less, by up to `gap`, are kept only for numbers that no better one
reaches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.group import Kinds
from pumasi.core.planning.spread import Spread, spread_steps

MOST_STEPS = 1_000_000
"""A second or two. Hundreds of racks whose nodes have up to some dozen free slots need far fewer."""


class TooLong(Exception):
    """More than MOST_STEPS."""


class Bound(NamedTuple):
    """`slack`: by how much nodes · pivot + the `many` greatest of `excess` is more than what is asked for. A domain
    with the `fair` excess, the last of the greatest, can be chosen or not without using any slack."""

    many: int
    nodes: int
    pivot: int
    slack: int
    excess: Sequence[int]
    fair: int


class Entry(NamedTuple):
    """What a choice is worth, from how many to how many nodes it can take, and the domains chosen."""

    worth: int
    low: int
    high: int
    chosen: tuple[int, ...] = ()


Menu = dict[int, list[Entry]]
"""Slack used ─► what can be had for it."""

Forced = Mapping[int, Mapping[Kind, int]]
"""Domains that must be chosen ─► how many nodes of each kind must be taken there."""

_Table = dict[tuple[int, int], list[Entry]]
"""(Domains chosen, slack used) ─► what can be had for it."""


class Choice:
    """`price` is what a node has to gain to be worth anything; without it only the number of nodes counts."""

    def __init__(
        self,
        parts: Sequence[Kinds],
        bound: Bound,
        fragmentation: Fragmentation,
        price: int | None = None,
        gap: int = 0,
    ) -> None:
        self._parts, self._bound, self._fragmentation = parts, bound, fragmentation
        self._price, self._gap = price, gap
        self._limited = price is not None and any(kind.rest for kinds in parts for kind in kinds)
        self._spreads: dict[tuple[Kind, int], Spread] = {}
        self._steps = 0
        self._all_but_one: _Table | None = None
        menus = {index: self._menu(index, {}) for index in range(len(parts))}
        self.menus = {index: menu for index, menu in menus.items() if menu}
        self._rivals = self._undominated()

    def find(self, forced: Forced | None = None) -> tuple[Entry | None, int]:
        """The best choice that has the forced nodes; and what the best would be worth if it did not matter how many
        nodes it takes."""
        ends = list(self._ends(self._table(forced or {})))
        reached = [entry for entry in ends if entry.low <= self._bound.nodes <= entry.high]
        best = max(reached, key=lambda entry: entry.worth, default=None)
        return best, max((entry.worth for entry in ends), default=0)

    def promises(self, worth: int, index: int, least: Mapping[Kind, int]) -> bool:
        """False when for sure no choice that is worth so much has this domain and these nodes: a quick answer, that
        looks neither at how many nodes it takes nor at what else is forced."""
        if self._bound.excess[index] > self._bound.fair:
            return True
        if self._all_but_one is None:
            table = self._table({})
            self._all_but_one = {key: table[key][:1] for key in table if key[0] == self._bound.many - 1}
        ends = self._ends(self._choose(self._all_but_one, index, self._menu(index, least), must=True))
        return any(entry.worth >= worth for entry in ends)

    def _table(self, forced: Forced) -> _Table:
        table: _Table = {(0, 0): [Entry(0, 0, 0)]}
        for index, least in forced.items():
            table = self._choose(table, index, self._menu(index, least), must=True)
        for index in self._rivals:
            if index not in forced:
                table = self._choose(table, index, self.menus[index], must=False)
        return table

    def _choose(self, table: _Table, index: int, menu: Menu, must: bool) -> _Table:
        after: _Table = defaultdict(list)
        self._count(len(table) * len(menu))
        if not must:
            skipped = max(self._bound.excess[index] - self._bound.fair, 0)
            for (many, used), entries in table.items():
                if used + skipped <= self._bound.slack:
                    after[many, used + skipped] += entries
        for (many, used), entries in table.items():
            for cost, items in menu.items():
                if many < self._bound.many and used + cost <= self._bound.slack:
                    after[many + 1, used + cost] += self._pairs(entries, items, (index,))
        return {key: _trim(entries, self._gap) for key, entries in after.items()}

    def _pairs(self, entries: Sequence[Entry], items: Sequence[Entry], index: tuple[int, ...] = ()) -> Iterator[Entry]:
        self._count(len(entries) * len(items))
        nodes = self._bound.nodes
        for worth, low, high, chosen in entries:
            for item in items:
                # Too many is too many, however many: entries that differ only there count as equal.
                new_low, new_high = min(low + item.low, nodes + 1), min(high + item.high, nodes)
                yield Entry(worth + item.worth, new_low, new_high, chosen + index)

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise TooLong

    def _ends(self, table: _Table) -> Iterator[Entry]:
        for (many, used), entries in table.items():
            left_over = self._bound.slack - used
            if many < self._bound.many or (self._limited and left_over):
                continue
            loss = 0 if self._price is None else self._fragmentation(left_over)
            yield from (entry._replace(worth=entry.worth - loss) for entry in entries)

    def _menu(self, index: int, least: Mapping[Kind, int]) -> Menu:
        """What the domain offers when at least so many nodes of each kind are taken."""
        used = max(self._bound.fair - self._bound.excess[index], 0)
        menu: Menu = {used: [Entry(0, 0, 0)]} if used <= self._bound.slack else {}
        for kind, names in self._parts[index].items():
            after: Menu = defaultdict(list)
            for cost, item in self._offers(kind, len(names), least.get(kind, 0)):
                for used, entries in menu.items():
                    if used + cost <= self._bound.slack:
                        after[used + cost] += self._pairs(entries, [item])
            menu = {used: _trim(entries, self._gap) for used, entries in after.items()}
        return menu

    def _offers(self, kind: Kind, count: int, least: int) -> Iterator[tuple[int, Entry]]:
        """What nodes of one kind offer: the slack used, and the entry."""
        distance = kind.most - self._bound.pivot
        gain = 0 if self._price is None else kind.gain(self._fragmentation) - self._price
        if distance == 0 and gain == 0:
            yield from self._sparing(0, Entry(0, least, count), kind, count)
            return
        exchanged = self._bound.slack // abs(distance) if distance else count
        low = max(least, count - exchanged) if distance > 0 else least
        high = min(count, exchanged) if distance < 0 else count
        for taken in range(low, high + 1):
            cost = distance * (count - taken) if distance > 0 else -distance * taken
            yield from self._sparing(cost, Entry(gain * taken, taken, taken), kind, count)

    def _sparing(self, cost: int, entry: Entry, kind: Kind, count: int) -> Iterator[tuple[int, Entry]]:
        """The same with some slots less, where there is a limit a node: elsewhere one node gives all in the end."""
        yield cost, entry
        if not self._limited:
            return
        spread = self._spread(kind, count)
        for less in range(1, self._bound.slack - cost + 1):
            for givers in [entry.high] if entry.low == entry.high else range(1, min(entry.high, less) + 1):
                loss = spread.loss(givers, less)
                if loss is not None:
                    yield cost + less, Entry(entry.worth - loss, max(entry.low, givers), entry.high)

    def _spread(self, kind: Kind, count: int) -> Spread:
        if (kind, count) not in self._spreads:
            self._count(spread_steps(kind, count, self._bound.slack, self._fragmentation))
            self._spreads[kind, count] = Spread(kind, count, self._bound.slack, self._fragmentation)
        return self._spreads[kind, count]

    def _undominated(self) -> list[int]:
        """Domains for which there are fewer than `many` others that offer all that they do: enough to find a choice."""
        kept: list[int] = []
        for index in sorted(self.menus, key=self._rank):
            better = (other for other in kept if self._dominates(other, index))
            if sum(1 for _ in islice(better, self._bound.many)) < self._bound.many:
                kept.append(index)
        return sorted(kept)

    def _rank(self, index: int) -> tuple[int, int, int]:
        """Those likely to dominate come first; it decides about speed alone."""
        menu = self.menus[index]
        return -self._bound.excess[index], -len(menu), -sum(entries[0].high for entries in menu.values())

    def _dominates(self, one: int, other: int) -> bool:
        """Whether `one`, where it is not chosen, could take the place of `other` with whatever that takes."""
        bound, menu = self._bound, self.menus[one]
        skip_one, skip_other = (max(bound.excess[index] - bound.fair, 0) for index in (one, other))
        return all(
            any(e.worth >= entry.worth and _covers(e, entry) for e in menu.get(used + skip_one - skip_other, ()))
            for used, entries in self.menus[other].items()
            if used + skip_one <= bound.slack
            for entry in entries
        )


def _covers(one: Entry, other: Entry) -> bool:
    return one.low <= other.low and one.high >= other.high


def _trim(entries: list[Entry], gap: int) -> list[Entry]:
    """Without those that are worth too little, and those whose numbers another one reaches that is worth as much."""
    if len(entries) == 1:
        return entries
    kept: list[Entry] = []
    widest: list[tuple[int, int]] = []
    entries.sort(key=_worth_first)
    least = entries[0].worth - gap
    for entry in entries:
        worth, low, high, _ = entry
        if worth < least:
            break
        for wide_low, wide_high in widest:
            if wide_low <= low and wide_high >= high:
                break
        else:
            kept.append(entry)
            widest = [(low, high), *(wide for wide in widest if wide[0] < low or wide[1] > high)]
    return kept


def _worth_first(entry: Entry) -> tuple[int, int, int]:
    return -entry.worth, entry.low, -entry.high
