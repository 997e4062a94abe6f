"""The contract of a pool: a place where tasks run. `pumasi.testing.pools` has the suite that every pool passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pumasi.core.planner import Node


class Order(NamedTuple):
    """One attempt of a task, ready to be started: a configuration for the agent of each node, the chief's first."""

    task: str
    attempt: int
    nodes: Sequence[str]
    configs: Sequence[Mapping[str, Any]]


class Sink(Protocol):
    """Who hears what becomes of an order. Calls come in the order in which things happened."""

    def frames(self, order: Order, chunk: bytes) -> None:
        """Output of the ranks: whole frames (see `core.frames`)."""

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        """An agent's own words: `running`, `exit` and `ending`."""

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        """Nothing of this attempt is left anywhere. The last call for an order, and it always comes."""


class Pool(ABC):
    @abstractmethod
    async def nodes(self) -> list[Node]:
        """The nodes and how many slots each has free now."""

    @abstractmethod
    def capacity(self) -> list[Node]:
        """The nodes as if nobody else used them: what does not fit there never will."""

    @abstractmethod
    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        """Where the agents of these nodes are to be reached."""

    @abstractmethod
    async def reserve(self, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        """Hold what `placement` needs and tell the GPUs a node; None when somebody else was faster."""

    @abstractmethod
    async def launch(self, order: Order, sink: Sink) -> None: ...

    @abstractmethod
    def end(self, task: str, attempt: int, grace: float) -> None:
        """Ask the gang to end; it uses force after `grace` seconds. 0: at once."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; whatever still runs is ended by force."""
