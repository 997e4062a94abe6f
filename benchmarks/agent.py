"""How long an agent takes to start its first rank, by the way in which it gets to where it runs.

    python benchmarks/agent.py [--rounds 40] [--beside OLD_AGENT.py]

The package as it is installed, with its modules compiled; as the files that a pod writes down, which are compiled at
each start; the same files in a zip, stored and deflated; and in one text, whose modules are compiled when they are
imported. `--beside` measures an agent that is one file, too. All in turn; from the command to the agent's first word.

Goal: what a pod does is at most 3 ms slower than any other way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from pumasi.agent.files import AGENT, agent_files
from pumasi.pools.kubernetes.manifests import BOOT, FOLDER, squeezed

ZIPPED = "import sys\nfrom pumasi.agent.starting import main\nsys.exit(main(sys.argv[1:]))\n"
IN_MEMORY = """
import base64, json, os, sys, types, zlib
FILES = json.loads(zlib.decompress(base64.b64decode(os.environ.pop("PUMASI_BOOT_AGENT"))))
class Importer:
    def find_spec(self, name, path=None, target=None):
        base = name.replace(".", "/")
        for file, package in ((base + ".py", False), (base + "/__init__.py", True)):
            if file in FILES:
                spec = type(sys.__spec__)(name, self, origin=file, is_package=package)
                return spec
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(FILES[module.__spec__.origin], module.__spec__.origin, "exec"), module.__dict__)
sys.meta_path.append(Importer())
sys.argv = ["agent", "pod"]
from pumasi.agent.starting import main
sys.exit(main(sys.argv[1:]))
"""


def ways(folder: Path, beside: Path | None) -> dict[str, list[str]]:
    """What to give to Python, by name."""
    found = {
        "installed": [str(AGENT), "pod"],
        "files (a pod)": ["-c", BOOT.replace(FOLDER, str(folder / "boot"))],
        "one text": ["-c", IN_MEMORY],
    }
    for name, kind in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        path = folder / f"{name}.zip"
        with zipfile.ZipFile(path, "w", kind) as archive:
            for file, text in {**agent_files(), "__main__.py": ZIPPED}.items():
                archive.writestr(file, text)
        found[f"zip, {name}"] = [str(path), "pod"]
    if beside:
        found["one file"] = [str(beside), "pod"]
    return found


def environ(folder: Path) -> dict[str, str]:
    rank = {"rank": 0, "command": ["/bin/true"], "env": {"PUMASI_NODE": ""}}
    config = {"node": 0, "nodes": 1, "names": ["a"], "gang": "bench.0.n.0", "dir": str(folder / "agent")}
    config |= {"ranks": [rank], "seats": [0], "deciders": [0], "cwd": str(folder), "total": 1, "files": {}}
    config |= {"hub": ["", 0], "chief_ports": [], "launcher": None, "hostfile": None, "setup": None}
    config |= {"start_timeout": 60, "silence": 30, "grace": 5, "first": 0}
    given = {
        "PUMASI_BOOT_CONFIG": squeezed(json.dumps(config)),
        "PUMASI_BOOT_AGENT": squeezed(json.dumps(agent_files())),
    }
    return {"PATH": os.environ["PATH"], "HOME": str(folder), **given}


def first_word(command: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-I", "-S", *command], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert b"running" in process.stdout.readline()
        took = time.perf_counter() - began
        process.stdout.read()
    assert process.returncode == 0, command
    return 1000 * took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        env = environ(folder)
        found = ways(folder, options.beside)
        took: dict[str, list[float]] = {name: [] for name in found}
        for number in range(options.rounds + 2):
            for name in random.sample(list(found), len(found)):
                seconds = first_word(found[name], env)
                if number > 1:  # the first ones fill the caches
                    took[name].append(seconds)
    print(f"to the agent's first word, {options.rounds} times; milliseconds")
    for name, each in took.items():
        print(f"  {name:16}{statistics.median(each):6.1f}   (best {min(each):.1f})")


if __name__ == "__main__":
    main()
