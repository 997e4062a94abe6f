"""Waits that heed every cancellation. Up to Python 3.11 `asyncio.wait_for` may swallow one that comes as the work gets
done, and whoever waits for the end of the task then waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def within(work: Coroutine[Any, Any, _T], seconds: float) -> _T:
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise asyncio.TimeoutError
    return task.result()


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancel it for as long as it takes: code of others may swallow a cancellation. What it failed of is raised."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.1)
    if not task.cancelled():
        task.result()


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Until it is set, or the time is over."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((waiting,), timeout=seconds)
    finally:
        waiting.cancel()
