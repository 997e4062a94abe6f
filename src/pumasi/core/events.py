"""What happens to a run: one type for each kind of event.

The manager makes them; the store, the record in a cluster, the views and `--json` pass them on. `pack` and `unpack` are
the form in which they cross a process or a version. A reader ignores fields that it does not know, takes defaults for
those that are missing, and keeps an event of an unknown kind as `Unknown`, so that passing an event on loses nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

VERSION = 1
"""Of the packed form. A change that readers of this version would misunderstand raises it."""


def _field(about: str, default: Any = None, *, optional: bool = False) -> Any:
    """`about` is for the reference; without it the reference has the field in common for all events. An `optional`
    field is left out of the packed form while it is None."""
    meta = {"about": about, "optional": optional}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=type(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Event:
    """`others` are fields that a later version has added. Equality and repr are written once, for all of them: to have
    them generated for each type would double the time that this module takes to import."""

    kind: ClassVar[str] = ""
    about: ClassVar[str] = ""

    others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (kind_of(self), to_json(self)) == (kind_of(other), to_json(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({to_json(self)})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _OfTask(Event):
    """In a run of several tasks, `task` is the one that it is about, and `numbers` are those of its processes."""

    task: str | None = _field("", optional=True)
    numbers: tuple[int, int] | None = _field("", optional=True)

    @property
    def first(self) -> int:
        """The number that rank 0 of the task has in the run."""
        return self.numbers[0] if self.numbers else 0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FlowBegun(Event):
    kind = "flow"
    about = "a run of several tasks begins"

    run: str = _field("its id", "")
    title: str = _field("what the flow does, in a few words", "")
    on: str = _field("the pool", "local")
    framework: str = _field("what the processes are wired for", "")
    because: str = _field("how that was found out", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Planned(_OfTask):
    kind = "planned"
    about = "a place was found"

    run: str = _field("its id", "")
    on: str = _field("the pool", "local")
    placement: Mapping[str, int] = _field("slots per node", {})
    unplaced: bool = _field("whether the pool's own scheduler chooses the nodes", False)
    chief: str = _field("the node of rank 0", "")
    framework: str = _field("what the processes are wired for", "")
    because: str = _field("how that was found out", "")
    python: str = _field("the interpreter, or the program", "")
    gpus: Mapping[str, list[str]] = _field("GPUs per node", {})
    see_gpus: str = _field("what a rank sees of them: own or all", "")
    packages: str = _field("what is installed first", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Waiting(_OfTask):
    kind = "waiting"
    about = "there is no room, or what it needs is not there yet"

    run: str = _field("its id", "")
    reason: str = _field("why it waits", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Starting(_OfTask):
    kind = "starting"
    about = "the processes are being started"

    attempt: int = _field("0 for the first start", 0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Running(_OfTask):
    kind = "running"
    about = "every process runs"

    attempt: int = _field("0 for the first start", 0)
    ranks: list[dict[str, Any]] = _field("of each process: `rank`, `node`, `role`, `pid`", [])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankEnded(_OfTask):
    kind = "rank ended"
    about = "one process has ended"

    attempt: int = _field("0 for the first start", 0)
    rank: int = _field("which", 0)
    code: int | None = _field("its exit code")
    signal: str | None = _field("the signal that ended it")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Restarting(_OfTask):
    kind = "restarting"
    about = "the processes are started again"

    attempt: int = _field("the attempt that begins", 0)
    reason: str = _field("what ended the attempt before", "")
    spent: int = _field("restarts so far, without those that cost nothing", 0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ending(_OfTask):
    kind = "ending"
    about = "the processes were asked to end"

    why: str = _field("the reason", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Gap(_OfTask):
    kind = "gap"
    about = "output was lost"

    attempt: int = _field("of which attempt", 0)
    rank: int = _field("of which process", 0)
    lines: int = _field("how many lines", 0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Note(_OfTask):
    kind = "note"
    about = "something that the user should know"

    text: str = _field("a sentence", "")
    attempt: int | None = _field("of which attempt, where it is about one", optional=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StopAsked(Event):
    kind = "stop asked"
    about = "somebody asked to stop the run"

    by: str = _field("who asked, and from which host", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Left(Event):
    kind = "left"
    about = "whoever watched the run left it running"

    run: str = _field("its id", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _End(Event):
    """The fields of an outcome."""

    verdict: str = _field("done, failed, lost, timed out or stopped", "")
    reason: str = _field("one sentence", "")
    hint: str = _field("what to do", "")
    cause: str = _field("exit, oom, …", "")
    rank: int | None = _field("the process that failed first")
    node: str | None = _field("its node")
    code: int | None = _field("its exit code")
    signal: str | None = _field("the signal that ended it")
    tail: list[str] = _field("its last lines", [])
    metrics: Mapping[str, float] = _field("the last ones", {})


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TaskEnded(_End):
    kind = "task ended"
    about = "one of several tasks has ended for good"

    task: str = _field("which", "")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Reported(Event):
    kind = "report"
    about = "what the flow found out, at the end; its fields are the flow's own"

    def __getitem__(self, name: str) -> Any:
        return self.others[name]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Finished(_End):
    kind = "finished"
    about = "the run has ended; always the last event"

    run: str | None = _field("its id", optional=True)
    task: str | None = _field("the task that decided it, where the run has several", optional=True)
    result: Mapping[str, Any] | None = _field("where the result is, if that is on a volume of a cluster", optional=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unknown(Event):
    """Of a later version; `others` is all that it says."""

    name: str = ""


EVENTS: tuple[type[Event], ...] = (
    FlowBegun,
    Planned,
    Note,
    Waiting,
    Starting,
    Running,
    RankEnded,
    Gap,
    Restarting,
    Ending,
    StopAsked,
    Left,
    TaskEnded,
    Reported,
    Finished,
)
"""In the order in which a run meets them."""


def kind_of(event: Event) -> str:
    return event.name if isinstance(event, Unknown) else event.kind


def to_json(event: Event) -> dict[str, Any]:
    """The fields of an event, as JSON has them."""
    told: dict[str, Any] = {}
    for name, is_optional in _FIELDS[type(event)]:
        value = getattr(event, name)
        if value is not None or not is_optional:
            told[name] = list(value) if isinstance(value, tuple) else value
    return {**told, **event.others}


def pack(event: Event) -> tuple[str, dict[str, Any]]:
    """Its kind, and its fields with the version of this form."""
    return kind_of(event), {"v": VERSION, **to_json(event)}


def unpack(kind: str, data: Mapping[str, Any]) -> Event:
    """The event that `pack` has packed, in this version, an earlier or a later one."""
    given = {name: value for name, value in data.items() if name != "v"}
    made = _BY_KIND.get(kind)
    if made is None:
        return Unknown(name=kind, others=given)
    known = {name for name, _ in _FIELDS[made]}
    values = {name: tuple(value) if name == "numbers" else value for name, value in given.items() if name in known}
    return made(**values, others={name: value for name, value in given.items() if name not in known})


def finished(outcome: Mapping[str, Any]) -> Finished:
    """The end of a run whose record has this outcome."""
    known = {name for name, _ in _FIELDS[Finished]}
    return Finished(**{name: value for name, value in outcome.items() if name in known})


def described(made: type[Event]) -> Iterator[tuple[str, str, bool]]:
    """For the reference: the name of each field, what it says, and whether it may be missing."""
    for field in dataclasses.fields(made):
        if field.metadata:
            yield field.name, field.metadata["about"], field.metadata["optional"]


_BY_KIND = {made.kind: made for made in EVENTS}
_FIELDS = {made: tuple((name, optional) for name, _, optional in described(made)) for made in (*EVENTS, Unknown)}
