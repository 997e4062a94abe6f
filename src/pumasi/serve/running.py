"""A server's life: it listens, loads, answers, loads again what has changed, and ends."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, TypeVar

from pumasi.errors import PumasiError, SystemTrouble, UsageError
from pumasi.serve.app import App, Service
from pumasi.serve.batching import Batcher
from pumasi.serve.ensemble import Ensemble, Say, gather
from pumasi.serve.limits import Limits
from pumasi.serve.server import Connection, Server
from pumasi.serve.sources import Sources, beside

_INTERRUPTED = 130
_LOOK_SECONDS = 1.0
_BACKLOG = 512
T = TypeVar("T")
Signature = tuple[tuple[str, int, int, int] | None, ...]


class Options(NamedTuple):
    """`rate`: requests a second of each client; 0: as many as it likes. `alone_for`: end after so many seconds in which
    nobody asked anything. `token`: beyond this machine, only who has it may ask; None: a new one; empty: everybody."""

    model: Path
    votes: Path | None = None
    preprocessing: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    rate: float = 100.0
    token: str | None = None
    alone_for: float | None = None
    limits: Limits = Limits()

    @property
    def sources(self) -> Sources:
        return Sources(self.model, self.votes, self.preprocessing)


class Started(NamedTuple):
    """`url` has the token in it, if there is one."""

    url: str
    host: str
    port: int
    token: str
    ensemble: Ensemble


def run(options: Options, say: Say, ready: Callable[[Started], None] = lambda started: None) -> int:
    """Serves until a signal or `alone_for` ends it; the answer is the exit code. `say` is told what is done and what
    goes wrong, `ready` where the server is, once it can answer."""
    return asyncio.run(_Life(options, say, ready).run())


def leave(code: int) -> int:
    """For the end of a process that has served."""
    if any(thread.name.startswith(_THREAD) for thread in threading.enumerate()):
        # A framework is in the middle of something, and Python would take its ground away.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


class _Life:
    def __init__(self, options: Options, say: Say, ready: Callable[[Started], None]) -> None:
        self._options, self._say, self._ready = options, say, ready
        self._reload = asyncio.Event()
        self._has_terminal = _has_terminal()

    async def run(self) -> int:
        options, loop = self._options, asyncio.get_running_loop()
        listening = _listen(options.host, options.port)
        host, port = listening.getsockname()[:2]
        is_local = ip_address(host.partition("%")[0]).is_loopback
        token = "" if is_local else secrets.token_urlsafe(24) if options.token is None else options.token
        self._app = App(options.limits, rate=options.rate, token=token, is_local=is_local, warn=self._say)
        self._server = Server(self._app.answer, self._app.refuse_unread, self._app.admit, options.limits)
        self._app.connections = lambda: len(self._server.connections)
        self._ending: asyncio.Future[int] = loop.create_future()
        self._listener = await loop.create_server(lambda: Connection(self._server), sock=listening, backlog=_BACKLOG)
        loop.set_exception_handler(self._tell_trouble)
        for number, action in (
            (signal.SIGTERM, lambda: self._end(0)),
            (signal.SIGINT, self._interrupt),
            (signal.SIGHUP, self._hang_up),
        ):
            loop.add_signal_handler(number, action)
        address = f"http://{_shown_host(host)}:{port}/" + (f"?token={token}" if token else "")
        life = loop.create_task(self._live(lambda loaded: Started(address, host, port, token, loaded)))
        try:
            await asyncio.wait([life, self._ending], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
            if not self._ending.done():
                life.result()
            code = self._ending.result()
            if code == 0:
                await self._finish()
            return code
        finally:
            life.cancel()
            self._listener.close()
            self._server.close()
            if self._app.service:
                self._app.service.batcher.end()
            # Connections and the model's thread end in the loop's next rounds.
            await asyncio.sleep(0.01)

    async def _finish(self) -> None:
        self._app.is_ending = True
        if self._app.service:
            self._server.ending = True
            await asyncio.sleep(self._options.limits.notice)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._server.finish(self._listener.close), self._options.limits.grace)

    def _end(self, code: int) -> None:
        if not self._ending.done():
            self._ending.set_result(code)

    def _interrupt(self) -> None:
        if self._ending.done():
            os._exit(_INTERRUPTED)
        self._end(_INTERRUPTED)

    def _hang_up(self) -> None:
        """A wish to load again; unless it is the terminal that is gone."""
        if self._has_terminal and not _has_terminal():
            self._end(0)
        self._reload.set()

    def _tell_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self._say(f"{context.get('message')}: {context.get('exception', '')}")

    async def _live(self, started: Callable[[Ensemble], Started]) -> None:
        seen = changed = await _in_thread(self._signature)
        loaded = await self._load()
        self._app.asked = time.monotonic()
        self._ready(started(loaded))
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reload.wait(), _LOOK_SECONDS)
            if self._is_alone():
                self._say(f"Nobody has asked anything for {self._options.alone_for:g} s: this is the end.")
                self._end(0)
            now = await _in_thread(self._signature)
            # A file that is still being written changes from one look to the next.
            is_settled = now != seen and now == changed and None not in now
            changed = now
            if is_settled or self._reload.is_set():
                self._reload.clear()
                seen = now
                await self._load_again()

    def _is_alone(self) -> bool:
        alone_for = self._options.alone_for
        return alone_for is not None and time.monotonic() - self._app.asked > alone_for

    async def _load_again(self) -> None:
        try:
            loaded = await self._load()
        except (PumasiError, OSError) as error:
            self._say(f"What has changed can't be served, so the earlier models go on. {error}")
            return
        self._app.metrics.reloads += 1
        self._say(f"{', '.join(loaded.names)}: loaded again.")

    async def _load(self) -> Ensemble:
        options, app = self._options, self._app
        loaded = await _in_thread(lambda: gather(options.sources, options.limits.batch, self._say))
        earlier = app.service
        app.service = Service(loaded, Batcher(loaded.predict, options.limits, app.metrics.batches.observe))
        if earlier is not None:
            earlier.batcher.end()
        return loaded

    def _signature(self) -> Signature:
        """Changes when a file does; None stands for one that has to be there and is not."""
        sources = self._options.sources
        try:
            models = sources.models()
            optional = [path for path in map(beside, models) if path.exists()]
        except (OSError, UsageError):
            return (None,)
        described = [sources.preprocessing] if sources.preprocessing else []
        return tuple(_signature(path) for path in (*models, *described, *optional))


def _signature(path: Path) -> tuple[str, int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return (str(path), about.st_mtime_ns, about.st_size, about.st_ino)


_THREAD = "pumasi-serve"


async def _in_thread(work: Callable[[], T]) -> T:
    """In a thread that nobody has to wait for when the server ends."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(action: Callable[..., None], value: object) -> None:
        if not answer.done():
            action(value)

    def labour() -> None:
        try:
            action, value = answer.set_result, work()
        except BaseException as error:  # noqa: BLE001
            action, value = answer.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, action, value)

    threading.Thread(target=labour, name=f"{_THREAD}-loading", daemon=True).start()
    return await answer


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError, OverflowError):
        raise UsageError(
            f"{host} is no address of this machine.", "Write --host 0.0.0.0 for all that it has."
        ) from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise _not_listening(error, host, port) from None
    listening.setblocking(False)
    return listening


def _not_listening(error: OSError, host: str, port: int) -> PumasiError:
    if error.errno == errno.EADDRINUSE:
        other = "Choose another, such as --port 0: any that is free."
        return SystemTrouble(f"Port {port} of {host} is taken: another program listens there.", other)
    if error.errno == errno.EACCES:
        return SystemTrouble(f"Port {port} needs more rights than you have.", "Choose one from 1024 on.")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{host} is no address of this machine.", "Write --host 0.0.0.0 for all that it has.")
    return SystemTrouble(f"Nothing can listen at {host}, port {port}: {error.strerror}.")


def _shown_host(host: str) -> str:
    """What others can call this machine by."""
    address = ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = _outward_address() or socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _outward_address() -> str:
    """That of the network which leads elsewhere. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return ""


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
