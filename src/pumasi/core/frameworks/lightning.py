"""Lightning's traps: it wants to be told how many processes there are, and says nothing when it is not.

Without a strategy and with one device, each process trains a model of its own. With a strategy, devices × num_nodes
must be the number of processes, which no gang with unequal shares can satisfy unless each slot is shown as a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pumasi.core.fields import switch
from pumasi.core.frameworks.base import Layout
from pumasi.core.frameworks.script import UNKNOWN, Call, Script
from pumasi.core.options import Contradiction, Options, option

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_STARTERS = frozenset(
    (
        "lightning.Trainer",
        "lightning.pytorch.Trainer",
        "lightning.pytorch.trainer.Trainer",
        "pytorch_lightning.Trainer",
        "pytorch_lightning.trainer.Trainer",
        "lightning.Fabric",
        "lightning.fabric.Fabric",
        "lightning_fabric.Fabric",
    )
)


@dataclass(frozen=True)
class LightningOptions(Options):
    for_gangs: ClassVar[bool] = True

    slot_as_node: bool = option(
        switch(), "show each slot as a node of its own (Lightning)", example=True, default=False
    )

    def contradictions(self, spec: Spec) -> Iterator[Contradiction]:
        if self.slot_as_node and spec.per_node:
            yield Contradiction("slot_as_node", "it takes one process a slot", "per_node")


def lightning_traps(script: Script, layout: Layout) -> Iterator[str]:
    for call in script.calls:
        if call.name in _STARTERS and not (call.positional or call.is_open):
            yield from _traps_of(call, layout)
            return


def _traps_of(call: Call, layout: Layout) -> Iterator[str]:
    where = f"{call.file}, line {call.line}: {call.name.rpartition('.')[2]}"
    asked = _processes_asked_for(call, layout)
    if call.keywords.get("strategy", "auto") == "auto" and asked == 1 and not layout.per_node:
        yield (
            f"{where} without a strategy trains alone, so {layout.slots} copies will train apart: "
            f'give it strategy="ddp", {_fitting(layout)}.'
        )
    elif layout.is_unequal and not layout.options(LightningOptions).slot_as_node:
        yield (
            f"{where} wants the same number of processes on every node: "
            f"use --slot-as-node without --per-node, and give it devices=1, num_nodes={layout.slots}."
        )
    elif asked not in (None, layout.slots) and not layout.per_node:
        yield (
            f"{where} wants devices × num_nodes = {asked}, but there will be {layout.slots} processes: "
            f"give it {_fitting(layout)}."
        )


def _fitting(layout: Layout) -> str:
    if layout.options(LightningOptions).slot_as_node:
        return f"devices=1, num_nodes={layout.slots}"
    if layout.is_unequal:
        return f"devices=1, num_nodes={layout.slots}, and use --slot-as-node"
    nodes = max(1, len(layout.shares))
    return f"devices={layout.slots // nodes}, num_nodes={nodes}"


def _processes_asked_for(call: Call, layout: Layout) -> int | None:
    """None where it can't be read from the call, or where the number of devices is not a matter of GPUs and CPUs."""
    if call.keywords.get("accelerator", "auto") not in ("auto", "cpu", "gpu", "cuda", "mps"):
        return None
    devices = _count(call.keywords.get("devices", "auto"), automatic=max(1, _visible(call, layout)))
    nodes = _count(call.keywords.get("num_nodes", 1), automatic=1)
    return devices * nodes if devices and nodes else None


def _visible(call: Call, layout: Layout) -> int:
    return 0 if call.keywords.get("accelerator") == "cpu" else layout.gpus_seen


def _count(value: object, automatic: int) -> int | None:
    if value is UNKNOWN or isinstance(value, bool):
        return None
    if value in ("auto", "-1", -1):
        return automatic
    if isinstance(value, tuple):
        return len(value)
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and value > 0 else None
