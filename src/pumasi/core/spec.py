"""What a user may ask for, and every mistake in it as a sentence.

Flags, environment variables and files all end here, so each sentence names the place where the user wrote the thing
(`places`), what was wrong, and what would be right, written the way that place wants it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, replace
from pathlib import PurePath
from typing import Any, TypeVar

from pumasi.core.command import target_of
from pumasi.core.fields import (
    ITS_OWN,
    Mistake,
    Wrong,
    choice,
    closest,
    group,
    limit,
    many,
    open_choice,
    optional,
    printable,
    read,
    seconds,
    show,
    switch,
    text,
    whole,
    words,
)
from pumasi.core.options import (
    LIFE,
    OUTPUT,
    PROCESSES,
    Contradiction,
    Declared,
    Options,
    Owned,
    PoolOptions,
    declared,
    option,
)
from pumasi.errors import SpecError
from pumasi.registry import FLOWS, FRAMEWORKS, POOLS

MOST_SLOTS = 4096
LONGEST_NAME = 40
NONE = "none"
"""Takes back what a file has set."""
YEAR = 365 * 86400.0
SHARE = whole(1, MOST_SLOTS)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NO_FRAMEWORK = ("auto", "none")
_OTHER_GPU = {"yes": "required", "true": "required", "no": "none", "false": "none"}
_OF_EACH_RANK = frozenset(f"PUMASI_{name}" for name in ("RUN", "RANK", "WORLD_SIZE", "ATTEMPT", "NODE", "GANG"))
T = TypeVar("T", bound=Options)


def _check_name(name: str) -> None:
    if len(name) > LONGEST_NAME or not _LABEL.fullmatch(name):
        right = f"give at most {LONGEST_NAME} lower-case letters, digits and dashes"
        raise Wrong(Mistake(f"{show(name)} can't name a run", right, _label(name) or "train"))


def check_variable(name: str) -> None:
    if not name or "=" in name:
        raise SpecError(f"{show(name)} can't name a variable", 'give a name without "=", and a value')
    if name in _OF_EACH_RANK:
        raise SpecError(f"{name} is what Pumasi tells each process", "give the variable another name")


def _check_file(name: str) -> None:
    if not name.strip():
        raise SpecError(f"{show(name)} can't name a file", "give its name")


def _is_pool(word: str) -> bool:
    """NAME, or NAME:ARGUMENT where the pool takes one."""
    name, colon, argument = word.partition(":")
    return POOLS.has(name) and (not colon or bool(argument and POOLS.get(name).argument))


def _pool_words() -> list[str]:
    pools = [POOLS.get(name) for name in (*POOLS.names, *POOLS.installed())]
    return [word for pool in pools for word in (pool.name, f"{pool.name}:{pool.argument}")[: 1 + bool(pool.argument)]]


def _pool_pattern() -> dict[str, object]:
    names = (f"{pool.name}(:.+)?" if pool.argument else pool.name for pool in POOLS.built_in())
    return {"type": "string", "pattern": f"^({'|'.join(names)})$"}


def _pool_help() -> str:
    first, *others = POOLS.built_in()
    words = [f"{pool.name}, or {pool.name}:{pool.argument} {pool.argument_help}" for pool in others]
    return f"where to run: {first.name} (default), {', '.join(words)}"


def _flow_help() -> str:
    first, *others = FLOWS.built_in()
    rest = "".join(f"; {flow.name}: {flow.summary}" for flow in others)
    return f"{first.name} (default): {first.summary}{rest}"


def _frameworks() -> tuple[str, ...]:
    return (*_NO_FRAMEWORK, *sorted(FRAMEWORKS.names))


def _framework_help() -> str:
    first, *others, last = _frameworks()
    return f"{first} (default), {', '.join(others)} or {last}"


@dataclass(frozen=True)
class Spec(Options):
    """What Pumasi should run, and how."""

    command: tuple[str, ...] = option(
        words(), "the program with its arguments", example="train.py --epochs 3", variable=False, is_flag=False
    )
    slots: int = option(SHARE, "so many processes", example=4, default=1, value="N", group=PROCESSES, default_text="1")
    gpu: str = option(
        choice("auto", "required", "none", synonyms=_OTHER_GPU),
        "a GPU a slot: if there is one, always, never",
        example="none",
        default="auto",
        is_flag=False,
    )
    per_node: bool = option(
        switch(),
        "one process a node, for launchers that start their own (torchrun, …)",
        example=True,
        default=False,
        group=PROCESSES,
    )
    on: str = option(
        open_choice(_is_pool, _pool_words, POOLS.synonyms),
        _pool_help,
        example=POOLS.names[-1],
        default=POOLS.names[0],
        value="POOL",
        choices=lambda: POOLS.names,
        group=PROCESSES,
        schema=_pool_pattern,
    )
    strategy: str = option(
        open_choice(FLOWS.has, lambda: (*FLOWS.names, *FLOWS.installed()), FLOWS.synonyms),
        _flow_help,
        example=FLOWS.names[-1],
        default=FLOWS.names[0],
        value="NAME",
        choices=lambda: FLOWS.names,
        group=PROCESSES,
        schema=lambda: {"type": "string", "enum": list(FLOWS.names)},
    )
    framework: str = option(
        open_choice(
            lambda name: name in _NO_FRAMEWORK or FRAMEWORKS.has(name),
            lambda: (*_frameworks(), *FRAMEWORKS.installed()),
            FRAMEWORKS.synonyms,
        ),
        _framework_help,
        example="torch",
        default="auto",
        value="NAME",
        choices=_frameworks,
        description="what the ranks are wired for; auto looks at a script's imports, or at a program's libraries",
        schema=lambda: {"type": "string", "enum": list(_frameworks())},
    )
    python: str | None = option(
        optional(text()),
        "the Python to run scripts with; on a cluster one of the image",
        example=".venv/bin/python",
        default=None,
        value="PATH",
    )
    requirements: str | None = option(
        optional(text(_check_file), NONE),
        "install these packages first: a requirements.txt, pyproject.toml or uv.lock",
        example="requirements.txt",
        default=None,
        value="FILE",
    )
    setup: tuple[tuple[str, ...], ...] = option(
        many(words()),
        'run this on each node first, after the packages: "python prepare.py", \'sh -c "…"\'',
        example="prepare.py",
        default=(),
        value="COMMAND",
        variable=True,
    )
    env: dict[str, str] = option(
        group(text(check_variable), text()),
        "set a variable; NAME alone takes its value from here",
        example={"LR": "0.1"},
        default={},
        value="NAME=VALUE",
        description="environment variables for the program",
    )
    workdir: str = option(
        text(),
        "run in this folder; the script is looked up there",
        example="experiments",
        default=".",
        value="DIR",
        default_text="here",
        description="the folder to run in, seen from the file that names it; the script is looked up there",
    )
    see_gpus: str = option(
        choice("auto", "own", "all"),
        "what each process sees: auto, own or all",
        example="own",
        default="auto",
        value="WHICH",
        choices=lambda: ("auto", "own", "all"),
        description="which GPUs each process sees: its own, or all of its node",
    )
    shim: bool = option(
        switch(),
        "mend at start-up what no variable can mend (JAX, Keras 3, mpi4py)",
        example=False,
        default=True,
        off="change nothing in the program's Python",
    )
    restarts: int = option(
        whole(0, 1000),
        "start the gang again after a failure, so many times",
        example=3,
        default=0,
        value="N",
        group=LIFE,
        default_text="0",
    )
    timeout: float | None = option(
        optional(limit(YEAR), NONE),
        "stop after so long: 90, 15m, 2h30m",
        example="2h30m",
        default=None,
        value="TIME",
        group=LIFE,
    )
    start_timeout: float = option(
        seconds(1.0, YEAR),
        "how long starting may take",
        example="10m",
        default=600.0,
        value="TIME",
        group=LIFE,
        default_text="10m",
    )
    grace: float = option(
        seconds(0.0, YEAR),
        "from asking a process to end to killing it",
        example="15s",
        default=15.0,
        value="TIME",
        group=LIFE,
        default_text="15s",
    )
    silence: float = option(
        seconds(1.0, YEAR),
        "a node silent for so long is lost",
        example="30s",
        default=30.0,
        value="TIME",
        group=LIFE,
        default_text="30s",
    )
    wait: bool = option(
        switch(),
        "queue while what is needed is busy; if not, fail at once",
        example=False,
        default=True,
        group=LIFE,
        off="fail at once where what is needed is busy",
    )
    name: str | None = option(
        optional(text(_check_name)),
        "what the run's id starts with",
        example="imdb",
        default=None,
        value="NAME",
        group=OUTPUT,
        default_text="the script's name",
        schema=lambda: {"type": ["string", "null"], "pattern": f"^{_LABEL.pattern}$", "maxLength": LONGEST_NAME},
    )
    sections: Mapping[type[Options], Options] = field(default_factory=dict)
    """The options of pools, flows and frameworks. One that is not there has its defaults."""

    def __getitem__(self, kind: type[T]) -> T:
        found = self.sections.get(kind)
        return found if isinstance(found, kind) else kind()

    @property
    def pool(self) -> str:
        """The name of the pool: `on` without its argument."""
        return self.on.partition(":")[0]

    @property
    def context(self) -> str:
        """The argument of the pool; empty where there is none."""
        return self.on.partition(":")[2]

    @property
    def place(self) -> PoolOptions:
        """The options of the pool that the run is in."""
        kind = POOLS.get(self.pool).options
        return PoolOptions() if kind is None else self[kind]

    @property
    def at_once(self) -> int:
        """How many slots there have to be at the same time: those that train apart need not wait for each other."""
        return int(FLOWS.get(self.strategy).at_once(self))

    def value(self, name: str) -> Any:
        """Of the option of that name, whosever it is."""
        holders = (holder for holder in (self, *self.sections.values()) if name in declared(type(holder)))
        return getattr(next(holders), name)

    def changed(self, values: Mapping[str, Any]) -> Spec:
        """A copy with these values. Names that this run does not know are ignored."""
        sections = {kind: _changed(held, values) for kind, held in self.sections.items()}
        return replace(self, sections=sections, **_those_of(type(self), values))

    def contradictions(self, spec: Spec) -> Iterable[Contradiction]:
        if self.see_gpus != "auto" and self.gpu == "none":
            yield Contradiction("see_gpus", "it takes GPUs", "gpu")

    def dump(self) -> dict[str, Any]:
        """As JSON has it, flat."""
        return {name: value for holder in (self, *self.sections.values()) for name, value in holder.values().items()}


def _changed(held: Options, values: Mapping[str, Any]) -> Options:
    return replace(held, **_those_of(type(held), values))


def _those_of(section: type[Options], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in declared(section)}


SHORTHANDS: Mapping[str, Declared] = {
    "gpus": Declared(
        whole(0, MOST_SLOTS),
        "so many processes, each with a GPU; 0: without any",
        4,
        name="gpus",
        value="N",
        group=PROCESSES,
    ),
    "env_file": Declared(
        many(text()),
        "set the variables of this file, NAME=VALUE on each line; --env wins",
        ".env",
        name="env_file",
        value="FILE",
        variable=True,
    ),
}
"""Options that stand for others. Each layer of the configuration spells them out for itself."""


def parse(
    data: Mapping[str, object], owned: Sequence[Owned], places: Mapping[str, str] = {}, found: Sequence[str] = ()
) -> Spec:
    """The spec in `data`, or a SpecError with every mistake, one a line. `places` maps a field (or `env.NAME`) to where
    the user wrote it; `found` are the mistakes that the reader of a file has met already, told together with these."""
    known = options_of(owned)
    given = {"command": (), **data}
    values, mistakes = _read(given, known, places)
    mistakes = [*found, *mistakes]
    mistakes += [_unknown(name, places.get(name, name), known) for name in given if name not in known]
    # Also among the fields that are right while others are not: nobody likes to be told in instalments.
    spec = spec_of({"command": (), **values}, owned)
    mistakes += _contradictory(spec, owned, places)
    if not mistakes:
        return spec
    summary = [f"{len(mistakes)} mistakes:"] if len(mistakes) > 1 else []
    raise SpecError("\n".join(map(printable, summary + mistakes)), hint="`pumasi run --help` lists what can be given.")


def parse_recorded(data: Mapping[str, object], owned: Sequence[Owned]) -> Spec:
    """The spec in a record, perhaps of another version: what is not known is ignored. SpecError."""
    known = options_of(owned)
    values, mistakes = _read({name: value for name, value in data.items() if name in known}, known, {})
    if mistakes:
        raise SpecError("\n".join(map(printable, mistakes)))
    return spec_of({"command": (), **values}, owned)


def spec_of(values: Mapping[str, Any], owned: Sequence[Owned]) -> Spec:
    """A spec of values that have been read already."""
    sections = {each.section: each.section(**_those_of(each.section, values)) for each in owned}
    return Spec(**_those_of(Spec, values), sections=sections)


def options_of(owned: Iterable[Owned]) -> dict[str, Declared]:
    """Every option by name, without the shorthands."""
    sections: list[type[Options]] = [Spec, *(each.section for each in owned)]
    return {name: known for section in sections for name, known in declared(section).items()}


def _read(
    given: Mapping[str, object], known: Mapping[str, Declared], places: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for name in (name for name in known if name in given):
        value = read(known[name].kind, given[name])
        if isinstance(value, Wrong):
            mistakes += [_sentence(known[name], mistake, places) for mistake in value.mistakes]
        else:
            values[name] = value
    return values, mistakes


def _contradictory(spec: Spec, owned: Sequence[Owned], places: Mapping[str, str]) -> Iterator[str]:
    holders = (spec, *spec.sections.values())
    told = [each for holder in holders for each in holder.contradictions(spec)]
    for name, why, other, right in (*told, *_of_other_flows(spec, owned)):
        said = "on" if spec.value(other) is True else spec.value(other)
        yield f"{places.get(name, name)}: {why}, but {places.get(other, other)} is {said}; {right}"


def _of_other_flows(spec: Spec, owned: Sequence[Owned]) -> Iterator[Contradiction]:
    for each in owned:
        if each.field == "strategy" and each.name != spec.strategy:
            for name in spec[each.section].changed_names():
                yield Contradiction(name, each.why, "strategy", f"add --strategy {each.name}")


def _unknown(name: str, place: str, known: Mapping[str, Declared]) -> str:
    written = {each.written: each for each in (*known.values(), *SHORTHANDS.values())}
    meant = closest(name, [*written])
    return f"{place} is not known; " + (f"did you mean {_written(written[meant], place)}?" if meant else "leave it out")


def _sentence(known: Declared, mistake: Mistake, places: Mapping[str, str]) -> str:
    place = _place((known.name, *mistake.path), places)
    told = f"{place}: {mistake.wrong}; {mistake.right}"
    example = known.example if mistake.example is ITS_OWN else mistake.example
    return told if example is None else f"{told}, as in {_example(example, place)}"


def _place(path: Sequence[str], places: Mapping[str, str]) -> str:
    """The narrowest place that is known: of this variable, else of all of `env`, else the field's name."""
    known = (".".join(path[:length]) for length in range(len(path), 0, -1))
    return next((places[each] for each in known if each in places), path[0])


def _example(value: object, place: str) -> str:
    """A right value, written as one would write it in that place."""
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    if place.startswith("--"):
        return f"{place} {text.strip('{}').replace(': ', '=')}"
    if place.startswith("PUMASI_"):
        return f"{place}={text}"
    return f"{place.rpartition(': ')[2].partition('.')[0]}: {text}"


def _written(known: Declared, place: str) -> str:
    if place.startswith("--"):
        return known.flag
    return f"PUMASI_{known.written.upper()}" if place.startswith("PUMASI_") else known.written


def json_schema(owned: Sequence[Owned]) -> dict[str, object]:
    """For editors, of pumasi.yaml: `command` may be missing there, and names may be written with dashes."""
    known = {**options_of(owned), **SHORTHANDS}
    fields = {each.written: _described(each) for each in known.values()}
    dashed = {f"^{name.replace('_', '-')}$": {"$ref": f"#/properties/{name}"} for name in fields if "_" in name}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:pumasi:spec",
        "title": "pumasi.yaml",
        "description": Spec.__doc__,
        "type": "object",
        "properties": fields,
        "patternProperties": dashed,
        "additionalProperties": False,
    }


def _described(known: Declared) -> dict[str, object]:
    return known.schema if known.default is MISSING else {**known.schema, "default": known.default}


def run_name(spec: Spec) -> str:
    """What the run's id starts with: the given name, else that of the script, the module or the program."""
    return spec.name or _label(PurePath(target_of(spec.command) or spec.command[0]).stem) or "run"


def _label(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].rstrip("-")
