"""Which row goes where: pure arithmetic.

An order is an array with one number a row: the rows of part 0 in their order, then those of part 1, and so on; the
lengths of the parts are their shares. There may be as many rows as fit into memory at 8 bytes each, so everything here
works in place, by one trick: a number whose high bits say what to sort by, and whose low bits say which row it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.uint64]

MOST_CLASSES = 65_536
LARGEST_SEED = 2**64 - 1
_BLOCK = 1 << 20
_GOLDEN = 0x9E3779B97F4A7C15


def shares(rows: int, n: int) -> list[int]:
    """They differ by at most one, the larger ones first."""
    return [rows // n + (part < rows % n) for part in range(n)]


def order(rows: int, n: int, seed: int | None, classes: Any = None) -> Rows | None:
    """None where the rows stay as they are. `classes` has a number below MOST_CLASSES for each row.

    Classes are dealt like cards: all rows of the first class, then all of the second and so on, one after the other to
    part 0, 1 … n-1, 0, 1 … So each class's counts differ by at most one between parts, and so do the parts' sizes.
    """
    import numpy as np

    shuffled = None if seed is None else permutation(rows, seed)
    if classes is None:
        return shuffled
    classes = np.asarray(classes)
    keys = np.arange(rows, dtype=np.uint64)
    # A row stands for its place: in the file, or in the shuffled order.
    for block in _blocks(rows):
        its_classes = classes[block] if shuffled is None else classes[shuffled[block]]
        keys[block] |= its_classes.astype(np.uint64) << _bits(rows)
    _sort(keys, rows)
    for block in _blocks(rows):
        part = np.arange(block.start, block.stop, dtype=np.uint64) % np.uint64(n)
        keys[block] |= part << _bits(rows)
    _sort(keys, rows)
    if shuffled is not None:
        for block in _blocks(rows):
            keys[block] = shuffled[keys[block]]
    return keys


def permutation(rows: int, seed: int) -> Rows:
    """The rows sorted by a hash of seed and row: the same on every machine, with every version of numpy, and easy to
    write again elsewhere.

    The hash is SplitMix64's: that of row r is mix(mix(seed) + (r + 1) * 0x9E3779B97F4A7C15), modulo 2^64. To make
    room for the row's number it is shifted to the left by rows.bit_length() bits, and what is too much falls out.
    """
    import numpy as np

    start = _mix(np.array([seed], np.uint64))
    keys = np.empty(rows, np.uint64)
    for block in _blocks(rows):
        row = np.arange(block.start, block.stop, dtype=np.uint64)
        keys[block] = _mix(start + (row + np.uint64(1)) * np.uint64(_GOLDEN)) << _bits(rows) | row
    _sort(keys, rows)
    return keys


def _mix(z: Rows) -> Rows:
    import numpy as np

    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _sort(keys: Rows, rows: int) -> None:
    """Sorts, and leaves the rows' numbers only."""
    import numpy as np

    keys.sort()
    keys &= (np.uint64(1) << _bits(rows)) - np.uint64(1)


def _bits(rows: int) -> np.uint64:
    import numpy as np

    return np.uint64(rows.bit_length())


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK))
