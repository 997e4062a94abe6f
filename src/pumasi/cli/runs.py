"""The runs that a verb is about, and what several verbs say of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pumasi.store import RunRecord, Store, default_home

if TYPE_CHECKING:
    from pumasi.cli.parsing import Arguments


def open_store() -> Store:
    return Store.open(default_home(os.environ))


def find_run(store: Store, arguments: Arguments) -> RunRecord:
    """The run that was named, or the last one, as it is now: a manager that died meanwhile is noticed."""
    from pumasi.control import find

    return find(store, arguments.rest[0] if arguments.rest else None)


def find_runs(store: Store, arguments: Arguments) -> list[RunRecord]:
    """All the runs that were named, each once; they are all looked for before anything is done to one."""
    from pumasi.control import find

    names: list[str | None] = [*arguments.rest] or [None]
    return list({record.id: record for record in (find(store, name) for name in names)}.values())


def command_of(record: RunRecord) -> str:
    command: Any = record.spec.get("command") or ()
    return shlex.join(str(word) for word in command)


def size_of(spec: Mapping[str, Any]) -> int:
    """How many ranks the run will have, as far as its spec tells."""
    nodes = spec.get("nodes")
    trainers = (len(nodes) if nodes else 1) if spec.get("per_node") else spec.get("slots", 1)
    return int(trainers + spec.get("ps", 0) + bool(spec.get("evaluator")))


def time_taken(record: RunRecord) -> float:
    """From the first start of its processes, if there was one."""
    began = record.started or record.created
    return (record.ended or began) - began
