"""Which row goes where."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.data.partition import order, permutation, shares

ROWS = st.integers(1, 400)
SEEDS = st.integers(0, 2**64 - 1)
CLASSES = st.lists(st.integers(0, 5), min_size=1, max_size=400)


def cut(rows: list[int], n: int) -> list[list[int]]:
    return [rows[start:end] for start, end in pairwise(accumulate(shares(len(rows), n), initial=0))]


@given(st.integers(0, 10**15), st.integers(1, 1000))
def test_shares_are_whole_and_differ_by_one_at_most_with_the_larger_ones_first(rows: int, n: int) -> None:
    found = shares(rows, n)
    assert (len(found), sum(found)) == (n, rows)
    assert found == sorted(found, reverse=True)
    assert found[0] - found[-1] <= 1


def test_25000_rows_make_7_parts_and_not_8() -> None:
    assert shares(25_000, 7) == [3572, 3572, 3572, 3571, 3571, 3571, 3571]


def test_without_a_wish_rows_stay_where_they_are() -> None:
    assert order(10, 3, None) is None


@given(ROWS, SEEDS)
def test_a_permutation_has_every_row_once(rows: int, seed: int) -> None:
    assert sorted(permutation(rows, seed).tolist()) == list(range(rows))


def test_a_seed_means_the_same_order_for_ever() -> None:
    """Whoever changes this changes what users get for the seeds that they have written down."""
    assert permutation(10, 0).tolist() == [0, 9, 5, 7, 2, 3, 4, 6, 1, 8]
    assert permutation(10, 1).tolist() == [2, 8, 9, 4, 3, 6, 5, 1, 7, 0]


def test_the_documented_formula_is_the_permutation() -> None:
    """In Python's own numbers: what docs/data.md says."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    rows, seed = 1000, 12345
    hashes = [mix((mix(seed) + (row + 1) * 0x9E3779B97F4A7C15) % 2**64) for row in range(rows)]
    kept = 2 ** (64 - rows.bit_length())
    assert permutation(rows, seed).tolist() == sorted(range(rows), key=lambda row: (hashes[row] % kept, row))


def test_neighbouring_seeds_have_nothing_in_common() -> None:
    one, other = permutation(10_000, 1), permutation(10_000, 2)
    assert np.count_nonzero(one == other) < 20
    assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.05
    assert abs(np.corrcoef(one.astype(float), np.arange(10_000))[0, 1]) < 0.05


@given(CLASSES, st.integers(1, 20), st.none() | SEEDS)
def test_classes_and_sizes_are_balanced_at_the_same_time(classes: list[int], n: int, seed: int | None) -> None:
    found = order(len(classes), n, seed, array("I", classes))
    assert found is not None
    assert sorted(found.tolist()) == list(range(len(classes)))
    parts = cut(found.tolist(), n)
    for each in set(classes):
        counts = [sum(classes[row] == each for row in part) for part in parts]
        assert max(counts) - min(counts) <= 1
    if seed is None:
        assert all(part == sorted(part) for part in parts), "rows keep their order within a part"


@given(CLASSES, st.integers(1, 20), SEEDS)
def test_with_a_seed_rows_lie_in_a_part_as_the_shuffle_has_them(classes: list[int], n: int, seed: int) -> None:
    found = order(len(classes), n, seed, array("I", classes))
    assert found is not None
    place = {row: index for index, row in enumerate(permutation(len(classes), seed).tolist())}
    for part in cut(found.tolist(), n):
        assert [place[row] for row in part] == sorted(place[row] for row in part)


@pytest.mark.parametrize("seed", [None, 7])
def test_blocks_leave_no_seams(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = array("I", (row * row % 7 for row in range(1000)))
    whole = order(1000, 6, seed, classes)
    monkeypatch.setattr("pumasi.data.partition._BLOCK", 17)
    in_blocks = order(1000, 6, seed, classes)
    assert whole is not None
    assert in_blocks is not None
    assert whole.tolist() == in_blocks.tolist()
