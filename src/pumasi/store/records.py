"""What the store keeps, as plain values, and how a run's record becomes a row and comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pumasi.core.events import Event


class RunRecord(NamedTuple):
    """`pid` is the manager's; `attempt` counts from 0; `outcome` and `exit_code` are there once the run has ended.
    `user` started it from `host`; it is `started_here` if that was with this store, else it is a copy."""

    id: str
    state: str
    spec: dict[str, object]
    created: float
    started: float | None
    ended: float | None
    attempt: int
    pid: int | None
    placement: dict[str, int]
    framework: str
    ranks: int
    outcome: dict[str, object] | None
    exit_code: int | None
    detached: bool
    user: str
    host: str
    started_here: bool

    def copied(self) -> dict[str, object]:
        return {name: value for name, value in self._asdict().items() if name in COPIED}

    @property
    def is_remote(self) -> bool:
        """Whether it lives in a cluster."""
        return str(self.spec.get("on", "local")).startswith("k8s")


COPIED = frozenset(RunRecord._fields) - {"id", "spec", "pid", "started_here"}
"""What the copies of a record have in common, wherever they are kept."""


class EventRow(NamedTuple):
    seq: int
    at: float
    event: Event


class MetricRow(NamedTuple):
    """`seq` is given by the store."""

    at: float
    attempt: int
    rank: int
    step: int | None
    epoch: int | None
    name: str
    value: float
    seq: int = 0


RUN_COLUMNS = ", ".join(RunRecord._fields)
NEW_RUN: dict[str, object] = {
    "state": "queued",
    "attempt": 0,
    "placement": {},
    "framework": "",
    "ranks": 0,
    "detached": False,
    "user": "",
    "host": "",
    "started_here": True,
}
_JSON = frozenset(("spec", "placement", "outcome"))


def pack_run(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields of a record as SQLite keeps them."""
    unknown = fields.keys() - set(RunRecord._fields)
    if unknown:
        raise TypeError(f"a run has no {', '.join(sorted(unknown))}")
    return {name: json.dumps(value) if name in _JSON and value is not None else value for name, value in fields.items()}


def unpack_run(row: tuple[Any, ...]) -> RunRecord:
    run = RunRecord._make(row)
    outcome = row[RunRecord._fields.index("outcome")]
    return run._replace(
        spec=json.loads(row[RunRecord._fields.index("spec")]),
        placement=json.loads(row[RunRecord._fields.index("placement")]),
        outcome=None if outcome is None else json.loads(outcome),
        detached=bool(run.detached),
        started_here=bool(run.started_here),
    )


def unpack_metric(row: tuple[Any, ...]) -> MetricRow:
    metric = MetricRow._make(row)
    return metric._replace(value=unpack_value(metric.value))


def unpack_value(stored: float | None) -> float:
    """SQLite writes a NaN as NULL, and reads it back as None."""
    return float("nan") if stored is None else stored


def storable(row: MetricRow) -> MetricRow:
    """The row without what SQLite can't hold: scripts print numbers beyond 64 bits and broken characters too."""
    return row._replace(
        step=_within_64_bits(row.step),
        epoch=_within_64_bits(row.epoch),
        name=row.name.encode("utf-8", "replace").decode(),
        value=float(row.value),
    )


def _within_64_bits(number: int | None) -> int | None:
    return number if number is not None and -(2**63) <= number < 2**63 else None
