"""Connections between agents: one JSON object per line, and both sides show that they know the secret."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    Message = Dict[str, Any]

READ = 1 << 16
LONGEST_WORD = 4096
"""Bytes that somebody may send before they have shown that they know the secret."""
CALLING = ("member", "hub")
"""The words by which caller and called prove who they are, when a member calls the hub; and when the hub calls it."""
DIALLING = ("dialling hub", "dialled member")


def member_mark(gang: str, node: int) -> str:
    """The mark of another node of the same gang."""
    return "%s.%d" % (gang.rpartition(".")[0], node)


class Link:
    """A connection that carries one JSON object a line. `heed` is called when something has come, or it has closed."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, heed: Callable[[], object]) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.selector = selector
        self.heed = heed
        self.inbox = b""
        self.outbox = b""
        self.heard = time.monotonic()
        self.closed = False
        self.events = selectors.EVENT_READ
        selector.register(sock, self.events, self.wake)

    def wake(self) -> None:
        # An earlier event of the same turn may have closed it.
        if self.sock.fileno() >= 0:
            self.flush()
            self.heed()

    def send(self, **message: Any) -> None:
        self.outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what fits; the selector tells when there is room for the rest."""
        try:
            while self.outbox and not self.closed:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outbox else 0)
        if events != self.events and not self.closed:
            self.events = events
            self.selector.modify(self.sock, events, self.wake)

    def receive(self, limit: int = 1 << 24) -> list[Message]:
        """Messages that have come; marks the link as closed at its end, at rubbish and at a line without end."""
        try:
            data = self.sock.recv(READ)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self.inbox) > limit:
            self.closed = True
            return []
        self.heard = time.monotonic()
        lines = (self.inbox + data).split(b"\n")
        self.inbox = lines.pop()
        try:
            return [parse(line) for line in lines]
        except ValueError:
            self.closed = True
            return []

    def is_silent(self, seconds: float) -> bool:
        return time.monotonic() - self.heard > seconds

    def close(self) -> None:
        self.closed = True
        if self.sock.fileno() >= 0:
            self.selector.unregister(self.sock)
            self.sock.close()


class Near:
    """The hub's link to its own node, and that node's link to the hub: no network in between."""

    def __init__(self, deliver: Callable[[Message], None]) -> None:
        self.deliver = deliver
        self.closed = False

    @classmethod
    def nowhere(cls) -> Near:
        link = cls(lambda _: None)
        link.closed = True
        return link

    def send(self, **message: Any) -> None:
        if not self.closed:
            self.deliver(message)

    def close(self) -> None:
        self.closed = True


def parse(line: bytes) -> Message:
    """A message; ValueError for whatever else a stranger may send."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def proof(secret: str, *words: object) -> str:
    import hmac

    text = json.dumps([str(word) for word in words])
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def proves(claim: object, *words: str) -> bool:
    import hmac

    return hmac.compare_digest(str(claim).encode("utf-8", "replace"), proof(*words).encode())


def call_hub(address: tuple[str, int], secret: str, who: str, seconds: float) -> socket.socket:
    """Connect to the hub, show that we know the secret, and have it show the same."""
    deadline = time.monotonic() + seconds
    sock = socket.create_connection(address, timeout=seconds)
    try:
        nonce = read_words(sock, deadline).get("nonce")
        mine = os.urandom(16).hex()
        words = {"who": who, "nonce": mine, "proof": proof(secret, "member", who, nonce)}
        sock.sendall(json.dumps(words).encode() + b"\n")
        if not proves(read_words(sock, deadline).get("proof"), secret, "hub", who, mine):
            raise ConnectionRefusedError("the hub does not know the secret of this run")
    except BaseException:
        sock.close()
        raise
    return sock


def read_words(sock: socket.socket, deadline: float) -> Message:
    """One JSON line, and not a byte more: what follows belongs to the link."""
    line = b""
    while not line.endswith(b"\n"):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        byte = sock.recv(1)
        if not byte or len(line) > LONGEST_WORD:
            raise ConnectionResetError("the hub closed the connection")
        line += byte
    return parse(line)
