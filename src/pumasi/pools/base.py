"""The contract of a runner: what a manager needs of a pool while it steers one run; `pool.Pool.open` gives one.
`pumasi.testing.pools` has the suite that every runner passes."""

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


class Runner(ABC):
    """The manager's hands for one run: where there is room, and gangs that are started, adopted and ended.

    Required: the abstract methods. Guaranteed to the runner: all calls come from one event loop; the manager sets the
    callbacks before it calls `attend`, and calls nothing after `close` or `let_go`. Guaranteed to the manager: of each
    order that was launched or adopted, its sink hears everything in order, and at last `ended` or `refused`, once.
    """

    confirm: float = CONFIRM
    """Seconds beyond its grace that it may take to be sure of the end of a gang."""
    is_blind = False
    """It does not know its nodes: somebody else places the slots."""
    setting = HERE
    """What advice after a failure depends on."""
    user = ""
    """The name that the pool has for who started the run."""
    copy: Copy | None = None
    found: Found | None = None
    """What another manager has left, for one that adopts."""
    tell: Callable[[str], None]
    """Set by the manager: what the user should know."""
    fail: Callable[[BaseException], None]
    """Set by the manager: what ends the manager, and leaves the run as it is."""
    stop: Callable[[bool, str], None]
    """Set by the manager: a stop that came through the pool; whether by force, and who asked."""
    lose: Callable[[str], None]
    """Set by the manager: the run is gone, and why."""
    changed: Callable[[], None]
    """Set by the manager: what is free may have changed since `nodes` told it. A runner that knows need not be asked
    again and again."""

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
    async def launch(self, order: Order, sink: Sink) -> None:
        """Start the gang on what was reserved for its task. `sink` hears what becomes of it, from before this returns
        on; also that it could not be started."""

    def adopt(self, order: Order, sink: Sink, heard: Mapping[int, int]) -> None:
        """Go on with what another manager has launched; `heard` is the last output that is known of each rank. Only
        for a pool whose gangs outlive their manager."""
        raise NotImplementedError

    async def keep_output(self) -> None:  # noqa: B027
        """The store of this manager does not last: keep the output of the ranks where others find it."""

    @abstractmethod
    def end(self, task: str, attempt: int, grace: float) -> None:
        """Ask the gang to end; it uses force after `grace` seconds. 0: at once."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything; whatever still runs is ended by force."""

    async def let_go(self) -> None:
        """Leave what runs alone, where it can go on without a manager."""
        await self.close()
