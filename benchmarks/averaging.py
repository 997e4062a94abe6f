"""Averages of models that are files, beside NumPy's own mean over arrays that are in memory already; and the memory.

    python benchmarks/averaging.py                  # 20 models of 50 MB
    python benchmarks/averaging.py --size 1000      # of 1 GB each: needs 21 GB of disk

Speed: the files were just written, so as many as memory has room for come from the system's cache: this measures us,
not the disk. Ours runs in a process of its own; it counts from the opening of the first file (imports are done by then)
until the result is on the disk; NumPy's is not written at all. GB/s count what goes in. Both take turns; the best of
each counts, since others use this machine too. Goal: at least half of NumPy's speed where it is as exact (sums in
float64); its speed in float32 is told beside it.

Memory: by how much the peak is above that of a process that averages tiny models. Goal: at most two models.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pumasi import models

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))
COUNT = 20
TENSORS = 8
GOAL = 0.5
Arrays = dict[str, "np.ndarray[Any, Any]"]
MEASURE = """
import re, sys, time
import h5py
from pumasi import models
started = time.perf_counter()
models.average(sys.argv[2:], sys.argv[1], force=True)
print(time.perf_counter() - started)
# Not getrusage: its peak is also that of the process which started this one.
print(re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
"""


def save_h5(path: Path, arrays: Arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values


def save_keras(path: Path, arrays: Arrays) -> None:
    inner = path.with_suffix(".inner")
    save_h5(inner, arrays)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3"}')
        archive.write(inner, "model.weights.h5")
    inner.unlink()


def save_npz(path: Path, arrays: Arrays) -> None:
    np.savez(path, **arrays)


def save_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, path)


def save_torch(path: Path, arrays: Arrays) -> None:
    from tests.unit.torch_files import save_torch as save

    save(path, arrays)


SAVERS = {
    ".safetensors": save_safetensors,
    ".h5": save_h5,
    ".keras": save_keras,
    ".npz": save_npz,
    ".pt": save_torch,
}


def arrays_of(size: int) -> Arrays:
    dice = np.random.default_rng(size)
    return {f"layer{number}": dice.random(size // TENSORS // 4, np.float32) for number in range(TENSORS)}


def save_models(folder: Path, suffix: str, arrays: Arrays, count: int) -> list[Path]:
    paths = [folder / f"{number}{suffix}" for number in range(count)]
    for path in paths:
        SAVERS[suffix](path, arrays)
    return paths


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def average(output: Path, paths: list[Path]) -> tuple[float, int]:
    """Seconds, and bytes of memory at the peak, in a process of its own."""
    words = [sys.executable, "-c", MEASURE, output, *paths]
    took, peak = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return float(took), int(peak) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="How quickly models are averaged, and in how much memory.")
    parser.add_argument("--size", type=int, default=50, help="MB of each model")
    parser.add_argument("--formats", nargs="+", choices=SAVERS, default=list(SAVERS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    size = options.size * 10**6
    # NumPy's models have to be in memory together: as many, but none larger than this.
    in_memory = np.stack([np.concatenate(list(arrays_of(min(size, 50 * 10**6)).values()))] * COUNT)
    for suffix in options.formats:
        measure(suffix, size, in_memory, options.rounds)


def measure(suffix: str, size: int, in_memory: np.ndarray[Any, Any], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, tiny = average(folder / f"tiny{suffix}", save_models(folder, suffix, arrays_of(32), 2))
        paths = save_models(folder, suffix, arrays_of(size), COUNT)
        final = folder / f"final{suffix}"
        ours, float32, float64 = [], [], []
        for _ in range(rounds):
            ours.append(average(final, paths))
            float32.append(seconds(lambda: in_memory.mean(axis=0)))
            float64.append(seconds(lambda: in_memory.mean(axis=0, dtype=np.float64)))
        assert models.diff(paths[0], final).different == []
    rate = COUNT * size / min(took for took, _ in ours) / 1e9
    quick, exact = (in_memory.nbytes / min(times) / 1e9 for times in (float32, float64))
    more = max(peak for _, peak in ours) - tiny
    print(
        f"{COUNT} files {suffix:12} {rate:5.2f} GB/s   NumPy {exact:.2f} GB/s (in float32 {quick:.2f})   "
        f"ratio {rate / exact:.2f} (goal: {GOAL})   memory {more / 1e6:3.0f} MB: {more / size:.2f} models (goal: 2)"
    )


if __name__ == "__main__":
    main()
