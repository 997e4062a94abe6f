"""Data sets in parts: split one file or folder into N parts, or copy it N times, and check them before training.

    from pumasi.data import check, split

    split("reviews.npz", 5)   # reviews-5/0.npz … 4.npz, and manifest.json
    check("reviews-5")        # an error unless every part is as it was written

It needs the standard library and numpy, and for .parquet files pyarrow. docs/data.md has the guarantees.
"""

from pumasi.data.making import copy, split
from pumasi.data.manifest import Part, PartSet, check

__all__ = ["Part", "PartSet", "check", "copy", "split"]
