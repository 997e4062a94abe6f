"""How connections between agents begin: the one that is called asks, the caller proves that it knows the secret, and so
does the one that was called. Nothing here blocks, and nobody is waited for without a deadline."""

from __future__ import annotations

import os
import selectors
import socket

from pumasi.agent.links import LONGEST_WORD, Link, proof, proves
from pumasi.agent.processes import HARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    from pumasi.agent.links import Message
    from pumasi.agent.loop import Loop

STRANGERS = 64
"""Connections that may be open, beyond one per node, without having shown that they know the secret."""


class Door:
    """Where we are called. `admit` gets the name that the caller has proven, and the link; it may set the link's
    `heed`, or close it. At most `most` callers may be on their way in; then the oldest goes."""

    def __init__(
        self, loop: Loop, secret: str, words: tuple[str, str], admit: Callable[[str, Link], None], most: int
    ) -> None:
        self.loop = loop
        self.secret = secret
        self.caller, self.called = words
        self.admit = admit
        self.most = most
        self.guests: list[Guest] = []

    def open(self, listener: socket.socket) -> None:
        self.loop.watch(listener, lambda: self.welcome(listener))

    def welcome(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        guest = Guest(sock, self)
        self.guests.append(guest)
        self.loop.after(2 * HARD, lambda: self.forget(guest))
        if len(self.guests) > self.most:
            self.forget(self.guests[0])

    def forget(self, guest: Guest) -> None:
        if guest in self.guests:
            self.guests.remove(guest)
            guest.link.close()

    def meet(self, guest: Guest) -> None:
        who = guest.identify()
        if guest.link.closed:
            self.forget(guest)
        elif who is not None:
            self.guests.remove(guest)
            self.admit(who, guest.link)


class Guest:
    """A connection that has not shown yet who it is."""

    def __init__(self, sock: socket.socket, door: Door) -> None:
        self.door = door
        self.link = Link(sock, door.loop.selector, lambda: door.meet(self))
        self.nonce = os.urandom(16).hex()
        self.link.send(nonce=self.nonce)

    def identify(self) -> str | None:
        """Who it is, or None as long as it has not said; a wrong answer closes the link."""
        for message in self.link.receive(LONGEST_WORD):
            who = str(message.get("who"))
            if proves(message.get("proof"), self.door.secret, self.door.caller, who, self.nonce):
                self.link.send(proof=proof(self.door.secret, self.door.called, who, message.get("nonce")))
                return who
            self.link.closed = True
        return None


class Call:
    """A call to an address, as `who`. Ends in `met`, with the link and what has come over it already, or in `failed`,
    with the reason: at the latest after HARD seconds, unless it was cancelled."""

    def __init__(self, loop: Loop, secret: str, words: tuple[str, str], who: str) -> None:
        self.loop = loop
        self.secret = secret
        self.caller, self.called = words
        self.who = who
        self.link: Link | None = None
        self.over = False

    def start(
        self, address: Sequence[Any], met: Callable[[Link, list[Message]], None], failed: Callable[[str], None]
    ) -> None:
        """`address` is a host, by number, and a port."""
        self.met, self.failed = met, failed
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.loop.after(HARD, lambda: self.fail("no answer"))
        try:
            self.sock.connect((address[0], address[1]))
        except BlockingIOError:
            pass
        except OSError as error:
            self.fail(str(error))
            return
        self.loop.watch(self.sock, self.connected, selectors.EVENT_WRITE)

    def connected(self) -> None:
        if self.over:
            return
        self.loop.unwatch(self.sock)
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.fail(os.strerror(error))
            return
        self.nonce = os.urandom(16).hex()
        self.link = Link(self.sock, self.loop.selector, self.read)
        self.asked = False

    def read(self) -> None:
        assert self.link is not None
        messages = self.link.receive(LONGEST_WORD)
        while messages and not self.over:
            self.hear(self.link, messages.pop(0), messages)
        if self.link.closed and not self.over:
            self.fail("the connection was closed")

    def hear(self, link: Link, message: Message, more: list[Message]) -> None:
        if not self.asked:
            self.asked = True
            claim = proof(self.secret, self.caller, self.who, message.get("nonce"))
            link.send(who=self.who, nonce=self.nonce, proof=claim)
        elif proves(message.get("proof"), self.secret, self.called, self.who, self.nonce):
            self.over = True
            self.met(link, [*more])
            more.clear()
        else:
            self.fail("it does not know the secret of this run")

    def fail(self, reason: str) -> None:
        if not self.over:
            self.cancel()
            self.failed(reason)

    def cancel(self) -> None:
        self.over = True
        if self.link is not None:
            self.link.close()
        else:
            self.loop.unwatch(self.sock)
            self.sock.close()
