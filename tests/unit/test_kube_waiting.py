"""Waits that heed every cancellation."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pumasi.waiting import end_task, within
from tests.serving import asynchronous


@asynchronous
async def test_a_cancellation_that_comes_just_when_the_work_is_done_is_not_swallowed() -> None:
    """As `asyncio.wait_for` does it up to Python 3.11: who waits for the end of a loop then waits for ever."""
    done = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await done

    waiting = asyncio.ensure_future(within(work(), 60))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done.set_result(None)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@asynchronous
async def test_what_takes_too_long_is_given_up() -> None:
    with pytest.raises(asyncio.TimeoutError):
        await within(asyncio.sleep(60), 0.01)


@asynchronous
async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.sleep(60)

    task = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)
    await end_task(task)
    assert task.cancelled()


@asynchronous
async def test_what_a_task_failed_of_is_told_by_its_end() -> None:
    async def failing() -> None:
        raise ValueError("a bug")

    task = asyncio.ensure_future(failing())
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="a bug"):
        await end_task(task)
