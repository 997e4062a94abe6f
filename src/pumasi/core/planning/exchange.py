"""The dynamic programme that exchanges nodes of largest-first for others, within the slack that it left.

Its tables are indexed by the slack used and by how many nodes were taken more than largest-first takes. Nodes of one
kind differ by name only: the cost depends on how many kinds there are, not on how many nodes.

Names take part as bits of one whole number, of which the least name has the highest: the greater number is the set of
names that comes first. Fragmentation stands above the names in the same number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import accumulate
from typing import NamedTuple

from pumasi.core.planning.fragmentation import Fragmentation, Kind
from pumasi.core.planning.spread import Spread, spread_steps

MOST_STEPS = 10_000_000
"""About a second. Nodes with up to some hundred free slots need far fewer; with billions it could take years."""


class Span:
    """The nodes of one kind: how many may be taken (`low` to `high`), how many largest-first takes (`base`), and how
    many are in the end (`taken`, the least names), of which the last take as many slots less as `spared` says."""

    def __init__(self, kind: Kind, names: Sequence[str], base: int, low: int, high: int) -> None:
        self.kind, self.base, self.low, self.high = kind, base, max(low, 0), min(high, len(names))
        # Sorting all of thousands would take longer than all the rest.
        self.names = nsmallest(self.high, names) if 8 * self.high < len(names) else sorted(names)
        self.taken = base
        self.spared: tuple[int, ...] = ()

    def open_names(self) -> Sequence[str]:
        """The names that are neither in nor out for sure."""
        return self.names[self.low : self.high]

    def shares(self) -> Iterator[tuple[str, int]]:
        most, whole = self.kind.most, self.taken - len(self.spared)
        yield from ((name, most) for name in self.names[:whole])
        yield from zip(self.names[whole : self.taken], (most - less for less in self.spared), strict=True)

    def gain(self, fragmentation: Fragmentation) -> int:
        lost = sum(self.kind.loss(less, fragmentation) for less in self.spared)
        return self.taken * self.kind.gain(fragmentation) - lost


def exchange(spans: Sequence[Span], slack: int, fragmentation: Fragmentation) -> bool:
    """Set what each span takes and spares. False when there were too many ways to look at all of them."""
    return _Exchange(spans, slack, fragmentation).settle()


class _Offer(NamedTuple):
    """`more` nodes than largest-first takes, `less` slots than they can take; `cost` is the slack that this uses."""

    more: int
    cost: int
    worth: int
    less: int = 0


_Table = dict[int, dict[int, int]]
"""Slack used ─► nodes more than largest-first takes ─► the most that this can be worth."""


class _Exchange:
    """One span after the other; the last, where largest-first stopped, makes up the numbers at the end."""

    def __init__(self, spans: Sequence[Span], slack: int, fragmentation: Fragmentation) -> None:
        self._spans, self._slack, self._fragmentation = spans, slack, fragmentation
        self._last = spans[-1]
        # A node that can be filled takes all slack that is left over. One is there for sure when largest-first stopped
        # below the limit a node; otherwise each kind has to say what it spares.
        self._all_spare = any(span.kind.rest for span in spans if span.kind.most == self._last.kind.most)
        self._spreads: dict[Kind, Spread] = {}
        names = sorted((name for span in spans for name in span.open_names()), reverse=True)
        self._marks = {name: 1 << bit for bit, name in enumerate(names)}
        self._bits = len(names)

    def settle(self) -> bool:
        tables: list[_Table] = [{0: {0: 0}}]
        offers: list[list[_Offer]] = []
        steps = self._work(self._last)
        if steps > MOST_STEPS:
            self._last.spared = (self._slack,)
            return False
        most = sum(span.base - span.low for span in self._spans)
        for span in self._spans[:-1]:
            steps += self._work(span)
            choice = self._offers(span) if steps <= MOST_STEPS else []
            steps += self._steps(tables[-1], choice)
            if steps > MOST_STEPS:
                break
            most -= span.base - span.low
            offers.append(choice)
            tables.append(_extend(tables[-1], choice, self._slack, most))
        self._trace(tables, offers)
        return steps <= MOST_STEPS

    def _work(self, span: Span) -> int:
        """What it costs to make the offers of a span."""
        offers = span.high - span.low + 1
        if not self._spares(span):
            return offers
        return offers * self._slack + spread_steps(span.kind, span.high, self._slack, self._fragmentation)

    def _steps(self, table: _Table, offers: Sequence[_Offer]) -> int:
        """What it costs to copy and extend the table: a row costs as much as a few entries, long numbers cost more."""
        used = sorted(table)
        up_to = [0, *accumulate(len(table[at]) + 4 for at in used)]
        steps = up_to[-1] + sum(up_to[bisect_right(used, self._slack - offer.cost)] for offer in offers)
        return steps * (1 + self._bits // 512)

    def _spares(self, span: Span) -> bool:
        return self._all_spare or span.kind.rest > 0

    def _spread(self, span: Span) -> Spread:
        if span.kind not in self._spreads:
            self._spreads[span.kind] = Spread(span.kind, span.high, self._slack, self._fragmentation)
        return self._spreads[span.kind]

    def _worths(self, span: Span) -> dict[int, int]:
        """What it is worth to take so many nodes, compared with what largest-first takes."""
        gain = span.kind.gain(self._fragmentation) << self._bits
        worths = {span.low: 0}
        for taken, name in enumerate(span.open_names(), span.low):
            worths[taken + 1] = worths[taken] + gain + self._marks[name]
        return {taken: worth - worths[span.base] for taken, worth in worths.items()}

    def _offers(self, span: Span) -> list[_Offer]:
        distance = abs(span.kind.most - self._last.kind.most)
        offers: list[_Offer] = []
        for taken, worth in self._worths(span).items():
            offer = _Offer(taken - span.base, abs(taken - span.base) * distance, worth)
            offers += self._sparing(span, offer) if self._spares(span) else [offer]
        return [offer for offer in offers if offer.more or offer.less]

    def _sparing(self, span: Span, offer: _Offer) -> Iterator[_Offer]:
        # Without a slot to spare, a node more of the last level would only stand in for a better one of that level.
        least = max(offer.more, 0) if span.kind.most == self._last.kind.most else 0
        for less in range(least, self._slack - offer.cost + 1):
            loss = self._spread(span).loss(span.base + offer.more, less)
            if loss is not None:
                yield _Offer(offer.more, offer.cost + less, offer.worth - (loss << self._bits), less)

    def _trace(self, tables: Sequence[_Table], offers: Sequence[Sequence[_Offer]]) -> None:
        """From the best end back to the start, setting each span on the way."""
        used, more = self._best_end(tables[-1])
        left_over = self._slack - used
        self._last.taken = self._last.base - more
        for index in reversed(range(len(offers))):
            span = self._spans[index]
            offer = _origin(tables[index], tables[index + 1][used][more], used, more, offers[index])
            span.taken = span.base + offer.more
            span.spared = self._spread(span).parts(span.taken, offer.less) if offer.less else ()
            used, more = used - offer.cost, more - offer.more
        self._spare(left_over)

    def _best_end(self, table: _Table) -> tuple[int, int]:
        worths = self._worths(self._last)
        ends = []
        for used, row in table.items():
            for more, worth in row.items():
                taken = self._last.base - more
                loss = self._last_loss(taken, self._slack - used) if taken in worths else None
                if loss is not None:
                    ends.append((worth + worths[taken] - (loss << self._bits), used, more))
        _, used, more = max(ends)
        return used, more

    def _last_loss(self, taken: int, less: int) -> int | None:
        return self._spread(self._last).loss(taken, less) if self._all_spare else self._fragmentation(less)

    def _spare(self, less: int) -> None:
        """The smallest node gives it, so that the shares are [5, 1] rather than [3, 3]."""
        if self._all_spare:
            self._last.spared = self._spread(self._last).parts(self._last.taken, less)
        elif less:
            min((span for span in self._spans if span.taken and not span.kind.rest), key=_most).spared = (less,)


def _most(span: Span) -> int:
    return span.kind.most


def _extend(table: _Table, offers: Sequence[_Offer], slack: int, most: int) -> _Table:
    """The table with one more span. More than `most` nodes more could not be made up for by those that follow."""
    after = {used: row.copy() for used, row in table.items()}
    for more, cost, worth, _ in offers:
        for used, row in table.items():
            if used + cost > slack:
                continue
            best = after.setdefault(used + cost, {})
            for count, before in row.items():
                total = before + worth
                if count + more <= most and ((known := best.get(count + more)) is None or total > known):
                    best[count + more] = total
    return after


def _origin(table: _Table, aim: int, used: int, more: int, offers: Sequence[_Offer]) -> _Offer:
    """The offer that led to `aim`."""
    for offer in (_Offer(0, 0, 0), *offers):
        before = table.get(used - offer.cost, {}).get(more - offer.more)
        if before is not None and before + offer.worth == aim:
            return offer
    raise AssertionError("every entry of a table comes from the one before")
