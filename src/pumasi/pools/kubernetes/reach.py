"""Clusters as a command reaches them from outside: one event loop and one connection to each, for all that it does.

The loop has a thread of its own, so that the command can read the store, and hear Ctrl-C, while something is copied.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from pumasi.errors import UsageError
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.kubernetes.target import Target

T = TypeVar("T")
PATIENCE = 10.0
_CLOSING = 2.0
"""Seconds that connections have to close when the command ends."""


Ask = Callable[[Api, str], Coroutine[Any, Any, T]]
"""What is done with a cluster, and a namespace of it."""


class Asked(Generic[T]):
    """Something that goes on while the command does."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._answer: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._answer.cancel()
        elif error := task.exception():
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())

    @property
    def is_over(self) -> bool:
        return self._answer.done()

    def answer(self) -> T:
        """Wait for it. Raises what it raised."""
        return self._answer.result()

    def stop(self) -> None:
        """End it, and wait until it has tidied up."""
        self._loop.call_soon_threadsafe(lambda: self._task.cancel())
        with contextlib.suppress(CancelledError, Exception):
            self._answer.result()


def ask(target: Target, work: Ask[T], patience: float = PATIENCE) -> T:
    """Do it, and wait for the answer."""
    asked = begin(target, work, patience)
    try:
        return asked.answer()
    except BaseException:
        asked.stop()
        raise


def begin(target: Target, work: Ask[T], patience: float = PATIENCE) -> Asked[T]:
    """Do it while the command goes on."""
    return _line().start(_ask(target, work, patience))


async def _ask(target: Target, work: Ask[T], patience: float) -> T:
    api = await _line().api(target.context)
    return await work(api.patient(patience), target.namespace or api.connection.namespace)


def connected(context: str) -> Api:
    """For who has an event loop of its own."""
    return Api(connect(context, os.environ))


def cluster(word: str) -> Api:
    """The same, for what --on takes."""
    name, _, context = word.partition(":")
    if name != "k8s":
        raise UsageError(
            f"'{word}' is no cluster that has nodes.",
            "Write --on k8s, or --on k8s:CONTEXT with a context of your kubeconfig.",
        )
    return connected(context)


async def open_api(context: str) -> Api:
    return await connected(context).__aenter__()


class _Line:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._apis: dict[str, asyncio.Task[Api]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="clusters", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Asked[T]:
        return Asked(self._loop, work)

    async def api(self, context: str) -> Api:
        """The one that leads there, by its name too where the current context was meant. What can't be connected to is
        tried again by who asks next."""
        opening = self._apis.get(context)
        if opening is None or (opening.done() and opening.exception()):
            opening = self._apis[context] = asyncio.ensure_future(open_api(context))
        api = await asyncio.shield(opening)
        self._apis.setdefault(api.connection.context, opening)
        return api

    def close(self) -> None:
        with contextlib.suppress(CancelledError, TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CLOSING)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSING)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task(), *self._apis.values()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for opening in set(self._apis.values()):
            if opening.done() and not opening.exception():
                await opening.result().__aexit__(None, None, None)


_open: list[_Line] = []
"""None, or the one of this process."""


def _line() -> _Line:
    if not _open:
        _open.append(_Line())
    return _open[0]


@atexit.register
def close() -> None:
    """End all that goes on, and close the connections. What comes after this opens new ones."""
    while _open:
        _open.pop().close()
