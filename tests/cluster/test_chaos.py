"""Everything that can die dies, at a moment that nobody chose, again and again. Afterwards nothing is left that holds
anything, and what is told about the end is what happened.

The same seed breaks the same things at the same moments: PUMASI_CHAOS_SEED=7 make soak
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.breaking import cut_off, evict, kill_pod, killed, powered_off
from tests.cluster.subject import GPU, Kubernetes, Namespace
from tests.harness import Workplace, wait_for

SEED = int(os.environ.get("PUMASI_CHAOS_SEED", "1"))
ROUNDS = int(os.environ.get("PUMASI_CHAOS_ROUNDS", "12"))
STEPS = 30
SCRIPT = f"""
    import os, sys, time
    rank, failing = os.environ["PUMASI_RANK"], sys.argv[1]
    for step in range({STEPS}):
        print("step", step, flush=True)
        if rank == failing and step == 20:
            sys.exit(7)
        time.sleep(0.1)
"""
OPTIONS = ("--on", "k8s", "--gpus", "3", "--max-per-node", "1", "--silence", "3s", "--grace", "2s")
PATIENCE = ("--start-timeout", "30s")
"""A kubelet that dies at the wrong moment never starts the pod. What hangs at its start is told as lost."""
ENDS = {"done": 0, "failed": 1, "lost": 3, "stopped": 5}
pytestmark = [pytest.mark.own, pytest.mark.timeout(90 * ROUNDS)]


@dataclass
class Round:
    """One run, and what happens to it."""

    number: int
    kubernetes: Kubernetes
    namespace: Namespace
    here: Workplace
    there: Workplace
    dice: random.Random
    failing: str = ""
    detached: bool = False
    terminal: subprocess.Popen[str] | None = None
    id: str = ""
    may_end: set[str] = field(default_factory=set)
    may_hang: bool = False

    def start(self) -> None:
        self.failing = self.dice.choice(["none", "none", "1"])
        self.detached = self.dice.random() < 0.5
        words = [*OPTIONS, *PATIENCE, "--namespace", self.namespace.name, "train.py", self.failing]
        if self.detached:
            self.id = self.here.run("run", "-d", "-q", *words).stdout.strip()
        else:
            self.terminal = self.here.start("run", *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.id = wait_for(lambda: self._newest(), "the run's record")
        self.may_end = {"failed"} if self.failing == "1" else {"done"}

    def _newest(self) -> str:
        records = self.namespace.get("configmaps", "-l", "pumasi.dev/kind=record")["items"]
        return str(records[0]["metadata"]["name"]) if records else ""

    def pods(self, kind: str = "rank") -> list[dict[str, Any]]:
        selector = f"pumasi.dev/run={self.id},pumasi.dev/kind={kind}"
        found: list[dict[str, Any]] = self.namespace.get("pods", "-l", selector)["items"]
        return found

    def living_pod(self, kind: str = "rank") -> str | None:
        names = [pod["metadata"]["name"] for pod in self.pods(kind) if pod["status"].get("phase") == "Running"]
        return self.dice.choice(sorted(names)) if names else None

    def end(self) -> dict[str, Any]:
        """How it ended, as told to somebody who has never seen it before."""
        where = ("--on", "k8s", "--namespace", self.namespace.name)
        waited = self.there.run("wait", *where, self.id, "--json", "--timeout", "100s")
        assert waited.returncode != 4, f"{self.describe()}: it does not end: {waited.stderr}\n{self.evidence()}"
        told: dict[str, Any] = json.loads(waited.stdout)
        assert ENDS[told["verdict"]] == waited.returncode
        return told

    def evidence(self) -> str:
        """All that there is, for who has to find out why."""
        selector = f"pumasi.dev/run={self.id}"
        manager = f"{selector},pumasi.dev/kind=manager"
        events = self.namespace.kubectl("get", "events", "--sort-by=.lastTimestamp").splitlines()
        found = [
            self.namespace.kubectl("get", "pods", "-o", "wide", "-l", selector),
            *(line for line in events if self.id in line),
            self.namespace.kubectl("get", "configmap", self.id, "-o", "yaml"),
            self.namespace.kubectl("logs", "-l", manager, "--tail=-1", "--prefix"),
            *(file.read_text() for place in (self.here, self.there) for file in place.home.glob("runs/*/manager.err")),
        ]
        return "\n".join(found)

    def describe(self) -> str:
        kind = "detached" if self.detached else "attached"
        return f"round {self.number}, seed {SEED}: {self.id}, {kind}, failing rank: {self.failing}"


Breaker = Callable[[Round], AbstractContextManager[object]]


def nothing(_: Round) -> AbstractContextManager[object]:
    return nullcontext()


def kill_the_terminal(it: Round) -> AbstractContextManager[object]:
    """A healthy run goes on without it; whoever asks next adopts it."""
    if it.terminal is not None:
        it.terminal.kill()
    return nullcontext()


def kill_the_manager(it: Round) -> AbstractContextManager[object]:
    pod = it.living_pod("manager")
    if pod is None:
        return kill_the_terminal(it)
    kill_pod(it.namespace, pod)
    return nullcontext()


def kill_an_agent(it: Round) -> AbstractContextManager[object]:
    pod = it.living_pod()
    if pod is not None:
        kill_pod(it.namespace, pod)
        it.may_end |= {"lost"}
    return nullcontext()


def evict_a_pod(it: Round) -> AbstractContextManager[object]:
    pod = it.living_pod()
    if pod is not None:
        evict(it.namespace, pod)
    return nullcontext()


def delete_a_pod(it: Round) -> AbstractContextManager[object]:
    pod = it.living_pod()
    if pod is not None:
        it.namespace.kubectl("delete", "pod", pod, "--wait=false")
    return nullcontext()


def stop_it(it: Round) -> AbstractContextManager[object]:
    where = ("--on", "k8s", "--namespace", it.namespace.name)
    it.there.run("stop", *where, *it.dice.choice([(), ("--force",)]), it.id)
    it.may_end |= {"stopped"}
    return nullcontext()


def interrupt_the_terminal(it: Round) -> AbstractContextManager[object]:
    if it.terminal is None:
        return stop_it(it)
    it.terminal.send_signal(signal.SIGINT)
    it.may_end |= {"stopped"}
    return nullcontext()


@contextmanager
def for_a_while(broken: AbstractContextManager[object], seconds: float) -> Iterator[None]:
    with broken:
        wait_for(_after(seconds), "the time to pass", seconds + 5)
        yield


def _after(seconds: float) -> Callable[[], bool]:
    due = time.monotonic() + seconds
    return lambda: time.monotonic() >= due


def _some_node(it: Round) -> str:
    return it.dice.choice(sorted(it.kubernetes.open_nodes()))


def kill_the_api_server(it: Round) -> AbstractContextManager[object]:
    it.may_hang = True
    return for_a_while(killed(it.kubernetes, "control", "kube-apiserver"), it.dice.uniform(0.5, 6))


def kill_a_kubelet(it: Round) -> AbstractContextManager[object]:
    it.may_hang = True
    return for_a_while(killed(it.kubernetes, _some_node(it), "kubelet"), it.dice.uniform(0.5, 6))


def cut_off_a_node(it: Round) -> AbstractContextManager[object]:
    it.may_hang = True
    return for_a_while(cut_off(it.kubernetes, _some_node(it)), it.dice.uniform(1, 8))


def pull_the_plug(it: Round) -> AbstractContextManager[object]:
    it.may_hang = True
    return for_a_while(powered_off(it.kubernetes, _some_node(it)), it.dice.uniform(1, 10))


WAYS: tuple[Breaker, ...] = (
    nothing,
    kill_the_terminal,
    kill_the_manager,
    kill_an_agent,
    evict_a_pod,
    delete_a_pod,
    stop_it,
    interrupt_the_terminal,
    kill_the_api_server,
    kill_a_kubelet,
    cut_off_a_node,
    pull_the_plug,
)


def test_whatever_dies_nothing_is_leaked_and_what_is_told_is_true(
    kubernetes: Kubernetes, namespace: Namespace, tmp_path: Path
) -> None:
    dice = random.Random(SEED)
    here, there = _workplace(kubernetes, tmp_path / "here"), _workplace(kubernetes, tmp_path / "there")
    here.script(SCRIPT)
    here.run("setup", "--on", "k8s", "--namespace", namespace.name)
    seen: Counter[str] = Counter()
    try:
        for number in range(ROUNDS):
            way = WAYS[number % len(WAYS)]
            it = Round(number, kubernetes, namespace, here, there, random.Random(dice.random()))
            seen[_play(it, way)] += 1
    finally:
        for place in (here, there):
            place.clean_up()
        here.run("setup", "--on", "k8s", "--namespace", namespace.name, "--remove")
    assert seen["done"], "not everything died"


def _workplace(kubernetes: Kubernetes, folder: Path) -> Workplace:
    folder.mkdir()
    workplace = Workplace(folder)
    workplace.environ["KUBECONFIG"] = str(kubernetes.kubeconfig)
    return workplace


def _play(it: Round, way: Breaker) -> str:
    it.start()
    wait_for(_after(it.dice.uniform(0, 7)), "the moment", 10)
    with way(it):
        pass
    what = f"{it.describe()}, {way.__name__}"
    print(what, flush=True)
    told = it.end()
    what = f"{what}: {told}"
    print(what, flush=True)
    hung = it.may_hang and "was not whole" in told["reason"]
    assert told["verdict"] in it.may_end or hung, f"{what}\n{it.evidence()}"
    if told["verdict"] == "failed":
        assert (told["rank"], told["code"]) == (1, 7), what
    lived = it.terminal is not None and it.terminal.wait(timeout=60) >= 0
    if it.terminal is not None and lived:
        assert it.terminal.returncode == ENDS[told["verdict"]], what
    if told["verdict"] == "done":
        _check_output(it, it.here if lived else it.there, what)
    _check_nothing_held(it, what)
    it.there.run("delete", it.id)
    wait_for(lambda: not _objects(it), f"the last object to go; {what}")
    return str(told["verdict"])


def _check_output(it: Round, where: Workplace, what: str) -> None:
    """Each line of the last attempt once, in order: where the manager was, if it was here and lived; and else from the
    cluster."""
    printed = where.run("logs", it.id, "--json")
    frames = [json.loads(line) for line in printed.stdout.splitlines()]
    lines: dict[int, list[str]] = {}
    for frame in frames:
        lines.setdefault(frame["rank"], []).append(frame["text"])
    assert set(lines) == {0, 1, 2}, f"{what}\n{printed.stderr}\n{it.evidence()}"
    for rank, texts in lines.items():
        last = texts[len(texts) - texts[::-1].index("step 0") - 1 :]
        assert [int(re.findall(r"\d+", text)[0]) for text in last] == list(range(STEPS)), (what, rank, texts)


def _check_nothing_held(it: Round, what: str) -> None:
    def held() -> list[str]:
        nodes = json.loads(it.there.run("nodes", "--on", "k8s", "--json").stdout)
        return [holder["pod"] for node in nodes for holder in node["holders"]]

    wait_for(lambda: not held(), f"all {GPU} to be free; {what}", 90)
    wait_for(lambda: not _living(it), f"its last container to end; {what}", 60)
    record = next(each for each in _objects(it) if each["metadata"]["labels"]["pumasi.dev/kind"] == "record")
    for each in _objects(it):
        owner = each["metadata"].get("ownerReferences", [{}])[0].get("uid")
        kind = each["metadata"]["labels"]["pumasi.dev/kind"]
        anchored = kind in ("anchor", "record") or (each["kind"] == "Pod" and kind == "manager")
        assert anchored or owner == record["metadata"]["uid"], (what, each["metadata"])


def _objects(it: Round) -> list[dict[str, Any]]:
    kinds = "jobs,configmaps,secrets,services,pods"
    found: list[dict[str, Any]] = it.namespace.get(kinds, "-l", f"pumasi.dev/run={it.id}")["items"]
    return found


def _living(it: Round) -> list[str]:
    return it.namespace.living_containers()
