"""Connections: bytes to requests to answers, each within its time. What to answer, `app` knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import cast

from pumasi.serve.http import CONTINUE, HEAD_LIMIT, Admit, Reader, Refusal, Request, Response, written
from pumasi.serve.limits import Limits

Answer = Callable[[Request, str], Awaitable[Response]]
"""A request and the address that it comes from ─► the answer. Never raises."""
Refuse = Callable[[Refusal, Request | None], Response]
"""For a request of which nothing is known but its head, or not even that."""
_SWEEP_SECONDS = 0.25
_PAUSE_SECONDS = 0.02
_LINGER_SECONDS = 1.0
"""For how long what a refused client still sends is read and forgotten: else its answer would be lost with it."""


class Server:
    def __init__(self, answer: Answer, refuse: Refuse, admit: Admit, limits: Limits) -> None:
        self.answer, self.refuse, self.admit, self.limits = answer, refuse, admit, limits
        self.connections: set[Connection] = set()
        self.ending = False
        self.date = ""
        self._loop = asyncio.get_running_loop()
        self._sweeping = self._loop.create_task(self._sweep())

    @property
    def busy(self) -> set[Connection]:
        """Those with a request, or its answer, on the way."""
        return {connection for connection in self.connections if not connection.is_idle}

    async def finish(self, stop_listening: Callable[[], None]) -> None:
        """From now on every answer is the last of its connection. Who comes while others are still being answered is
        answered too, and may learn that the end is near; then nobody comes any more."""
        self.ending = True
        owed = self.busy
        while owed & self.busy:
            await asyncio.sleep(_PAUSE_SECONDS)
        stop_listening()
        while self.busy:
            await asyncio.sleep(_PAUSE_SECONDS)

    def make_room(self, newcomer: Connection) -> None:
        """Who says nothing for longest gives way: silence must not keep anybody out, nor the cluster's probes."""
        idle = [each for each in self.connections if each is not newcomer and each.is_idle]
        if idle:
            longest = min(idle, key=lambda each: each.deadline)
            self.connections.discard(longest)
            longest.abort()

    def close(self) -> None:
        self._sweeping.cancel()
        for connection in list(self.connections):
            connection.abort()

    async def _sweep(self) -> None:
        """Whoever is over time goes."""
        while True:
            self.date = formatdate(usegmt=True)
            now = self._loop.time()
            for connection in list(self.connections):
                if now >= connection.deadline:
                    connection.expire()
            await asyncio.sleep(_SWEEP_SECONDS)


class Connection(asyncio.Protocol):
    """Idle, then reading a request, then answering it, then idle again; at the end lingering."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(server.admit)
        self._task: asyncio.Task[None] | None = None
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._lingers = False
        self._is_half_closed = False
        self._told_to_continue = False
        self._address = ""
        self.deadline = self._loop.time() + server.limits.idle

    @property
    def is_idle(self) -> bool:
        quiet = self._lingers or not self._reader.began
        return quiet and self._task is None and self._transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else ""
        limits = self._server.limits
        self._server.connections.add(self)
        if len(self._server.connections) > limits.connections:
            self._server.make_room(self)
        count = len(self._server.connections)
        if count > 2 * limits.connections:
            self.abort()
        elif count > limits.connections:
            busy = Refusal(503, "busy", "Too many connections are open.", "Try again in a moment.", after=1)
            self._refuse(busy)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._flushed.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        if not self._reader.began:
            self.deadline = self._loop.time() + self._server.limits.request
        self._reader.feed(data)
        if self._task is None:
            self._advance()
        elif self._reader.ahead > HEAD_LIMIT:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._flushed.clear()

    def resume_writing(self) -> None:
        self._flushed.set()

    def expire(self) -> None:
        if self._lingers or self.is_idle or not self._flushed.is_set():
            self.abort()
        else:
            late = Refusal(408, "timeout", "The request did not arrive in time.")
            self._refuse(late)

    def abort(self) -> None:
        self._transport.abort()

    def _advance(self) -> None:
        """Begins to answer, if there is a whole request."""
        try:
            request = self._reader.next()
        except Refusal as refusal:
            self._refuse(refusal)
            return
        if request is not None:
            self.deadline = float("inf")
            self._told_to_continue = False
            self._task = self._loop.create_task(self._answer(request))
        elif self._reader.continues and not self._told_to_continue:
            self._told_to_continue = True
            self._transport.write(CONTINUE)

    async def _answer(self, request: Request) -> None:
        response = await self._server.answer(request, self._address)
        lasting = request.lasting and not self._is_half_closed and not self._server.ending
        bodiless = request.method == "HEAD"
        self._transport.write(written(response, date=self._server.date, lasting=lasting, bodiless=bodiless))
        now, limits = self._loop.time(), self._server.limits
        if not lasting:
            self._linger()
        if not self._flushed.is_set():
            self.deadline = now + limits.request
            await self._flushed.wait()
        self._task = None
        if self._lingers or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self.deadline = now + (limits.request if self._reader.began else limits.idle)
        self._advance()

    def _refuse(self, refusal: Refusal) -> None:
        response = self._server.refuse(refusal, self._reader.head)
        self._transport.write(written(response, date=self._server.date, lasting=False))
        self._linger()

    def _linger(self) -> None:
        """Nothing more is said here. The other side may still speak for a moment; then it is cut off."""
        self._lingers = True
        self.deadline = self._loop.time() + _LINGER_SECONDS
        self._transport.resume_reading()
        if self._is_half_closed:
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:
            # The other side is gone already.
            self.abort()

    def eof_received(self) -> bool:
        """Who has nothing more to say may still want the answer, unless none is owed."""
        self._is_half_closed = True
        return self._task is not None
