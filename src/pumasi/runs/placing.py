"""How tasks get their room: one after the other, by the planner, from what the pool has free."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pumasi.core import manage
from pumasi.core.planning import plan
from pumasi.errors import DoesNotFit, Unreachable
from pumasi.pools.base import Runner
from pumasi.runs.lives import Lives

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_SIZES = 100
"""Of tasks: for so many it is remembered that there was no room."""


class Placing:
    """`post` hears `Placed` or `Refused` for each task that is still on its way."""

    def __init__(self, lives: Lives, pool: Runner, post: Callable[[manage.Event], None]) -> None:
        self._lives = lives
        self._pool = pool
        self._post = post
        self._turn = asyncio.Lock()
        self._full: dict[str, tuple[float, manage.Refused]] = {}  # by size: when it was looked, and what was said

    async def place(self, task: str, attempt: int) -> None:
        """One after the other: what one task takes is not there for the next. Where there is no room for one, there is
        none for others of its size that were waiting to ask: fifty tasks need not look at a cluster fifty times."""
        if task not in self._lives.by_name:
            return
        asked, size = time.monotonic(), self._size(task)
        async with self._turn:
            self._pool.release(task)
            looked, refused = self._full.get(size, (asked, None))
            if task not in self._lives.by_name:
                return
            if refused is not None and looked > asked:
                self._post(refused._replace(at=time.monotonic(), task=task, attempt=attempt))
            else:
                self._post(await self._find_room(task, attempt))
            if task not in self._lives.by_name:  # It has ended meanwhile: nobody will launch it.
                self._pool.release(task)

    def _size(self, task: str) -> str:
        """Tasks that ask for the same have the same."""
        asked = self._lives.by_name[task].task
        return f"{asked.slots} {sorted(asked.options.items())}"

    async def _find_room(self, task: str, attempt: int) -> manage.Event:
        looked, spec, size = time.monotonic(), self._lives.work(task, attempt).spec, self._size(task)
        try:
            nodes = await self._pool.nodes(spec if self._lives.by_name[task].task.options else None)
            placement = plan(nodes, spec.slots, most_per_node=spec.place.most_per_node).placement
        except Unreachable as error:
            refused = manage.Refused(time.monotonic(), task, attempt, error.message, False, error.hint)
        except DoesNotFit as error:
            refused = self._refusal(task, attempt, spec, error)
        else:
            return await self._reserve(task, attempt, placement)
        if len(self._full) >= _SIZES:
            self._full.clear()
        self._full[size] = looked, refused
        return refused

    async def _reserve(self, task: str, attempt: int, placement: Mapping[str, int]) -> manage.Event:
        gpus = await self._pool.reserve(task, placement)
        if gpus is None:
            return manage.Refused(time.monotonic(), task, attempt, "Another run was faster to take the room.")
        if task in self._lives.by_name:
            self._lives.by_name[task].gpus[attempt] = gpus
        return manage.Placed(time.monotonic(), task, attempt, placement)

    def _refusal(self, task: str, attempt: int, spec: Spec, error: DoesNotFit) -> manage.Refused:
        """What would not fit even if nobody else were there is told as that."""
        now = time.monotonic()
        try:
            plan(self._pool.capacity(), spec.slots, most_per_node=spec.place.most_per_node)
        except DoesNotFit as never:
            return manage.Refused(now, task, attempt, never.message, True, never.hint)
        remark, waiting, gist = self._pool.shortage(spec.slots)
        reason = f"{error.message} {remark}".rstrip()
        return manage.Refused(now, task, attempt, reason, False, error.hint, waiting, gist)
