"""The contract of a pool: a place where tasks run. `pumasi.testing.pools` has the suite that every pool passes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pumasi.core.endings import HERE
from pumasi.core.manage import CONFIRM
from pumasi.core.outcome import Outcome, outcome_from
from pumasi.core.planning import Node

if TYPE_CHECKING:
    from pumasi.core.events import Event
    from pumasi.core.launch import Program
    from pumasi.core.spec import Spec


class Request(NamedTuple):
    """A run that wants a pool. `fields` are those of its record so far; `packed` is the working folder as an archive,
    for pools that are elsewhere. `say` is told what takes long before the run can begin."""

    run: str
    spec: Spec
    program: Program
    home: Path
    fields: Mapping[str, Any]
    packed: bytes = b""
    say: Callable[[str], None] = lambda text: None


class Order(NamedTuple):
    """One attempt of a task, ready to be started: a configuration for the agent of each node, the chief's first.
    `spec` is what this task asks for, where that is not the same for all tasks of the run."""

    task: str
    attempt: int
    nodes: Sequence[str]
    configs: Sequence[Mapping[str, Any]]
    spec: Spec | None = None


class Sink(Protocol):
    """Who hears what becomes of an order. Calls come in the order in which things happened."""

    def frames(self, order: Order, chunk: bytes) -> None:
        """Output of the ranks: whole frames (see `core.frames`)."""

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        """An agent's own words: `running`, `exit` and `ending`."""

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        """Nothing of this attempt is left anywhere. The last call for an order: it always comes, or `refused` does."""

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        """There was no room after all, and nothing of the attempt is left; `hopeless`: there will never be."""


class Copy(Protocol):
    """A second record of the run, kept by the pool where others see it."""

    def update(self, fields: Mapping[str, Any]) -> None: ...

    def event(self, at: float, event: Event) -> None: ...

    def journal(self, entry: dict[str, Any]) -> None:
        """What a flow that goes on has to repeat; see `core.flows.journal`."""

    def frames(self, attempt: int, chunk: bytes) -> None: ...


class FoundTask(NamedTuple):
    """A task as another manager has left it: the attempt that it was at, where, and in which state. Its ranks are
    `first` and those that follow; `outcome` is there once it has ended."""

    state: str
    attempt: int = 0
    restarts: int = 0
    placement: Mapping[str, int] = {}
    first: int = 0
    ranks: int = 0
    outcome: Outcome | None = None


class Found(NamedTuple):
    """What another manager has left. Times are of day. `tasks` are those that are on their way, and, where there is no
    journal yet, those that have ended; `history` is the journal; `broken`: nothing of the run was left alive."""

    created: float
    started: float | None
    tasks: Mapping[str, FoundTask]
    history: Sequence[Mapping[str, Any]] = ()
    broken: bool = False


class Shortage(NamedTuple):
    """Why there is no room: `remark` is for those who fail because of it, `waiting` for those who wait, and `gist` what
    of that is news when it changes. All may be empty."""

    remark: str = ""
    waiting: str = ""
    gist: str = ""


def kept_task(found: FoundTask) -> dict[str, Any]:
    """As `Manager` keeps it."""
    return {**found._asdict(), "outcome": None if found.outcome is None else found.outcome.told()}


def found_task(kept: Mapping[str, Any]) -> FoundTask:
    """From what `Manager` has kept of it."""
    outcome = kept.get("outcome")
    known = {name: kept[name] for name in FoundTask._fields if name in kept and name != "outcome"}
    return FoundTask(**known, outcome=None if outcome is None else outcome_from(outcome))


class Pool(ABC):
    """`confirm` is how long it may take to be sure of the end of a gang, beyond its grace. A pool that `is_blind` does
    not know its nodes: whoever runs them places the slots. `setting` is what advice after a failure depends on; `user`
    is the name that the pool has for who started the run. The manager sets the five callbacks: for what the user should
    know, for what ends the manager, for a stop that came through the pool, for the reason why there is no such run any
    more, and `changed` for when what is free may have changed since `nodes` told it: a pool that knows need not be
    asked again and again."""

    confirm: float = CONFIRM
    is_blind = False
    setting = HERE
    user = ""
    copy: Copy | None = None
    found: Found | None = None
    tell: Callable[[str], None]
    fail: Callable[[BaseException], None]
    stop: Callable[[bool, str], None]
    lose: Callable[[str], None]
    changed: Callable[[], None]

    def attend(self) -> None:  # noqa: B027
        """The manager is there, and can be called."""

    def folder(self, home: Path) -> str:
        """Where the ranks find the run's folder, which is `home` on this machine."""
        return str(home)

    @abstractmethod
    async def nodes(self, spec: Spec | None = None) -> list[Node]:
        """The nodes and how many slots each has free now: such as the run asks for, or `spec`, for a task that asks for
        something else. What is told or reserved until the next call is for the same."""

    @abstractmethod
    def capacity(self) -> list[Node]:
        """The nodes as if nobody else used them: what does not fit there never will."""

    def shortage(self, slots: int) -> Shortage:
        """For so many slots the room that `nodes` told of last is too little: who holds it."""
        return Shortage()

    @abstractmethod
    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        """Where the agents of these nodes are to be reached."""

    @abstractmethod
    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        """Hold what `placement` needs until what is launched there has ended, and tell the GPUs a node; None when
        somebody else was faster, or it is not free yet after all."""

    def release(self, task: str) -> None:  # noqa: B027
        """What is held for that task, and nothing of it was launched or is left, is free again."""

    @abstractmethod
    async def launch(self, order: Order, sink: Sink) -> None: ...

    def adopt(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        """Go on with what another manager has launched; `heard` is the last output that is known of each rank. Only
        for a pool whose gangs outlive their manager."""
        raise NotImplementedError

    @abstractmethod
    def end(self, task: str, attempt: int, grace: float) -> None:
        """Ask the gang to end; it uses force after `grace` seconds. 0: at once."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; whatever still runs is ended by force."""

    async def let_go(self) -> None:
        """Leave what runs alone, where it can go on without a manager."""
        await self.close()
