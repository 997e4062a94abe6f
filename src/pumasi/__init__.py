"""Pumasi trains machine-learning models on all the machines that you have.

    import pumasi

    run = pumasi.run("train.py", slots=4)
    run.wait()
    run.metrics("loss")

Names are loaded when they are used: `import pumasi` costs nothing in a training script that only reports.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.api import Run, run
    from pumasi.errors import PumasiError
    from pumasi.report import report

__version__ = "0.1.0"
__all__ = ["PumasiError", "Run", "report", "run"]
_HOMES = {"PumasiError": "errors", "Run": "api", "report": "report", "run": "api"}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pumasi' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"pumasi.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
