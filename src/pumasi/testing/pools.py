"""The conformance suite of pools: whoever writes one subclasses `PoolContract` and gives it a way to open a pool.

    class TestMyPool(PoolContract):
        @pytest.fixture
        def bench(self, tmp_path): return PoolBench(lambda adopt: open_my_runner(...), str(tmp_path))

The suite starts real gangs of plain Python programs. What it asks for is what the manager relies on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pumasi.catalogue import make_spec
from pumasi.core.flows import MAIN
from pumasi.core.frames import Frame, parse_frames
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.planning import plan
from pumasi.core.ranks import chief_first
from pumasi.pools.base import Order, Runner

SECONDS = 60.0


class Witness:
    """A sink that remembers everything."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.seen: list[tuple[str, Any]] = []
        self.over = asyncio.Event()
        self.changed = asyncio.Event()

    def frames(self, order: Order, chunk: bytes) -> None:
        self._note(order, "frames", parse_frames(chunk))

    def said(self, order: Order, words: Mapping[str, Any]) -> None:
        self._note(order, str(words["event"]), words)

    def ended(self, order: Order, facts: Mapping[str, Any]) -> None:
        self._note(order, "ended", facts)
        self.over.set()

    def refused(self, order: Order, reason: str, hopeless: bool, hint: str) -> None:
        self._note(order, "refused", (reason, hopeless, hint))
        self.over.set()

    def _note(self, order: Order, kind: str, what: Any) -> None:
        self.seen.append((kind if order is self.order else f"{kind} of another order", what))
        self.changed.set()

    def all(self, kind: str) -> list[Any]:
        return [what for seen, what in self.seen if seen == kind]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.seen]

    def output(self) -> list[Frame]:
        return [frame for frames in self.all("frames") for frame in frames]

    def of_rank(self, rank: int) -> list[Frame]:
        return [frame for frame in self.output() if frame.rank == rank]

    def text(self, rank: int) -> str:
        return b"".join(f.text + f.end for f in self.of_rank(rank)).decode()

    def has_said(self, word: bytes) -> set[int]:
        """The ranks that have."""
        return {frame.rank for frame in self.output() if frame.text == word}

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
    """Starts gangs of small programs in a pool. `opened` opens it, inside the loop that will use it; with True, so that
    it can adopt what an earlier one has let go of. `folder` is where the ranks may find the run's folder, `python` the
    interpreter that they have."""

    pool: Runner

    def __init__(
        self,
        opened: Callable[[bool], AbstractAsyncContextManager[Runner]],
        folder: str,
        python: str = sys.executable,
        most_per_node: int | None = None,
        run: str = "contract-aaaaa",
    ) -> None:
        self._opened = opened
        self.run = run
        self.folder = folder
        self.python = python
        self.most_per_node = most_per_node
        self.attempts = 0
        self.told: list[str] = []
        self.stops: list[bool] = []
        self.failures: list[BaseException] = []
        self.witnesses: list[Witness] = []

    @asynccontextmanager
    async def open(self, *, adopt: bool = False) -> AsyncIterator[Runner]:
        """And whatever it was used for: the end of an order was the last that was heard of it, and nothing failed
        behind the scenes."""
        async with self._opened(adopt) as pool:
            self.pool = pool
            pool.tell, pool.fail = self.told.append, self.failures.append
            pool.stop = lambda force, by: self.stops.append(force)
            yield pool
            await pool.close()
        for witness in self.witnesses:
            ends = [kind for kind in witness.kinds() if kind in ("ended", "refused")]
            assert len(ends) < 2, witness.kinds()
            assert not ends or witness.kinds()[-1] == ends[0], witness.kinds()
            assert not [kind for kind in witness.kinds() if "another" in kind]
        assert self.failures == []

    async def order(self, code: str, slots: int, placement: Mapping[str, int] | None = None, **fields: Any) -> Order:
        spec = make_spec(command=("train.py",), workdir=self.folder, slots=slots, **fields)
        if placement is None:
            placement = plan(await self.pool.nodes(), slots, most_per_node=self.most_per_node).placement
        gpus = await self.pool.reserve(MAIN, placement)
        assert gpus is not None
        program = Program((self.python, "-c", code), "none", "", {})
        details = Attempt(
            run=self.run,
            number=self.attempts,
            placement=placement,
            gpus=gpus,
            secret="s" * 32,
            nonce=f"{id(self):x}",
            folder=self.folder,
            addresses=self.pool.addresses(chief_first(placement)),
        )
        gang = gang_of(spec, program, details)
        self.attempts += 1
        return Order("main", details.number, gang.table.nodes, agent_configs(spec, program, details, gang))

    async def start(self, code: str, slots: int, **fields: Any) -> Witness:
        order = await self.order(code, slots, **fields)
        witness = self.witness(order)
        await self.pool.launch(order, witness)
        return witness

    def witness(self, order: Order) -> Witness:
        self.witnesses.append(Witness(order))
        return self.witnesses[-1]

    def end(self, grace: float) -> None:
        self.pool.end("main", self.attempts - 1, grace)


HELLO = "import os, sys; print('rank', os.environ['PUMASI_RANK']); print('grumble', file=sys.stderr)"
SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
COUNT = "import time\nfor number in range(10**6): print(number, flush=True); time.sleep(0.1)"


class PoolContract:
    """Subclasses give `bench` as a fixture: a `PoolBench` whose pool has room for three slots or more. `outlives`: its
    gangs go on when a manager lets go of them, and another may adopt them."""

    slots = 3
    outlives = False

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    # ---- where there is room

    def test_no_node_has_more_free_than_it_has_in_all(self, bench: PoolBench) -> None:
        async def work() -> None:
            async with bench.open() as pool:
                free = {node.name: node.free for node in await pool.nodes()}
                total = {node.name: node.free for node in pool.capacity()}
                assert free.keys() <= total.keys()
                assert all(free[name] <= total[name] for name in free)
                assert sum(free.values()) >= self.slots

        self.run(work())

    def test_every_node_of_a_plan_has_an_address_though_it_may_be_learned_later(self, bench: PoolBench) -> None:
        async def work() -> None:
            async with bench.open() as pool:
                names = [node.name for node in await pool.nodes()]
                assert len(pool.addresses(names)) == len(names)

        self.run(work())

    # ---- gangs

    def test_every_rank_runs_once_and_all_its_output_arrives(self, bench: PoolBench) -> None:
        witness, facts = self.run(self._run(bench, HELLO))
        assert facts["cause"] == "done"
        for rank in range(self.slots):
            frames = witness.of_rank(rank)
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
        assert witness.kinds()[-1] == "ended"
        assert len(witness.all("ended")) == 1

    def test_output_comes_before_the_news_of_the_ranks_end(self, bench: PoolBench) -> None:
        witness, _ = self.run(self._run(bench, "[print(i) for i in range(5000)]"))
        told: dict[int, int] = {}
        for kind, what in witness.seen:
            if kind == "frames":
                for frame in what:
                    assert frame.rank not in told
            elif kind == "exit":
                told[what["rank"]] = what["code"]
        for rank in range(self.slots):
            assert witness.text(rank) == "".join(f"{i}\n" for i in range(5000))
            assert [frame.seq for frame in witness.of_rank(rank)] == list(range(1, 5001))

    def test_bytes_arrive_as_they_were_written(self, bench: PoolBench) -> None:
        code = "import sys; sys.stdout.buffer.write(b'a\\x00\\xff\\nb\\rc' + b'x' * 9000 + b'\\n\\n' + 'ü€'.encode())"
        witness, _ = self.run(self._run(bench, code))
        for rank in range(self.slots):
            parts = [frame.text + frame.end for frame in witness.of_rank(rank)]
            assert b"".join(parts) == b"a\x00\xff\nb\rc" + b"x" * 9000 + b"\n\n" + "ü€".encode()

    def test_one_failure_ends_all_and_is_named(self, bench: PoolBench) -> None:
        code = "import os, sys, time; os.environ['PUMASI_RANK'] == '1' and sys.exit('no more'); time.sleep(600)"
        witness, facts = self.run(self._run(bench, code, grace=5.0))
        assert (facts["cause"], facts["rank"], facts["code"]) == ("exit", 1, 1)
        assert facts["tail"] == ["no more"]
        kinds = witness.kinds()
        assert kinds.count("ending") == 1
        assert kinds.index("ending") < kinds.index("ended")

    def test_a_program_that_cannot_be_started_is_told(self, bench: PoolBench) -> None:
        bench.python = "/no/such/python"
        _, facts = self.run(self._run(bench, ""))
        assert facts["cause"] == "unstartable"
        assert "/no/such/python" in facts["error"]

    # ---- ends

    def test_a_stop_ends_the_gang_within_its_grace(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, SLEEP, 30.0))
        assert facts["cause"] == "stopped"

    def test_a_deaf_gang_is_ended_by_force_after_its_grace(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, DEAF, 0.5))
        assert facts["cause"] == "stopped"

    def test_a_kill_does_not_wait(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, DEAF, 0))
        assert facts["cause"] == "stopped"

    def test_a_kill_overtakes_a_stop_that_is_patient(self, bench: PoolBench) -> None:
        facts = self.run(self._stop(bench, DEAF, 500.0, 0))
        assert facts["cause"] == "stopped"

    def test_a_gang_that_is_stopped_before_it_runs_ends_all_the_same(self, bench: PoolBench) -> None:
        async def work() -> Mapping[str, Any]:
            async with bench.open():
                witness = await bench.start(SLEEP, self.slots)
                bench.end(1.0)
                return await witness.end()

        assert self.run(work())["cause"] == "stopped"

    def test_the_end_of_a_gang_that_has_ended_or_never_was_is_no_trouble(self, bench: PoolBench) -> None:
        async def work() -> None:
            async with bench.open() as pool:
                witness = await bench.start(HELLO, self.slots)
                await witness.end()
                bench.end(1.0)
                pool.end("main", 99, 1.0)
                pool.end("other", 0, 0)

        self.run(work())

    def test_closing_the_pool_ends_what_runs(self, bench: PoolBench) -> None:
        async def work() -> Witness:
            async with bench.open() as pool:
                witness = await bench.start(DEAF, self.slots)
                await witness.until(lambda: bool(witness.all("running")))
                await pool.close()
                await witness.end()
                return witness

        assert len(self.run(work()).all("ended")) == 1

    def test_a_second_gang_can_follow_the_first(self, bench: PoolBench) -> None:
        async def work() -> Sequence[str]:
            async with bench.open():
                causes = []
                for _ in range(2):
                    witness = await bench.start(HELLO, self.slots)
                    causes.append((await witness.end())["cause"])
                return causes

        assert self.run(work()) == ["done", "done"]

    # ---- letting go

    def test_what_is_let_go_of_goes_on_or_has_ended(self, bench: PoolBench) -> None:
        async def work() -> None:
            async with bench.open() as pool:
                witness = await bench.start(SLEEP, self.slots)
                await witness.until(lambda: len(witness.has_said(b"ready")) == self.slots)
                await pool.let_go()
                if not self.outlives:
                    await witness.end()
            assert witness.over.is_set() is not self.outlives

        self.run(work())

    def test_another_manager_goes_on_where_the_first_has_stopped_to_listen(self, bench: PoolBench) -> None:
        if not self.outlives:
            return

        async def work() -> None:
            async with bench.open() as pool:
                first = await bench.start(COUNT, self.slots)
                await first.until(lambda: len(first.has_said(b"5")) == self.slots)
                await pool.let_go()
            heard = {rank: first.of_rank(rank)[-1].seq for rank in range(self.slots)}
            async with bench.open(adopt=True) as pool:
                second = bench.witness(first.order)
                pool.adopt(first.order, second, heard)
                await second.until(lambda: all(len(second.of_rank(rank)) > 5 for rank in range(self.slots)))
                bench.end(1.0)
                assert (await second.end())["cause"] == "stopped"
            for rank in range(self.slots):
                seen = [frame.text for witness in (first, second) for frame in witness.of_rank(rank)]
                assert seen[:10] == [b"%d" % number for number in range(10)]
                assert seen == [b"%d" % number for number in range(len(seen))]

        self.run(work())

    # ---- how they are made

    async def _run(self, bench: PoolBench, code: str, **fields: Any) -> tuple[Witness, Mapping[str, Any]]:
        async with bench.open():
            witness = await bench.start(code, self.slots, **fields)
            return witness, await witness.end()

    async def _stop(self, bench: PoolBench, code: str, *graces: float) -> Mapping[str, Any]:
        async with bench.open():
            witness = await bench.start(code, self.slots)
            await witness.until(lambda: len(witness.has_said(b"ready")) == self.slots)
            for grace in graces:
                bench.end(grace)
            return await witness.end()
