"""`report(step=3, loss=0.12)`: metrics from inside a script, as one line of JSON on standard output.

Ranks import this very file as `pumasi` where Pumasi is not installed, so it needs nothing but Python 3.8.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["report"]


def report(
    metrics: Mapping[str, object] | None = None, /, *, step: object = None, epoch: object = None, **more: object
) -> None:
    """Tells Pumasi, and whoever reads the log, the value of some metrics.

        report(step=100, loss=loss, accuracy=0.97)
        report({"train/loss": 0.31, "lr": 1e-3}, epoch=2)

    `step` and `epoch` are whole numbers that say when; everything else is a metric. A value may be a Python number or a
    scalar of NumPy, PyTorch, JAX or TensorFlow; if it is something else, TypeError says which.
    """
    if not (metrics is None or isinstance(metrics, Mapping)):
        raise TypeError(f"report() takes a dict of metrics or keywords such as loss=0.1, not {_show(metrics)}")
    values = {**(metrics or {}), **more}
    step_in_dict, epoch_in_dict = values.pop("step", None), values.pop("epoch", None)
    # The step is written even when there is none: it marks the line as a report, all of whose numbers are metrics.
    record = {"step": _whole("step", step_in_dict if step is None else step)}
    if epoch is not None or epoch_in_dict is not None:
        record["epoch"] = _whole("epoch", epoch_in_dict if epoch is None else epoch)
    record.update((name, _number(name, value)) for name, value in values.items())
    # One write, so that the lines of several threads do not get mixed.
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _whole(name: str, value: object) -> float | None:
    if value is None:
        return None
    number = _number(name, value)
    if number != number // 1:
        raise TypeError(f"report(): {name} must be a whole number, not {_show(value)}")
    return int(number)


def _number(name: object, value: Any) -> float:
    """`value` as an int or a float of Python's own: arrays and tensors of one element have `item()` or `__float__`."""
    if not isinstance(name, str):
        raise TypeError(f"report(): the name of a metric must be a string, not {_show(name)}")
    is_single = all(length == 1 for length in getattr(value, "shape", ()))
    if is_single and not isinstance(value, (str, bytes, bytearray)):
        plain = value.item() if callable(getattr(value, "item", None)) else value
        try:
            number = float(plain)
        except (TypeError, ValueError, OverflowError):
            pass
        else:
            return int(plain) if isinstance(plain, int) else number
    raise TypeError(f"report(): {name} must be a single number, not {_show(value)}")


def _show(value: object) -> str:
    return f"{value!r:.60} ({type(value).__name__})"
