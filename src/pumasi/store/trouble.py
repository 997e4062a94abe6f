"""Errors of the disk and of SQLite, told as a sentence about the user's machine; the one place that knows them."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pumasi.errors import SystemTrouble

_ELSEWHERE = "Set PUMASI_HOME to a folder that you can write to."
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_FOLDER = (errno.ENOTDIR, errno.EEXIST)


@contextmanager
def translated(home: Path) -> Iterator[None]:
    """Errors that the machine is to blame for leave as SystemTrouble; errors of ours leave as they are."""
    try:
        yield
    except OSError as error:
        raise _of_system(error, home) from error
    except sqlite3.Error as error:
        trouble = _of_sqlite(error, home)
        if trouble is None:
            raise
        raise trouble from error


def is_locked(error: sqlite3.Error) -> bool:
    """ "database is locked", and "locking protocol" after too many tries of SQLite's own."""
    return "lock" in str(error)


def _of_system(error: OSError, home: Path) -> SystemTrouble:
    if error.errno in _FULL:
        return _full(home)
    if error.errno in _FORBIDDEN:
        return SystemTrouble(f"{error.filename or home} can't be used: {os.strerror(error.errno)}.", _ELSEWHERE)
    if error.errno in _NO_FOLDER:
        return SystemTrouble(f"{error.filename or home} is in the way: it is not a folder.", _ELSEWHERE)
    return SystemTrouble(f"The store in {home} can't be used: {error}.", _ELSEWHERE)


def _of_sqlite(error: sqlite3.Error, home: Path) -> SystemTrouble | None:
    """By the text of the message: the numeric codes are there from Python 3.11 on only."""
    text, path = str(error), home / "pumasi.db"
    if is_locked(error):
        return SystemTrouble(
            f"The store {path} is busy: another process has kept it locked for too long.",
            "Try again; if it stays like that, look for a pumasi process that hangs.",
        )
    if "not a database" in text or "malformed" in text:
        return SystemTrouble(
            f"The store {path} is damaged: {text}.",
            f"Put back a copy of it, or move {path}* away to start afresh "
            f"(logs and checkpoints stay in {home / 'runs'}).",
        )
    if "disk is full" in text or ("disk I/O error" in text and _is_full(home)):
        return _full(home)
    if "readonly" in text or "unable to open" in text:
        return SystemTrouble(f"The store {path} can't be used: {_why_not(path) or text}.", _ELSEWHERE)
    if "disk I/O error" in text:
        return SystemTrouble(f"The disk under {home} gave an error: {text}.", _ELSEWHERE)
    return None


def _full(home: Path) -> SystemTrouble:
    return SystemTrouble(
        f"The disk under {home} is full.",
        "Free some space (`pumasi delete RUN` removes a run's logs and checkpoints), "
        "or set PUMASI_HOME to a folder on another disk.",
    )


def _why_not(path: Path) -> str:
    """SQLite says that it could not, but not why."""
    try:
        disk = os.statvfs(path.parent)
    except OSError as error:
        return os.strerror(error.errno or 0)
    if disk.f_flag & os.ST_RDONLY:
        return "it is on a read-only file system"
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK):
            return f"you may not write to {place}"
    return ""


def _is_full(home: Path) -> bool:
    """SQLite calls it an I/O error when it finds no room for its shared memory, of which it wants 32 KiB."""
    try:
        disk = os.statvfs(home)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 1 << 16
