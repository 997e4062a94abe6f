"""What lies beside a model and says how inputs become its numbers (docs/serve.md): it belongs to an average of such
models too, if it is the same for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pumasi.errors import UsageError

_SUFFIX = ".preprocessing.json"


def beside(model: Path) -> Path:
    return model.with_name(model.name + _SUFFIX)


def read(model: Path) -> bytes | None:
    path = beside(model)
    return path.read_bytes() if path.exists() else None


def shared(models: Sequence[Path]) -> tuple[bytes | None, list[str]]:
    """What all of the models were trained with, if they say so; and notes, if only some do."""
    said = {model: content for model in models if (content := read(model)) is not None}
    if not said:
        return None, []
    first = next(iter(said))
    for model, content in said.items():
        if content != said[first]:
            raise UsageError(
                f"{beside(first)} and {beside(model)} differ: these models were trained with different preprocessing.",
                "The same number means another word to each of them, so their average would mean nothing.",
            )
    missing = next((model for model in models if model not in said), None)
    if missing is not None:
        return None, [f"There is no {beside(missing)}, but {beside(first)}: the average gets none."]
    return said[first], []
