"""A run of many tasks on a cluster, whose manager is killed twice: is every task done exactly once?

    python benchmarks/kubernetes_tasks.py [--tasks 2000] [--nodes 100]

On a cluster of its own with simulated nodes, whose pods succeed at once: this is what the manager, the journal and the
API server can do, and nothing is trained. The flow is that of docs/extending.md.
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
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.cluster import making
from tools.cluster.blueprint import SIMULATED_MARK, Blueprint
from tools.cluster.cluster import Cluster
from tools.common import ToolError, until

ROOT = Path(__file__).resolve().parent.parent
NAME = "tasks"
LIMIT = 1500.0
PUMASI = str(Path(sys.executable).with_name("pumasi"))


class Trial:
    def __init__(self, cluster: Cluster, folder: Path, tasks: int) -> None:
        self.cluster = cluster
        self.folder = folder
        self.tasks = tasks
        self.environ = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "KUBECACHEDIR": str(cluster.kubectl_cache),
            "PUMASI_HOME": str(folder / "home"),
            "PYTHONPATH": str(self._install()),
        }
        (folder / "train.py").write_text("print('loss: 1')\n")
        self.made: Counter[str] = Counter()

    def _install(self) -> Path:
        """The package of docs/extending.md, for its flow."""
        packages = self.folder / "packages"
        facts = packages / "pumasi_extending-1.0.dist-info"
        facts.mkdir(parents=True)
        (packages / "pumasi_extending").symlink_to(ROOT / "examples" / "extending" / "pumasi_extending")
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: pumasi-extending\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("[pumasi.flows]\nrepeat = pumasi_extending.repeat:FLOW\n")
        return packages

    def pumasi(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([PUMASI, *words], cwd=self.folder, env=self.environ, capture_output=True, text=True)

    def start(self) -> subprocess.Popen[bytes]:
        where = ["--on", "k8s", "-n", NAME, "--node-selector", "type=kwok", "--toleration", SIMULATED_MARK]
        what = ["--strategy", "repeat", "--times", str(self.tasks), "--label", "example.com/simulated=done"]
        words = [PUMASI, "run", "-q", *where, *what, "--cpus", "1", "train.py"]
        return subprocess.Popen(words, cwd=self.folder, env=self.environ, stderr=subprocess.DEVNULL)

    def ended(self) -> int:
        """Tasks that the store knows to have ended."""
        shown = self.pumasi("show", "--json")
        events = json.loads(shown.stdout)["events"] if shown.returncode == 0 else []
        return sum(event["event"] == "task ended" for event in events)

    def manager(self) -> int:
        return int(json.loads(self.pumasi("show", "--json").stdout)["pid"])


def watch_pods(trial: Trial) -> Callable[[], Counter[str]]:
    """How often each pod has been made, as the API tells."""
    form = '-o=jsonpath={.type} {.object.metadata.name}{"\\n"}'
    words = ["-n", NAME, "get", "pods", "--watch-only", "--output-watch-events", form]
    kubectl = [str(trial.cluster.folder / "kubectl"), *words]
    file = (trial.folder / "pods").open("w+")
    process = subprocess.Popen(kubectl, env=trial.environ, stdout=file, stderr=subprocess.DEVNULL)

    def read() -> Counter[str]:
        process.terminate()
        process.wait()
        file.seek(0)
        lines = [line.split() for line in file]
        return Counter(line[1] for line in lines if line[0] == "ADDED")

    return read


def measure(trial: Trial) -> None:
    trial.cluster.kubectl("create", "namespace", NAME)
    pods = watch_pods(trial)
    began = time.monotonic()
    first = trial.start()
    until(lambda: trial.ended() >= trial.tasks // 4, "a quarter of the tasks", seconds=LIMIT, every=1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    print(f"killed the first manager after {trial.ended()} tasks")
    with subprocess.Popen([PUMASI, "wait"], cwd=trial.folder, env=trial.environ, stderr=subprocess.DEVNULL) as waiting:
        until(lambda: trial.ended() >= trial.tasks // 2, "half of the tasks", seconds=LIMIT, every=1)
        os.kill(trial.manager(), signal.SIGKILL)
        print(f"killed the second manager after {trial.ended()} tasks")
        code = waiting.wait(LIMIT)
    took = time.monotonic() - began
    shown = json.loads(trial.pumasi("show", "--json").stdout)
    ended = Counter(event["task"] for event in shown["events"] if event["event"] == "task ended")
    made = pods()
    rows = next(event["table"]["rows"] for event in shown["events"] if event["event"] == "report")
    print(f"{trial.tasks} tasks in {took:.0f} s, exit code {code}, {trial.tasks / took:.1f} tasks per second")
    names = [row[0] for row in rows]
    print(f"  tasks in the report      {len(names)}, each once: {len(set(names)) == len(names) == trial.tasks}")
    print(f"  ends that were told      {sum(ended.values())}, each once: {set(ended.values()) == {1}}")
    print(f"  pods that were made      {sum(made.values())}, each once: {set(made.values()) == {1}}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=100)
    options = parser.parse_args()
    try:
        making.check_machine()
        Cluster(NAME).down()
        cluster = making.up(Blueprint(NAME, (1,), simulated=options.nodes), lambda _: None)
        try:
            with tempfile.TemporaryDirectory() as folder:
                measure(Trial(cluster, Path(folder), options.tasks))
        finally:
            cluster.down()
    except ToolError as trouble:
        print(trouble)
    return 0


if __name__ == "__main__":
    sys.exit(main())
