"""Which of many domains come into question at all, by what `prices` say about choices with and without each of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from math import inf

from pumasi.core.planning.fragmentation import Kind
from pumasi.core.planning.group import Kinds
from pumasi.core.planning.prices import Market, Prices

_ROUNDS = 12
"""How many prices are tried for each pivot: enough for prices in hundredths, and close enough for finer ones."""


class Narrowing:
    """For choices of `many` of these domains that gain at least `aim`.

    `ceilings`: the domains that they can have ─► the most that a choice with that domain can gain. `prices` are the
    closest that were found: those with which the highest ceiling is the lowest.
    """

    def __init__(self, parts: Sequence[Kinds], many: int, market: Market) -> None:
        self._parts, self._many, self._market = parts, many, market
        self._stocks = [market.stock(kinds) for kinds in parts]
        self.ceilings: dict[int, float] = dict.fromkeys(range(len(parts)), inf)
        self._without: dict[int, float] = dict.fromkeys(range(len(parts)), inf)
        self.aim = -inf
        self.prices, self._closest = Prices(0, 0), inf

    def raise_aim(self, aim: float) -> None:
        """Only choices that gain so much matter from now on."""
        self.aim = max(self.aim, aim)
        self.ceilings = {index: ceiling for index, ceiling in self.ceilings.items() if ceiling >= self.aim}

    def tighten(self, chosen: Sequence[int]) -> None:
        """Look for the closest prices: where nodes of some kind break even, and the best choice takes the wanted slots.
        That kind is the last that a likely choice has need of, or one beside it."""
        for pivot in self._market.pivots(self._counts(chosen)):
            low, high = -self._market.highest, self._market.highest
            for _ in range(_ROUNDS):
                if high - low < 2 or len(self.ceilings) <= self._many:
                    break
                slot = (low + high) // 2
                prices = self._market.at(slot, pivot)
                taken = self._market.taken(self._counts(self._apply(prices)), prices, pivot)
                low, high = (slot, high) if taken < self._market.slots else (low, slot)

    def _counts(self, chosen: Iterable[int]) -> dict[Kind, int]:
        counts: dict[Kind, int] = {}
        for index in chosen:
            for kind, names in self._parts[index].items():
                counts[kind] = counts.get(kind, 0) + len(names)
        return counts

    def _apply(self, prices: Prices) -> list[int]:
        """Take in what these prices say. Returns the choice that is the best at them."""
        stocks = [self._stocks[index] for index in self.ceilings]
        surpluses = dict(zip(self.ceilings, self._market.surpluses(stocks, prices), strict=True))
        ranked = nlargest(self._many + 1, surpluses, key=surpluses.__getitem__)
        chosen = ranked[: self._many]
        total = sum(surpluses[index] for index in chosen)
        for index in chosen:
            ceiling = self._market.ceiling(total - surpluses[index] + surpluses[ranked[-1]], prices)
            self._without[index] = min(self._without[index], ceiling)
        self._lower(surpluses, total, surpluses[chosen[-1]], prices)
        return chosen

    def _lower(self, surpluses: Mapping[int, int], total: int, last: int, prices: Prices) -> None:
        """Without the last of the chosen there is place for any other domain."""
        top, below = self._market.ceiling(total, prices), total - last
        if top < self._closest:
            self.prices, self._closest = prices, top
        for index, surplus in surpluses.items():
            ceiling = top if surplus >= last else self._market.ceiling(below + surplus, prices)
            self.ceilings[index] = min(self.ceilings[index], ceiling)
        self.raise_aim(self.aim)

    def split(self) -> tuple[list[int], list[int]]:
        """The domains that every choice has that matters, and those that it can have, the most promising first."""
        inside = [index for index in self.ceilings if self._without[index] < self.aim]
        doubtful = (index for index in self.ceilings if self._without[index] >= self.aim)
        return inside, sorted(doubtful, key=self.ceilings.__getitem__, reverse=True)
