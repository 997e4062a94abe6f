from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pumasi.catalogue import parse_spec
from pumasi.pools.base import Pool
from pumasi.pools.local.pool import LocalPool
from pumasi.testing.pools import PoolBench, PoolContract


def make_bench(folder: Path, **fields: object) -> PoolBench:
    spec = parse_spec({"command": ["train.py"], "workdir": str(folder), **fields})

    @asynccontextmanager
    async def opened(adopt: bool) -> AsyncIterator[Pool]:
        yield LocalPool(spec, folder / "home", ())

    return PoolBench(opened, str(folder))


class TestThisMachine(PoolContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> PoolBench:
        return make_bench(tmp_path)


class TestSeveralNodesOnThisMachine(PoolContract):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> PoolBench:
        return make_bench(tmp_path, slots=3, nodes=[2, 1])
