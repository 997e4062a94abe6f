"""This machine as a pool."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from pumasi.pools.pool import Pool, Scope, Seen

if TYPE_CHECKING:
    from pathlib import Path

    from pumasi.core.spec import Spec
    from pumasi.pools.base import Request, Runner
    from pumasi.pools.local.options import LocalOptions
    from pumasi.program.site import Site
    from pumasi.store import RunRecord


class LocalPool(Pool):
    name = "local"
    synonyms = ("localhost", "here")

    @property
    def options(self) -> type[LocalOptions]:
        from pumasi.pools.local.options import LocalOptions

        return LocalOptions

    def site(self) -> Site:
        from pumasi.pools.local.site import ThisMachineAsNodes

        return ThisMachineAsNodes()

    def place_words(self, record: RunRecord) -> str:
        return ""

    def check(self, spec: Spec, home: Path) -> None:
        from pumasi.core.planning import plan
        from pumasi.pools.local.runner import make_runner

        plan(make_runner(spec, home).capacity(), spec.at_once)

    def open(self, request: Request, *, adopt: bool) -> AbstractAsyncContextManager[Runner]:
        from pumasi.pools.local.runner import open_runner

        return open_runner(request)

    @asynccontextmanager
    async def looking(self, scope: Scope, flags: Mapping[str, str]) -> AsyncIterator[Callable[[], Awaitable[Seen]]]:
        from pumasi.pools.local.looking import look

        yield look

    def summary(self, seen: Seen, flags: Mapping[str, str]) -> Sequence[str]:
        if any(node["total"] for node in seen):
            return super().summary(seen, flags)
        count = os.cpu_count() or 1
        cores = f"{count} core{'s' * (count != 1)}"
        return (f"Pumasi sees no GPU here; slots share the {cores} of this machine.", "`pumasi doctor` tells more.")


POOL = LocalPool()
