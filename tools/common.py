"""What the tools share. Standard library only: they run before anything is installed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pumasi"
# Where the programs of system administrators are: not everybody has these in PATH.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")

Say = Callable[[str], None]


class SetupError(Exception):
    """A sentence about what stands in the way."""


def call(*command: str, environ: Mapping[str, str] | None = None) -> None:
    try:
        subprocess.run(command, check=True, env={**os.environ, **(environ or {})})
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"{' '.join(command)}: {error}") from None


def works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def alone(file: Path, say: Say) -> Iterator[None]:
    """One at a time: a second one waits, and then finds everything made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that makes the same …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])


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
        raise SetupError(
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
