"""What a user may ask of every run. What only some have is in sections: see `options`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, TypeVar

from pumasi.core.command import target_of
from pumasi.core.fields import (
    Mistake,
    Wrong,
    choice,
    group,
    limit,
    many,
    open_choice,
    optional,
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
    PoolOptions,
    declared,
    option,
    those_of,
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
NO_FRAMEWORK = ("auto", "none")
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
    return (*NO_FRAMEWORK, *sorted(FRAMEWORKS.names))


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
            lambda name: name in NO_FRAMEWORK or FRAMEWORKS.has(name),
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
        return replace(self, sections=sections, **those_of(type(self), values))

    def contradictions(self, spec: Spec) -> Iterable[Contradiction]:
        if self.see_gpus != "auto" and self.gpu == "none":
            yield Contradiction("see_gpus", "it takes GPUs", "gpu")

    def dump(self) -> dict[str, Any]:
        """As JSON has it, flat."""
        return {name: value for holder in (self, *self.sections.values()) for name, value in holder.values().items()}


def _changed(held: Options, values: Mapping[str, Any]) -> Options:
    return replace(held, **those_of(type(held), values))


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


def run_name(spec: Spec) -> str:
    """What the run's id starts with: the given name, else that of the script, the module or the program."""
    return spec.name or _label(PurePath(target_of(spec.command) or spec.command[0]).stem) or "run"


def _label(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].rstrip("-")
