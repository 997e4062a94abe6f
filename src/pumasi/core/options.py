"""An option is declared once: what it takes, what it is for, an example, a default, and how it is written.

All else is made from that: the parser of the command line, its help, the completion, the reference, the names in
pumasi.yaml, the variables PUMASI_*, the schema for editors, what Python accepts, and the sentences about mistakes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pumasi.core.fields import Kind

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

PROCESSES = "How many, and where"
WIRING = "How they find each other"
LIFE = "How long"
OUTPUT = "What you see"

Words = str | Callable[[], str]
"""Text, or what makes it when it is needed: what is registered is not imported before."""


class Declared(NamedTuple):
    """`value` is what the flag takes, as the help shows it ("N"); a switch takes nothing. `default_text` is the default
    in the help, where it is worth being told; `off` is the help of --no-NAME, of a switch that is on by default."""

    kind: Kind
    words: Words
    example: object
    default: Any = MISSING
    name: str = ""
    flag_name: str = ""
    short: str = ""
    value: str = ""
    choices: Callable[[], tuple[str, ...]] = tuple
    group: str = WIRING
    off: str = ""
    default_text: str = ""
    file_name: str = ""
    description_text: str = ""
    variable: bool | None = None
    is_flag: bool = True
    schema_of: Callable[[], Mapping[str, object]] | None = None

    @property
    def flag(self) -> str:
        """As it is written on a command line. That of a switch which is on by default is --no-NAME there."""
        return "--" + (self.flag_name or self.name).replace("_", "-")

    @property
    def written(self) -> str:
        """As it is written in a file."""
        return self.file_name or self.name

    @property
    def is_switch(self) -> bool:
        return self.kind.schema.get("type") == "boolean"

    @property
    def is_repeated(self) -> bool:
        """Whether each flag gives one of its values."""
        return bool(self.kind.several)

    @property
    def is_group(self) -> bool:
        """Whether it is names and values, which the layers of the configuration merge name by name."""
        return self.kind.several == "names"

    @property
    def by_variable(self) -> bool:
        """Whether a variable has room for all of it."""
        return not self.is_repeated if self.variable is None else self.variable

    @property
    def help(self) -> str:
        """In the words of the command line."""
        said = self.off or (self.words if isinstance(self.words, str) else self.words())
        return said + (f" (default: {self.default_text})" if self.default_text else "") + " *" * self.is_repeated

    @property
    def description(self) -> str:
        """In a sentence of its own, for editors, which show the default beside it."""
        said = self.description_text or (self.words if isinstance(self.words, str) else self.words())
        return f"{said[:1].upper()}{said[1:].rstrip('.')}."

    @property
    def schema(self) -> dict[str, object]:
        known = {"description": self.description, "examples": [self.example]}
        return {**known, **(self.schema_of() if self.schema_of else self.kind.schema)}


def option(
    kind: Kind,
    help: Words,  # noqa: A002
    *,
    example: object,
    default: Any = MISSING,
    flag: str = "",
    short: str = "",
    value: str = "",
    choices: Callable[[], tuple[str, ...]] = tuple,
    group: str = WIRING,
    off: str = "",
    default_text: str = "",
    written: str = "",
    description: str = "",
    variable: bool | None = None,
    is_flag: bool = True,
    schema: Callable[[], Mapping[str, object]] | None = None,
) -> Any:
    """A field of a class of options. See `Declared`; `flag` and `written` are for those that users know by another name
    than the field's, on the command line and in files; `variable` says that a variable may, or may not, set it."""
    declared = Declared(
        kind,
        help,
        example,
        default,
        "",
        flag,
        short,
        value,
        choices,
        group,
        off,
        default_text,
        written,
        description,
        variable,
        is_flag,
        schema,
    )
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"option": declared})
    return dataclasses.field(default=default, metadata={"option": declared})


class Contradiction(NamedTuple):
    """An option, what it takes, the other option that does not go with that, and what to do."""

    name: str
    why: str
    other: str
    right: str = "leave one of the two out"


@dataclass(frozen=True)
class Options:
    """Options that belong together: those of every run, of a pool, of a flow or of a framework. A subclass is a frozen
    dataclass whose fields are made by `option`. No name may be one of another section's."""

    belongs: ClassVar[str] = ""
    """Why its options make no sense without their owner, where that is not clear from who it is."""
    for_gangs: ClassVar[bool] = False
    """Whether its options are for processes that train one model together."""

    def contradictions(self, spec: Spec) -> Iterable[Contradiction]:
        """What can't be asked for at the same time. Must not fail, whatever the values are."""
        return ()

    def changed_names(self) -> list[str]:
        """The options that are not as they would be by themselves."""
        return [name for name, known in declared(type(self)).items() if getattr(self, name) != known.default]

    def values(self) -> dict[str, Any]:
        """As JSON has them."""
        found = {name: getattr(self, name) for name in declared(type(self))}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


class PoolOptions(Options):
    """The options of a pool: also what others may ask about the place where the run is."""

    @property
    def most_per_node(self) -> int | None:
        """How many slots of the run may be on one node; None: as many as there is room for."""
        return None

    def keeps(self, path: str) -> bool:
        """Whether this file is there already, where the run is, and outlives its processes."""
        return True

    def result(self, spec: Spec, folder: str, final: str | None) -> dict[str, Any] | None:
        """Where the result of the run lies, and what it takes to reach it there; None where it is on this machine, or
        nowhere. `folder` is the run's own, `final` a model that it has made; without one its checkpoints count."""
        return None

    def placed(self, path: str) -> str:
        """Where a file goes that the user names by `path`: as the processes see it."""
        return path


class Owned(NamedTuple):
    """A section, and whose it is: of what is chosen by giving `name` for the option `field`. `why` its options make no
    sense without it, as in "it is for clusters"."""

    field: str
    name: str
    section: type[Options]
    why: str


def declared(section: type[Options]) -> Mapping[str, Declared]:
    """The options of a section by name."""
    hashable: Any = section
    return _declared(hashable)


@cache
def _declared(section: Any) -> Mapping[str, Declared]:
    fields = (field for field in dataclasses.fields(section) if "option" in field.metadata)
    return {field.name: field.metadata["option"]._replace(name=field.name) for field in fields}
