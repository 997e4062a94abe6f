"""All that clusters could leave behind on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tests.harness import wait_for
from tools.cluster.cgroups import hierarchies
from tools.common import CLUSTERS


@dataclass(frozen=True)
class Traces:
    processes: frozenset[str]
    mounts: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    loops: frozenset[str]
    files: frozenset[str]

    @classmethod
    def seen(cls) -> Traces:
        return cls(
            processes=frozenset(_processes()),
            mounts=frozenset(line for line in Path("/proc/self/mounts").read_text().splitlines() if "pumasi" in line),
            links=frozenset(path.name for path in Path("/sys/class/net").glob("pumasi-*")),
            groups=frozenset(str(path) for root in hierarchies() for path in root.glob("pumasi-*")),
            loops=frozenset(path.parts[3] for path in Path("/sys/block").glob("loop*/loop/backing_file")),
            files=frozenset(map(str, _files())),
        )

    def must_be_all(self) -> None:
        """The kernel reaps processes and frees loop devices in a moment of its own."""

        def left() -> dict[str, list[str]]:
            now = Traces.seen()
            news = {field.name: getattr(now, field.name) - getattr(self, field.name) for field in fields(self)}
            return {name: sorted(values) for name, values in news.items() if values}

        try:
            wait_for(lambda: not left(), "all traces to go", 5)
        except AssertionError:
            assert left() == {}


def _files() -> Iterator[Path]:
    yield from CLUSTERS.glob("*")
    yield from Path("/tmp").glob("hostpath_pv")
    yield from (Path.home() / ".kube" / "cache" / "discovery").glob("10.88.*")


def _processes() -> Iterator[str]:
    """Those whose command line is one of a cluster's, or that see a cluster's folder as theirs."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mountinfo").read_text(errors="replace")
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "/run/pumasi/" in mounts or "/run/pumasi/" in words:
            yield f"{process.name} {words}"
