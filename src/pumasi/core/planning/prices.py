"""How much a choice of domains can gain at most: slots and nodes get prices.

Say that a slot that is taken earns `slot` and a node that is used costs `node`, whatever these are. Every placement of
the slots on that number of nodes then earns and costs the same; so its gain, with that added, is at most what the nodes
of its domains can make of the prices, each for itself. No search is needed for this: the surplus of a domain is a sum
over its kinds of nodes. The prices decide only how close the bound is. (This is a Lagrangian relaxation.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.group import Kinds

_SCALE = 8
"""Prices are whole numbers of so many parts of the unit of fragmentation."""


class Prices(NamedTuple):
    slot: int
    node: int


Stock = tuple[Sequence[int], Sequence[int]]
"""A domain as a market counts it: which kinds of nodes it has, and how many of each."""


class Market:
    """The kinds of nodes that there are, and what is wanted of them: so many slots on so many nodes."""

    def __init__(self, kinds: Iterable[Kind], slots: int, nodes: int, fragmentation: Fragmentation) -> None:
        self.slots, self.nodes = slots, nodes
        self._deals = {kind: _deals(kind, fragmentation) for kind in kinds}
        self._positions = {kind: position for position, kind in enumerate(self._deals)}
        self.highest = 8 * max(abs(gain) for deals in self._deals.values() for _, gain in deals) + 8 * _SCALE
        """Of the prices of a slot that are worth a try."""

    def pivots(self, counts: Mapping[Kind, int]) -> list[Kind]:
        """Of these nodes, largest first: the kind with which there are as many as are wanted, then those beside it."""
        ranked = sorted(counts, key=lambda kind: (kind.most, self._deals[kind][-1]), reverse=True)
        above = list(accumulate(counts[kind] for kind in ranked))
        last = min(bisect_left(above, self.nodes), len(ranked) - 1)
        return [ranked[last], *ranked[last + 1 : last + 2], *ranked[max(last - 1, 0) : last]]

    def at(self, slot: int, pivot: Kind) -> Prices:
        """Where a node of this kind breaks even."""
        return Prices(slot, self._made(pivot, slot)[0])

    def taken(self, counts: Mapping[Kind, int], prices: Prices, pivot: Kind) -> int:
        """How many slots the nodes take that make something of these prices, with nodes of the pivot, which break even,
        to make up the number."""
        _, even = self._made(pivot, prices.slot)
        taken = even * self.nodes
        for kind, count in counts.items():
            made, share = self._made(kind, prices.slot)
            if made > prices.node:
                taken += (share - even) * count
        return taken

    def _made(self, kind: Kind, slot: int) -> tuple[int, int]:
        """What a node of this kind makes of such a price, and the share that it takes."""
        return max((gain + slot * share, share) for share, gain in self._deals[kind])

    def stock(self, kinds: Kinds) -> Stock:
        return [self._positions[kind] for kind in kinds], list(map(len, kinds.values()))

    def surpluses(self, stocks: Iterable[Stock], prices: Prices) -> list[int]:
        """What each domain makes of these prices."""
        made = [max(self._made(kind, prices.slot)[0] - prices.node, 0) for kind in self._deals]
        return [sum(map(mul, map(made.__getitem__, kinds), counts)) for kinds, counts in stocks]

    def ceiling(self, surplus: int, prices: Prices) -> int:
        """The most that can be gained in domains that together make so much of these prices."""
        return (surplus + prices.node * self.nodes - prices.slot * self.slots) // _SCALE


def _deals(kind: Kind, fragmentation: Fragmentation) -> list[tuple[int, int]]:
    """(Share, gain) of a node of this kind, those that are the best at some price. Between two sizes of requests the
    fragmentation is linear in what stays free, so the best are at the ends."""
    free = kind.most + kind.rest
    rests = {kind.rest, free - 1, *fragmentation.sizes, *(size - 1 for size in fragmentation.sizes)}
    before = fragmentation(free)
    deals: list[tuple[int, int]] = []
    for rest in sorted(rests, reverse=True):
        if kind.rest <= rest < free:
            deal = free - rest, _SCALE * (before - fragmentation(rest))
            while len(deals) > 1 and _is_below(deals[-1], deals[-2], deal):
                deals.pop()
            deals.append(deal)
    return deals


def _is_below(deal: tuple[int, int], one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a deal is nowhere better than the two beside it."""
    return (deal[1] - one[1]) * (other[0] - deal[0]) <= (other[1] - deal[1]) * (deal[0] - one[0])
