"""What a task costs the manager: a flow of tasks that do nothing, in a pool without processes.

Goals: the time per task at 20,000 is at most 1.2 times that at 200, and memory grows by less than 1 KB per task;
without a record of it, and with the store on disk.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumasi import registry
from pumasi.core.flows import Flow, FlowType, Task
from pumasi.core.launch import Program
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.spec import Spec
from pumasi.runs.manager import Manager
from pumasi.runs.recorder import Recorder, Unwatched
from pumasi.store import Store
from pumasi.testing.memory import MemoryPool, World

SIZES = (200, 2_000, 20_000)
SLOTS = 8
SLOWER, GROWTH = 1.2, 1024.0


class Many(Flow):
    title = "tasks that do nothing"

    def __init__(self, count: int) -> None:
        self._count, self._given, self._ended = count, 0, 0

    def next(self) -> Task | None:
        if self._given == self._count:
            return None
        self._given += 1
        return Task(f"task-{self._given}", slots=1)

    def ended(self, name: str, outcome: Outcome) -> None:
        assert outcome.verdict is Verdict.DONE
        self._ended += 1

    def outcome(self) -> Outcome | None:
        return Outcome(Verdict.DONE) if self._ended == self._count else None


class ManyType(FlowType):
    name, summary = "many", "tasks that do nothing"

    def open(self, spec: Spec, folder: str) -> Flow:
        return Many(int(spec.env["COUNT"]))


FLOW = ManyType()


class Forgetful(Store):
    """Writes nothing down."""

    def add_event(self, *_: Any) -> None: ...

    def update_run(self, run_id: str, **_: object) -> None: ...

    def add_to_journal(self, *_: Any) -> None: ...


class Counted(Manager):
    """Counts what it hears."""

    heard = 0

    def _step(self, state: Any, event: Any) -> Any:
        self.heard += 1
        return super()._step(state, event)


def run(count: int, kind: type[Store], home: Path) -> tuple[float, int]:
    """Seconds, and events."""
    store = kind.open(home)
    spec = Spec(command=("nothing",), strategy="many", slots=SLOTS, env={"COUNT": str(count)})
    record = store.create_run("nothing", spec.dump(), time.time())
    program = Program(command=("nothing",), framework="none", because="", files={})

    async def steer() -> int:
        pool = MemoryPool(SLOTS, World(counts=False))
        manager = Counted(record.id, str(home), spec, program, pool, Recorder(store, record.id, Unwatched()))
        assert (await manager.run()).verdict is Verdict.DONE
        return manager.heard

    begun = time.perf_counter()
    heard = asyncio.run(steer())
    store.close()
    return time.perf_counter() - begun, heard


def measure(count: int, kind: type[Store], *, memory: bool) -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as home:
        if memory:
            gc.collect()
            tracemalloc.start()
            run(count, kind, Path(home))
            return {"bytes": tracemalloc.get_traced_memory()[1]}
        seconds, heard = run(count, kind, Path(home))
        return {"seconds": seconds, "events": heard}


def child(count: int, store: str, what: str) -> dict[str, float]:
    """In a process of its own, so that none pays for another."""
    words = [sys.executable, __file__, str(count), store, what]
    out = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    return {name: float(value) for name, value in (line.split() for line in out.stdout.splitlines())}


def compare(store: str) -> bool:
    per_task, peaks = {}, {}
    for count in SIZES:
        timed = min((child(count, store, "time") for _ in range(5 if count < 2_000 else 2)), key=lambda t: t["seconds"])
        peaks[count] = child(count, store, "memory")["bytes"]
        per_task[count] = timed["seconds"] / count
        pace = timed["events"] / timed["seconds"]
        print(
            f"{store}: {count:6,} tasks: {1e3 * per_task[count]:.3f} ms a task, {pace:,.0f} events a second, "
            f"peak of memory {peaks[count] / 1e6:.2f} MB"
        )
    small, _, large = SIZES
    ratio, growth = per_task[large] / per_task[small], (peaks[large] - peaks[small]) / (large - small)
    print(f"{store}: time per task, {large:,} to {small}: {ratio:.2f} (goal {SLOWER}); {growth:.0f} bytes a task more")
    return ratio <= SLOWER and growth < GROWTH


def main() -> int:
    registry._FLOWS["many"] = f"{__name__}:FLOW"
    if len(sys.argv) == 4:
        kind = Store if sys.argv[2] == "disk" else Forgetful
        for name, value in measure(int(sys.argv[1]), kind, memory=sys.argv[3] == "memory").items():
            print(name, value)
        return 0
    return 0 if all([compare("nowhere"), compare("disk")]) else 1


if __name__ == "__main__":
    sys.exit(main())
