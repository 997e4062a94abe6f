"""A pool without processes, for whoever tests or measures a flow: its gangs are entries in a dictionary.

They live in a `World` that outlives the manager, as the pods of a cluster do: another one may adopt them. A gang runs
as soon as it is launched and is done at the next turn of the loop, unless the world holds its gangs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pumasi.core.planning import Node
from pumasi.pools.base import Order, Pool, Sink

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

NODE = "memory"
DONE = {"cause": "done"}
Key = tuple[str, int]


class World:
    """`alive` are the gangs that run, `over` those that have ended and how, as the agents would tell it, `starts` how
    often each task was started. What a gang prints goes into `output`, by its task. `holds`: gangs run until `finish`
    is called. With `counts` off nothing is remembered of a gang that has ended and was heard of."""

    def __init__(self, *, holds: bool = False, counts: bool = True) -> None:
        self.holds = holds
        self.counts = counts
        self.alive: set[Key] = set()
        self.over: dict[Key, Mapping[str, Any]] = {}
        self.starts: Counter[str] = Counter()
        self.output: dict[str, Sequence[str]] = {}

    def start(self, key: Key) -> None:
        self.alive.add(key)
        if self.counts:
            self.starts[key[0]] += 1

    def finish(self, key: Key, facts: Mapping[str, Any] = DONE) -> None:
        if key in self.alive:
            self.alive.discard(key)
            self.over[key] = facts


class MemoryPool(Pool):
    """With room for so many slots."""

    def __init__(self, slots: int, world: World | None = None) -> None:
        self.world = world or World()
        self._slots = slots
        self._held: dict[str, int] = {}
        self._sinks: dict[Key, tuple[Order, Sink]] = {}
        self.changed = lambda: None

    async def nodes(self, spec: Spec | None = None) -> list[Node]:
        return [Node(NODE, self._slots - sum(self._held.values()))]

    def capacity(self) -> list[Node]:
        return [Node(NODE, self._slots)]

    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        return [""] * len(nodes)

    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        self._held[task] = sum(placement.values())
        return {}

    def release(self, task: str) -> None:
        self._held.pop(task, None)

    async def launch(self, order: Order, sink: Sink) -> None:
        self.world.start((order.task, order.attempt))
        self._follow(order, sink, {})

    def adopt(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        self._held[order.task] = sum(config["slots"] for config in order.configs)
        self._follow(order, sink, heard)

    def _follow(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        key = order.task, order.attempt
        self._sinks[key] = order, sink
        asyncio.get_running_loop().call_soon(self._show, key, heard)

    def _show(self, key: Key, heard: Mapping[int, int]) -> None:
        """What there is to see of it, from its beginning."""
        if key not in self._sinks:  # It was let go of.
            return
        order, sink = self._sinks[key]
        if key not in self.world.alive and key not in self.world.over:
            self._forget(key)
            sink.refused(order, "Its manager was lost before it was started.", False, "")
            return
        sink.said(order, {"event": "running", "ranks": [{"rank": 0, "node": 0, "pid": 1}]})
        first = order.configs[0]["first"]
        for number, line in enumerate(self.world.output.get(order.task, ()), 1):
            if number > heard.get(first, 0):
                sink.frames(order, f"{first}.{number} {number:013d}|{line}\n".encode())
        if not self.world.holds:
            self.world.finish(key)
        self.look()

    def look(self) -> None:
        """Tell of the gangs that have ended."""
        for key in [key for key in self._sinks if key in self.world.over]:
            order, sink = self._sinks[key]
            self._forget(key)
            sink.ended(order, self.world.over[key] if self.world.counts else self.world.over.pop(key))
            self.changed()

    def _forget(self, key: Key) -> None:
        self._sinks.pop(key, None)
        self.release(key[0])

    def end(self, task: str, attempt: int, grace: float) -> None:
        self.world.finish((task, attempt), {"cause": "stopped"})
        asyncio.get_running_loop().call_soon(self.look)

    async def close(self) -> None:
        for key in list(self._sinks):
            self.world.finish(key, {"cause": "stopped"})

    async def let_go(self) -> None:
        self._sinks.clear()
