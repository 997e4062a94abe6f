"""What a manager costs that steers many pods: memory, processor time, connections; beside `kubectl get pods -w`.

    python benchmarks/kubernetes_manager.py [--pods 200] [--seconds 30]

On a cluster of its own with simulated nodes, one pod each. Those pods count as running, but there is no kubelet that
would hand out their logs: each reader is refused and asks again, which is more work than to wait for the next line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cluster import making
from tools.cluster.blueprint import SIMULATED_MARK, Blueprint
from tools.cluster.cluster import Cluster
from tools.common import ToolError, until

NAME = "crowd"
LIMIT = 300.0


class Cost(NamedTuple):
    """Megabytes at most so far, seconds of a processor so far, connections now."""

    memory: float
    cpu: float
    connections: int

    @classmethod
    def of(cls, process: subprocess.Popen[bytes]) -> Cost:
        proc = Path("/proc") / str(process.pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        sockets = sum(str(fd.readlink()).startswith("socket:") for fd in (proc / "fd").iterdir())
        return cls(int(status["VmHWM"].split()[0]) / 1024, ticks / os.sysconf("SC_CLK_TCK"), sockets)


def measure(cluster: Cluster, folder: Path, pods: int, seconds: float) -> None:
    environ = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "KUBECACHEDIR": str(cluster.kubectl_cache),
        "PUMASI_HOME": str(folder / "home"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
    }
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    (folder / "hello.py").write_text("print('hello')\n")
    pumasi = str(Path(sys.executable).with_name("pumasi"))
    where = ["--on", "k8s", "-n", NAME, "--node-selector", "type=kwok", "--toleration", SIMULATED_MARK]
    many = ["--slots", str(pods), "--max-per-node", "1", "--keep", "0", "--grace", "1"]
    kubectl = [str(cluster.folder / "kubectl"), "-n", NAME, "get", "pods", "-w"]
    cluster.kubectl("apply", "-f", "-", feed=json.dumps(_namespace()))

    def running() -> int:
        words = ("-n", NAME, "get", "pods", "--field-selector=status.phase=Running", "-o", "name")
        return len(cluster.kubectl(*words).split())

    began = time.monotonic()
    watcher = subprocess.Popen(kubectl, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    manager = subprocess.Popen([pumasi, "run", "-q", *where, *many, "hello.py"], cwd=folder, env=environ)
    try:
        until(lambda: running() == pods, f"{pods} running pods", seconds=LIMIT, every=1)
        there = time.monotonic() - began
        first = Cost.of(manager)
        time.sleep(seconds)
        last, yardstick = Cost.of(manager), Cost.of(watcher)
        manager.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        most = last.memory
        while manager.poll() is None and time.monotonic() - asked < LIMIT:
            time.sleep(0.2)
            try:
                most = max(most, Cost.of(manager).memory)
            except (OSError, KeyError):
                break
        code = manager.wait(LIMIT)
        gone = time.monotonic() - asked
    finally:
        for process in (manager, watcher):
            process.kill()
            process.wait()
    print(
        f"{pods} pods, all of them running after {there:.1f} s, stopped {gone:.1f} s after being asked (exit {code}):"
    )
    print(f"  the manager          {most:6.1f} MB at most   {last.connections} connections")
    print(f"  kubectl get pods -w  {yardstick.memory:6.1f} MB at most   ratio {most / yardstick.memory:.2f}")
    print(f"  to start them all    {first.cpu:6.1f} s of a processor")
    print(f"  to watch them        {(last.cpu - first.cpu) / seconds:6.1%} of a processor, over {seconds:.0f} s")


def _namespace() -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    try:
        making.check_machine()
        Cluster(NAME).down()
        cluster = making.up(Blueprint(NAME, (1,), simulated=options.pods), lambda _: None)
        try:
            with tempfile.TemporaryDirectory() as folder:
                measure(cluster, Path(folder), options.pods, options.seconds)
        finally:
            cluster.down()
    except ToolError as trouble:
        print(trouble)
    return 0


if __name__ == "__main__":
    sys.exit(main())
