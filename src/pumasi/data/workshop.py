"""Where a folder of parts is made: a hidden folder beside it, `.NAME.pumasi`, which becomes NAME when it is whole.

A lock in it says whether its owner lives. The kernel lets go of it however the owner ends, so what a killed one has
left is known to be waste, and what a living one is making is left alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pumasi.data.files import sync_one

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Workshop(NamedTuple):
    """`new` is to become `target`; `scratch` is for what nobody needs afterwards."""

    target: Path
    new: Path
    scratch: Path

    def finish(self) -> None:
        """Now the target is what was made, at one stroke: whoever looks sees the old one or the new one, whole."""
        sync_one(self.new)
        if self.target.exists():
            _replace(self.target, self.new, _old(self.target))
        else:
            self.new.rename(self.target)
        sync_one(self.target.parent)


@contextmanager
def workshop(target: Path, waiting: Callable[[], None]) -> Iterator[Workshop]:
    """For one process at a time: `waiting` is called when another one is at work. Nothing of it stays behind."""
    folder = _folder(target)
    lock = _lock(folder, waiting)
    try:
        _recover(target)
        _empty(folder)
        shop = Workshop(target, folder / "new", folder / "scratch")
        shop.new.mkdir()
        shop.scratch.mkdir()
        yield shop
    finally:
        _recover(target)
        _empty(folder)
        # The lock goes last, and the folder only if nobody has come in meanwhile.
        (folder / "lock").unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
        os.close(lock)


def _folder(target: Path) -> Path:
    return target.with_name(f".{target.name}.pumasi")


def _old(target: Path) -> Path:
    return _folder(target) / "old"


def _lock(folder: Path, waiting: Callable[[], None]) -> int:
    """Locks what was opened, so it has to be looked whether that still is the file in the folder."""
    told = False
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            raise
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    waiting()
                    told = True
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(fd), (folder / "lock").stat()):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "lock":
            shutil.rmtree(path, ignore_errors=True)


def _replace(target: Path, new: Path, old: Path) -> None:
    if not _exchange(target, new):
        # Where the file system can't exchange two folders, there is a moment with neither: see `_recover`.
        target.rename(old)
        new.rename(target)


def _recover(target: Path) -> None:
    """Puts an old set back whose owner was killed before the new one took its place."""
    if _old(target).exists() and not target.exists():
        _old(target).rename(target)


def _exchange(one: Path, other: Path) -> bool:
    """Linux exchanges two names at one stroke."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    return renameat2 is not None and not renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
