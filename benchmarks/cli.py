"""How long one waits for `pumasi --help` and `pumasi ps`, beside `python -c pass`. Goal: at most 5 times as long.

All are measured in turn, so that whatever else the machine does disturbs all of them alike; the medians are compared.
Everything is compiled, as pip leaves it: bytecode goes to a folder of its own, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 31
RUNS = 100
GOAL = 5.0


def seconds(command: list[str], environ: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def fill(home: Path) -> None:
    """A home as it looks after a while: runs, each with metrics."""
    from pumasi.store import MetricRow, Store

    store = Store.open(home)
    for number in range(RUNS):
        record = store.create_run("train", {"command": ["train.py", "--epochs", "3"], "slots": 4}, time.time())
        store.update_run(record.id, state="done", ended=time.time(), exit_code=0, framework="torch", ranks=4)
        rows = [MetricRow(time.time(), 0, rank, number, None, "loss", 0.31) for rank in range(4)]
        store.add_metrics(record.id, rows)
    store.close()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        fill(home)
        environ = {**os.environ, "PUMASI_HOME": str(home), "PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        pumasi = str(Path(sys.executable).with_name("pumasi"))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "pumasi --help": [pumasi, "--help"],
            "pumasi ps": [pumasi, "ps"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for command in commands.values():
            seconds(command, environ)
        for _ in range(ROUNDS):
            for name, command in commands.items():
                times[name].append(seconds(command, environ))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    base = medians["python -c pass"]
    for name, median in medians.items():
        verdict = "" if name == "python -c pass" else f"   {median / base:4.1f} x   (goal: at most {GOAL:g} x)"
        print(f"{name:<16}{median * 1000:7.1f} ms{verdict}")
    return int(max(medians.values()) > GOAL * base)


if __name__ == "__main__":
    sys.exit(main())
