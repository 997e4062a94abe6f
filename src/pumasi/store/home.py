"""Where the store lives, and the folders in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pumasi.errors import SystemTrouble


def default_home(environ: Mapping[str, str]) -> Path:
    """Absolute, since a detached manager works in another folder than the command that started it."""
    if environ.get("PUMASI_HOME"):
        return Path(environ["PUMASI_HOME"]).absolute()
    state = Path(environ.get("XDG_STATE_HOME", ""))
    # The XDG specification says to pass over relative paths.
    return (state if state.is_absolute() else _user_folder(environ) / ".local" / "state") / "pumasi"


def make_home(home: Path) -> None:
    """A home that is there already may be read-only, so nothing is touched that need not be."""
    for folder in (home, runs_folder(home), deleted_folder(home)):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def runs_folder(home: Path) -> Path:
    return home / "runs"


def deleted_folder(home: Path) -> Path:
    """Folders of runs on their way out, each under its run's number."""
    return home / "deleted"


def _user_folder(environ: Mapping[str, str]) -> Path:
    if environ.get("HOME"):
        return Path(environ["HOME"]).absolute()
    try:
        return Path.home()
    except RuntimeError as error:
        raise SystemTrouble(
            "Pumasi does not know where to keep its runs: HOME is not set.",
            "Set PUMASI_HOME to a folder that you can write to.",
        ) from error
