"""How long one waits for the first line of a program in a cluster, beside plain kubectl; and calls of the API.

    python benchmarks/kubernetes.py [--rounds 10] [--beside OTHER/.venv/bin/pumasi]

In turn, on a cluster of its own: `pumasi run --on k8s`, and `kubectl apply` of a Job that runs the same program in the
same image with the same rights and resources, followed by `kubectl logs -f` until the line is here. Where -f comes too
early it waits for a second or two by itself, so the Job is also read without it, again and again until there is
something, which is the quickest way with kubectl; and because that keeps a small machine busy, it is also started
without anybody reading. The program prints the time, so that one sees when it began. Of a gang the last rank counts: 6
slots on three nodes of 2 GPUs, which start together, beside an Indexed Job of three pods that start two processes each
and do not know of each other.

Goals: by the program's own clock, at most 1.4 times as long as a Job of one pod that nobody reads, and 1.2 times as
long as one of three; as the user sees it, no longer than any way of reading a Job. `--beside` measures another Pumasi
in the same rounds, such as that of a commit before. A cluster named bench that is up already is used, and left.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pumasi.pools.kubernetes.manifests import restricted_container, restricted_pod
from tools.cluster import making
from tools.cluster.blueprint import GPU, IMAGE, Blueprint
from tools.cluster.cluster import Cluster
from tools.common import ToolError, until

NAME = "bench"
GPUS = (2, 2, 2)
LIMIT = 120.0
PAUSE = 0.1
"""Before `kubectl logs` is tried again."""
MARK = "began at "
PROGRAM = f"import time\nprint({MARK!r} + repr(time.time()), flush=True)\ntime.sleep({{}})\n"
TWICE = "import subprocess, sys; [p.wait() for p in [subprocess.Popen([sys.executable, '-c', {!r}]) for _ in '12']]"
# The command line, which writes down how often it has asked the API.
COUNTING = """
import sys
from pumasi.cli.main import main
from pumasi.kube.api import Api
begin, apis = Api.__aenter__, []
async def enter(api):
    apis.append(api)
    return await begin(api)
Api.__aenter__ = enter
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(sum(api.calls for api in apis)))
sys.exit(code)
"""


class Wait(NamedTuple):
    """Seconds from the command until the program had printed its line, and until the line was here."""

    printed: float
    seen: float


class Case(NamedTuple):
    """`lines` is how many processes there are, `pods` in how many pods. `goal` is how many times as long as a Job that
    nobody reads a run may take."""

    title: str
    options: tuple[str, ...]
    resources: Mapping[str, Any]
    pods: int
    lines: int
    goal: float

    def job(self) -> dict[str, Any]:
        program = PROGRAM.format(1)
        container = {
            "name": "main",
            "image": IMAGE.rpartition("/")[2],
            "command": ["python3", "-c", program if self.lines == self.pods else TWICE.format(program)],
            "resources": self.resources,
            "securityContext": restricted_container(),
        }
        pod = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": restricted_pod(),
            "containers": [container],
        }
        shape = {"completionMode": "Indexed", "completions": self.pods, "parallelism": self.pods}
        spec = {"backoffLimit": 0, **shape, "template": {"spec": pod}}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "hello"}, "spec": spec}


ONE = Case("one pod", (), {"requests": {"cpu": "1"}}, 1, 1, 1.4)
GANG = Case("a gang of 6 on three nodes", ("--gpus", "6"), {"limits": {GPU: "2"}}, 3, 6, 1.2)


class Bench:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._folder = folder
        self._kubectl = [str(cluster.folder / "kubectl"), "-n", NAME]
        self._environ = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "KUBECACHEDIR": str(cluster.kubectl_cache),
            "PUMASI_HOME": str(folder / "home"),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),  # compiled, as pip leaves it
        }
        self._environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._work = folder / "work"
        self._work.mkdir()
        cluster.kubectl("apply", "-f", "-", feed=json.dumps(_namespace()))

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            [*self._kubectl, *words], env=self._environ, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def pumasi(self, case: Case, program: Path | None = None) -> Wait:
        words = [str(program or Path(sys.executable).with_name("pumasi")), *self._words(case, 1)]
        home = self._folder / ("home" if program is None else "other-home")
        environ = {**self._environ, "PUMASI_HOME": str(home)}
        began = time.time()
        with subprocess.Popen(words, cwd=self._work, env=environ, stdout=subprocess.PIPE, text=True) as process:
            heard = listen(process, case.lines)
        assert process.returncode == 0, process.returncode
        assert heard
        self._clear()
        return _wait(began, [heard])

    def calls(self, case: Case, seconds: int) -> int:
        """How often a run of so many seconds asks the API."""
        count = self._folder / "calls"
        words = [sys.executable, "-c", COUNTING, str(count), *self._words(case, seconds)]
        subprocess.run(words, cwd=self._work, env=self._environ, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)
        self._clear()
        return int(count.read_text())

    def _words(self, case: Case, seconds: int) -> list[str]:
        (self._work / "hello.py").write_text(PROGRAM.format(seconds))
        return ["run", "--quiet", "--on", "k8s", "-n", NAME, "--keep", "0", *case.options, "hello.py"]

    def following(self, case: Case) -> Wait:
        return self._read_by(self._follow, case)

    def asking(self, case: Case) -> Wait:
        return self._read_by(self._ask_for_lines, case)

    def _read_by(self, read: Callable[[str, int], tuple[float, float]], case: Case) -> Wait:
        """With one reader a pod, because of those that a selector finds only some may be there yet."""
        began = self._apply(case)
        selectors = [f"job-name=hello,batch.kubernetes.io/job-completion-index={index}" for index in range(case.pods)]
        with ThreadPoolExecutor(case.pods) as readers:
            heard = list(readers.map(lambda selector: read(selector, case.lines // case.pods), selectors))
        self._clear()
        return _wait(began, heard)

    def unread(self, case: Case) -> Wait:
        """The same Job, whose log is read when all is over."""
        began = self._apply(case)
        self.ask("wait", "--for=condition=complete", "job/hello", f"--timeout={LIMIT:.0f}s")
        printed = _times(self.ask("logs", "-l", "job-name=hello").splitlines())
        assert len(printed) == case.lines, printed
        self._clear()
        return Wait(max(printed) - began, float("nan"))

    def _apply(self, case: Case) -> float:
        path = self._folder / "job.json"
        path.write_text(json.dumps(case.job()))
        began = time.time()
        self.ask("apply", "-f", str(path))
        return began

    def _follow(self, selector: str, lines: int) -> tuple[float, float]:
        words = [*self._kubectl, "logs", "-f", "-l", selector]
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            with subprocess.Popen(
                words, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as process:
                if heard := listen(process, lines):
                    return heard
            time.sleep(PAUSE)
        raise TimeoutError("kubectl saw no output")

    def _ask_for_lines(self, selector: str, lines: int) -> tuple[float, float]:
        words = [*self._kubectl, "logs", "-l", selector]
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            asked = subprocess.run(words, env=self._environ, capture_output=True, text=True, timeout=LIMIT)
            printed = _times(asked.stdout.splitlines())
            if len(printed) == lines:
                return max(printed), time.time()
            time.sleep(PAUSE)
        raise TimeoutError("kubectl saw no output")

    def _clear(self) -> None:
        """The next one finds an empty, quiet cluster."""
        self.ask("delete", "jobs", "--all")
        until(lambda: not self.ask("get", "pods", "-o", "name"), "the pods to go", seconds=LIMIT, every=0.2)
        time.sleep(0.5)


def _namespace() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}}


def listen(process: subprocess.Popen[str], lines: int) -> tuple[float, float] | None:
    """When the last of so many lines was printed, and when it was here. To the end of the output."""
    assert process.stdout
    printed, seen = [], 0.0
    for line in process.stdout:
        printed += _times([line])
        if len(printed) == lines and not seen:
            seen = time.time()
    return (max(printed), seen) if seen else None


def _times(lines: list[str]) -> list[float]:
    return [float(line.rpartition(MARK)[2]) for line in lines if MARK in line]


def _wait(began: float, heard: list[tuple[float, float]]) -> Wait:
    return Wait(max(printed for printed, _ in heard) - began, max(seen for _, seen in heard) - began)


def compare(bench: Bench, case: Case, rounds: int, beside: Path | None) -> None:
    other = {"the other pumasi run": functools.partial(bench.pumasi, program=beside)} if beside else {}
    ways = {
        "pumasi run": bench.pumasi,
        **other,
        "kubectl apply, logs -f": bench.following,
        "kubectl apply, logs": bench.asking,
        "kubectl apply": bench.unread,
    }
    waits: dict[str, list[Wait]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            wait = way(case)
            if number:  # the first round fills the caches
                waits[name].append(wait)
    print(f"{case.title}, {rounds} times; seconds until the first line")
    print(f"  {'':24}{'was seen':36}was printed")
    medians = {name: Wait(*map(statistics.median, zip(*each, strict=True))) for name, each in waits.items()}
    ours = next(iter(medians.values()))
    for name, each in waits.items():
        cells = []
        for values, own, theirs in zip(zip(*each, strict=True), ours, medians[name], strict=True):
            ratio = f"  ratio {own / theirs:.2f}" if medians[name] is not ours else ""
            cells.append("" if theirs != theirs else f"{_figures(values)}{ratio}")
        print(f"  {name:24}{cells[1]:36}{cells[0]}".rstrip())
    reading = min(each.seen for name, each in medians.items() if name.startswith("kubectl") and each.seen == each.seen)
    own = ours.printed / medians["kubectl apply"].printed
    print(f"  by the program's own clock: {own:.2f} of a Job that nobody reads   (goal: at most {case.goal})")
    print(f"  as the user sees it: {ours.seen / reading:.2f} of the quickest way to read a Job   (goal: at most 1)")


def _figures(values: tuple[float, ...]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def count(bench: Bench) -> None:
    print("calls of the API in a run:    1 s   20 s")
    for case in (ONE, GANG):
        print(f"  {case.title:26}{bench.calls(case, 1):5}{bench.calls(case, 20):7}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--beside", type=Path, help="the program of another Pumasi")
    parser.add_argument("--only", choices=("one", "gang", "calls"), help="a part of it")
    options = parser.parse_args()
    try:
        with making.borrowed(Blueprint(NAME, GPUS)) as cluster, tempfile.TemporaryDirectory() as folder:
            bench = Bench(cluster, Path(folder))
            for name, case in (("one", ONE), ("gang", GANG)):
                if options.only in (None, name):
                    compare(bench, case, options.rounds, options.beside)
            if options.only in (None, "calls"):
                count(bench)
            cluster.kubectl("delete", "namespace", NAME)
    except ToolError as trouble:
        print(trouble)
    return 0


if __name__ == "__main__":
    sys.exit(main())
