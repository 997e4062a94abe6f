"""Objects as text for `kubectl apply -f`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

# What kubectl's YAML takes for a number or a truth value, and Python's does not: such texts need quotes.
_FOREIGN = re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+|[-+]?0[oO][0-7_]+|[yYnN])$")


class _Dumper(yaml.SafeDumper):
    """No anchors: they save little, and puzzle readers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FOREIGN, list("-+.0123456789yYnN"))


def to_yaml(objects: Iterable[Mapping[str, Any]], remarks: Sequence[str] = ()) -> str:
    """A document each; the remarks stand before the first."""
    head = "".join(f"# {line}".rstrip() + "\n" for line in remarks)
    documents = (yaml.dump(dict(thing), Dumper=_Dumper, sort_keys=False, allow_unicode=True) for thing in objects)
    return head + "---\n" * bool(head) + "---\n".join(documents)


def to_list(objects: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One object, which kubectl takes as well."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
