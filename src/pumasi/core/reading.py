"""What was written, wherever that was, to a spec; and every mistake in it as a sentence.

Flags, environment variables and files all end here, so each sentence names the place where the user wrote the thing
(`places`), what was wrong, and what would be right, written the way that place wants it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from pumasi.core.fields import ITS_OWN, Mistake, Wrong, closest, printable, read
from pumasi.core.options import Contradiction, Declared, Options, Owned, declared, those_of
from pumasi.core.spec import SHORTHANDS, Spec
from pumasi.errors import SpecError


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
    sections = {each.section: each.section(**those_of(each.section, values)) for each in owned}
    return Spec(**those_of(Spec, values), sections=sections)


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
