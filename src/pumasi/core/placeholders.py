"""{shard}, {model} and the like in a command, filled with what they stand for in one task."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from pumasi.core.fields import closest
from pumasi.errors import SpecError

_PLACEHOLDER = re.compile(r"\{\{\s*([A-Z][A-Z_]*)\s*\}\}|\{([a-z][a-z_]*)\}")
OTHER_NAMES = {"INCREMENTAL_NUMBER": "index", "EPOCH": "epoch", "BATCH": "batch", "WORKER_NUMBER": "slots"}
"""How others have written them: {{INCREMENTAL_NUMBER}}."""


def names_in(words: Sequence[str]) -> set[str]:
    return {_name(match) for word in words for match in _PLACEHOLDER.finditer(word)}


def check(words: Sequence[str], known: Collection[str], hints: Mapping[str, str] = {}) -> None:
    """SpecError for one that stands for nothing; `hints` say what to do about one that could stand for something."""
    for match in (match for word in words for match in _PLACEHOLDER.finditer(word) if _name(match) not in known):
        name = _name(match)
        near = closest(name, sorted(known))
        hint = f"There are {', '.join(f'{{{each}}}' for each in sorted(known))}."
        if name in hints:
            hint = hints[name]
        elif near:
            hint = f"Did you mean {{{near}}}?"
        raise SpecError(f"{match[0]} in the command stands for nothing.", hint)


def fill(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """What has no value stays as it is: a command may have braces of its own."""
    return tuple(_PLACEHOLDER.sub(lambda match: values.get(_name(match), match[0]), word) for word in words)


def _name(match: re.Match[str]) -> str:
    return OTHER_NAMES.get(match[1], match[1]) if match[1] else match[2]
