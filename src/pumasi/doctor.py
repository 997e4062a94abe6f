"""What this machine has for training, what is missing, and how to get it. Looks only: nothing is changed or contacted.

Each check is a function that answers with findings; those that have to ask another program do so side by side, each for
a bounded time, so that the whole takes a second or two.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pumasi.errors import PumasiError

if TYPE_CHECKING:
    from pumasi.core.frameworks.base import Package, Tool

OK, WARN, MISSING = "ok", "warn", "missing"
_PATIENCE = 1.5
_GIB = 2**30


class Finding(NamedTuple):
    """`status` is ok, warn or missing; `hint` says what to do about it."""

    topic: str
    status: str
    text: str
    hint: str = ""


class Machine(NamedTuple):
    """What is examined: this machine, as it looks from a folder and an environment."""

    folder: Path
    home: Path
    environ: Mapping[str, str]


Check = Callable[[Machine], list[Finding]]


def examine(place: Machine) -> list[Finding]:
    from concurrent.futures import ThreadPoolExecutor

    checks: tuple[Check, ...] = (
        check_python,
        check_gpus,
        check_tools,
        check_cores,
        check_memory,
        check_home,
        check_open_files,
        check_shared_memory,
        check_proxies,
        check_cluster,
    )
    with ThreadPoolExecutor(len(checks)) as pool:
        return [finding for findings in pool.map(lambda check: check(place), checks) for finding in findings]


def check_python(place: Machine) -> list[Finding]:
    """The Python that scripts would be run with here, and what is installed in it."""
    from pumasi.program.site import find_python
    from pumasi.runs.config import build_spec

    try:
        python = find_python(build_spec({"command": ["true"]}, place.folder, place.environ), place.environ)
    except PumasiError as error:
        return [Finding("python", WARN, " ".join(error.message.split()), error.hint)]
    facts = _ask_python(python)
    if facts is None:
        hint = "Choose another one: pumasi run --python PATH, or 'python: PATH' in pumasi.yaml."
        return [Finding("python", WARN, f"{python} does not answer within {_PATIENCE:g} seconds.", hint)]
    found = Finding("python", OK, f"{facts['version']} at {python}")
    return [found, *_framework_findings(python, facts["versions"]), *_uncompiled(python, facts["uncompiled"])]


_QUESTION = """
import importlib.metadata as metadata, importlib.util, json, os, platform, sys
others, large = json.loads(sys.argv[1])
versions, uncompiled = {}, {}

def find(name):
    for published in (name, *others[name]):
        try:
            return metadata.distribution(published)
        except metadata.PackageNotFoundError:
            pass

for name in others:
    found = find(name)
    if found is None:
        continue
    versions[name] = found.version
    folder = str(found.locate_file(name))
    if name in large and os.path.isdir(folder):
        files = [os.path.join(folder, file) for file in os.listdir(folder) if file.endswith(".py")]
        if files and not any(os.path.exists(importlib.util.cache_from_source(file)) for file in files):
            uncompiled[name] = folder
print(json.dumps({"version": platform.python_version(), "versions": versions, "uncompiled": uncompiled}))
"""


def _packages() -> list[Package]:
    from pumasi.core.frameworks import FRAMEWORKS

    return [package for framework in FRAMEWORKS for package in framework.packages]


def _ask_python(python: str) -> dict[str, dict[str, str]] | None:
    """What is installed, without importing any of it: TensorFlow alone would take five seconds."""
    others = {package.name: package.other_names for package in _packages()}
    large = [package.name for package in _packages() if package.is_large]
    command = [python, "-c", _QUESTION, json.dumps([others, large])]
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_PATIENCE, check=True, stdin=subprocess.DEVNULL)
        facts: dict[str, dict[str, str]] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return facts


def _framework_findings(python: str, versions: Mapping[str, str]) -> list[Finding]:
    names = [package.name for package in _packages() if not package.is_beside]
    found = [f"{name} {versions[name]}" for name in names if name in versions]
    if found:
        return [Finding("frameworks", OK, ", ".join(found))]
    hint = f"Install what your script needs, such as: {python} -m pip install torch"
    return [Finding("frameworks", MISSING, "none of those that Pumasi can wire is installed in that Python.", hint)]


def _uncompiled(python: str, folders: Mapping[str, str]) -> list[Finding]:
    if not folders:
        return []
    names = ", ".join(sorted(folders))
    paths = " ".join(folders[name] for name in sorted(folders))
    return [
        Finding(
            "bytecode",
            WARN,
            f"{names} not compiled yet: the first import takes two to three times as long, in every process at once.",
            f"{python} -m compileall -q -j 0 {paths} (uv does it when told: --compile-bytecode)",
        )
    ]


def check_gpus(place: Machine) -> list[Finding]:
    from pumasi.gpus import ask, complaint, list_gpus

    everything = list_gpus({}, lambda command: ask(command, _PATIENCE))
    if not everything:
        said = complaint(_PATIENCE)
        if said:
            return [Finding("gpus", WARN, f"a driver is there, but: {said}", "Often a restart of the machine helps.")]
        return [Finding("gpus", MISSING, "none; scripts run on the CPU.")]
    busy = sum(gpu.busy for gpu in everything)
    kinds = ", ".join(sorted({_gpu_kind(gpu.name, gpu.memory_total) for gpu in everything}))
    text = f"{len(everything)} ({kinds}), {busy} busy"
    usable = len(list_gpus(place.environ, lambda command: ask(command, _PATIENCE)))
    if usable < len(everything):
        return [Finding("gpus", WARN, f"{text}; only {usable} may be used", "CUDA_VISIBLE_DEVICES hides the others.")]
    return [Finding("gpus", OK, text)]


def _gpu_kind(name: str, memory: int | None) -> str:
    return name if memory is None else f"{name}, {memory / 1024:.0f} GiB"


def check_tools(place: Machine) -> list[Finding]:
    """The programs without which a framework does not start."""
    from pumasi.core.frameworks import FRAMEWORKS

    return [_tool_finding(framework.name, framework.tool, place) for framework in FRAMEWORKS if framework.tool]


def _tool_finding(topic: str, tool: Tool, place: Machine) -> Finding:
    found = shutil.which(tool.program, path=place.environ.get("PATH"))
    if found is None:
        return Finding(topic, MISSING, f"no {tool.program} on the PATH.", tool.hint)
    first = _first_line([found, "--version"])
    if re.search(tool.known_by, first):
        return Finding(topic, OK, f"{first} at {found}")
    return Finding(topic, WARN, f"{found} is not {tool.whose}'s ({first or 'it does not answer'}).", tool.hint)


def _first_line(command: Sequence[str]) -> str:
    from pumasi.gpus import ask

    return next(iter(ask(command, _PATIENCE).strip().splitlines()), "")


def check_cores(place: Machine) -> list[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota()
    if quota is not None and quota < usable:
        return [Finding("cores", OK, f"{usable}, of which this container may use {quota:g}")]
    return [Finding("cores", OK, str(usable))]


def _cpu_quota() -> float | None:
    allowed, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() else None


def check_memory(place: Machine) -> list[Finding]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max")
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        used = _read("/sys/fs/cgroup/memory.current")
        return [_memory_finding(total, total - int(used) if used.isdigit() else None)]
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    available = next((int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"), None)
    return [_memory_finding(total, available)]


def _memory_finding(total: int, available: int | None) -> Finding:
    text = f"{total / _GIB:.1f} GiB" + ("" if available is None else f", {max(available, 0) / _GIB:.1f} free")
    if available is not None and available < _GIB:
        return Finding("memory", WARN, text, "A framework alone needs about half a GiB in each process.")
    return Finding("memory", OK, text)


def check_home(place: Machine) -> list[Finding]:
    """Whether runs can be recorded: the home, or the folder that it would be made in, must be writable and not full."""
    import tempfile

    folder = next(folder for folder in (place.home, *place.home.parents) if os.path.exists(folder))  # noqa: PTH110
    hint = "Set PUMASI_HOME to a folder that can be written."
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return [Finding("home", WARN, f"{place.home} can't be written: {error.strerror}.", hint)]
    free = shutil.disk_usage(folder).free
    text = f"{place.home}, {free / _GIB:.1f} GiB free"
    return [Finding("home", WARN, text, hint) if free < _GIB else Finding("home", OK, text)]


def check_open_files(place: Machine) -> list[Finding]:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 1024:
        return [Finding("open files", WARN, f"at most {soft} at once", "ulimit -n 4096")]
    return [Finding("open files", OK, "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} at once")]


def check_shared_memory(place: Machine) -> list[Finding]:
    """Data loaders pass batches through it; containers get 64 MB unless told otherwise."""
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return []
    if size < _GIB // 4:
        hint = "For torch's DataLoader with workers: start the container with --shm-size=1g or more."
        return [Finding("shared memory", WARN, f"only {size / 2**20:.0f} MiB", hint)]
    return [Finding("shared memory", OK, f"{size / _GIB:.1f} GiB")]


def check_proxies(place: Machine) -> list[Finding]:
    """Which ones are set; their values may hold passwords."""
    names = sorted(name for name in place.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy"))
    if not names:
        return []
    return [Finding("proxies", OK, f"{', '.join(names)} set; the processes of a run reach each other without them")]


def check_cluster(place: Machine) -> list[Finding]:
    if place.environ.get("KUBERNETES_SERVICE_HOST"):
        return [Finding("cluster", OK, "this machine is a pod of a Kubernetes cluster")]
    for path in _kubeconfigs(place.environ):
        context = _current_context(path)
        if context:
            return [Finding("cluster", OK, f"Kubernetes context '{context}' in {path}")]
    return [Finding("cluster", MISSING, "no Kubernetes configuration; not needed to run here.")]


def _kubeconfigs(environ: Mapping[str, str]) -> Iterable[Path]:
    named = environ.get("KUBECONFIG", "")
    if named:
        return [Path(path) for path in named.split(os.pathsep) if path]
    return [Path(environ.get("HOME", "/"), ".kube", "config")]


def _current_context(path: Path) -> str:
    """Without a YAML library, which takes its time: it is one line in every file that kubectl writes; JSON is YAML."""
    found = re.search(
        r"""^current-context:\s*["']?([^"'\n]+)|"current-context":\s*"([^"]+)\"""", _read(str(path)), re.M
    )
    return (found[1] or found[2]).strip() if found else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def about_pumasi() -> Finding:
    from pumasi import __version__

    return Finding("pumasi", OK, f"{__version__}, on Python {sys.version.split()[0]} at {sys.executable}")
