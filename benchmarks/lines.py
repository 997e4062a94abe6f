"""Lines through the whole log path: a rank prints, the agent numbers, the manager stores and looks for metrics.

Beside it: the same program, its output read by a bare Python reader that does nothing. Goal: 200,000 lines a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LINES = 1_000_000
GOAL = 200_000
PROGRAM = f"""
import sys
chat = [
    "loading shard from the local cache",
    "2026-11-15 21:26:43,123 INFO data_loader.py:88 prefetched the next batch",
    "step 17: processed a batch of images",
    "WARNING: the queue is empty, waiting for workers",
]
lines = [chat[i % len(chat)] if i % 20 else f"epoch {{i // 20}}: loss=0.{{i}} acc=0.9{{i}}" for i in range(1000)]
block = "\\n".join(lines) + "\\n"
for _ in range({LINES} // len(lines)):
    sys.stdout.write(block)
"""


def bare(script: Path, environ: dict[str, str]) -> int:
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    return sum(1 for _ in process.stdout)


def pumasi(script: Path, environ: dict[str, str]) -> int:
    command = Path(sys.executable).with_name("pumasi")
    process = subprocess.Popen([command, "run", "--quiet", script], stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    return sum(1 for _ in process.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "chat.py"
        script.write_text(PROGRAM)
        environ = {**os.environ, "PUMASI_HOME": f"{folder}/home"}
        rates = {}
        for reader in (bare, pumasi):
            started = time.perf_counter()
            assert reader(script, environ) == LINES
            rates[reader.__name__] = LINES / (time.perf_counter() - started)
    print(f"bare pipe       {rates['bare']:12,.0f} lines/s")
    print(f"pumasi run      {rates['pumasi']:12,.0f} lines/s   (goal: {GOAL:,}; 1 line in 20 is a metric)")
    print(f"ratio {rates['pumasi'] / rates['bare']:.3f}")


if __name__ == "__main__":
    main()
