"""All that a cluster could leave behind on this machine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.harness import wait_for
from tools.cluster.cgroups import hierarchies
from tools.cluster.cluster import CLUSTERS

KINDS = ("pid", "mnt", "net", "uts")


@dataclass(frozen=True)
class Traces:
    namespaces: frozenset[str]
    mounts: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    loops: frozenset[str]
    files: frozenset[str]

    @classmethod
    def seen(cls) -> Traces:
        return cls(
            namespaces=frozenset(_namespaces()),
            mounts=frozenset(re.sub(r"^\S+ \S+ ", "", line) for line in Path("/proc/self/mountinfo").open()),
            links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            groups=frozenset(str(path) for root in hierarchies() for path in root.glob("pumasi-*")),
            loops=frozenset(path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")),
            files=frozenset(str(path) for path in [*CLUSTERS.glob("*"), *Path("/tmp").glob("hostpath*")]),
        )

    def must_be_all(self) -> None:
        """The kernel takes a moment to free namespaces; nothing else may."""
        wait_for(lambda: Traces.seen().namespaces <= self.namespaces, "the namespaces to go", 10)
        now = Traces.seen()
        for kind in ("mounts", "links", "groups", "loops", "files"):
            left = getattr(now, kind) - getattr(self, kind)
            assert not left, f"{kind} left behind: {sorted(left)}"


def _namespaces() -> Iterator[str]:
    """Of every process on this machine: whatever lives in one of a cluster's is seen here."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield from [str((process / "ns" / kind).readlink()) for kind in KINDS]
