"""Rows in another order than that of the file, in little memory and without reading here and there.

The new order is cut into buckets that fit into memory. The file is read once, from start to end, and each row put into
its bucket, on the disk; then one bucket after the other is read and sorted. So the rows are read twice and written
twice, always many at once, however large the file is and however small its rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pumasi.data.files import Tick
from pumasi.data.formats.base import Stream

if TYPE_CHECKING:
    from pumasi.data.partition import Rows

BUCKET = 16 << 20
"""Bytes, of memory."""
_BLOCK = 1 << 20


def rearranged(stream: Stream, order: Rows, spool: Path, tick: Tick) -> Iterator[Any]:
    """The stream's rows in `order`, in chunks. `spool` is a file for the buckets."""
    bounds = _bounds(stream, order)
    with spool.open("w+b") as file:
        extents = _fill(stream, order, bounds, file, tick)
        for (start, end), its_extents in zip(pairwise(bounds), extents, strict=True):
            yield _sorted(stream, order[start:end], its_extents, file)


def _bounds(stream: Stream, order: Rows) -> list[int]:
    """Where in the order each bucket begins, and the end."""
    import numpy as np

    sizes = np.asarray(stream.sizes())
    bounds, used = [0], 0
    for start in range(0, len(order), _BLOCK):
        ends = used + np.cumsum(sizes[order[start : start + _BLOCK]], dtype=np.int64)
        steps = np.diff(ends // BUCKET, prepend=used // BUCKET)
        bounds += (start + 1 + np.flatnonzero(steps)).tolist()
        used = int(ends[-1])
    return bounds if bounds[-1] == len(order) else [*bounds, len(order)]


def _sorted(stream: Stream, rows: Rows, extents: array[int], file: BinaryIO) -> Any:
    """The rows of a bucket, as they are wanted; in the bucket they lie as they came, by their numbers."""
    import numpy as np

    pieces = []
    for place, size in zip(extents[::2], extents[1::2], strict=True):
        file.seek(place)
        pieces.append(stream.unpack(file.read(size)))
    ranks = np.empty(len(rows), np.int64)
    ranks[np.argsort(rows)] = np.arange(len(rows))
    return stream.take(stream.join(pieces), ranks)


def _fill(stream: Stream, order: Rows, bounds: list[int], file: BinaryIO, tick: Tick) -> list[array[int]]:
    """For each bucket the places and sizes of its pieces in the file, in turn."""
    import numpy as np

    bucket_of = np.empty(len(order), np.uint32)
    for bucket, (start, end) in enumerate(pairwise(bounds)):
        bucket_of[order[start:end]] = bucket
    extents = [array("q") for _ in bounds[1:]]
    done = place = 0
    for chunk in stream.chunks():
        buckets = bucket_of[done : done + len(chunk)]
        by_bucket = np.argsort(buckets, kind="stable")
        sorted_chunk = stream.take(chunk, by_bucket)
        present, starts = np.unique(buckets[by_bucket], return_index=True)
        for bucket, (start, end) in zip(present.tolist(), pairwise([*starts.tolist(), len(chunk)]), strict=True):
            data = stream.pack(sorted_chunk[start:end])
            file.write(data)
            extents[bucket].extend((place, len(data)))
            place += len(data)
        done += len(chunk)
        tick("sorting", done, len(order))
    return extents
