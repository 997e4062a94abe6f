"""`pumasi data split` on files that are larger than the memory that it may take: how quick it is, and what it takes.

    python benchmarks/data.py [gigabytes] [format …]

Each format is split into 7 parts as it stands, and shuffled with its classes spread evenly, which is the hardest.
Beside it: `cp` of the same file. The goal: at most 200 MB of memory for a file of 1 GB, and 500 MB for one of 10 GB.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROW = 1000
"""Bytes of a row, roughly: a review, a small picture."""
BLOCK_ROWS = 10_000
PROGRAM = """
import json, sys
from pathlib import Path
from pumasi.data import split
file, options = sys.argv[1], json.loads(sys.argv[2])
made = split(file, 7, force=True, **options)
(peak,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(json.dumps({"mb": int(peak) / 1000, "rows": sum(part.rows for part in made.parts)}))
"""
MODES: dict[str, dict[str, Any]] = {
    "as it stands": {},
    "shuffled, stratified": {"seed": 1, "stratify": ""},
}


def array_file(path: Path, rows: int, *, compressed: bool) -> None:
    import zipfile

    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    rng = np.random.default_rng(0)
    block = rng.integers(0, 256, (BLOCK_ROWS, ROW), np.uint8)
    if compressed:
        # Padded, as texts are.
        block[:, ROW // 10 :] = 0
    with zipfile.ZipFile(path, "w", kind, compresslevel=1) as archive:
        for name, shape, data in (("x", (rows, ROW), block), ("y", (rows,), rng.integers(0, 10, BLOCK_ROWS, np.uint8))):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(rows // BLOCK_ROWS):
                    file.write(data.tobytes())


def npz(path: Path, rows: int) -> None:
    array_file(path, rows, compressed=False)


def npz_compressed(path: Path, rows: int) -> None:
    array_file(path, rows, compressed=True)


def csv(path: Path, rows: int) -> None:
    texts = [f'"a ""word"", and\na line {"x" * 950}"', "x" * 980]
    lines = [f"{i},{i % 10},{texts[i % 2]}\n" for i in range(BLOCK_ROWS)]
    with path.open("w") as file:
        file.write("id,y,text\n")
        for _ in range(rows // BLOCK_ROWS):
            file.writelines(lines)


def jsonl(path: Path, rows: int) -> None:
    lines = [json.dumps({"id": i, "y": i % 10, "text": "x" * 960}) + "\n" for i in range(BLOCK_ROWS)]
    with path.open("w") as file:
        for _ in range(rows // BLOCK_ROWS):
            file.writelines(lines)


def parquet(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    texts = [rng.bytes(ROW).hex()[:ROW] for _ in range(BLOCK_ROWS)]
    block = pa.table({"y": rng.integers(0, 10, BLOCK_ROWS), "text": texts})
    with pq.ParquetWriter(path, block.schema) as writer:
        for _ in range(rows // BLOCK_ROWS):
            writer.write_table(block)


def folder(path: Path, rows: int) -> None:
    for index in range(rows // 100):
        target = path / f"class-{index % 10}" / f"{index}.bin"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x" * ROW * 100)


FORMATS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "npz": ("a.npz", npz),
    "npz compressed": ("b.npz", npz_compressed),
    "csv": ("c.csv", csv),
    "jsonl": ("d.jsonl", jsonl),
    "parquet": ("e.parquet", parquet),
    "folder": ("f", folder),
}


def main(gigabytes: float, names: list[str]) -> int:
    rows = int(gigabytes * 1e9) // ROW // BLOCK_ROWS * BLOCK_ROWS
    goal = 200 if gigabytes <= 2 else 500
    reached = True
    print(f"{rows:,} rows of {ROW:,} bytes\n\n{'':40}{'seconds':>10}{'of cp':>8}{'MB':>8}")
    for name in names or FORMATS:
        file, make = FORMATS[name]
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / file
            make(path, rows)
            started = time.perf_counter()
            subprocess.run(["cp", "-r", path, f"{path}.copy"], check=True)
            alone = time.perf_counter() - started
            shutil.rmtree(f"{path}.copy") if path.is_dir() else Path(f"{path}.copy").unlink()
            for mode, options in MODES.items():
                started = time.perf_counter()
                command = [sys.executable, "-c", PROGRAM, str(path), json.dumps(options)]
                told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                took = time.perf_counter() - started
                print(f"{name:18}{mode:22}{took:10.1f}{took / alone:8.1f}{told['mb']:8.0f}", flush=True)
                reached = reached and told["mb"] <= goal
    print(f"\nGoal, {goal} MB at the most: {'reached' if reached else 'MISSED'}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, sys.argv[2:]))
