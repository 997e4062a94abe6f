"""What every framework's file has in common: the gang it is told about, and the questions it answers.

Addresses are not known when the environment is made: they stand in it as placeholders, which the agent fills in once
all nodes are there. `{host:3}` is the address of rank 3's node, `{port:3}` a free port of rank 3's own, `{port:torch}`
a free port on the chief's node, `{file:hostfile}` a file that the agent writes. Nothing but `PLACEHOLDER` is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from pumasi.core.options import Options
from pumasi.core.ranks import Rank, RankTable

if TYPE_CHECKING:
    from pumasi.core.frameworks.script import Script
    from pumasi.core.spec import Spec

PLACEHOLDER = r"\{(host|port|file):([a-z0-9]+)\}"

Sight = Literal["own", "all"]
T = TypeVar("T", bound=Options)


class Gang(NamedTuple):
    """`gpus` are the ids of the task's GPUs on each node and `slots_per_node` the slots of each (needed where one
    process stands for several slots), both in the order of `table.nodes`. Empty `gpus`: nothing is known about GPUs."""

    run: str
    attempt: int
    restarts: int
    table: RankTable
    per_node: bool = False
    gpus: tuple[tuple[str, ...], ...] = ()
    see_gpus: Sight = "own"
    slots_per_node: tuple[int, ...] = ()
    joins: bool = False
    """The script joins its group by itself, and so needs one even when it is alone in it."""
    sections: Mapping[type[Options], Options] = {}
    """As those of a spec."""

    def options(self, kind: type[T]) -> T:
        """Of a framework."""
        found = self.sections.get(kind)
        return found if isinstance(found, kind) else kind()

    @property
    def processes(self) -> int:
        return len(self.table.ranks)

    @property
    def slots(self) -> int:
        return sum(self.slots_per_node) or self.table.trainers

    @property
    def has_servers(self) -> bool:
        """Processes in roles that only their framework knows, and that others would count as ranks."""
        return self.processes > self.table.trainers

    def slots_on(self, node: int) -> int:
        return self.slots_per_node[node] if self.slots_per_node else self.table.shares()[node]

    def first_ranks(self) -> tuple[int, ...]:
        """The first rank on each node: enough to name every node once."""
        firsts: dict[int, int] = {}
        for rank in self.table.ranks:
            firsts.setdefault(rank.node, rank.rank)
        return tuple(firsts.values())


class Layout(NamedTuple):
    """What the traps depend on besides the script: what was asked for, and where it goes. `shares` are the slots of
    each node; `gpus_seen` counts the GPUs that one process sees."""

    slots: int = 1
    shares: tuple[int, ...] = ()
    per_node: bool = False
    shim: bool = True
    gpus_seen: int = 0
    sections: Mapping[type[Options], Options] = {}
    """As those of a spec."""

    def options(self, kind: type[T]) -> T:
        """Of a framework."""
        found = self.sections.get(kind)
        return found if isinstance(found, kind) else kind()

    @property
    def processes(self) -> int:
        return max(1, len(self.shares)) if self.per_node else self.slots

    @property
    def is_unequal(self) -> bool:
        return len(set(self.shares)) > 1


class Package(NamedTuple):
    """A package, and under which other names it is published. One that `is_large` is in a folder of its name, and slow
    to import when it is not compiled. One that `is_beside` a framework does not show that this is installed."""

    name: str
    other_names: tuple[str, ...] = ()
    is_large: bool = False
    is_beside: bool = False


class Tool(NamedTuple):
    """A program, whose it has to be, a pattern for the first line that it prints with --version if it is, and how to
    get it."""

    program: str
    whose: str
    known_by: str
    hint: str


class Framework:
    """One framework: how a script gives it away, what its ranks want in their environment, and where it fails silently.

    `modules` mean this framework by themselves, `companions` only where no module of any framework is imported.
    `starts` are the names whose use shows that it is this one that trains together.
    """

    name: str = ""
    synonyms: tuple[str, ...] = ()
    """Other words that users have for it."""
    options: type[Options] | None = None
    """What a run may be asked because of it. The options may be given whatever framework is chosen."""
    modules: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    """Calls that fail without a group, be it a group of one."""
    variables: tuple[str, ...] = ()
    """What scripts read by themselves, and can't do without either."""
    launchers: tuple[str, ...] = ()
    """Programs that start ranks of this framework."""
    reaching_out: tuple[str, ...] = ()
    """Those of them that start ranks on other nodes too, and so run on the chief's node only."""
    launcher_packages: Mapping[str, str] = {}
    """The package that a launcher comes with, for who does not have it."""
    by_mpirun: bool = False
    """Its ranks are started by mpirun, and not by the agents."""
    libraries: str = ""
    """A pattern for the shared libraries that only programs of this framework need."""
    noise: str = ""
    """A pattern for lines that it prints at every start. They are left out of the last lines of a failure."""
    ports: tuple[str, ...] = ()
    agent_part: str = ""
    """The module in `agent/frameworks` that does for it what its ranks can't do by themselves."""
    see_gpus: Sight = "own"
    only_distributed: bool = False
    """Nobody imports it for anything but training together: seeing it is enough."""
    exclusive: bool = False
    """Only set when it is chosen, and then without the others."""
    needs_shared_memory: bool = True
    """Its ranks, or their data loaders, pass on more through /dev/shm than a container has by itself."""
    runs_keras: bool = False
    """Keras runs on it, unless it is told to use another one."""
    packages: tuple[Package, ...] = ()
    """What `pumasi doctor` looks for."""
    tool: Tool | None = None
    """A program without which it does not start."""

    def wires(self, gang: Gang) -> bool:
        """Whether this gang has something to be told about; a process that is alone must not think that it is not."""
        return gang.processes > 1 and not gang.has_servers

    def extra_roles(self, spec: Spec) -> Sequence[str]:
        """The roles of processes that its options ask for, in addition to the slots."""
        return ()

    def decides(self, gang: Gang, rank: Rank) -> bool:
        """Whether the task is not over before this rank has ended. Asked of every framework: one that does not know the
        rank's role has no objection."""
        return True

    def insists_on(self, spec: Spec) -> Sight | None:
        """Which GPUs a rank has to see because of its options, whatever framework is chosen."""
        return None

    def check_startable(self, program: str, libraries: Iterable[str]) -> None:
        """Raise UsageError where this program, which needs these shared libraries, can't be started together."""

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        raise NotImplementedError

    def when_chosen(self, gang: Gang, rank: Rank) -> dict[str, str]:
        """What would disturb scripts of other frameworks, and is therefore set only when this one is chosen."""
        return {}

    def traps(self, script: Script, layout: Layout) -> Iterable[str]:
        """Sentences about what will go wrong without a word, each with the way out."""
        return ()

    def hint(self, tail: Sequence[str]) -> str:
        """What to do about a failure that the last lines of a rank show; "" where this framework has nothing to say."""
        return ""


def host(rank: int) -> str:
    return f"{{host:{rank}}}"


def port(name: int | str) -> str:
    return f"{{port:{name}}}"


def file(name: str) -> str:
    return f"{{file:{name}}}"
