"""`pumasi run --on quiet`: this machine, at a low priority, so that whoever works at it does not notice."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pumasi.core.fields import whole
from pumasi.core.options import PoolOptions, option
from pumasi.gpus import list_gpus
from pumasi.pools.base import Order, Request, Runner, Sink
from pumasi.pools.local.runner import LocalRunner
from pumasi.pools.pool import Pool


@dataclass(frozen=True)
class QuietOptions(PoolOptions):
    niceness: int = option(
        whole(0, 19), "how far to step back for others", example=19, default=10, value="N", default_text="10"
    )


class QuietRunner(LocalRunner):
    def __init__(self, request: Request) -> None:
        super().__init__(request.spec, request.home, list_gpus(os.environ))
        self._nice = ["nice", "-n", str(request.spec[QuietOptions].niceness)]

    async def launch(self, order: Order, sink: Sink) -> None:
        await super().launch(order._replace(configs=[self._quiet(config) for config in order.configs]), sink)

    def _quiet(self, config: Mapping[str, Any]) -> dict[str, Any]:
        ranks = [{**rank, "command": [*self._nice, *rank["command"]]} for rank in config["ranks"]]
        return {**config, "ranks": ranks}


class Quiet(Pool):
    name = "quiet"
    options = QuietOptions

    @asynccontextmanager
    async def open(self, request: Request, *, adopt: bool) -> AsyncIterator[Runner]:
        yield QuietRunner(request)


POOL = Quiet()
