"""What may be asked of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pumasi.core.fields import many, optional
from pumasi.core.options import PROCESSES, Contradiction, PoolOptions, option
from pumasi.core.spec import SHARE, Spec


def _to_nodes(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, (int, float)) else value


@dataclass(frozen=True)
class LocalOptions(PoolOptions):
    nodes: tuple[int, ...] | None = option(
        optional(many(SHARE, _to_nodes)),
        "pretend that this machine is several nodes: 5,1 (for tests)",
        example="5,1",
        default=None,
        value="N,N",
        group=PROCESSES,
        schema=lambda: {
            "type": ["array", "string", "integer", "null"],
            "items": {"type": "integer", "minimum": 1},
        },
    )

    def contradictions(self, spec: Spec) -> Iterator[Contradiction]:
        if self.nodes is None:
            return
        if spec.place != self:
            yield Contradiction("nodes", "it pretends nodes on this machine", "on")
        if sum(self.nodes) < spec.slots:
            right = f"give nodes with {spec.slots} in all, or fewer slots"
            yield Contradiction("nodes", f"the nodes have {sum(self.nodes)} slots in all", "slots", right)
