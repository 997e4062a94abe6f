"""HTTP/1.1 over TCP or TLS, as far as a cluster's API needs it, on the standard library alone: a manager inside the
cluster finds nothing else there.

Whatever goes wrong comes out as an `HttpTrouble` whose text can be shown.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from pumasi.waiting import within

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
HEAD_LIMIT = 64 * 1024
_LINE_LIMIT = 4 * 1024
"""Of a line between chunks: a number, and extensions that nobody uses."""
_BUFFER_LIMIT = 1024 * 1024
_IDLE_CONNECTIONS = 32
_IDLE_SECONDS = 50.0
"""Load balancers forget connections after a minute, and not all of them say so."""
_REPEATABLE = ("GET", "HEAD", "PUT", "PATCH", "DELETE")
_NO_BODY = (204, 304)
_CONTINUE, _OK = 100, 200
_DEFAULT_PORTS = {"http": 80, "https": 443}
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5]\d\d)(?: (.*))?")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
# A peer that is gone without a word is noticed after some 35 seconds, by the kernel.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPALIVE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4))
_UNHEARD_MILLISECONDS = 20_000


class HttpTrouble(Exception):
    """`silent`: the other side did nothing wrong but say nothing in time."""

    def __init__(self, text: str, *, silent: bool = False) -> None:
        super().__init__(text)
        self.silent = silent


class Head(NamedTuple):
    """`headers` have their names in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    lasting: bool


class Body(Protocol):
    done: bool

    def take(self, buffer: bytearray) -> bytes:
        """What of the body is at the buffer's front, removed from it."""


class Fixed:
    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def take(self, buffer: bytearray) -> bytes:
        data = _cut(buffer, self._left)
        self._left -= len(data)
        self.done = self._left == 0
        return data


class Chunked:
    def __init__(self) -> None:
        self.done = False
        self._left = 0
        self._after_data = False
        self._in_trailer = False
        self._trailer = 0

    def take(self, buffer: bytearray) -> bytes:
        parts = []
        while not self.done and buffer:
            if self._left:
                data = _cut(buffer, self._left)
                self._left -= len(data)
                parts.append(data)
                continue
            line = _line(buffer)
            if line is None:
                break
            self._read(line)
        return b"".join(parts)

    def _read(self, line: bytes) -> None:
        if self._in_trailer:
            self._trailer += len(line)
            if self._trailer > HEAD_LIMIT:
                raise HttpTrouble("the answer's trailer is too long")
            self.done = not line
        elif self._after_data:
            if line:
                raise HttpTrouble("the answer's chunks are not as long as they say")
            self._after_data = False
        else:
            self._begin_chunk(line)

    def _begin_chunk(self, line: bytes) -> None:
        size = _SIZE.fullmatch(line)
        if size is None:
            raise HttpTrouble(f"the answer's chunks make no sense: {line[:40]!r}")
        self._left = int(size[1], 16)
        self._after_data = self._left > 0
        self._in_trailer = self._left == 0


class UntilClose:
    done = False

    def take(self, buffer: bytearray) -> bytes:
        return _cut(buffer, len(buffer))


def _cut(buffer: bytearray, length: int) -> bytes:
    data = bytes(buffer[:length])
    del buffer[:length]
    return data


def _line(buffer: bytearray) -> bytes | None:
    end = buffer.find(b"\r\n", 0, _LINE_LIMIT)
    if end >= 0:
        return _cut(buffer, end + 2)[:-2]
    if len(buffer) >= _LINE_LIMIT:
        raise HttpTrouble("the answer's chunks make no sense: a line between them does not end")
    return None


def read_head(text: bytes) -> Head:
    """`text` without the empty line at its end."""
    first, *lines = text.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise HttpTrouble(f"what answers does not speak HTTP: {first[:40]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip():
            raise HttpTrouble(f"a header of the answer makes no sense: {line[:40]!r}")
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    words = headers.get("connection", "").lower()
    lasting = "close" not in words if status[1] == b"1" else "keep-alive" in words
    return Head(int(status[2]), (status[3] or b"").decode("latin-1"), headers, lasting)


def body_of(head: Head) -> Body:
    if head.status in _NO_BODY:
        return Fixed(0)
    if coding := head.headers.get("transfer-encoding"):
        if coding.lower() != "chunked":
            raise HttpTrouble(f"the answer comes in an unknown coding: {coding}")
        return Chunked()
    length = head.headers.get("content-length")
    if length is None:
        return UntilClose()
    if not re.fullmatch(r"[0-9]{1,15}", length):
        raise HttpTrouble(f"the answer's length makes no sense: {length[:40]}")
    return Fixed(int(length))


class Answer:
    """Its body is read once, as a whole or in pieces; closed before its end, it costs the connection."""

    def __init__(self, client: Client, wire: _Wire, head: Head) -> None:
        self.status, self.reason, self.headers, self._lasting = head
        self._client = client
        self._wire = wire
        self._body = body_of(head)

    async def read(self) -> bytes:
        return b"".join([data async for data in self.stream(ANSWER_SECONDS)])

    async def stream(self, idle: float) -> AsyncGenerator[bytes, None]:
        """Nothing for `idle` seconds is trouble."""
        wire, body = self._wire, self._body
        try:
            while True:
                if data := body.take(wire.buffer):
                    yield data
                elif body.done or (wire.ended and isinstance(body, UntilClose) and wire.why is None):
                    return
                elif wire.ended:
                    raise HttpTrouble(f"the connection broke in the middle of the answer{wire.because}")
                else:
                    await wire.more(idle)
        finally:
            self.close()

    def close(self) -> None:
        if self._body.done and self._lasting:
            self._client.keep(self._wire)
        else:
            self._client.drop(self._wire)


class _Wire(asyncio.Protocol):
    """One connection. What has come is in `buffer`, also when the connection is lost meanwhile."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.why: Exception | None = None
        self.answered = False
        self.idle_since = 0.0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def because(self) -> str:
        return f" ({_readable(self.why)})" if self.why else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.answered = True
        self.buffer += data
        if len(self.buffer) > _BUFFER_LIMIT and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self.why = exc
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def more(self, seconds: float) -> None:
        """Until more has come, or the end."""
        if self.ended:
            return
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self._give_up, seconds)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _give_up(self, seconds: float) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(HttpTrouble(f"no answer within {seconds:.0f} seconds", silent=True))

    async def head(self, seconds: float) -> Head:
        """Of the answer proper: those that only say that one is to come are passed over."""
        while True:
            end = self.buffer.find(b"\r\n\r\n", 0, HEAD_LIMIT)
            if end >= 0:
                head = read_head(_cut(self.buffer, end + 4)[:-4])
                if head.status // 100 != _CONTINUE // 100:
                    return head
            elif len(self.buffer) >= HEAD_LIMIT:
                raise HttpTrouble("the answer's headers do not end")
            elif self.ended:
                raise HttpTrouble(f"the connection was closed before an answer came{self.because}")
            else:
                await self.more(seconds)


class Client:
    """One server; connections are kept and used again. `server` may have a path, which goes before all others."""

    def __init__(
        self, server: str, *, trust: ssl.SSLContext | None = None, server_name: str = "", proxy: str = ""
    ) -> None:
        """Without `trust`, a server at https:// is trusted as the system's certificates say."""
        self._server = _split(server)
        self._proxy = _split(proxy) if proxy else None
        self._trust = trust
        self._server_name = server_name or self._server.hostname or ""
        self._idle: list[_Wire] = []
        self._wires: set[_Wire] = set()

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """`seconds` until the answer begins. What fails on a connection that was kept, before any of the answer has
        come, is asked once more on a new one, unless that could do it twice."""
        text = self._write(method, path, headers or {}, body)
        wire = self._take_idle()
        if wire is not None:
            try:
                return await self._ask(wire, text, seconds)
            except HttpTrouble:
                if not wire.ended or wire.answered or method not in _REPEATABLE:
                    raise
        return await self._ask(await self._connect(min(seconds, CONNECT_SECONDS)), text, seconds)

    async def close(self) -> None:
        for wire in list(self._wires):
            self.drop(wire)
        # The transports close their sockets in the loop's next round.
        await asyncio.sleep(0)

    def keep(self, wire: _Wire) -> None:
        if wire not in self._wires or wire in self._idle:
            return
        if wire.ended or wire.buffer or len(self._idle) >= _IDLE_CONNECTIONS:
            self.drop(wire)
            return
        wire.idle_since = asyncio.get_running_loop().time()
        self._idle.append(wire)

    def drop(self, wire: _Wire) -> None:
        """Without a farewell: TLS would wait for the other side's."""
        if wire in self._wires:
            self._wires.remove(wire)
            wire.transport.abort()

    def _take_idle(self) -> _Wire | None:
        youngest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while self._idle:
            wire = self._idle.pop()
            if not wire.ended and not wire.buffer and wire.idle_since > youngest:
                wire.answered = False
                return wire
            self.drop(wire)
        return None

    async def _ask(self, wire: _Wire, text: bytes, seconds: float) -> Answer:
        try:
            wire.transport.write(text)
            return Answer(self, wire, await wire.head(seconds))
        except BaseException:
            self.drop(wire)
            # What broke one connection has likely broken the others that go the same way.
            self._drop_idle()
            raise

    def _drop_idle(self) -> None:
        while self._idle:
            self.drop(self._idle.pop())

    def _write(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
        target = self._server.path.rstrip("/") + path
        lines = {"Host": _place(self._server), "Accept-Encoding": "identity", **headers}
        if self._proxy and self._server.scheme == "http":
            target = f"http://{_place(self._server)}{target}"
            lines.update(_proxy_credentials(self._proxy))
        if body or method in ("POST", "PUT", "PATCH"):
            lines["Content-Length"] = str(len(body))
        return _request(method, target, lines) + body

    async def _connect(self, seconds: float) -> _Wire:
        nearest = self._proxy or self._server
        try:
            return await within(self._open(nearest), seconds)
        except HttpTrouble:
            raise
        except (OSError, asyncio.TimeoutError) as error:
            why = _readable(error)
            if isinstance(error, asyncio.TimeoutError):
                why = f"no connection within {seconds:.0f} seconds"
            via = f"the proxy {_place(nearest)}: " if self._proxy else ""
            raise HttpTrouble(via + why, silent=isinstance(error, asyncio.TimeoutError)) from None

    async def _open(self, nearest: SplitResult) -> _Wire:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(_Wire, nearest.hostname or "", _port(nearest), happy_eyeballs_delay=0.25)
        self._wires.add(wire)
        try:
            _watch_over(wire.transport.get_extra_info("socket"))
            if self._proxy and self._proxy.scheme == "https":
                await _encrypt(wire, self._trust, self._proxy.hostname or "")
            if self._proxy and self._server.scheme == "https":
                await self._tunnel(wire, self._proxy)
            if self._server.scheme == "https":
                await _encrypt(wire, self._trust, self._server_name)
        except BaseException:
            self.drop(wire)
            raise
        return wire

    async def _tunnel(self, wire: _Wire, proxy: SplitResult) -> None:
        target = f"{_bracketed(self._server.hostname or '')}:{_port(self._server)}"
        wire.transport.write(_request("CONNECT", target, {"Host": target, **_proxy_credentials(proxy)}))
        head = await wire.head(CONNECT_SECONDS)
        if head.status != _OK:
            raise HttpTrouble(f"the proxy {_place(proxy)} refuses: {head.status} {head.reason}".rstrip())


async def _encrypt(wire: _Wire, trust: ssl.SSLContext | None, name: str) -> None:
    loop = asyncio.get_running_loop()
    context = trust or ssl.create_default_context()
    try:
        transport = await loop.start_tls(wire.transport, wire, context, server_hostname=name)
    except TypeError:
        raise HttpTrouble("this Python can't speak TLS inside of TLS: use a proxy at http://, or Python 3.11") from None
    if transport is None:
        raise HttpTrouble("the connection was closed before it was encrypted")
    wire.transport = transport


def _watch_over(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MILLISECONDS)


def _request(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any(forbidden in line for line in lines for forbidden in "\r\n\0"):
        raise HttpTrouble("a request can't have line breaks in its address, token or password")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _split(address: str) -> SplitResult:
    shown = re.sub("//.*@", "//", address)
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise HttpTrouble(f"the address {shown} makes no sense: {error}") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise HttpTrouble(f"the address {shown} is none of http:// or https://")
    return parts


def _port(address: SplitResult) -> int:
    return address.port or _DEFAULT_PORTS[address.scheme]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _place(address: SplitResult) -> str:
    """Without what must not be shown: a proxy's password."""
    host = _bracketed(address.hostname or "")
    return f"{host}:{address.port}" if address.port else host


def _proxy_credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    return {"Proxy-Authorization": basic(unquote(proxy.username), unquote(proxy.password or ""))}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _readable(error: Exception | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate can't be trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no encryption could be agreed on: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    return str(error) or type(error).__name__


def proxy_from(server: str, environ: Mapping[str, str]) -> str:
    """The proxy that the environment asks for, by the rules of Go, which are kubectl's; empty where there is none."""
    parts = _split(server)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    exempt = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not proxy or _goes_direct(parts.hostname or "", _port(parts), exempt):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _goes_direct(host: str, port: int, exempt: str) -> bool:
    from ipaddress import ip_address

    try:
        address = ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address and address.is_loopback):
        return True
    return any(_is_meant(entry.strip().lower(), host, port) for entry in exempt.split(","))


def _is_meant(entry: str, host: str, port: int) -> bool:
    from ipaddress import ip_address, ip_network

    if not entry or entry == "*":
        return entry == "*"
    try:
        return ip_address(host) in ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass
    name, colon, own_port = entry.rpartition(":")
    if colon:
        if own_port != str(port):
            return False
        entry = name.strip("[]")
    entry = entry.removeprefix("*")
    return host.endswith(entry) if entry.startswith(".") else host == entry or host.endswith(f".{entry}")
