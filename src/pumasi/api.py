"""Pumasi from Python: `pumasi.run("train.py", slots=4)`.

The run has a process of its own, so neither an event loop in the caller (a notebook has one) nor a busy interpreter
disturbs it. It ends with the caller, unless it is detached.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path

from pumasi.core.frames import OpenLines
from pumasi.runs import control
from pumasi.runs.config import build_spec, current_folder
from pumasi.store import MetricRow, RunRecord, Store, default_home


class Run:
    """A run, going on or ended. Everything is read from the store, so a `Run` can be made for any id."""

    def __init__(self, run_id: str | None = None) -> None:
        self._store = Store.open(default_home(os.environ))
        self.id = control.find(self._store, run_id).id
        self._manager: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.state}>"

    @property
    def record(self) -> RunRecord:
        return control.find(self._store, self.id)

    @property
    def state(self) -> str:
        return self.record.state

    @property
    def outcome(self) -> dict[str, object] | None:
        """How it ended: verdict, reason, hint, cause, rank, node, code, signal, tail, metrics. None while it runs."""
        return self.record.outcome

    def wait(self, timeout: float | None = None) -> str:
        """The state in which the run ended; TimeoutError when it has not within `timeout` seconds."""
        state = control.wait(self._store, self.id, timeout).state
        if self._manager is not None:
            self._manager.wait()
        return state

    def logs(self, *, rank: int | None = None, tail: int | None = None) -> str:
        self._catch_up()
        frames = OpenLines().closing([*self._store.read_log(self.id, ranks=() if rank is None else (rank,), tail=tail)])
        return b"".join(frame.text + frame.end for frame in frames).decode("utf-8", "replace")

    def metrics(self, name: str | None = None, *, rank: int | None = None) -> list[MetricRow]:
        """All that was measured, in order: rows with at, attempt, rank, step, epoch, name, value."""
        self._catch_up()
        return self._store.metrics(self.id, name=name, rank=rank)

    def _catch_up(self) -> None:
        """With the output of a run that is managed elsewhere."""
        control.catch_up(self._store, self._store.run(self.id))

    def stop(self, *, force: bool = False) -> str:
        control.stop(self._store, self.record, force=force, tell=lambda _: None)
        return self.state


def run(command: str | os.PathLike[str] | Sequence[str], *args: object, detach: bool = False, **options: object) -> Run:
    """Start a script or program and return at once. `options` are those of `pumasi run`: slots, restarts, env …

    Warns (UserWarning) of what the user should know before it runs, such as files that do not travel to a cluster.
    """
    from pumasi.runs import background

    spec = build_spec({**options, "command": _words(command, args)}, current_folder(), os.environ)
    store = Store.open(default_home(os.environ))
    if detach:
        return Run(background.detach(store, spec, warn=_warn).id)
    record, process = background.start(store, spec, _warn)
    started = Run(record.id)
    started._manager = process
    return started


def _warn(text: str) -> None:
    """At the line that called `run`."""
    warnings.warn(text, stacklevel=5)


def _words(command: str | os.PathLike[str] | Sequence[str], args: Sequence[object]) -> str | list[str]:
    """A text alone may hold arguments ("train.py --epochs 3"), unless it is the name of a file."""
    if isinstance(command, str) and not args and not Path(command).exists():
        return command
    words = [os.fspath(command)] if isinstance(command, (str, os.PathLike)) else list(command)
    return [*words, *(str(word) for word in args)]
