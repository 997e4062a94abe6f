"""Which metrics come first where they are shown."""

from __future__ import annotations

NOTED_FIRST = ("loss", "val_loss", "accuracy", "acc", "val_accuracy", "val_acc")


def importance(metric: str) -> tuple[int, str]:
    return (NOTED_FIRST.index(metric) if metric in NOTED_FIRST else len(NOTED_FIRST), metric)
