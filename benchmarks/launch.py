"""What a launcher adds to a training: two ranks under Pumasi and under torchrun, over two plain processes.

Goal: at most 0.3 of torchrun's. Needs the big frameworks (make frameworks).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
BIG = CHECKOUT / ".venv-big" / "bin"
ROUNDS = 7
GOAL = 0.3


def plain(script: Path, environ: dict[str, str]) -> None:
    both = [subprocess.Popen([BIG / "python", script], env=environ) for _ in range(2)]
    for process in both:
        assert process.wait() == 0


def pumasi(script: Path, environ: dict[str, str]) -> None:
    words = [
        Path(sys.executable).with_name("pumasi"),
        "run",
        "--quiet",
        "--slots",
        "2",
        "--python",
        BIG / "python",
        script,
    ]
    subprocess.run(words, env=environ, check=True)


def torchrun(script: Path, environ: dict[str, str]) -> None:
    words = [BIG / "torchrun", "--standalone", "--nproc-per-node", "2", script]
    subprocess.run(words, env=environ, check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    if not (BIG / "torchrun").exists():
        sys.exit("launch: there is no .venv-big; make frameworks")
    launchers = (plain, pumasi, torchrun)
    times: dict[str, list[float]] = {launcher.__name__: [] for launcher in launchers}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text("import os\n")
        environ = {**os.environ, "PUMASI_HOME": f"{folder}/home"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(ROUNDS + 1):
            for launcher in launchers:
                started = time.perf_counter()
                launcher(script, environ)
                if number:  # the first round warms up the caches
                    times[launcher.__name__].append(time.perf_counter() - started)
    median = {name: statistics.median(seen) for name, seen in times.items()}
    ours, theirs = median["pumasi"] - median["plain"], median["torchrun"] - median["plain"]
    print(f"two plain processes      {median['plain']:6.3f} s")
    print(f"pumasi run --slots 2     {median['pumasi']:6.3f} s   adds {ours:6.3f} s")
    print(f"torchrun                 {median['torchrun']:6.3f} s   adds {theirs:6.3f} s")
    print(f"ratio {ours / theirs:.2f}   (goal: at most {GOAL})")


if __name__ == "__main__":
    main()
