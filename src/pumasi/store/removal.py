"""Deleting a run so that a crash at any point leaves nothing behind for ever.

The folder is moved to deleted/NUMBER first, in one step: from then on whoever opens the store knows that this run is
to go, and finishes the job. Its files go next (on a full disk, rows can only be deleted once there is room again), then
the rows, and the empty folder last. The run's lock moves along with the folder, and keeps two from doing it at once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from pumasi.errors import SystemTrouble
from pumasi.store.home import deleted_folder
from pumasi.store.lock import RunLock


def remove_run(home: Path, number: int, folder: Path, delete_rows: Callable[[int], None]) -> None:
    """BlockingIOError: a manager steers the run."""
    grave = deleted_folder(home) / str(number)
    with ExitStack() as held:
        with suppress(FileNotFoundError):
            held.enter_context(RunLock(folder / "lock"))
        with suppress(FileNotFoundError):
            folder.rename(grave)
        _clear(grave, delete_rows)


def finish_removals(home: Path, delete_rows: Callable[[int], None]) -> None:
    """What can't be removed now will be tried again, and must not keep anybody from using the store."""
    for grave in [path for path in deleted_folder(home).iterdir() if path.name.isdigit()]:
        with suppress(OSError, SystemTrouble), ExitStack() as held:
            with suppress(FileNotFoundError):
                held.enter_context(RunLock(grave / "lock"))
            _clear(grave, delete_rows)


def _clear(grave: Path, delete_rows: Callable[[int], None]) -> None:
    for child in list(grave.iterdir()) if grave.is_dir() else []:
        if child.name != "lock":
            _remove(child)
    delete_rows(int(grave.name))
    (grave / "lock").unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        grave.rmdir()


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        hint = f"Try again; if it stays like that: chmod -R u+w {path}, and delete the run again."
        raise SystemTrouble(f"{path} can't be removed: {error.strerror}.", hint) from error
