"""What a task costs the manager: a flow of tasks that do nothing, in a pool without processes.

Goals: the time per task at 20,000 is at most 1.2 times that at 200, and memory grows by less than 1 KB per task;
without a record of it, and with the store on disk.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Cost(NamedTuple):
    """`seconds` are of the processor, which others may use too; `memory` is the most that the process has had."""

    seconds: float
    wall: float
    events: int
    memory: int


def run(count: int, kind: type[Store], home: Path) -> Cost:
    store = kind.open(home)
    spec = Spec(command=("nothing",), strategy="many", slots=SLOTS, env={"COUNT": str(count)})
    record = store.create_run("nothing", spec.dump(), time.time())
    program = Program(command=("nothing",), framework="none", because="", files={})

    async def steer() -> int:
        pool = MemoryPool(SLOTS, World(counts=False))
        manager = Counted(record.id, str(home), spec, program, pool, Recorder(store, record.id, Unwatched()))
        assert (await manager.run()).verdict is Verdict.DONE
        return manager.heard

    used, begun = time.process_time(), time.perf_counter()
    heard = asyncio.run(steer())
    store.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(time.process_time() - used, time.perf_counter() - begun, heard, peak)


def child(count: int, store: str) -> Cost:
    """In a process of its own, so that none pays for another."""
    words = [sys.executable, __file__, str(count), store]
    out = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds, wall, events, memory = map(float, out.stdout.split())
    return Cost(seconds, wall, int(events), int(memory))


def mean(tries: Sequence[Cost]) -> Cost:
    """Of about as many tasks for each size: a machine that others use is as slow for all of them."""
    seconds, wall, events, memory = (sum(column) / len(tries) for column in zip(*tries, strict=True))
    return Cost(seconds, wall, int(events), int(memory))


def compare(store: str) -> bool:
    costs = {}
    for count in SIZES:
        cost = costs[count] = mean([child(count, store) for _ in range(max(1, 10_000 // count))])
        print(
            f"{store}: {count:6,} tasks: {1e3 * cost.seconds / count:.3f} ms a task, "
            f"{cost.events / cost.seconds:,.0f} events a second of the processor "
            f"({cost.events / cost.wall:,.0f} by the clock), {cost.memory / 1e6:.1f} MB",
            flush=True,
        )
    small, *_, large = SIZES
    ratio = costs[large].seconds / large / (costs[small].seconds / small)
    growth = (costs[large].memory - costs[small].memory) / (large - small)
    print(f"{store}: time per task, {large:,} to {small}: {ratio:.2f} (goal {SLOWER}); {growth:.0f} bytes a task more")
    return ratio <= SLOWER and growth < GROWTH


def main() -> int:
    registry._FLOWS["many"] = f"{__name__}:FLOW"
    if len(sys.argv) == 3:
        with tempfile.TemporaryDirectory() as home:
            print(*run(int(sys.argv[1]), Store if sys.argv[2] == "disk" else Forgetful, Path(home)))
        return 0
    return 0 if all([compare("nowhere"), compare("disk")]) else 1


if __name__ == "__main__":
    sys.exit(main())
