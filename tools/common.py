"""What the tools share. Standard library only: they run before anything is installed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pumasi"
CLUSTERS = CACHE / "clusters"
# Where the programs of system administrators are: not everybody has these in PATH.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

Say = Callable[[str], None]
T = TypeVar("T")


class ToolError(Exception):
    """A sentence about what stands in the way."""


def call(*command: str, environ: Mapping[str, str] | None = None) -> None:
    try:
        subprocess.run(command, check=True, env={**os.environ, **(environ or {})})
    except (OSError, subprocess.CalledProcessError) as error:
        raise ToolError(f"{' '.join(command)}: {error}") from None


def works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def until(condition: Callable[[], T], what: str, *, seconds: float, every: float = 0.05) -> T:
    """The first true answer of `condition`; an error that names `what` when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise ToolError(f"waited {seconds:.0f} s for {what}, in vain")
        time.sleep(every)


@contextlib.contextmanager
def locked(name: str, seconds: float, waiting: Callable[[], None] = lambda: None) -> Iterator[socket.socket]:
    """One at a time on this machine. The lock is the name of a socket, not a file: nothing of it stays behind."""
    with socket.socket(socket.AF_UNIX) as holder:

        def taken() -> bool:
            try:
                holder.bind(f"\0pumasi-{name}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
            return True

        if not taken():
            waiting()
            until(taken, f"the lock {name}, which another process holds", seconds=seconds)
        yield holder


def search_path() -> str:
    known = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*known, *(folder for folder in SYSTEM_FOLDERS if folder not in known)])


def need_programs(packages: Mapping[str, str], say: Say) -> None:
    """Programs that no package index has, and the Debian packages that have them."""
    path = search_path()
    need({program: name for program, name in packages.items() if shutil.which(program, path=path) is None}, say)


def need(missing: Mapping[str, str], say: Say) -> None:
    """What is missing, and the Debian packages that have it."""
    if not missing:
        return
    packages = list(dict.fromkeys(missing.values()))
    if not apt_usable():
        raise ToolError(
            f"{', '.join(missing)} missing: install {' '.join(packages)} first "
            "(so the packages are called in Debian; elsewhere their names are similar)"
        )
    apt_install(packages, say)


def apt_usable() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(packages: list[str], say: Say) -> None:
    say(f"apt-get install {' '.join(packages)} …")
    call("apt-get", "-qq", "update")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    call("apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages, environ=quiet)
