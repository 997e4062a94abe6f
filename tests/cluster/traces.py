"""All that a cluster could leave behind on this machine. What others do meanwhile, on clusters of theirs, is not looked
at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from tests.harness import wait_for
from tools.cluster.cgroups import hierarchies
from tools.common import CLUSTERS


@dataclass(frozen=True)
class Traces:
    name: str
    processes: frozenset[str]
    mounts: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    loops: frozenset[str]
    files: frozenset[str]

    @classmethod
    def seen(cls, name: str) -> Traces:
        """Of the clusters whose name begins like that, and of those that nobody can name."""
        return cls(
            name=name,
            processes=frozenset(_processes(name)),
            mounts=frozenset(filter(_is_of(name), Path("/proc/self/mounts").read_text().splitlines())),
            links=frozenset(path.name for path in Path("/sys/class/net").glob("pumasi-*")) - _links_of_others(name),
            groups=frozenset(str(path) for root in hierarchies() for path in root.glob(f"pumasi-{name}*")),
            loops=frozenset(_loops(name)),
            files=frozenset(map(str, _files(name))),
        )

    def must_be_all(self) -> None:
        """The kernel reaps processes and frees loop devices in a moment of its own."""

        def left() -> dict[str, list[str]]:
            now = Traces.seen(self.name)
            news = {kind.name: getattr(now, kind.name) - getattr(self, kind.name) for kind in fields(self)[1:]}
            return {name: sorted(values) for name, values in news.items() if values}

        try:
            wait_for(lambda: not left(), "all traces to go", 30)
        except AssertionError:
            assert left() == {}


def _is_of(name: str) -> Callable[[str], bool]:
    return lambda text: f"{CLUSTERS}/{name}" in text or "/run/pumasi/" in text


def _loops(name: str) -> Iterator[str]:
    """The file behind one may be named as its own machine sees it: then it can be anybody's."""
    alone = all(folder.name.startswith(name) for folder in CLUSTERS.glob("*"))
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            text = path.read_text()
            if f"{CLUSTERS}/{name}" in text or (alone and "pumasi" in text):
                yield path.parts[3]


def _links_of_others(name: str) -> set[str]:
    """A link has the number of its cluster, not its name."""
    numbers = set()
    for file in CLUSTERS.glob("*/index"):
        with suppress(OSError):
            if not file.parent.name.startswith(name):
                numbers.add(f"pumasi-{file.read_text().strip()}")
    return numbers


def _files(name: str) -> Iterator[Path]:
    yield from CLUSTERS.glob(f"{name}*")
    yield from Path("/tmp").glob("hostpath_pv")
    yield from (Path.home() / ".kube" / "cache" / "discovery").glob("10.88.*")


def _processes(name: str) -> Iterator[str]:
    """Those whose command line is one of a cluster's, or that see a cluster's folder as theirs."""
    folder = re.compile(rf"{CLUSTERS}/([^/\s\0]+)")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mountinfo").read_text(errors="replace")
            words = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        owners = folder.findall(mounts + words)
        is_anothers = owners and not any(owner.startswith(name) for owner in owners)
        if not is_anothers and ("/run/pumasi/" in mounts or "/run/pumasi/" in words):
            yield f"{process.name} {words}"
