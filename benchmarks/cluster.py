"""How long a test cluster takes to come and go, how much memory it needs, and whether it leaves anything behind.

    python benchmarks/cluster.py [--rounds 20]

There is no alternative to measure beside it on a machine without a container engine: these are plain figures.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.cluster.traces import Traces
from tools.cluster import making
from tools.cluster.blueprint import Blueprint
from tools.cluster.cluster import Cluster
from tools.common import ToolError

NAME = "bench"


def measured(blueprint: Blueprint) -> tuple[float, float, float]:
    """Seconds up, gigabytes, seconds down; nothing may be left."""
    before = Traces.seen()
    started = time.monotonic()
    cluster = making.up(blueprint, lambda _: None)
    up = time.monotonic() - started
    try:
        memory = cluster.memory() / 1e9
    finally:
        started = time.monotonic()
        cluster.down()
        down = time.monotonic() - started
    before.must_be_all()
    return up, memory, down


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    try:
        making.check_machine()
        Cluster(NAME).down()
        figures = [measured(Blueprint(NAME)) for _ in range(rounds)]
        large = measured(Blueprint(NAME, simulated=1000))
    except ToolError as trouble:
        print(trouble)
        return 0
    print(f"three nodes, {rounds} times up and down, nothing left behind:")
    for what, unit, values in zip(("up", "memory", "down"), ("s", "GB", "s"), zip(*figures, strict=True), strict=True):
        print(f"  {what:8}{statistics.median(values):6.2f} {unit:2}  (at most {max(values):.2f})")
    print("and with 1,000 simulated nodes of 8 GPUs:")
    print(f"  up      {large[0]:6.2f} s\n  memory  {large[1]:6.2f} GB\n  down    {large[2]:6.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
