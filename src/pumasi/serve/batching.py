"""Inputs that arrive together are answered together: a batch of 32 costs a model little more than one.

`Line` is pure: it says who is next, and when. `Batcher` has the clock, and the thread in which the model works.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pumasi.serve.http import Refusal
from pumasi.serve.limits import Limits

Numbers = NDArray[Any]
Predict = Callable[[Numbers], Numbers]
"""A batch of inputs ─► for each of them what came out: models × outputs."""


class Waiting(NamedTuple):
    row: Numbers
    answer: asyncio.Future[Numbers]
    since: float


class Line:
    """Inputs that wait, in the order in which they came."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, more: Sequence[Waiting]) -> None:
        """All of them, or none where there is no room."""
        if len(self._waiting) + len(more) > self._limits.queue:
            raise Refusal(503, "busy", "Too many requests wait for the model.", "Try again in a moment.", after=1)
        self._waiting.extend(more)

    def due(self) -> float | None:
        """When the next batch should begin; None while nobody waits."""
        if not self._waiting:
            return None
        full = len(self._waiting) >= self._limits.batch
        return self._waiting[0].since + (0 if full else self._limits.wait)

    def take(self) -> list[Waiting]:
        """The next batch: inputs of one shape, and only such that somebody still waits for."""
        batch: list[Waiting] = []
        while self._waiting and len(batch) < self._limits.batch:
            if self._waiting[0].answer.done():
                self._waiting.popleft()
            elif batch and self._waiting[0].row.shape != batch[0].row.shape:
                break
            else:
                batch.append(self._waiting.popleft())
        return batch


def padded(rows: Sequence[Numbers]) -> Numbers:
    """As many as the next power of two, the last one repeated: frameworks compile once for each size of a batch."""
    missing = (1 << (len(rows) - 1).bit_length()) - len(rows)
    return np.stack([*rows, *[rows[-1]] * missing])


class Batcher:
    """One batch at a time, in a thread of its own: it leaves the interpreter to others while it calculates."""

    def __init__(self, predict: Predict, limits: Limits, observe: Callable[[int], None]) -> None:
        self._predict, self._limits, self._observe = predict, limits, observe
        self._loop = asyncio.get_running_loop()
        self._line = Line(limits)
        self._timer: asyncio.TimerHandle | None = None
        self._busy_since: float | None = None
        self._ended = False
        self._users = 0
        self._work: queue.SimpleQueue[list[Waiting] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="pumasi-serve-model", daemon=True).start()

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def is_stuck(self) -> bool:
        """A batch takes so long that all who waited for it have been sent away."""
        return self._busy_since is not None and self._loop.time() - self._busy_since > 2 * self._limits.prediction

    async def predict(self, rows: Sequence[Numbers]) -> list[Numbers]:
        now = self._loop.time()
        joining = [Waiting(row, self._loop.create_future(), now) for row in rows]
        self._line.join(joining)
        self._arrange()
        answers = asyncio.gather(*(each.answer for each in joining))
        try:
            return await asyncio.wait_for(answers, self._limits.prediction)
        except asyncio.TimeoutError:
            raise Refusal(504, "timeout", "The model took too long.", "Try again, or send fewer inputs.") from None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """For who may still join the line."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._arrange()

    def end(self) -> None:
        """When the line is empty and nobody can join it any more, the thread ends."""
        self._ended = True
        self._arrange()

    def _arrange(self) -> None:
        """Sees to it that the next batch begins when it is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._busy_since is not None:
            return
        due = self._line.due()
        if due is None:
            if self._ended and not self._users:
                self._work.put(None)
        elif due <= self._loop.time():
            self._begin()
        else:
            self._timer = self._loop.call_at(due, self._begin)

    def _begin(self) -> None:
        self._timer = None
        batch = self._line.take()
        if batch:
            self._busy_since = self._loop.time()
            self._observe(len(batch))
            self._work.put(batch)
        else:
            self._arrange()

    def _run(self) -> None:
        while (batch := self._work.get()) is not None:
            found = self._calculate([each.row for each in batch])
            try:
                self._loop.call_soon_threadsafe(self._finish, batch, found)
            except RuntimeError:
                # The loop is closed: nobody waits any more.
                return

    def _calculate(self, rows: Sequence[Numbers]) -> Sequence[Numbers | Exception]:
        """Where a batch fails, each of it by itself: one bad input is nobody else's."""
        try:
            return list(self._predict(padded(rows))[: len(rows)])
        except Exception as error:  # noqa: BLE001
            return [error] if len(rows) == 1 else [self._calculate([row])[0] for row in rows]

    def _finish(self, batch: Sequence[Waiting], found: Sequence[Numbers | Exception]) -> None:
        self._busy_since = None
        for each, answer in zip(batch, found, strict=True):
            if each.answer.done():
                continue
            if isinstance(answer, Exception):
                each.answer.set_exception(_trouble(answer))
            else:
                each.answer.set_result(answer)
        self._arrange()


def _trouble(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    said = (str(error) or type(error).__name__).strip().splitlines()[0][:200]
    return Refusal(500, "model_failed", f"The model failed: {said}", "Is the input what it was trained on?")
