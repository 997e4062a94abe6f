"""The arithmetic of averages, against exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.models.arithmetic import FLOATS, STORED, Array, is_finite, mean, narrow, variance, widen

REAL = ("float16", "bfloat16", "float32", "float64")
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38, "float64": 1e280}
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
LOWEST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}
"""The exponent of the smallest number above 0."""


def rounded(value: Fraction, dtype: str) -> float:
    """To the nearest number of the type, ties to even, by the definition."""
    if not value:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - DIGITS[dtype] + 1, LOWEST[dtype])
    return float(round(value / unit) * unit)


def block(values: list[float], dtype: str) -> Array:
    return narrow(np.array(values, np.float64), dtype)


def numbers(dtype: str) -> st.SearchStrategy[float]:
    limit = LARGEST[dtype]
    return st.floats(-limit, limit, width=64).map(lambda value: float(widen(block([value], dtype), dtype)[0]))


def samples(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 2**40), min_size=count, max_size=count)


@st.composite
def typed(draw: st.DrawFn, count: int) -> tuple[str, list[float]]:
    dtype = draw(st.sampled_from(REAL))
    return dtype, draw(st.lists(numbers(dtype), min_size=count, max_size=count))


@given(st.sampled_from(REAL), st.floats(-1e300, 1e300))
def test_numbers_are_rounded_once_to_the_nearest(dtype: str, value: float) -> None:
    if abs(value) <= LARGEST[dtype]:
        assert float(widen(block([value], dtype), dtype)[0]) == rounded(Fraction(value), dtype)


def test_bfloat16_is_what_others_take_it_for() -> None:
    kind: Any = pytest.importorskip("ml_dtypes").bfloat16
    every = np.arange(2**16, dtype="<u2")
    np.testing.assert_array_equal(widen(every, "bfloat16"), every.view(kind).astype(np.float32))
    halves = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    ours = narrow(halves.astype(np.float64), "bfloat16")
    np.testing.assert_array_equal(ours, halves.astype(kind).view("<u2"))


@given(st.integers(1, 7).flatmap(lambda count: st.tuples(st.just(count), samples(count))), typed(1))
def test_the_average_of_identical_models_is_identical(
    counts: tuple[int, list[int]], numbers: tuple[str, list[float]]
) -> None:
    (count, weights), (dtype, values) = counts, numbers
    one = block(values, dtype)
    assert narrow(mean([one] * count, weights, dtype), dtype).tobytes() == one.tobytes()


@given(typed(2))
def test_the_average_of_two_is_the_exact_mean_rounded_once(numbers: tuple[str, list[float]]) -> None:
    dtype, (one, other) = numbers
    averaged = narrow(mean([block([one], dtype), block([other], dtype)], [1, 1], dtype), dtype)
    assert float(widen(averaged, dtype)[0]) == rounded((Fraction(one) + Fraction(other)) / 2, dtype)


@given(typed(5), samples(5))
def test_a_weighted_average_is_right_to_the_last_place(numbers: tuple[str, list[float]], weights: list[int]) -> None:
    dtype, values = numbers
    exact = sum(map(Fraction.__mul__, map(Fraction, values), map(Fraction, weights)), Fraction(0)) / sum(weights)
    averaged = Fraction(float(mean([block([each], dtype) for each in values], weights, dtype)[0]))
    size = max(abs(Fraction(each)) for each in values)
    assert abs(averaged - exact) <= size * Fraction(2) ** -50 + Fraction(2) ** -1074


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6).flatmap(
    lambda values: st.tuples(st.just(values), st.lists(st.integers(1, 99), min_size=len(values), max_size=len(values)))
))  # fmt: skip
def test_the_variance_of_means_is_that_of_the_definition(given_: tuple[list[float], list[int]]) -> None:
    values, weights = given_
    exact, total = [Fraction(each) for each in values], sum(weights)
    center = sum((each * weight for each, weight in zip(exact, weights, strict=True)), Fraction(0)) / total
    spread = (
        sum(((each - center) ** 2 * weight for each, weight in zip(exact, weights, strict=True)), Fraction(0)) / total
    )
    ours = float(variance([block([each], "float32") for each in values], weights, "float32")[0])
    assert ours == pytest.approx(float(spread), rel=1e-9, abs=1e-9 * max(map(abs, values)) ** 2 * 1e-6)


def test_a_small_variance_far_from_zero_is_not_lost() -> None:
    means = [np.array([1e8 + step]) for step in (0.0, 1.0, 2.0)]
    assert variance(means, [1, 1, 1], "float64")[0] == pytest.approx(2 / 3, rel=1e-12)


@pytest.mark.parametrize("dtype", ["complex32", "complex64", "complex128"])
def test_complex_numbers_are_pairs(dtype: str) -> None:
    one, other = narrow(np.array([1.0, 2.0]), dtype), narrow(np.array([3.0, -4.0]), dtype)
    assert one.size == 1
    assert widen(narrow(mean([one, other], [1, 3], dtype), dtype), dtype).tolist() == [2.5, -2.5]


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_infinities_are_found(dtype: str) -> None:
    fine = narrow(np.zeros(4), dtype)
    assert is_finite(fine, dtype)
    for wrong in (np.nan, np.inf, -np.inf):
        broken = fine.copy()
        broken[1:2] = narrow(np.array([wrong, wrong] if "complex" in dtype else [wrong]), dtype)
        assert not is_finite(broken, dtype)


def test_the_types_are_as_large_as_their_names_say() -> None:
    for name, stored in STORED.items():
        bits = 8 if name == "bool" else int("".join(letter for letter in name if letter.isdigit()))
        assert np.dtype(stored).itemsize * 8 == bits
