"""What the planner leaves unsearched can't be the best: its bounds against all placements that there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.group import Kinds, merge, place, room
from pumasi.core.planning.narrowing import Narrowing
from pumasi.core.planning.prices import Market, Prices

MIXES = ({1: 0.5, 2: 0.15, 4: 0.15, 8: 0.2}, {8: 1.0}, {3: 0.3, 5: 0.3, 7: 0.4})
KINDS = st.builds(Kind, st.integers(1, 9), st.integers(0, 8))
DOMAIN = st.dictionaries(KINDS, st.integers(1, 2), min_size=1, max_size=3)
PRICE = st.integers(-400, 400)


def gains(nodes: Sequence[Kind], fragmentation: Fragmentation) -> dict[int, int]:
    """Slots that these nodes take together, at least one each ─► the most that this can gain."""
    best = {0: 0}
    for most, rest in nodes:
        after: dict[int, int] = {}
        for share in range(1, most + 1):
            gain = fragmentation(most + rest) - fragmentation(most + rest - share)
            for slots, before in best.items():
                after[slots + share] = max(after.get(slots + share, before + gain), before + gain)
        best = after
    return best


@given(DOMAIN, st.sampled_from(MIXES), PRICE, PRICE)
def test_no_placement_gains_more_than_the_prices_say(
    counts: dict[Kind, int], mix: dict[int, float], slot: int, node: int
) -> None:
    fragmentation = Fragmentation(mix)
    domain = {kind: [f"{kind}-{number}" for number in range(count)] for kind, count in counts.items()}
    nodes = [kind for kind, count in counts.items() for _ in range(count)]
    for many in range(1, len(nodes) + 1):
        for chosen in combinations(nodes, many):
            for slots, gain in gains(chosen, fragmentation).items():
                market, prices = Market(counts, slots, many, fragmentation), Prices(slot, node)
                (surplus,) = market.surpluses([market.stock(domain)], prices)
                assert gain <= market.ceiling(surplus, prices)


@settings(max_examples=200)
@given(st.lists(DOMAIN, min_size=2, max_size=6), st.sampled_from(MIXES), st.data())
def test_every_best_choice_has_the_domains_that_are_in_and_none_that_are_out(
    domains: list[dict[Kind, int]], mix: dict[int, float], data: st.DataObject
) -> None:
    fragmentation = Fragmentation(mix)
    parts: list[Kinds] = [
        {kind: [f"{index}-{kind}-{number}" for number in range(count)] for kind, count in counts.items()}
        for index, counts in enumerate(domains)
    ]
    many = data.draw(st.integers(1, len(parts)))
    slots = data.draw(st.integers(1, sum(sorted(map(room, parts))[-many:])))
    merged = {chosen: merge(parts[index] for index in chosen) for chosen in combinations(range(len(parts)), many)}
    placed = {chosen: place(kinds, slots, fragmentation) for chosen, kinds in merged.items() if room(kinds) >= slots}
    nodes = min(len(found.shares) for found in placed.values())
    best = max(found.gain for found in placed.values() if len(found.shares) == nodes)
    narrowing = Narrowing(parts, many, Market(merge(parts), slots, nodes, fragmentation))
    narrowing.raise_aim(data.draw(st.sampled_from((-inf, best))))
    narrowing.tighten(data.draw(st.sampled_from(sorted(placed))))
    narrowing.raise_aim(best)
    inside, doubtful = narrowing.split()
    for chosen, found in placed.items():
        if (len(found.shares), found.gain) == (nodes, best):
            assert set(inside) <= set(chosen) <= {*inside, *doubtful}
