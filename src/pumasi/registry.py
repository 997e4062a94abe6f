"""Every pool, flow and framework by its name: one line each.

The built-in ones are imported when they are asked for. Others come from installed packages, by the entry points
`pumasi.pools`, `pumasi.flows` and `pumasi.frameworks`. These are looked up only for a name that is not built in: an
ordinary command does not pay for it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from pumasi.errors import UsageError

_POOLS = {
    "local": "pumasi.pools.local:POOL",
    "k8s": "pumasi.pools.kubernetes:POOL",
}
DEFAULT_POOL = "local"
VERBS = {
    "render": "pumasi.pools.kubernetes.verbs.render",
    "setup": "pumasi.pools.kubernetes.verbs.setup",
}
"""Verbs that a pool adds to those of `pumasi.cli.verbs`."""
EXAMPLES = (("pumasi run --on k8s --gpus 6 train.py", "six GPUs, wherever a cluster has them free"),)
"""What pools add to the overview of `pumasi --help`, which imports none of them."""
_FLOWS = {
    "together": "pumasi.core.flows.together:FLOW",
    "average": "pumasi.core.flows.average:FLOW",
}
_FRAMEWORKS = {
    "horovod": "pumasi.core.frameworks.horovod:HOROVOD",
    "mpi": "pumasi.core.frameworks.mpi:MPI",
    "torch": "pumasi.core.frameworks.torch:TORCH",
    "tensorflow": "pumasi.core.frameworks.tensorflow:TENSORFLOW",
    "jax": "pumasi.core.frameworks.jax:JAX",
}
"""In the order in which they win when a script trains with several."""


class Registry:
    """`kind` is what one entry is called in a sentence; `group` is the name of the entry points."""

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind = kind
        self._group = group
        self._built_in = built_in

    @property
    def names(self) -> tuple[str, ...]:
        """The built-in ones."""
        return tuple(self._built_in)

    def get(self, name: str) -> Any:
        """The entry of that name. Raises UsageError where there is none, or where it can't be imported."""
        if name in self._built_in:
            module, _, attribute = self._built_in[name].partition(":")
            return getattr(import_module(module), attribute)
        points = self._installed()
        if name not in points:
            known = ", ".join((*self._built_in, *points))
            raise UsageError(f"There is no {self.kind} {name}.", f"Known are {known}.")
        try:
            return points[name].load()
        except Exception as error:
            where = f"{points[name].value} of the entry point {self._group}"
            raise UsageError(f"The {self.kind} {name} can't be loaded: {error}.", f"It is {where}.") from error

    def has(self, name: str) -> bool:
        """Whether there is an entry of that name; slow where it is not built in."""
        return name in self._built_in or name in self._installed()

    def built_in(self) -> list[Any]:
        """All built-in entries, imported."""
        return [self.get(name) for name in self._built_in]

    def synonyms(self) -> dict[str, str]:
        """Other words for the built-in entries, and the names of these."""
        return {word: name for name in self._built_in for word in self.get(name).synonyms}

    def installed(self) -> tuple[str, ...]:
        """The names that installed packages add. Slow: reads the metadata of all packages."""
        return tuple(self._installed())

    def _installed(self) -> dict[str, Any]:
        if not _are_any_installed():
            return {}
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self._group) if point.name not in self._built_in}


@cache
def _are_any_installed() -> bool:
    """Whether some package names our entry points. To import what reads them properly takes ten times as long."""
    from pathlib import Path

    points = (path for folder in sys.path for path in Path(folder).glob("*-info/entry_points.txt"))
    return any(b"[pumasi." in path.read_bytes() for path in points)


POOLS = Registry("pool", "pumasi.pools", _POOLS)
FLOWS = Registry("flow", "pumasi.flows", _FLOWS)
FRAMEWORKS = Registry("framework", "pumasi.frameworks", _FRAMEWORKS)
