"""safetensors: the length of a header, the header in JSON, then the tensors without a gap.

So little that the package of that name is not needed; and it can't give bfloat16 to NumPy.
"""

from __future__ import annotations

import json
import struct
from math import prod
from operator import index
from pathlib import Path

import numpy as np

from pumasi.models.arithmetic import STORED
from pumasi.models.model import Blocks, Model, Tensor

_LENGTH = 8
_LONGEST_HEADER = 100_000_000
_DTYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "C64": "complex64",
}
_FRAMEWORKS = {"pt": "PyTorch", "tf": "TensorFlow", "flax": "Flax", "np": "NumPy", "mlx": "MLX"}


class Safetensors(Model):
    format = "safetensors"

    def _open(self) -> None:
        (length,) = struct.unpack("<Q", self.file.read(_LENGTH))
        self._start = _LENGTH + length
        if length > _LONGEST_HEADER or self._start > self._length():
            raise ValueError(f"its header claims {length} bytes")
        self.file.seek(_LENGTH)
        header = json.loads(self.file.read(length))
        metadata = header.pop("__metadata__", {})
        self.framework = _FRAMEWORKS.get(metadata.get("format"), "")
        end = 0
        for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = about["data_offsets"]
            if first != end or last < first:
                raise ValueError(f"{name[:80]!r} does not begin where the tensor before it ends")
            end = last
            dtype = _DTYPES.get(about["dtype"], str(about["dtype"]))
            shape = tuple(map(index, about["shape"]))
            # An unknown type is compared as it is: so many bytes.
            stored = np.dtype(STORED.get(dtype, f"V{(last - first) // max(prod(shape), 1)}"))
            tensor = Tensor(name, dtype, shape, stored, self._start + first)
            if tensor.nbytes != last - first:
                raise ValueError(f"{name[:80]!r} has {last - first} bytes, which do not fit its shape")
            self._add(tensor)

    def _write(self, path: Path, blocks: Blocks) -> None:
        self.file.seek(0)
        with path.open("wb") as to:
            to.write(self.file.read(self._start))
            for tensor in self.tensors.values():
                for block in blocks(tensor):
                    to.write(block.data)
