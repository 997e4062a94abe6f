"""Listens to a watch of a cluster's API, a real one or one that is acted here."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from pumasi.errors import ClusterTrouble
from pumasi.kube.api import Api
from tests.serving import until


class Watcher:
    """Notes what a watch tells, by name; and what is told of the cluster's absence. Entered when all that was there has
    been told, or when the watch has failed."""

    def __init__(self, api: Api, path: str, patience: float = 90.0, **query: Any) -> None:
        self.seen: list[tuple[str, str]] = []
        self.things: list[dict[str, Any]] = []
        self.absences: list[str] = []
        self._watch = api.watch(path, patience=patience, away=self.absences.append, **query)

    async def __aenter__(self) -> Watcher:
        self.task = asyncio.ensure_future(self._run())
        await self._until_seen("SYNCED", "")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError, ClusterTrouble):
            await self.task

    async def _run(self) -> None:
        async for kind, thing in self._watch:
            self.seen.append((kind, thing["metadata"]["name"] if thing else ""))
            self.things.append(thing)

    async def _until_seen(self, kind: str, name: str) -> None:
        await until(lambda: (kind, name) in self.seen or self.task.done())

    async def sees(self, kind: str, name: str) -> None:
        await self._until_seen(kind, name)
        assert (kind, name) in self.seen

    async def sees_only(self, *expected: tuple[str, str]) -> None:
        """All of that, in that order, and nothing else."""
        await until(lambda: len(self.seen) >= len(expected) or self.task.done())
        assert self.seen == list(expected)

    @property
    def last(self) -> dict[str, Any]:
        """The last thing that was told of."""
        return next((thing for thing in reversed(self.things) if thing), {})
