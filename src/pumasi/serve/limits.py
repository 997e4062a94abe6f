"""How much is served, to whom, and how fast. Pure: whoever asks brings the time."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import NamedTuple

MEBIBYTE = 1024 * 1024
_MOST_CLIENTS = 4096


class Limits(NamedTuple):
    """Seconds, bytes and numbers."""

    connections: int = 256
    idle: float = 30.0
    """Between two requests of a connection."""
    request: float = 15.0
    """From the first byte of a request to its last; and of an answer, until it is taken."""
    prediction: float = 10.0
    queue: int = 256
    """Inputs that wait."""
    inputs: int = 64
    """In one request."""
    batch: int = 32
    wait: float = 0.002
    """For how long an input waits for others to be answered together with."""
    notice: float = 0.0
    """For how long newcomers are still answered when the server has to end: who sends them learns of it only then."""
    grace: float = 30.0
    """To finish what runs, when the server has to end."""


class Rates:
    """A bucket for each client: `rate` requests a second, and twice as many at once. Of more than 4096 clients the
    ones that were not seen for longest are forgotten."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> int:
        """0 if the client may go on; else the seconds after which it may."""
        if not self._rate:
            return 0
        most = max(1.0, 2 * self._rate)
        left, then = self._buckets.pop(client, (most, now))
        left = min(most, left + (now - then) * self._rate)
        allowed = left >= 1
        self._buckets[client] = (left - allowed, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0 if allowed else ceil((1 - left) / self._rate)


def client_of(address: str) -> str:
    """Who has one IPv6 address has the 2⁶⁴ beside it."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(IPv6Address(int(found) >> 64 << 64))
    return str(found)
