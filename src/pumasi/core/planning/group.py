"""The best placement within one group of nodes: fewest nodes, then least fragmentation, then least names.

Largest-first gives the fewest nodes and leaves a slack smaller than the smallest node that it took. Whoever exchanges
one of its nodes for a smaller one uses up some of that slack, so only few exchanges are possible: `exchange` finds the
best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pumasi.core.planning.exchange import Span, exchange
from pumasi.core.planning.fragmentation import Fragmentation, Kind

Kinds = Mapping[Kind, Sequence[str]]
"""The names of the nodes, by kind."""


class Placement(NamedTuple):
    """`gain` is the fragmentation that goes away; `exact` is False where a limit of work ended the search."""

    shares: dict[str, int]
    gain: int
    exact: bool

    def key(self) -> tuple[int, int, list[str]]:
        """The least is the best."""
        return len(self.shares), -self.gain, sorted(self.shares)


class Cut(NamedTuple):
    """Where largest-first stops: after `taken` of the nodes that can take `pivot`, with `slack` too much."""

    nodes: int
    pivot: int
    taken: int
    slack: int


def largest_first(sizes: Iterable[tuple[int, int]], slots: int) -> Cut:
    """`sizes`: what a node can take, and how many such nodes there are. Together they can take `slots`."""
    count = held = 0
    for most, nodes in sorted(sizes, reverse=True):
        taken = min(nodes, -(-(slots - held) // most))
        count, held = count + taken, held + taken * most
        if held >= slots:
            return Cut(count, most, taken, held - slots)
    raise ValueError(f"{slots} slots for nodes that can take {held}")


def sizes(kinds: Kinds) -> Counter[int]:
    """How many nodes there are, by what one can take."""
    counts: Counter[int] = Counter()
    for kind, names in kinds.items():
        counts[kind.most] += len(names)
    return counts


def room(kinds: Kinds) -> int:
    """How many slots these nodes can take."""
    return sum([kind.most * len(names) for kind, names in kinds.items()])


def merge(parts: Iterable[Kinds]) -> dict[Kind, list[str]]:
    merged: dict[Kind, list[str]] = {}
    for kinds in parts:
        for kind, names in kinds.items():
            merged.setdefault(kind, []).extend(names)
    return merged


def place(kinds: Kinds, slots: int, fragmentation: Fragmentation) -> Placement:
    """The best placement of `slots` on these nodes, which together can take them."""
    cut = largest_first(sizes(kinds).items(), slots)
    spans = _spans(kinds, cut, fragmentation)
    exact = exchange(spans, cut.slack, fragmentation) if cut.slack else True
    shares = {name: share for span in spans for name, share in span.shares()}
    return Placement(shares, sum(span.gain(fragmentation) for span in spans), exact)


def _spans(kinds: Kinds, cut: Cut, fragmentation: Fragmentation) -> list[Span]:
    """A span for each kind that can have a part in it; last the kind of the node where largest-first stopped."""
    level = {kind: names for kind, names in kinds.items() if kind.most == cut.pivot}
    ranked = _best_of_level(level, cut.taken, fragmentation)
    inside, doubtful = Counter(ranked), Counter(ranked[-cut.slack :] if cut.slack else ())
    spans = []
    for kind, names in kinds.items():
        distance, count = abs(kind.most - cut.pivot), len(names)
        if kind.most > cut.pivot:
            spans.append(Span(kind, names, count, count - cut.slack // distance, count))
        elif kind.most < cut.pivot and cut.slack >= distance:
            spans.append(Span(kind, names, 0, 0, min(cut.slack // distance, cut.nodes)))
        elif kind.most == cut.pivot and kind != ranked[-1]:
            spans.append(Span(kind, names, inside[kind], inside[kind] - doubtful[kind], inside[kind] + cut.slack))
    # The farther away a kind is, the fewer of its nodes can be exchanged: so the tables stay small for longest.
    spans.sort(key=lambda span: (-abs(span.kind.most - cut.pivot), span.kind))
    last, base = ranked[-1], inside[ranked[-1]]
    return [*spans, Span(last, level[last], base, base - 2 * cut.slack, base + 2 * cut.slack)]


def _best_of_level(level: Kinds, taken: int, fragmentation: Fragmentation) -> list[Kind]:
    """The kinds of the nodes that largest-first takes at its last level: most gain first, then by name."""
    if len(level) == 1:
        return [*level] * taken
    by_gain: dict[int, dict[str, Kind]] = {}
    for kind, names in level.items():
        by_gain.setdefault(kind.gain(fragmentation), {}).update(dict.fromkeys(names, kind))
    ranked: list[Kind] = []
    for gain in sorted(by_gain, reverse=True):
        ranked += [by_gain[gain][name] for name in sorted(by_gain[gain])]
    return ranked[:taken]
