"""The arithmetic behind averages, on flat blocks of numbers. Pure.

A block is an array of the type that `STORED` names for a dtype. Sums are float64, and are rounded once, at the end.
Where the numbers themselves are float64, what each step loses is carried along and added back (Dekker, Neumaier).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STORED = {
    "bool": "?",
    **{f"{sign}int{bits}": f"<{sign[:1] or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "<f2",
    "bfloat16": "<u2",
    "float32": "<f4",
    "float64": "<f8",
    "complex32": "<u4",
    "complex64": "<c8",
    "complex128": "<c16",
}
"""The dtypes that we know, and how a block has them. NumPy has no bfloat16 and no complex32: these are bits."""

_PARTS = {"complex32": "<f2", "complex64": "<f4", "complex128": "<f8"}
FLOATS = frozenset(("float16", "bfloat16", "float32", "float64", *_PARTS))
_WIDE = frozenset(("float64", "complex128"))
_HIGH_HALF = np.uint64(0xFFFF_FFFF_F800_0000)


def widen(block: Array, dtype: str) -> Array:
    """The same numbers in a type that NumPy can count with; complex ones as pairs."""
    if dtype == "bfloat16":
        wide: Array = block.astype("<u4") << 16
        return wide.view("<f4")
    return block.view(_PARTS[dtype]) if dtype in _PARTS else block


def narrow(values: Array, dtype: str) -> Array:
    """float64 ─► a block, rounded to the nearest, ties to even."""
    if dtype == "bfloat16":
        return _to_bfloat16(values)
    block: Array = values.astype(_PARTS.get(dtype, STORED[dtype]), copy=False)
    return block.view(STORED[dtype])


def _to_bfloat16(values: Array) -> Array:
    """By way of float32, but rounded to odd there: to round twice to the nearest is not to round once."""
    near = values.astype("<f4")
    bits = near.view("<u4")
    wide = near.astype("<f8")
    bits -= np.abs(wide) > np.abs(values)
    bits |= wide != values
    rounded: Array = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2")


def is_finite(block: Array, dtype: str) -> bool:
    return bool(np.isfinite(widen(block, dtype)).all())


def mean(blocks: Iterable[Array], weights: Sequence[int], dtype: str) -> Array:
    """The weighted mean, in float64. Takes one block after the other: they need not be in memory together."""
    summed = _carried_sum if dtype in _WIDE else _sum
    with np.errstate(all="ignore"):
        return summed((widen(block, dtype) for block in blocks), weights)


def _sum(blocks: Iterable[Array], weights: Sequence[int]) -> Array:
    total = None
    for values, weight in zip(blocks, weights, strict=True):
        if total is None:
            total = np.multiply(values, float(weight), dtype=np.float64)
        else:
            np.add(total, values if weight == 1 else values * np.float64(weight), out=total)
    assert total is not None
    total /= sum(weights)
    return total


def _carried_sum(blocks: Iterable[Array], weights: Sequence[int]) -> Array:
    total: Any = -0.0
    lost: Any = 0.0
    for values, weight in zip(blocks, weights, strict=True):
        product, less = _product(values, weight)
        total, least = _added(total, product)
        lost = lost + (less + least)
    count = sum(weights)
    quotient: Array = total / count
    product, less = _product(quotient, count)
    amends = ((total - product) - less + lost) / count
    # Where there is nothing to mend, -0 stays -0.
    np.add(quotient, amends, out=quotient, where=amends != 0)
    return quotient


def _added(left: Array, right: Array) -> tuple[Array, Array]:
    """The sum, and what rounding took from it."""
    total = left + right
    share = total - left
    return total, (left - (total - share)) + (right - share)


def _product(left: Array, factor: int) -> tuple[Array, Array]:
    """The product, and what rounding took from it."""
    right = np.array([float(factor)])
    product = left * right
    high, right_high = ((each.view(np.uint64) & _HIGH_HALF).view(np.float64) for each in (left, right))
    low, right_low = left - high, right - right_high
    return product, ((high * right_high - product) + high * right_low + low * right_high) + low * right_low


def variance(means: Iterable[Array], weights: Sequence[int], dtype: str) -> Array:
    """The weighted variance of the means themselves, in float64, by Chan's update: no difference of large squares."""
    count, center, spread = 0, np.zeros(1), np.zeros(1)
    with np.errstate(all="ignore"):
        for block, weight in zip(means, weights, strict=True):
            count += weight
            values = widen(block, dtype).astype(np.float64, copy=False)
            away = values - center if count > weight else np.zeros_like(values)
            center = center + away * (weight / count) if count > weight else values
            spread = spread + away * away * (weight * (count - weight) / count)
        return spread / count
