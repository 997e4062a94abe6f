"""One connection to pumasi.db that many processes share: opened, migrated, and patient with the others."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pumasi.errors import StoreTooNew
from pumasi.store.schema import MIGRATIONS
from pumasi.store.trouble import is_locked, translated

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds to wait for other processes. Half of what a gang's member may be silent for: the manager waits here too."""
_PAUSE = 0.005


class Database:
    """`_obstacle` is why the store can't be written; what is in it may be readable all the same. Threads take turns."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._db: sqlite3.Connection | None = None
        self._obstacle: sqlite3.OperationalError | None = None
        self._pid = 0
        self._turn = threading.RLock()
        with translated(home):
            self._connection()

    @property
    def writable(self) -> bool:
        return self._obstacle is None

    def read(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[tuple[Any, ...]]:
        with translated(self._home), self._turn:
            return _patiently(lambda: self._connection().execute(sql, values).fetchall())

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything that is written inside is there afterwards, or nothing is."""
        with translated(self._home), self._turn:
            db = self._connection()
            if self._obstacle is not None:
                raise self._obstacle
            with _transaction(db):
                yield db

    def close(self) -> None:
        """The next use opens it again."""
        if self._db is not None and self._pid == os.getpid():
            self._db.close()
        elif self._db is not None:
            _leak(self._db)
        self._db = None

    def _connection(self) -> sqlite3.Connection:
        """A connection that met an obstacle sees neither new rows nor that the obstacle is gone, and SQLite forbids
        to use one that came through a fork: both are made anew."""
        if self._obstacle is not None or self._pid != os.getpid():
            self.close()
        if self._db is None:
            self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection:
        path = self._home / "pumasi.db"
        self._pid = os.getpid()
        self._obstacle = None
        try:
            db = _open_for_writing(path)
        except sqlite3.OperationalError as error:
            readable = None if is_locked(error) else _open_for_reading(path)
            if readable is None:
                raise
            self._obstacle = error
            return readable
        if not os.access(path, os.W_OK):
            # SQLite opens such a file too, and keeps the bad news for the first write.
            self._obstacle = sqlite3.OperationalError("attempt to write a readonly database")
        return db


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    _patiently(lambda: db.execute("BEGIN IMMEDIATE"))
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _open_for_writing(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA synchronous = NORMAL")
        if _patiently(lambda: _version(db, path)) < len(MIGRATIONS):
            _migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Where SQLite can't make its shared-memory file (a read-only or a full disk), it can still read a file that
    nobody writes. It would pass over a write-ahead log, so one with something in it means no."""
    wal = path.with_name(path.name + "-wal")
    if not path.exists() or (wal.exists() and wal.stat().st_size):
        return None
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    if _version(db, path) == len(MIGRATIONS):
        return db
    db.close()
    return None


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    if _version(db, path) == 0:
        # Specs hold the user's environment variables. SQLite gives its other files the mode of this one.
        path.chmod(0o600)
        _patiently(lambda: db.execute("PRAGMA journal_mode = WAL"))
    with _transaction(db):
        # Another process may have migrated while this one waited for its turn.
        for step in MIGRATIONS[_version(db, path) :]:
            for statement in step:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(db: sqlite3.Connection, path: Path) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"The store {path} was written by a newer Pumasi: it has version {version}, this Pumasi knows "
            f"{len(MIGRATIONS)}.",
            "Upgrade Pumasi (pip install --upgrade pumasi), or set PUMASI_HOME to another folder.",
        )
    return version


def _patiently(action: Callable[[], T]) -> T:
    """SQLite waits by itself for most locks, but answers at once while another process recovers or closes."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if not is_locked(error) or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)


def _leak(db: sqlite3.Connection) -> None:
    """Keep a connection of the parent's from being closed, ever: SQLite forbids that too, in a child."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(db))
