"""Ports and interfaces of this machine."""

from __future__ import annotations

import contextlib
import os
import socket

from pumasi.agent.processes import LINUX

PORTS = range(20000, 32000)
"""Below the range from which systems take the ports of outgoing connections."""


def free_ports(count: int) -> list[socket.socket]:
    """Sockets that hold `count` free ports until the ranks start."""
    held: list[socket.socket] = []
    start = int.from_bytes(os.urandom(4), "big")
    for step in range(len(PORTS)):
        if len(held) == count:
            break
        sock = socket.socket()
        try:
            # A step that is prime to the number of ports comes by each of them once.
            sock.bind(("", PORTS[(start + step * 7919) % len(PORTS)]))
            held.append(sock)
        except OSError:
            sock.close()
    if len(held) < count:
        raise OSError("there are no %d free ones between %d and %d" % (count, PORTS.start, PORTS.stop))
    return held


def interface_of(address: str) -> str | None:
    """The name of the network interface that has `address`; gloo asks for it where the host's name does not resolve."""
    if address.startswith("127."):
        return "lo" if LINUX else "lo0"
    if LINUX:
        import fcntl
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
                    if socket.inet_ntoa(answer[20:24]) == address:
                        return name
    return None


def listen_at(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
