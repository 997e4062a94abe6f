"""A tiny HTTP server inside the test, which answers, breaks off and falls silent exactly as told."""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Request(NamedTuple):
    """`headers` have their names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            # Each piece in a packet of its own, as far as the kernel can be made to.
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        """The connection is cut hard: the other side gets an error, not an end."""
        sock = self.writer.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Handler = Callable[[Request], Awaitable[bytes | None]]
"""What to send; None closes the connection."""
Step = Handler | bytes | None


class Server:
    def __init__(self, handler: Handler) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.connections = 0
        self._handler = handler
        self._open: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            # The other side may be gone at any moment: that is what is tested.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
                while (request := await _read(reader, writer)) is not None:
                    self.requests.append(request)
                    answer = await self._handler(request)
                    if answer is None:
                        break
                    writer.write(answer)
                    await writer.drain()
        finally:
            self._open.discard(task)
            if writer.transport.get_extra_info("sslcontext"):
                await _farewell(writer)
            writer.close()

    async def close(self) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _farewell(writer: asyncio.StreamWriter) -> None:
    """Give what was written a moment: closing TLS may throw it away."""
    with suppress(ConnectionError, asyncio.CancelledError):
        await writer.drain()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode().split("\r\n")[:-2]
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body, reader, writer)


@asynccontextmanager
async def serve(handler: Handler, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Server]:
    server = Server(handler)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", port, ssl=tls)
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await server.close()
        # Sockets are closed in the loop's next round.
        await asyncio.sleep(0)


def in_turn(*steps: Step) -> Handler:
    """Each request has its own step; one too many is a mistake that the test sees as a broken connection."""
    left = iter(steps)

    async def handler(request: Request) -> bytes | None:
        step = next(left)
        return await step(request) if callable(step) else step

    return handler


def answer(body: bytes = b"", status: int = 200, **headers: str) -> bytes:
    """A header's name has `_` for `-`."""
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [] if "Content_Length" in headers else [f"Content-Length: {len(body)}"]
    return "\r\n".join([f"HTTP/1.1 {status} Because", *lines, "", ""]).encode() + body


def told(thing: Any, status: int = 200, **headers: str) -> bytes:
    return answer(json.dumps(thing).encode(), status, Content_Type="application/json", **headers)


def refusal(status: int, message: str, **headers: str) -> bytes:
    return told({"kind": "Status", "status": "Failure", "message": message, "code": status}, status, **headers)


def chunked(pieces: Iterable[bytes], *, end: bool = True) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + (b"0\r\n\r\n" if end else b"")


async def silence(request: Request) -> None:
    await asyncio.sleep(3600)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


Test = Callable[..., Coroutine[Any, Any, None]]


def within(seconds: float) -> Callable[[Test], Callable[..., None]]:
    """Makes a test of a coroutine, with a bound on its time."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*arguments: Any, **options: Any) -> None:
            asyncio.run(asyncio.wait_for(test(*arguments, **options), seconds))

        return run

    return decorate


asynchronous = within(20)
