"""How well many runs share too few GPUs: 12 runs of 5 GPUs and 5 seconds on a cluster with 10 GPUs, beside the ideal.

    python benchmarks/queueing.py [--runs 12] [--seconds 5]

On a cluster of its own (nodes with 5, 3 and 2 GPUs) the runs are submitted one after the other with `pumasi run -d`,
from two namespaces in turn. A watch on the pods writes down when each pod is bound to its node and when it counts as
ended: between the two the scheduler gives its GPUs to nobody else.

- hold: seconds for which a run has its GPUs: its program, and what Kubernetes needs to start and to end pods.
- ideal: the GPUs are enough for two runs at a time, so half as many holds as there are runs, of runs that did not have
  to wait: a pair, measured in the same way before and after.
- total: from the first pod that is bound to the last that has ended; submission is shown beside it.
- idle: seconds from the moment at which enough GPUs are free for the next run until its first pod is bound.
- order: whether a run waited for GPUs that one submitted after it had taken.
- requests: what the API server was asked about pods, nodes, Jobs, ConfigMaps, Services and Secrets, per run, kubelets
  and controllers included; with 12 runs and with 4, since it should not depend on how many wait.

The alternative: `kubectl create` of 12 Indexed Jobs of 5 pods with 1 GPU each that run the same program. The scheduler
starts any pod as soon as one GPU is free: no gang waits to be whole, and there is no plan, no manager and no record.

Goal: a total of at most 1.15 times the ideal, 1 second idle, starts in the order of submission. A cluster named queue
that is up already is used, and left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pumasi.pools.kubernetes.manifests import KIND, RUN, restricted_container, restricted_pod
from tools.cluster import making
from tools.cluster.blueprint import GPU, IMAGE, Blueprint
from tools.cluster.cluster import Cluster
from tools.common import ToolError, until

NAME = "queue"
NAMESPACES = ("queue-a", "queue-b")
GOAL = 1.15
GPUS = (5, 3, 2)
SIZE = 5
LIMIT = 600.0
PROGRAM = "import sys, time\ntime.sleep(float(sys.argv[1]))\n"
_ASKED = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.M)
_OURS = re.compile(r'resource="(?:pods|nodes|jobs|configmaps|services|secrets)"')


class Hold(NamedTuple):
    """What had GPUs, from when to when; `end` is 0 as long as it has them."""

    what: str
    start: float
    end: float


class Watcher:
    """Records when pods get GPUs and when they give them back, by this machine's clock."""

    def __init__(self, bench: Bench) -> None:
        words = [*bench.kubectl, "get", "pods", "-A", "--watch", "--output-watch-events", "-o", "json"]
        self._process = subprocess.Popen(words, env=bench.environ, stdout=subprocess.PIPE, text=True)
        self._pods: dict[str, Hold] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        text, decoder = "", json.JSONDecoder()
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            text = (text + data.decode()).lstrip()
            with contextlib.suppress(ValueError):
                while text:
                    event, length = decoder.raw_decode(text)
                    text = text[length:].lstrip()
                    self._heed(event["type"], event["object"])

    def _heed(self, kind: str, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        labels = metadata.get("labels", {})
        what = labels.get(RUN) if labels.get(KIND) == "rank" else labels.get("job-name") if KIND not in labels else None
        if not what or not pod["spec"].get("nodeName"):
            return
        hold = self._pods.setdefault(metadata["uid"], Hold(what, time.time(), 0.0))
        ended = kind == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed")
        if ended and not hold.end:
            self._pods[metadata["uid"]] = hold._replace(end=time.time())

    def holds(self, names: list[str]) -> list[Hold]:
        """Of those that are over, in the order in which they started."""
        parts = [[pod for pod in list(self._pods.values()) if pod.what == name] for name in names]
        whole = [part for part in parts if part and all(pod.end for pod in part)]
        holds = [Hold(part[0].what, min(p.start for p in part), max(p.end for p in part)) for part in whole]
        return sorted(holds, key=lambda hold: hold.start)

    def count(self, name: str) -> int:
        return sum(pod.what == name and bool(pod.end) for pod in list(self._pods.values()))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()


class Bench:
    def __init__(self, cluster: Cluster, folder: Path, seconds: float) -> None:
        self.kubectl = [str(cluster.folder / "kubectl")]
        self.seconds = seconds
        self.environ = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "KUBECACHEDIR": str(cluster.kubectl_cache),
            "PUMASI_HOME": str(folder / "home"),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),  # compiled, as pip leaves it
        }
        self.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._work = folder / "work"
        self._work.mkdir()
        (self._work / "train.py").write_text(PROGRAM)
        for namespace in NAMESPACES:
            self.ask("create", "namespace", namespace)
            self._pumasi("setup", "--on", "k8s", "-n", namespace)

    def ask(self, *words: str, feed: str | None = None) -> str:
        done = subprocess.run(
            [*self.kubectl, *words], env=self.environ, input=feed, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def _pumasi(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("pumasi")), *words]
        done = subprocess.run(command, cwd=self._work, env=self.environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def submit(self, number: int) -> str:
        where = ("--on", "k8s", "-n", NAMESPACES[number % len(NAMESPACES)])
        return self._pumasi("run", "-d", "-q", *where, "--gpus", str(SIZE), "train.py", str(self.seconds))

    def create_job(self, number: int) -> str:
        name = f"job-{time.time_ns()}-{number}"
        self.ask("-n", NAMESPACES[0], "create", "-f", "-", feed=json.dumps(_job(name, self.seconds)))
        return name

    def requests(self) -> float:
        found = _ASKED.findall(self.ask("get", "--raw", "/metrics"))
        return sum(float(value) for labels, value in found if _OURS.search(labels))


def _job(name: str, seconds: float) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": IMAGE.rpartition("/")[2],
        "command": ["python3", "-c", PROGRAM, str(seconds)],
        "resources": {"limits": {GPU: "1"}},
        "securityContext": restricted_container(),
    }
    pod = {"restartPolicy": "Never", "securityContext": restricted_pod(), "containers": [container]}
    spec = {"completionMode": "Indexed", "completions": SIZE, "parallelism": SIZE, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


class Result(NamedTuple):
    """`order` are the runs as they were submitted."""

    holds: list[Hold]
    order: list[str]
    submitting: float
    requests: float

    @property
    def total(self) -> float:
        return max(hold.end for hold in self.holds) - self.holds[0].start

    @property
    def hold(self) -> float:
        return statistics.mean(hold.end - hold.start for hold in self.holds)

    def idle(self) -> list[float]:
        """Two at a time: the third starts when one of the first two has ended, and so on."""
        ends = sorted(hold.end for hold in self.holds)
        return [max(0.0, hold.start - end) for hold, end in zip(self.holds[2:], ends, strict=False)]

    def late(self) -> list[str]:
        """Those that waited for GPUs that one submitted after them had: both places were taken before they started."""
        return [hold.what for hold in self.holds if any(self._kept_waiting(hold, other) for other in self.holds)]

    def _kept_waiting(self, hold: Hold, by: Hold) -> bool:
        if self.order.index(by.what) <= self.order.index(hold.what) or by.start >= hold.start:
            return False
        return any(
            other.what not in (hold.what, by.what) and other.start < hold.start and other.end > by.start
            for other in self.holds
        )


def queue(bench: Bench, watcher: Watcher, runs: int) -> Result:
    asked, began = bench.requests(), time.time()
    names = [bench.submit(number) for number in range(runs)]
    submitting = time.time() - began
    until(lambda: len(watcher.holds(names)) == runs, f"the end of {runs} runs", seconds=LIMIT, every=0.2)
    time.sleep(3)  # for the last words of the managers
    return Result(watcher.holds(names), names, submitting, (bench.requests() - asked) / runs)


def plain(bench: Bench, watcher: Watcher, runs: int) -> Result:
    asked, began = bench.requests(), time.time()
    names = [bench.create_job(number) for number in range(runs)]
    submitting = time.time() - began
    until(lambda: all(watcher.count(name) == SIZE for name in names), f"{runs} Jobs", seconds=LIMIT, every=0.2)
    return Result(watcher.holds(names), names, submitting, (bench.requests() - asked) / runs)


def measure(bench: Bench, watcher: Watcher, runs: int) -> None:
    queue(bench, watcher, 2)  # fills the caches
    before, many, after = [queue(bench, watcher, number) for number in (2, runs, 2)]
    alone, idle = (before.hold + after.hold) / 2, many.idle()
    ideal = alone * runs / 2
    print(f"{runs} runs of {SIZE} GPUs and {bench.seconds:g} s on {sum(GPUS)} GPUs, from 2 namespaces in turn")
    print(f"  ideal      {ideal:6.1f} s: a run that need not wait holds its GPUs for {alone:.1f} s")
    print(f"  total      {many.total:6.1f} s   ratio {many.total / ideal:.2f}, goal {GOAL}")
    print(f"  hold       {many.hold:6.1f} s on average, with the others waiting")
    print(f"  submitting {many.submitting:6.1f} s, {many.submitting / runs:.2f} per run")
    print(f"  idle       {statistics.mean(idle):6.2f} s on average, {max(idle):.2f} at most, goal 1")
    print(f"  order      {_order(many)}")
    few = queue(bench, watcher, 4)
    print(f"  requests   {many.requests:6.0f} per run; {few.requests:.0f} per run where 4 share the GPUs")
    jobs = plain(bench, watcher, runs)
    print(f"kubectl create of {runs} Indexed Jobs of {SIZE} pods with 1 GPU each, started one by one, not together")
    print(f"  total      {jobs.total:6.1f} s   ratio {many.total / jobs.total:.2f}; submitting {jobs.submitting:.1f} s")
    print(f"  order      {_order(jobs)}; {jobs.requests:.0f} requests per Job")


def _order(result: Result) -> str:
    late = len(result.late())
    return f"{late} had to wait for one submitted after them" if late else "as submitted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    try:
        with making.borrowed(Blueprint(NAME, GPUS)) as cluster, tempfile.TemporaryDirectory() as folder:
            bench = Bench(cluster, Path(folder), options.seconds)
            watcher = Watcher(bench)
            try:
                measure(bench, watcher, options.runs)
            finally:
                watcher.close()
                for namespace in NAMESPACES:
                    bench.ask("delete", "namespace", namespace)
    except ToolError as trouble:
        print(trouble)
    return 0


if __name__ == "__main__":
    sys.exit(main())
