"""The contract of a pool: a place where runs live, from their preparation to their removal.

The registry has one `Pool` per kind of place (`pumasi.registry.POOLS`, or the entry points `pumasi.pools`). It holds
no state. What a manager needs of a place while it steers one run is a `Runner` (see `base`), which `Pool.open` gives.

This module is imported by every command: what is needed only now and then is imported inside the methods.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pumasi.errors import Unreachable, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pumasi.core.launch import Program
    from pumasi.core.planning import Node
    from pumasi.core.spec import Spec
    from pumasi.pools.base import Request, Runner
    from pumasi.program.site import Site
    from pumasi.store import RunRecord, Store

POLL = 0.1
"""Seconds between two looks at the store."""
Say = Callable[[str], None]
Scope = Any
"""What --on and the flags beside it name: only the pool that has read it looks into it."""
Seen = list[dict[str, Any]]
"""Nodes as `pumasi nodes` shows them: name, total, used, free, out (the reason why it is left out), holders."""


class Preview(NamedTuple):
    """What a run would start: `value` for --json, `text` for people."""

    value: Any
    text: str


class Listed(NamedTuple):
    """A run in a list. `values` is what --json prints; `fetch` gives its record, which may have to be copied first."""

    id: str
    state: str
    created: float
    ended: float | None
    values: Mapping[str, object]
    fetch: Callable[[], RunRecord]
    row: Any = None
    """What the pool itself knows of it."""


class Listing(NamedTuple):
    """The runs of a place, the newest first. `heads` are the columns of the table: names of values, and `age`. `now` is
    what time it is there. `nothing` is said where there is no run: the fact, and what to do."""

    runs: Sequence[Listed]
    heads: Sequence[str]
    now: float
    nothing: Sequence[str]


class Absence(NamedTuple):
    """Why a run has no manager where it should have one, and what to do."""

    reason: str
    hint: str


class Room(NamedTuple):
    """What is free in a place, for the planner; a sentence for each node that is left out; and whether it is known that
    nothing at all is in use."""

    nodes: Sequence[Node]
    left_out: Sequence[str]
    idle: bool


class Pool(ABC):
    """A place where runs live.

    Required of a subclass: `name` and `open`. All that `Pool` does itself is right for a place whose runs are managed
    by a process of this machine: the store has the record, a file lock says who steers the run, and signals reach its
    manager. A pool whose runs live elsewhere, where others see them too, overrides what is different there.

    Methods are synchronous, but for `open` and what belongs to it. Whatever fails for a reason that the user can
    understand raises a PumasiError.
    """

    name: ClassVar[str]
    """What --on takes. A run belongs to the pool whose name its `on` begins with, up to a colon."""
    synonyms: ClassVar[Sequence[str]] = ()
    """Other names, which --on takes for it."""
    argument: ClassVar[str] = ""
    """What may follow the name after a colon, as the help shows it: CONTEXT. Empty: nothing may."""
    argument_help: ClassVar[str] = ""
    """Where one finds such arguments: "of your kubeconfig"."""
    kind: ClassVar[str] = ""
    """What such places are called in the plural: "it is for clusters". Empty: pools of this name."""
    outlives_manager: ClassVar[bool] = False
    """Gangs go on when their manager dies, and another one adopts them: see `Runner.adopt` and `program_left`."""
    tells_notes: ClassVar[bool] = False
    """`pumasi run -d` prints the notes about the program. Else they are in the events of the run alone."""
    deleted: ClassVar[str] = "with its logs and checkpoints"
    """How the sentence about a deleted run goes on."""
    interval: ClassVar[float] = 0.0
    """Seconds between two calls of `tend`, at least."""
    patience: ClassVar[float] = 0.0
    """Seconds for which who waits for a run bears with a place that can't be reached."""

    @property
    def options(self) -> type[Any] | None:
        """The options that a run has only in this pool: a `core.options.PoolOptions`."""
        return None

    def words(self) -> Any:
        """What the command line has for this pool alone: a `cli.pools.Words`, or None."""
        return None

    def serving(self) -> Any:
        """A module that serves models there, as `pools.kubernetes.serving.verb` does; None where nothing can."""
        return None

    # ---- before a run starts

    def settle(self, spec: Spec) -> Spec:
        """With the names that hold here and now: what they are taken from may say otherwise tomorrow."""
        return spec

    def check(self, spec: Spec, home: Path) -> None:  # noqa: B027
        """Raise what is known to stand in the way, such as too few GPUs, before anything is written or started."""

    def site(self) -> Site:
        """How programs are found where the ranks run, and whether the working folder travels there."""
        from pumasi.program.site import ThisMachine

        return ThisMachine()

    def notes(self, spec: Spec) -> Iterable[str]:
        """What the user should know before the run starts, beside what is said of the program."""
        return ()

    def folder(self, spec: Spec, home: Path, run: str) -> str:
        """Where the ranks find the run's folder."""
        from pumasi.store.home import runs_folder

        return str(runs_folder(home) / run)

    def preview(self, request: Request, *, detached: bool, say: Say) -> Preview | None:
        """What would be made for the run, exactly. None: what can be told of any gang, by a `Runner` that is opened and
        closed again; then `open` must leave no trace."""
        return None

    # ---- the run itself

    @abstractmethod
    def open(self, request: Request, *, adopt: bool) -> AbstractAsyncContextManager[Runner]:
        """What a manager needs to steer this run, as long as it does. `adopt`: another manager has begun, and its gangs
        may still be there (only where `outlives_manager`).

        Leaving the context lets go of everything that the runner holds. What fails before it is entered has left
        nothing behind.
        """

    def detach(self, store: Store, record: RunRecord, request: Request) -> None:
        """Start the run so that it goes on without whoever has started it. On return it has a manager, or will get
        one. Where that fails, either the record says how the run ended or there is no such run."""
        from pumasi.pools.processes import start_manager

        start_manager(store, record, "alone")

    def program_left(self, spec: Spec, run: str) -> Program:
        """What a run that goes on there runs. NotThere where it has ended. Only where `outlives_manager`."""
        raise NotImplementedError

    async def hand_over(self, run: str, store: Store) -> Request | None:
        """Called in a manager that `detach` has made elsewhere (see `runs.detached`): fill the empty `store` with the
        run, its events and its output so far. None where the run has ended."""
        raise NotImplementedError

    # ---- runs from outside: finding them

    def scope(self, argument: str, flags: Mapping[str, str]) -> Scope:
        """Where to look for runs: what stands behind the name in --on, and those flags of `words` that were given.
        UsageError for what makes no sense."""
        if argument:
            raise UsageError(f"'{self.name}:{argument}' is no pool that Pumasi knows.", f"Write --on {self.name}.")
        return None

    def list(self, store: Store, scope: Scope) -> Listing | None:
        """The runs that are there, whoever started them. None: the store knows all of them."""
        return None

    def find(
        self, store: Store, scope: Scope, prefix: str | None, *, running_first: bool = False, careful: bool = False
    ) -> RunRecord:
        """The run that is meant, with its record in the store, as it is now; see `Store.find`. NotFound."""
        return store.find(prefix, running_first=running_first, careful=careful)

    def place_words(self, record: RunRecord) -> str:
        """Where exactly the run is, for `pumasi show`; empty for what needs no words."""
        return str(record.spec.get("on", ""))

    # ---- how one stands

    def look_after(self, store: Store, record: RunRecord) -> bool:
        """Bring the record of a run that has not ended up to date; close it where its manager died and nothing can go
        on. Whether that was so. A place that can't be reached is no reason to raise."""
        from pumasi.pools.processes import bury_orphan

        return bury_orphan(store, record)

    def tend(self, store: Store, record: RunRecord) -> None:
        """As `look_after`, for who waits for the run to end: also see that somebody steers it. Raises Unreachable."""
        self.look_after(store, record)

    def wait(self, store: Store, run: str, timeout: float | None = None) -> RunRecord:
        """The record of the run when it has ended. TimeoutError when it has not in time; Unreachable when the place
        could not be reached for longer than `patience`."""
        begun = reached = time.monotonic()
        tended = -self.interval
        while (record := store.run(run)).ended is None:
            if time.monotonic() - tended >= self.interval:
                tended = time.monotonic()
                reached = self._tend_patiently(store, record, reached)
                if store.run(run).ended is not None:
                    continue
            if timeout is not None and time.monotonic() - begun >= timeout:
                raise TimeoutError(f"{run} is still {record.state} after {timeout:g} s.")
            time.sleep(POLL)
        return record

    def _tend_patiently(self, store: Store, record: RunRecord, reached: float) -> float:
        """When the place was last reached."""
        try:
            self.tend(store, record)
        except Unreachable:
            if time.monotonic() - reached > self.patience:
                raise
            return reached
        return time.monotonic()

    def kept_up(self, store: Store, record: RunRecord) -> AbstractContextManager[Callable[[], None]]:
        """As long as this lasts, events and output of the run come into the store, from the point on that the store has
        reached. What it gives is called now and then by whoever reads: it raises what stands in the way."""
        return nullcontext(partial(self._look_again, store, record.id))

    def _look_again(self, store: Store, run: str) -> None:
        record = store.run(run)
        if record.ended is None:
            self.look_after(store, record)

    def catch_up(self, store: Store, record: RunRecord) -> None:  # noqa: B027
        """Bring what there is of events and output into the store, once. Raises ClusterTrouble."""

    def why_unattended(self, store: Store, record: RunRecord) -> Absence | None:
        """Why nobody steers the run, where somebody should; None as long as all is well, or nothing is known."""
        return None

    def whys_unattended(self, scope: Scope, runs: Sequence[Listed], now: float) -> Mapping[str, Absence]:
        """The same for all of a list that need it, by their ids."""
        return {}

    # ---- going on, ending, removing

    def can_go_on(self, store: Store, record: RunRecord) -> bool:
        """Whether a run of several tasks that nobody steers can go on with what is done."""
        from pumasi.pools.processes import can_go_on

        return can_go_on(store, record)

    def reopen(self, store: Store, record: RunRecord) -> RunRecord:
        """Make such a run ready for another manager."""
        from pumasi.pools.processes import reopen

        return reopen(store, record)

    def is_over(self, store: Store, record: RunRecord) -> bool:
        """Whether nothing of the run can be going on, whatever its record says."""
        from pumasi.pools.processes import is_orphan

        return store.run(record.id).ended is not None or is_orphan(store, record)

    def ask_to_stop(self, store: Store, record: RunRecord, *, force: bool, tell: Say) -> Callable[[], RunRecord]:
        """Ask the manager of the run to end it, at once with `force`. Returns without waiting: what it returns waits
        for the end, and sees to it. Several runs have their grace at the same time."""
        from pumasi.pools.processes import ask_manager, grace_of, insist

        see_it_stop = partial(insist, self, store, record, grace_of(record, force=force), tell)
        return ask_manager(self, store, record, see_it_stop, force=force, tell=tell)

    def remove(self, record: RunRecord) -> None:  # noqa: B027
        """Remove what an ended run has there; the store's part is removed by the caller."""

    def fetch_lines(self, run: str, result: Mapping[str, Any]) -> Sequence[str]:
        """How to get the result of a run that is there; `result` is what the event `finished` says of it."""
        return ()

    # ---- nodes

    def looking(
        self, scope: Scope, flags: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Callable[[], Awaitable[Seen]]] | None:
        """As long as this lasts, what it gives looks at the nodes, as often as it is called. None: there are none to
        look at. `flags` are those of `words` for the verb that were given."""
        return None

    def summary(self, seen: Seen, flags: Mapping[str, str]) -> Sequence[str]:
        """What `pumasi nodes` says below the table: how much is free."""
        total, free = (sum(node[key] for node in seen) for key in ("total", "free"))
        return (f"{free} of {total} GPUs are free.",)

    def room(self, scope: Scope, flags: Mapping[str, Sequence[str]]) -> Room | None:
        """What is free now, for `pumasi plan`. None: there are no nodes to look at."""
        return None
