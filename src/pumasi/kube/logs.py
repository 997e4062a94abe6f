"""Follows the log of one container until nothing of it is missing, or what is missing is known in numbers.

A stream of it may break at any moment, look as if it had ended, fall silent, and be asked for again from whole seconds
only. What is new in it is known by the agent's own numbers.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from pumasi.errors import ClusterTrouble, NotThere, Rejected, Unreachable
from pumasi.kube.api import Api
from pumasi.kube.watching import pauses

IDLE = 45.0
"""A container may well say nothing for so long; so does a link that was cut."""
LAST_PATIENCE = 30.0
"""For how long the rest of a container's log is asked for when it has ended and its node does not answer."""
_GLANCE = 0.1
_REMEMBERED = 50_000
_TIMED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) (?:(\d+)\.(\d+) \d{13}[|:>}~^])?")
_SOON = ("is waiting to start", "does not have a host assigned")


class Sieve:
    """Which lines are new, in a log that is read again and again. Pure.

    Frames carry RANK.SEQ (see core/frames.py): anything seen is dropped, a jump is a gap. Whatever else there is passes
    once, told apart by its time.
    """

    def __init__(self, heard: Mapping[int, int] = MappingProxyType({})) -> None:
        """`heard` has the highest number that was had of each rank so far."""
        self.missing: dict[int, int] = {}
        """How many frames of each rank are lost."""
        self._heard = dict(heard)
        self._rest = b""
        self._last = (b"", b"")
        self._passed: dict[bytes, None] = {}
        self._others: list[str] = []

    @property
    def since(self) -> str:
        """A time before which nothing is missing any more; empty where there was no line yet. A second is given away
        because clocks are set back a little now and then."""
        second, zone = self._last
        if not second:
            return ""
        return (datetime.fromisoformat(second.decode()) - timedelta(seconds=1)).isoformat() + zone.decode()

    def pass_on(self, chunk: bytes) -> bytes:
        """`chunk` as the kubelet gives it, cut anywhere. Out come whole lines without their times: new frames, and the
        agent's own words."""
        whole, newline, rest = chunk.rpartition(b"\n")
        if not newline:
            self._rest += chunk
            return b""
        lines = (self._rest + whole).split(b"\n")
        self._rest = rest
        new = [text for line in lines if line and (text := self._new(line)) is not None]
        return b"\n".join([*new, b""])

    def restart(self) -> None:
        """The next chunk begins a line: what was torn comes again."""
        self._rest = b""

    def finish(self) -> bytes:
        """The last line, if nothing ended it."""
        return self.pass_on(b"\n") if self._rest else b""

    def take_others(self) -> list[str]:
        """Lines that are not the agent's, since the last time: a Python that could not start, a kubelet's excuse."""
        others, self._others = self._others, []
        return others

    def _new(self, line: bytes) -> bytes | None:
        timed = _TIMED.match(line)
        if timed is None:
            return self._sort_out(line, line)
        second, zone, rank, seq = timed.groups()
        self._last = (second, zone)
        if rank is None:
            return self._sort_out(line, line[timed.end() :])
        return line[timed.start(3) :] if self._count(int(rank), int(seq)) else None

    def _count(self, rank: int, seq: int) -> bool:
        heard = self._heard.get(rank, 0)
        if seq <= heard:
            return False
        if seq > heard + 1:
            self.missing[rank] = self.missing.get(rank, 0) + seq - heard - 1
        self._heard[rank] = seq
        return True

    def _sort_out(self, line: bytes, text: bytes) -> bytes | None:
        if line in self._passed:
            return None
        self._passed[line] = None
        if len(self._passed) > _REMEMBERED:
            del self._passed[next(iter(self._passed))]
        if _is_agents(text):
            return text
        self._others.append(text.decode(errors="replace"))
        return None


def _is_agents(text: bytes) -> bool:
    """Its words come whole or not at all: a torn one is nobody's."""
    if not text.startswith(b"@{"):
        return False
    try:
        json.loads(text[1:])
    except ValueError:
        return False
    return True


async def follow(
    api: Api,
    namespace: str,
    pod: str,
    sieve: Sieve,
    ended: Callable[[], bool],
    deliver: Callable[[bytes], None],
    other: Callable[[str], None] = lambda line: None,
    *,
    container: str = "",
    idle: float = IDLE,
) -> None:
    """Until the container is known to have ended and all of its log has been read after that. `ended` is true as well
    for a pod that is gone. `deliver` gets what the sieve lets through, `other` the lines that are not the agent's; both
    must be quick: a reader who falls behind loses what is rotated away."""
    loop = asyncio.get_running_loop()
    waits = pauses()
    give_up = math.inf
    while True:
        final = ended()
        give_up = min(give_up, loop.time() + LAST_PATIENCE) if final else math.inf
        reading = _Reading(sieve, deliver, other)
        words = {"container": container, "since": sieve.since}
        try:
            async for chunk in api.log(namespace, pod, **words, follow=not final, idle=idle):
                reading.take(chunk)
            if final:
                reading.finish()
                return
        except (Unreachable, NotThere, Rejected) as error:
            if final and _is_all(error, pod):
                return
            if loop.time() > give_up or not _may_pass(error):
                raise
            reading.useful |= isinstance(error, Unreachable) and error.silent
        waits = pauses() if reading.useful else waits
        await _pause(next(waits), ended if not final else lambda: False)


class _Reading:
    """One stream, from its beginning."""

    def __init__(self, sieve: Sieve, deliver: Callable[[bytes], None], other: Callable[[str], None]) -> None:
        self.useful = False
        self._sieve = sieve
        self._deliver = deliver
        self._other = other
        sieve.restart()

    def take(self, chunk: bytes) -> None:
        self._hand_on(self._sieve.pass_on(chunk))

    def finish(self) -> None:
        self._hand_on(self._sieve.finish())

    def _hand_on(self, new: bytes) -> None:
        if new:
            self.useful = True
            self._deliver(new)
        for line in self._sieve.take_others():
            self._other(line)


def _is_all(error: ClusterTrouble, pod: str) -> bool:
    """Nothing is left to be read, or there never was anything."""
    return f'pods "{pod}" not found' in error.said or any(text in error.said for text in _SOON)


def _may_pass(error: ClusterTrouble) -> bool:
    """A kubelet that has just started answers all kinds of things; only what the API server says of the request itself
    is final."""
    return "is not valid for pod" not in error.said and "a container name must be specified" not in error.said


async def _pause(seconds: float, unless: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (left := deadline - loop.time()) > 0 and not unless():
        await asyncio.sleep(min(left, max(_GLANCE, seconds / 10)))
