"""The options of a run on the command line: made from their declarations."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from pumasi.catalogue import Catalogue, catalogue_for, everything_installed
from pumasi.cli.grammar import Option
from pumasi.cli.parsing import Arguments
from pumasi.core.options import LIFE, OUTPUT, PROCESSES, WIRING, Declared, declared
from pumasi.core.spec import SHORTHANDS, Spec
from pumasi.errors import UsageError

_BESIDE = {"gpus": "slots", "env_file": "env"}
"""Shorthands stand in the help after the option that they are short for."""


def as_option(known: Declared) -> Option:
    flag = f"--no-{known.flag[2:]}" if known.off else known.flag
    names = (f"-{known.short}", flag) if known.short else (flag,)
    return Option(names, known.help, "" if known.is_switch else known.value, known.choices(), known.group)


def options_of_runs() -> tuple[Option, ...]:
    """What is built in: what every run has, group by group, with the options of flows and pools in between."""
    catalogue = catalogue_for({})
    return tuple(
        as_option(known)
        for known in (
            *_common(PROCESSES),
            *_of_owners(catalogue, "strategy"),
            *_common(WIRING),
            *_common(LIFE),
            *_of_owners(catalogue, "on"),
            *_of_owners(catalogue, "framework"),
            *_common(OUTPUT),
        )
        if known.is_flag
    )


def options_of_installed() -> tuple[Option, ...]:
    """What installed packages add. Slow."""
    built_in = catalogue_for({}).options
    found = everything_installed().options
    return tuple(as_option(known) for name, known in found.items() if name not in built_in and known.is_flag)


def _common(group: str) -> Iterable[Declared]:
    for name, known in declared(Spec).items():
        if known.group == group:
            yield known
            yield from (SHORTHANDS[short] for short, beside in _BESIDE.items() if beside == name)


def _of_owners(catalogue: Catalogue, field: str) -> Iterable[Declared]:
    return (known for each in catalogue.owned if each.field == field for known in declared(each.section).values())


def flags_in(arguments: Arguments, own: Collection[str]) -> dict[str, object]:
    """The options of the run as `build_spec` takes them: as they were written. It names every mistake in them. `own`
    are the keys of options of the verb itself."""
    given = [key for key in arguments.values if key not in own]
    catalogue = catalogue_for({}, (key.removeprefix("no-") for key in given))
    known = {as_option(each).key: each for each in catalogue.all.values()}
    flags: dict[str, object] = {"command": arguments.rest}
    for key in given:
        option = known[key]
        if option.is_switch:
            flags[option.name] = not option.off
        else:
            flags[key] = _taken(option, arguments.all(key)) if option.is_repeated else arguments.last(key)
    return flags


def _taken(option: Declared, values: list[str]) -> list[str]:
    return [_with_value(pair) for pair in values] if option.name == "env" else values


def _with_value(pair: str) -> str:
    if "=" in pair:
        return pair
    if pair not in os.environ:
        raise UsageError(f"--env {pair} takes {pair} from the environment, but it is not set there.", f"--env {pair}=…")
    return f"{pair}={os.environ[pair]}"
