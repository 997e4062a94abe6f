"""How long an agent takes to start its first rank, by the way in which it gets to where it runs.

    python benchmarks/agent.py [--rounds 40] [--beside OLD_AGENT.py]

The package as it is installed, with its modules compiled; as the text that a pod is handed, whose modules are compiled
when they are imported; the same, but written down as files first; and in a zip, stored and deflated. `--beside`
measures an agent that is one file, too. All in turn; from the command to the agent's first word.

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
WRITTEN = (
    "import base64,json,os,sys,zlib;"
    "files=json.loads(zlib.decompress(base64.b64decode(os.environ.pop('PUMASI_BOOT_AGENT'))));"
    "folder={!r};"
    "os.makedirs(folder+'/pumasi/agent/frameworks',exist_ok=True);"
    "[open(folder+'/'+name,'wb').write(text.encode()) for name,text in files.items()];"
    "sys.dont_write_bytecode=True;"
    "sys.path.append(folder);"
    "from pumasi.agent.starting import main;"
    "sys.exit(main(['pod']))"
)


def ways(folder: Path, beside: Path | None) -> dict[str, list[str]]:
    """What to give to Python, by name."""
    found = {
        "installed": [str(AGENT), "pod"],
        "one text (a pod)": ["-c", BOOT.replace(FOLDER, str(folder / "boot"))],
        "files": ["-c", WRITTEN.format(str(folder / "written"))],
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
        print(f"  {name:18}{statistics.median(each):6.1f}   (best {min(each):.1f})")


if __name__ == "__main__":
    main()
