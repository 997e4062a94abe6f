"""Objects as text for `kubectl apply -f`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

# What kubectl's YAML takes for a number or a truth value, and Python's does not: such texts need quotes.
_FOREIGN = re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+|[-+]?0[oO][0-7_]+|[yYnN])$")

_LONG, _SHOWN = 4000, 60


class _Dumper(yaml.SafeDumper):
    """No anchors: they save little, and puzzle readers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FOREIGN, list("-+.0123456789yYnN"))


def to_yaml(objects: Iterable[Mapping[str, Any]], remarks: Sequence[str] = ()) -> str:
    """A document each; the remarks stand before the first."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in remarks)
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 120}
    documents = (yaml.dump(dict(thing), Dumper=_Dumper, **style) for thing in objects)
    return head + "---\n" * bool(head) + "---\n".join(documents)


def to_list(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One object, which kubectl takes as well."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def abridged(value: Any, longest: int = _LONG) -> Any:
    """For people: without what only programs can read, and without what a Secret holds."""
    if isinstance(value, Mapping):
        longest = _SHOWN if value.get("kind") == "Secret" else longest
        return {key: abridged(item, longest) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [abridged(item, longest) for item in value]
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:_SHOWN]}… ({len(value):,} characters)"
    return value
