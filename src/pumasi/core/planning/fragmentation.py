"""What a leftover costs: free slots that the next request cannot use, because it needs more of them on one node.

Counted in whole numbers, so that equal is equal: otherwise rounding would choose between two plans that are as good.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from pumasi.errors import UsageError

DEFAULT_MIX: Mapping[int, float] = {1: 0.5, 2: 0.15, 4: 0.15, 8: 0.2}
"""Share of requests by the slots that they need on one node, where there is no history to take it from."""

_TOLERANCE = 1e-6
_FINEST = 10**12


class Fragmentation:
    """F(r) = r · P[a request needs more than r slots on one node], in units of 1 / `unit`."""

    def __init__(self, mix: Mapping[int, float]) -> None:
        _check(mix)
        weights = {size: round(part * _FINEST) for size, part in sorted(mix.items()) if part > 0}
        divisor = math.gcd(_FINEST, *weights.values())
        self.unit = _FINEST // divisor
        self.largest = max(weights)
        self.sizes = list(weights)
        parts = [weight // divisor for weight in weights.values()]
        self._tails = [sum(parts[i:]) for i in range(len(parts) + 1)]

    def __call__(self, rest: int) -> int:
        return rest * self._tails[bisect_right(self.sizes, rest)]

    def real(self, units: int) -> float:
        return units / self.unit


class Kind(NamedTuple):
    """Nodes that are equal but for their names: what one can take, and what then stays free because of a limit."""

    most: int
    rest: int

    def gain(self, fragmentation: Fragmentation) -> int:
        """The fragmentation that goes away when such a node takes all that it can."""
        return fragmentation(self.most + self.rest) - fragmentation(self.rest)

    def loss(self, less: int, fragmentation: Fragmentation) -> int:
        """How much of that comes back when it takes so many slots less."""
        return fragmentation(self.rest + less) - fragmentation(self.rest)


def _check(mix: Mapping[int, float]) -> None:
    hint = "Give the share of requests by slots, such as {1: 0.5, 8: 0.5}; the shares add up to 1."
    for size, part in mix.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"The demand mix has requests for {size!r} slots, which is no whole number from 1.", hint)
        if not 0 <= part <= 1 + _TOLERANCE:
            raise UsageError(f"The demand mix gives requests for {size} slots a share of {part}, not 0 to 1.", hint)
    total = sum(mix.values())
    if abs(total - 1) > _TOLERANCE:
        raise UsageError(f"The shares of the demand mix add up to {total:g}, not to 1.", hint)
