"""Which nodes of one kind take fewer slots than they could, and how many fewer.

It matters only under a limit a node. A node that can be filled should give all that is given, since F is subadditive;
but one with 7 slots left over by the limit gains when it keeps an eighth that the next request can use.
"""

from __future__ import annotations

from collections.abc import Mapping

from pumasi.core.planning.fragmentation import Fragmentation, Kind


class Spread:
    """What it costs to take slots away from at most so many nodes of one kind, and how many from each."""

    def __init__(self, kind: Kind, nodes: int, slack: int, fragmentation: Fragmentation) -> None:
        self._losses = [kind.loss(less, fragmentation) for less in range(slack + 1)]
        # Beyond the largest request no leftover costs anything: the first node can as well give all the rest.
        self._few = max(fragmentation.largest - kind.rest, 1)
        self._rows = [{0: 0}, dict(enumerate(self._losses))][: nodes + 1]
        for _ in range(1, _rows(kind, nodes, slack, fragmentation)):
            self._rows.append(self._row(self._rows[-1]))

    def _row(self, before: Mapping[int, int]) -> dict[int, int]:
        return {
            less: min(before[less - one] + self._losses[one] for one in range(min(self._few, less) + 1))
            for less in before
        }

    def loss(self, nodes: int, less: int) -> int | None:
        """None when no node is there to give anything."""
        return self._rows[min(nodes, len(self._rows) - 1)].get(less)

    def parts(self, nodes: int, less: int) -> tuple[int, ...]:
        parts = []
        for row in range(min(nodes, len(self._rows) - 1), 1, -1):
            aim, before = self._rows[row][less], self._rows[row - 1]
            one = next(r for r in range(min(self._few, less) + 1) if before[less - r] + self._losses[r] == aim)
            parts.append(one)
            less -= one
        return tuple(sorted(part for part in [*parts, less] if part))


def spread_steps(kind: Kind, nodes: int, slack: int, fragmentation: Fragmentation) -> int:
    """What it costs to make a Spread."""
    return slack * (1 + _rows(kind, nodes, slack, fragmentation) * min(slack, fragmentation.largest))


def _rows(kind: Kind, nodes: int, slack: int, fragmentation: Fragmentation) -> int:
    """From how many nodes it can be of use to take: of one, where the leftover costs most or nothing."""
    return 1 if kind.rest == 0 or kind.rest >= fragmentation.largest else min(nodes, slack)
