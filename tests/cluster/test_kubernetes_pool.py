"""A Kubernetes cluster keeps the contract of all pools, and what only a cluster can do."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from pumasi.catalogue import parse_spec
from pumasi.core.launch import Program
from pumasi.pools.base import Request, Runner
from pumasi.pools.kubernetes.beginning import open_runner
from pumasi.testing.pools import SLEEP, PoolBench, PoolContract
from tests.cluster.objects import SLEEPER, gpus, on, pod, python
from tests.cluster.subject import Kubernetes, Namespace


def make_bench(namespace: Namespace, folder: Path, *, most_per_node: int | None, **fields: object) -> PoolBench:
    spec = parse_spec(
        {"command": ["train.py"], "on": "k8s", "namespace": namespace.name, "slots": 3, "cpus": "10m", **fields}
    )
    program = Program(("python3", "train.py"), "none", "", {})
    run = f"contract-{secrets.token_hex(3)}"
    request = Request(run, spec, program, folder, {"state": "queued", "created": 0.0})

    def opened(adopt: bool) -> AbstractAsyncContextManager[Runner]:
        return open_runner(request, adopt=adopt)

    return PoolBench(opened, "/tmp/pumasi", "python3", most_per_node, run)


@pytest.fixture(autouse=True)
def _known(kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig))


class TestSeveralNodes(PoolContract):
    outlives = True

    @pytest.fixture
    def bench(self, shared_namespace: Namespace, tmp_path: Path) -> PoolBench:
        return make_bench(shared_namespace, tmp_path, most_per_node=2)


class TestOneNode(PoolContract):
    outlives = True

    @pytest.fixture
    def bench(self, shared_namespace: Namespace, tmp_path: Path) -> PoolBench:
        return make_bench(shared_namespace, tmp_path, most_per_node=None)


@pytest.mark.own
def test_what_the_scheduler_has_no_place_for_is_refused_as_a_whole_and_leaves_nothing(
    namespace: Namespace, tmp_path: Path
) -> None:
    """Somebody is faster between the plan and the pods."""
    bench = make_bench(namespace, tmp_path, most_per_node=None, gpu="required")

    async def work() -> None:
        async with bench.open():
            order = await bench.order(SLEEP, 6, placement={"node-0": 5, "node-1": 1})
            namespace.create(pod("faster", python(SLEEPER, resources=gpus(1)), **on("node-0")))
            namespace.wait_for_phase("faster", "Running")
            witness = bench.witness(order)
            await bench.pool.launch(order, witness)
            await asyncio.wait_for(witness.over.wait(), 60)
            assert witness.kinds() == ["refused"]
            ((reason, hopeless, _),) = witness.all("refused")
            assert "too little nvidia.com/gpu free" in reason
            assert not hopeless
            assert [each["metadata"]["name"] for each in namespace.get("pods")["items"]] == ["faster"]

    asyncio.run(work())


@pytest.mark.own
def test_what_the_api_does_not_take_is_refused_and_leaves_nothing(namespace: Namespace, tmp_path: Path) -> None:
    bench = make_bench(namespace, tmp_path, most_per_node=2)
    namespace.kubectl("create", "quota", "few", "--hard=pods=1")

    async def work() -> None:
        async with bench.open():
            witness = await bench.start(SLEEP, 3)
            await asyncio.wait_for(witness.over.wait(), 60)
            assert witness.kinds() == ["refused"]
            ((reason, _, _),) = witness.all("refused")
            assert "quota few" in reason
            assert namespace.get("pods")["items"] == []

    asyncio.run(work())
