"""The conformance suite of pools: whoever writes one subclasses `PoolContract` and gives it a pool and a folder.

    class TestMyPool(PoolContract):
        @pytest.fixture
        def bench(self, tmp_path): return PoolBench(MyPool(...), tmp_path)

The suite starts real gangs of plain Python programs. What it asks for is what the manager relies on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pumasi.core.frames import Frame, parse_frames
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.planner import plan
from pumasi.core.ranks import chief_first
from pumasi.core.spec import Spec
from pumasi.pools.base import Order, Pool

SECONDS = 60.0


class Witness:
    """A sink that remembers everything."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.over = asyncio.Event()
        self.changed = asyncio.Event()

    def frames(self, order: Order, chunk: bytes) -> None:
        self._note("frames", parse_frames(chunk))

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        self._note(str(words["event"]), words)

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        self._note("ended", facts)
        self.over.set()

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        self._note("refused", reason)
        self.over.set()

    def _note(self, kind: str, what: Any) -> None:
        self.seen.append((kind, what))
        self.changed.set()

    def all(self, kind: str) -> list[Any]:
        return [what for seen, what in self.seen if seen == kind]

    def output(self) -> list[Frame]:
        return [frame for frames in self.all("frames") for frame in frames]

    def text(self, rank: int) -> str:
        return b"".join(f.text + f.end for f in self.output() if f.rank == rank).decode()

    async def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not condition():
                self.changed.clear()
                await self.changed.wait()

        await asyncio.wait_for(wait(), SECONDS)

    async def end(self) -> Mapping[str, Any]:
        await asyncio.wait_for(self.over.wait(), SECONDS)
        facts: Mapping[str, Any] = self.all("ended")[0]
        return facts


class PoolBench:
    """Starts gangs of small programs in a pool."""

    def __init__(self, pool: Pool, folder: Path, python: str = sys.executable) -> None:
        self.pool = pool
        self.folder = folder
        self.python = python
        self.attempts = 0

    async def start(self, code: str, slots: int, **fields: Any) -> Witness:
        spec = Spec(command=("train.py",), workdir=str(self.folder), slots=slots, **fields)
        placement = plan(await self.pool.nodes(), slots).placement
        gpus = await self.pool.reserve(placement)
        assert gpus is not None
        program = Program((self.python, "-c", code), "none", "", {})
        details = Attempt(
            run="contract-aaaaa",
            number=self.attempts,
            placement=placement,
            gpus=gpus,
            secret="s" * 32,
            nonce=f"{id(self):x}",
            folder=str(self.folder),
            addresses=self.pool.addresses(chief_first(placement)),
        )
        gang = gang_of(spec, program, details)
        order = Order("main", self.attempts, gang.table.nodes, agent_configs(spec, program, details, gang))
        self.attempts += 1
        witness = Witness()
        await self.pool.launch(order, witness)
        return witness

    def end(self, grace: float) -> None:
        self.pool.end("main", self.attempts - 1, grace)


HELLO = "import os, sys; print('rank', os.environ['PUMASI_RANK']); print('grumble', file=sys.stderr)"
SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


class PoolContract:
    """Subclasses give `bench` as a fixture: a `PoolBench` whose pool has room for three slots or more."""

    slots = 3

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    def test_every_rank_runs_once_and_all_its_output_arrives(self, bench: PoolBench) -> None:
        witness, facts = self.run(self._run(bench, HELLO))
        assert facts["cause"] == "done"
        for rank in range(self.slots):
            frames = [frame for frame in witness.output() if frame.rank == rank]
            assert sorted(frame.text.decode() for frame in frames) == ["grumble", f"rank {rank}"]
            assert [frame.text for frame in frames if frame.is_stderr] == [b"grumble"]
            assert [frame.seq for frame in frames] == [1, 2]

    def test_the_gang_is_said_to_run_once_when_all_ranks_do(self, bench: PoolBench) -> None:
        witness, _ = self.run(self._run(bench, HELLO))
        (running,) = witness.all("running")
        assert [rank["rank"] for rank in running["ranks"]] == list(range(self.slots))

    def test_every_rank_is_said_to_end_before_the_gang_has_ended(self, bench: PoolBench) -> None:
        witness, _ = self.run(self._run(bench, HELLO))
        assert sorted(words["rank"] for words in witness.all("exit")) == list(range(self.slots))
        assert [kind for kind, _ in witness.seen][-1] == "ended"
        assert len(witness.all("ended")) == 1

    def test_output_comes_before_the_news_of_the_ranks_end(self, bench: PoolBench) -> None:
        code = "import os; [print(i) for i in range(5000)]"
        witness, _ = self.run(self._run(bench, code))
        told: dict[int, int] = {}
        for kind, what in witness.seen:
            if kind == "frames":
                for frame in what:
                    assert frame.rank not in told
            elif kind == "exit":
                told[what["rank"]] = what["code"]
        assert witness.text(0) == "".join(f"{i}\n" for i in range(5000))

    def test_one_failure_ends_all_and_is_named(self, bench: PoolBench) -> None:
        code = "import os, sys, time; os.environ['PUMASI_RANK'] == '1' and sys.exit('no more'); time.sleep(600)"
        _, facts = self.run(self._run(bench, code, grace=5.0))
        assert (facts["cause"], facts["rank"], facts["code"]) == ("exit", 1, 1)
        assert facts["tail"] == ["no more"]

    def test_a_program_that_cannot_be_started_is_told(self, bench: PoolBench) -> None:
        bench.python = "/no/such/python"
        _, facts = self.run(self._run(bench, ""))
        assert facts["cause"] == "unstartable"
        assert "/no/such/python" in facts["error"]

    def test_a_stop_ends_the_gang_within_its_grace(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, SLEEP, 30.0))
        assert facts["cause"] == "stopped"

    def test_a_deaf_gang_is_ended_by_force_after_its_grace(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, DEAF, 0.5))
        assert facts["cause"] == "stopped"

    def test_a_kill_does_not_wait(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, DEAF, 0))
        assert facts["cause"] == "stopped"

    def test_the_end_of_a_gang_that_has_ended_or_never_was_is_no_trouble(self, bench: PoolBench) -> None:
        async def work() -> None:
            witness = await bench.start(HELLO, self.slots)
            await witness.end()
            bench.end(1.0)
            bench.pool.end("main", 99, 1.0)
            await bench.pool.close()
            assert len(witness.all("ended")) == 1

        self.run(work())

    def test_closing_the_pool_ends_what_runs(self, bench: PoolBench) -> None:
        async def work() -> Witness:
            witness = await bench.start(DEAF, self.slots)
            await witness.until(lambda: bool(witness.all("running")))
            await bench.pool.close()
            await witness.end()
            return witness

        assert len(self.run(work()).all("ended")) == 1

    def test_a_second_gang_can_follow_the_first(self, bench: PoolBench) -> None:
        async def work() -> Sequence[str]:
            causes = []
            for _ in range(2):
                witness = await bench.start(HELLO, self.slots)
                causes.append((await witness.end())["cause"])
            await bench.pool.close()
            return causes

        assert self.run(work()) == ["done", "done"]

    async def _run(self, bench: PoolBench, code: str, **fields: Any) -> tuple[Witness, Mapping[str, Any]]:
        witness = await bench.start(code, self.slots, **fields)
        facts = await witness.end()
        await bench.pool.close()
        return witness, facts

    async def _stop(self, bench: PoolBench, code: str, grace: float) -> Mapping[str, Any]:
        witness = await bench.start(code, self.slots)
        await witness.until(lambda: sum(f.text == b"ready" for f in witness.output()) == self.slots)
        bench.end(grace)
        facts = await witness.end()
        await bench.pool.close()
        return facts
