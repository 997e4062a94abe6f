"""How the hub learns where its members are, when it is to call them: by a request over HTTP, of whoever sees the pods.

    POST /members
    {"nonce": N, "members": TEXT, "proof": proof(secret, "members", GANG, N, TEXT)}

TEXT is JSON: the address of each member, as host and port, by its number. GANG is the hub's own mark, so that what was
meant for one attempt is not taken by another. The answer is proof(secret, "told", GANG, N).
"""

from __future__ import annotations

import contextlib
import json
import re
import socket

from pumasi.agent.links import READ, parse, proof, proves
from pumasi.agent.processes import HARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List

    from pumasi.agent.links import Message
    from pumasi.agent.loop import Loop

    Members = Dict[int, List[object]]

PATH = b"/members"
LARGEST = 1 << 20
MOST = 16
"""Requests at a time."""
REASONS = {200: b"OK", 400: b"Bad Request", 403: b"Forbidden", 404: b"Not Found"}


class Counter:
    """Takes such requests. `told` gets the addresses."""

    def __init__(self, loop: Loop, secret: str, gang: str, told: Callable[[Members], None]) -> None:
        self.loop = loop
        self.secret = secret
        self.gang = gang
        self.told = told
        self.requests: list[Request] = []

    def open(self, listener: socket.socket) -> None:
        self.loop.watch(listener, lambda: self.welcome(listener))

    def welcome(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        request = Request(sock, self)
        self.requests.append(request)
        self.loop.after(HARD, request.close)
        if len(self.requests) > MOST:
            self.requests[0].close()

    def answer(self, head: bytes, body: bytes) -> tuple[int, Message]:
        if head.split(b" ", 2)[:2] != [b"POST", PATH]:
            return 404, {"error": "there is nothing but POST %s" % PATH.decode()}
        try:
            message = parse(body)
            nonce, text = str(message["nonce"]), str(message["members"])
            if not proves(message.get("proof"), self.secret, "members", self.gang, nonce, text):
                return 403, {"error": "that does not know the secret of this run, or means another gang"}
            members = {int(number): [str(host), int(port)] for number, (host, port) in json.loads(text).items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return 400, {"error": "that is no list of members"}
        self.told(members)
        return 200, {"proof": proof(self.secret, "told", self.gang, nonce)}


class Request:
    """One connection, one request: it is closed after the answer."""

    def __init__(self, sock: socket.socket, counter: Counter) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.counter = counter
        self.data = b""
        counter.loop.watch(sock, self.read)

    def read(self) -> None:
        if self.sock.fileno() < 0:
            return
        try:
            data = self.sock.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.data += data
        head, end, body = self.data.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length:[ \t]*(\d{1,9})[ \t]*(\r\n|$)", head) if end else None
        size = int(length.group(1)) if length else 0
        if not data or len(self.data) > LARGEST or size > LARGEST:
            self.close()
        elif end and len(body) >= size:
            self.reply(*self.counter.answer(head, body[:size]))

    def reply(self, code: int, words: Message) -> None:
        """Small enough for what the system holds back: nobody is waited for."""
        body = json.dumps(words).encode()
        head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\n" % (code, REASONS[code])
        head += b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        with contextlib.suppress(OSError):
            self.sock.send(head + body)
        self.close()

    def close(self) -> None:
        if self in self.counter.requests:
            self.counter.requests.remove(self)
        if self.sock.fileno() >= 0:
            self.counter.loop.unwatch(self.sock)
            self.sock.close()
