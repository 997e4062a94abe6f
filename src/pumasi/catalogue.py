"""All that can be asked for: the options of every run, and those of the registered pools, flows and frameworks.

The built-in ones are always known. Those of an installed package are, as soon as the run chooses it, or when an option
is met that nobody else has: an ordinary command does not pay for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from pumasi.core import reading
from pumasi.core.options import Declared, Options, Owned, declared
from pumasi.core.spec import NO_FRAMEWORK, SHORTHANDS, Spec
from pumasi.errors import UsageError
from pumasi.registry import FLOWS, FRAMEWORKS, POOLS, Registry

REGISTRIES: Mapping[str, Registry] = {"on": POOLS, "strategy": FLOWS, "framework": FRAMEWORKS}
"""By the option that chooses one of them."""


@cache
def built_in() -> tuple[Owned, ...]:
    """The sections of what is built in."""
    entries = ((field, entry) for field, registry in REGISTRIES.items() for entry in registry.built_in())
    return _distinct(_owned(entries))


class Catalogue:
    """The options of these sections and of every run."""

    def __init__(self, owned: Sequence[Owned]) -> None:
        self.owned = owned
        self.options = reading.options_of(owned)
        self.all = {**self.options, **SHORTHANDS}
        self._by_flag = {known.flag[2:].replace("-", "_"): name for name, known in self.all.items()}
        self._by_file = {known.written: name for name, known in self.all.items()}

    def of_flag(self, word: str) -> str:
        """The field that a flag, or an argument in Python, stands for: some are known by two names."""
        name = word.replace("-", "_")
        return self._by_flag.get(name, name)

    def of_file(self, word: str) -> str:
        """The field that is written so in a file."""
        return self._by_file.get(word, word)

    def knows(self, word: str) -> bool:
        return self.of_flag(word) in self.all or word in self._by_file


def catalogue_for(choices: Mapping[str, object], words: Iterable[str] = ()) -> Catalogue:
    """What a run with these choices may be asked for: besides what is built in, the options of what it chooses. Where
    one of `words` is in none of them, all that is installed."""
    chosen = [(field, str(choices[field]).partition(":")[0]) for field in REGISTRIES if field in choices]
    others = [(field, name) for field, name in chosen if name not in (*REGISTRIES[field].names, *NO_FRAMEWORK)]
    entries = [(field, REGISTRIES[field].get(name)) for field, name in others if REGISTRIES[field].has(name)]
    found = _built_in() if not entries else Catalogue(_distinct([*built_in(), *_owned(entries)]))
    return found if all(map(found.knows, words)) else everything_installed()


@cache
def _built_in() -> Catalogue:
    return Catalogue(built_in())


@cache
def everything_installed() -> Catalogue:
    """All that is built in, and all that is installed and fits: what does not is refused as soon as it is chosen. Slow:
    all of it is imported."""
    found = built_in()
    for field, registry in REGISTRIES.items():
        for name in registry.installed():
            with contextlib.suppress(UsageError):
                found = _distinct([*found, *_owned([(field, registry.get(name))])])
    return Catalogue(found)


def parse_spec(data: Mapping[str, object], places: Mapping[str, str] = {}, found: Sequence[str] = ()) -> Spec:
    """The spec in `data`, or a SpecError with every mistake: see `core.reading.parse`."""
    return reading.parse(data, catalogue_for(data, data).owned, places, found)


def recorded_spec(data: Mapping[str, object]) -> Spec:
    """The spec in a record, perhaps of another version: see `core.reading.parse_recorded`."""
    return reading.parse_recorded(data, catalogue_for(data).owned)


def make_spec(**values: Any) -> Spec:
    """A spec of values that need no reading, with the defaults of all else."""
    return reading.spec_of(values, catalogue_for(values).owned)


def defaults(choices: Mapping[str, object] = {}) -> dict[str, Any]:
    """The options that have one, as a spec with these choices dumps them."""
    return {**reading.spec_of({"command": ()}, catalogue_for(choices).owned).dump(), "command": None}


def json_schema() -> dict[str, object]:
    return reading.json_schema(built_in())


def _owned(entries: Iterable[tuple[str, Any]]) -> Iterator[Owned]:
    for field, entry in entries:
        if entry.options is not None:
            kind = getattr(entry, "kind", "") or f"--{field} {entry.name}"
            yield Owned(field, entry.name, entry.options, entry.options.belongs or f"it is for {kind}")


def _distinct(owned: Iterable[Owned]) -> tuple[Owned, ...]:
    """Raises UsageError where two have an option of the same name, in a file or on the command line."""
    taken = {word: "every run" for known in _all(Spec, SHORTHANDS) for word in _words(known)}
    found = tuple(dict.fromkeys(owned))
    for field, name, section, _ in found:
        whose = f"the {REGISTRIES[field].kind} {name}"
        for word, flag in ((word, known.flag) for known in _all(section) for word in _words(known)):
            if word in taken:
                raise UsageError(
                    f"The option {flag} of {whose} has a name that an option of {taken[word]} has already.",
                    f"Uninstall the package with {whose}, or rename the option there.",
                )
            taken[word] = whose
    return found


def _all(section: type[Options], more: Mapping[str, Declared] = {}) -> list[Declared]:
    return [*declared(section).values(), *more.values()]


def _words(known: Declared) -> set[str]:
    """All that it is written as; flags and names of fields are taken alike, from Python."""
    return {known.name, known.written, known.flag[2:].replace("-", "_"), *([f"-{known.short}"] if known.short else [])}


if __name__ == "__main__":
    import json
    import sys

    sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
