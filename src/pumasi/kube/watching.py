"""What a watch remembers: what it has told, and for how long the cluster has not been there."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pumasi.errors import Unreachable
from pumasi.kube.http import ANSWER_SECONDS

Object = dict[str, Any]
Event = tuple[str, Object]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


def pauses() -> Iterator[float]:
    """Between one try and the next. Many that were thrown out together must not come back together."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.75, 1.25)
        pause = min(pause * 2, _LONGEST_PAUSE)


class Absence:
    """For how long the cluster has not been there, and who is to know it."""

    def __init__(self, patience: float, away: Callable[[str], None]) -> None:
        self._patience = patience
        self._away = away
        self._since: float | None = None
        """When the first request began that has had no answer, or the last answer broke off."""
        self._failures = 0
        self._told = False
        self._pauses = pauses()
        self._back_at = -math.inf

    def bound(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        """`ask` with no more time than is left."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        seconds = min(ANSWER_SECONDS, max(1.0, self._since + self._patience - now))
        return lambda *rest, **options: ask(*rest, **options, seconds=seconds)

    def over(self) -> None:
        self._since = None
        self._failures = 0
        self._back_at = asyncio.get_running_loop().time()
        if self._told:
            self._told = False
            self._away("")

    async def endure(self, error: Unreachable) -> None:
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        self._failures += 1
        # A connection that broke says little as long as the next one comes.
        if not self._told and (error.silent or self._failures > 1):
            self._told = True
            self._away(error.message)
        left = self._since + self._patience - now
        if left <= 0:
            raise error
        if self._failures == 1 and now - self._back_at > _LONGEST_PAUSE:
            self._pauses = pauses()
        await asyncio.sleep(min(max(next(self._pauses), error.after), left))


class Known:
    """What a watch has told so far, so that it can tell what has changed while it could not look."""

    def __init__(self) -> None:
        self.version = ""
        self._things: dict[str, Object] = {}

    def compare(self, items: Iterable[Object], version: str) -> Iterator[Event]:
        self.version = version
        before, self._things = self._things, {_identity(thing): thing for thing in items}
        for identity, thing in before.items():
            if identity not in self._things:
                yield "DELETED", thing
        for identity, thing in self._things.items():
            if identity not in before:
                yield "ADDED", thing
            elif _version(before[identity]) != _version(thing):
                yield "MODIFIED", thing

    def learn(self, event: Event) -> bool:
        """Whether it tells of an object, or only how far the watch has come."""
        kind, thing = event
        self.version = _version(thing) or self.version
        if kind == "DELETED":
            self._things.pop(_identity(thing), None)
        elif kind != "BOOKMARK":
            self._things[_identity(thing)] = thing
        return kind != "BOOKMARK"


def _identity(thing: Object) -> str:
    """An object that was made anew under an old name is another one."""
    metadata = thing["metadata"]
    return str(metadata.get("uid") or f"{metadata.get('namespace', '')}/{metadata['name']}")


def _version(thing: Object) -> str:
    return str(thing["metadata"].get("resourceVersion", ""))
