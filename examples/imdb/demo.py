"""`make demo`: film reviews in three parts, a trainer for each, two rounds of averaging, and a page to try the result.

It types what anybody would type. All that it makes is in the folder demo, beside this file.
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FINAL = HERE / "demo" / "final.keras"
ENVIRONMENT = Path(sys.prefix)

REVIEWS = "python reviews.py --savedir demo"
RUN = """pumasi run --strategy average --slots 3 --rounds 2 --timeout 15m \\
    --split demo/reviews.npz --evaluate 'evaluate.py --modelpath {model}' --save demo/final.keras \\
    train.py --data {shard} --epoch 3 --batch 100 --savemodel {model}.keras --init {init}"""
SERVE = "pumasi serve demo/final.keras --port 0 --for {seconds}"


def settings():
    """Those of the environment that this Python is in, and none that are about something else."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PUMASI_")}
    ours = {"PUMASI_HOME": str(HERE / "demo"), "PUMASI_ON": "local", "KERAS_BACKEND": "jax"}
    path = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", os.defpath)])
    return {**others, **ours, "VIRTUAL_ENV": str(ENVIRONMENT), "PATH": path}


def say(text):
    print(text, flush=True)


def type_in(command):
    say(f"\n$ {command}")
    words = shlex.split(command.replace("\\\n", ""))
    with subprocess.Popen(words, cwd=HERE, env=settings()) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        code = process.wait()
    if code:
        sys.exit(code if code > 0 else 128 - code)


def main():
    # Ctrl-C reaches the command too, which knows what to do: here its end is waited for.
    signal.signal(signal.SIGINT, lambda *_: None)
    seconds = os.environ.get("DEMO_SECONDS", "60")
    if not seconds.isdecimal():
        sys.exit(f"DEMO_SECONDS has to be a whole number; '{seconds}' is none.")
    FINAL.unlink(missing_ok=True)
    say(f"$ cd {os.path.relpath(HERE)}")
    say(f"$ . {os.path.relpath(ENVIRONMENT, HERE)}/bin/activate")
    say("$ export PUMASI_HOME=$PWD/demo PUMASI_ON=local KERAS_BACKEND=jax")
    type_in(REVIEWS)
    type_in(RUN)
    if not FINAL.exists():
        sys.exit("The run goes on without the demo. `make demo` starts anew.")
    type_in(SERVE.format(seconds=seconds))
    say(f"\nThe reviews, the models and the record of the run are in {os.path.relpath(FINAL.parent)}.")


if __name__ == "__main__":
    main()
