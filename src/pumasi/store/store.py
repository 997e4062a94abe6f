"""The store as the rest of Pumasi sees it: runs, their events, metrics and logs, and who steers them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.errors import NotFound, RunBusy, SystemTrouble
from pumasi.store.database import Database
from pumasi.store.home import deleted_folder, make_home, runs_folder
from pumasi.store.lookup import pick
from pumasi.store.records import (
    NEW_RUN,
    RUN_COLUMNS,
    EventRow,
    MetricRow,
    RunRecord,
    pack_run,
    storable,
    unpack_metric,
    unpack_run,
    unpack_value,
)
from pumasi.store.trouble import translated

if TYPE_CHECKING:
    from pumasi.core.events import Event
    from pumasi.core.frames import Frame
    from pumasi.store.lock import RunLock
    from pumasi.store.logs import LogFile, LogFollower

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_ID_TRIES = 20


class Store:
    """After a fork the child's first use opens a connection of its own, by itself."""

    def __init__(self, home: Path) -> None:
        """Use `open`."""
        self.home = home
        with translated(home):
            make_home(home)
        self._db = Database(home)
        self._log: LogFile | None = None

    @classmethod
    def open(cls, home: Path) -> Store:
        store = cls(home)
        with translated(home):
            if store._db.writable and any(deleted_folder(home).iterdir()):
                from pumasi.store.removal import finish_removals

                finish_removals(home, store._delete_rows)
        return store

    def close(self) -> None:
        """The next use opens it again."""
        self._db.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    # Runs

    def create_run(self, name: str, spec: dict[str, object], created: float, **fields: object) -> RunRecord:
        """The record comes first and the folder after it: a crash in between leaves a run that one sees and can
        delete, not a folder that nobody knows of."""
        values = pack_run({**NEW_RUN, **fields, "spec": spec, "created": created})
        with translated(self.home):
            for _ in range(_ID_TRIES):
                run_id = f"{name}-{_random_letters()}"
                if self._insert_run({**values, "id": run_id}) and self._make_folder(run_id):
                    return self.run(run_id)
        raise SystemTrouble(f"Pumasi found no free id for a run named {name}.", "Try again, or give it another name.")

    def import_run(self, run_id: str, spec: dict[str, object], created: float) -> RunRecord:
        """The copy of a run that lives elsewhere, under its own id."""
        values = pack_run({**NEW_RUN, "spec": spec, "created": created, "detached": True, "started_here": False})
        with translated(self.home):
            if self._insert_run({**values, "id": run_id}):
                self._make_folder(run_id)
        return self.run(run_id)

    def update_run(self, run_id: str, **fields: object) -> None:
        values = pack_run(fields)
        columns = ", ".join(f"{name} = :{name}" for name in values)
        with self._db.transaction() as db:
            # The columns are fields of RunRecord: pack_run refuses all others.
            changed = db.execute(f"UPDATE runs SET {columns} WHERE id = :run", {**values, "run": run_id})  # noqa: S608
        if changed.rowcount == 0:
            raise _missing(run_id)

    def run(self, run_id: str) -> RunRecord:
        rows = self._db.read(f"SELECT {RUN_COLUMNS} FROM runs WHERE id = ?", (run_id,))  # noqa: S608
        if not rows:
            raise _missing(run_id)
        return unpack_run(rows[0])

    def runs(self, limit: int | None = None) -> list[RunRecord]:
        """The newest first."""
        rows = self._db.read(
            f"SELECT {RUN_COLUMNS} FROM runs ORDER BY number DESC LIMIT ?",  # noqa: S608
            (-1 if limit is None else limit,),
        )
        return [unpack_run(row) for row in rows]

    def unfinished(self) -> list[RunRecord]:
        rows = self._db.read(f"SELECT {RUN_COLUMNS} FROM runs WHERE ended IS NULL")  # noqa: S608
        return [unpack_run(row) for row in rows]

    def find(self, prefix: str | None, *, running_first: bool = False, careful: bool = False) -> RunRecord:
        """The run with that id, or the only one whose id begins like that; with `running_first` the only one of those
        that has not ended, where there are several. With `careful`, a run that was not started here is found by its
        full id only. None: the last run that was started here."""
        rows = self._db.read("SELECT id, ended, started_here FROM runs ORDER BY number DESC")
        running = {run_id for run_id, ended, _ in rows if ended is None} if running_first else set()
        own = {run_id for run_id, _, started_here in rows if started_here}
        return self.run(pick(prefix, [run_id for run_id, _, _ in rows], own=own, running=running, careful=careful))

    def own(self) -> set[str]:
        """The ids of the runs that were started here; the others are copies of what a cluster has."""
        return {run_id for (run_id,) in self._db.read("SELECT id FROM runs WHERE started_here")}

    def delete_run(self, run_id: str) -> None:
        """Rows and folder, checkpoints too. RunBusy while a manager steers it. See `removal` for crashes."""
        from pumasi.store.removal import remove_run

        number = self._number(run_id)
        with translated(self.home):
            try:
                remove_run(self.home, number, self.folder(run_id), self._delete_rows)
            except BlockingIOError:
                raise self._busy(run_id) from None

    # Tasks, of a run that has several

    def add_to_journal(self, run_id: str, entries: Sequence[dict[str, Any]]) -> None:
        with self._db.transaction() as db:
            added = db.executemany(
                "INSERT INTO journal (run, entry) SELECT number, ? FROM runs WHERE id = ?",
                [(json.dumps(entry), run_id) for entry in entries],
            )
        if added.rowcount < len(entries):
            raise _missing(run_id)

    def journal(self, run_id: str) -> list[dict[str, Any]]:
        """In the order in which the entries were added; see `core.flows.journal`."""
        rows = self._db.read(
            "SELECT entry FROM journal WHERE run = (SELECT number FROM runs WHERE id = ?) ORDER BY seq", (run_id,)
        )
        return [json.loads(entry) for (entry,) in rows]

    def tasks(self, run_id: str) -> dict[str, dict[str, Any]]:
        """How each of them stands."""
        from pumasi.core.flows.journal import tasks

        rows = self._db.read(
            "SELECT name, fields FROM tasks WHERE run = (SELECT number FROM runs WHERE id = ?) ORDER BY rowid",
            (run_id,),
        )
        return tasks(self.journal(run_id), {name: json.loads(fields) for name, fields in rows})

    # Events and metrics

    def add_event(self, run_id: str, at: float, event: Event) -> None:
        from pumasi.core.events import pack

        kind, data = pack(event)
        with self._db.transaction() as db:
            added = db.execute(
                "INSERT INTO events (run, at, kind, data) SELECT number, ?, ?, ? FROM runs WHERE id = ?",
                (at, kind, json.dumps(data), run_id),
            )
        if added.rowcount == 0:
            raise _missing(run_id)

    def events(self, run_id: str, after: int = 0) -> list[EventRow]:
        from pumasi.core.events import unpack

        rows = self._db.read(
            "SELECT seq, at, kind, data FROM events WHERE run = (SELECT number FROM runs WHERE id = ?) AND seq > ? "
            "ORDER BY seq",
            (run_id, after),
        )
        return [EventRow(seq, at, unpack(kind, json.loads(data))) for seq, at, kind, data in rows]

    def add_metrics(self, run_id: str, rows: Sequence[MetricRow]) -> None:
        try:
            self._insert_metrics(run_id, rows)
        except (OverflowError, UnicodeEncodeError):
            self._insert_metrics(run_id, [storable(row) for row in rows])

    def metrics(
        self,
        run_id: str,
        *,
        rank: int | None = None,
        name: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> list[MetricRow]:
        """In the order in which they came; `after` is the `seq` of the last row that the caller has seen."""
        rows = self._db.read(
            "SELECT at, attempt, rank, step, epoch, name, value, seq FROM metrics "
            "WHERE run = (SELECT number FROM runs WHERE id = :run) AND seq > :after "
            "AND (:rank IS NULL OR rank = :rank) AND (:name IS NULL OR name = :name) ORDER BY seq LIMIT :limit",
            {"run": run_id, "after": after, "rank": rank, "name": name, "limit": -1 if limit is None else limit},
        )
        return [unpack_metric(row) for row in rows]

    def last_metrics(self, run_id: str) -> dict[int, dict[str, float]]:
        """The last value of each name, by rank, in the attempt that the run is at."""
        rows = self._db.read(
            "SELECT rank, name, value FROM last_metrics JOIN runs ON runs.number = run "
            "WHERE id = ? AND last_metrics.attempt = runs.attempt ORDER BY rank, name",
            (run_id,),
        )
        last: dict[int, dict[str, float]] = {}
        for rank, name, value in rows:
            last.setdefault(rank, {})[name] = unpack_value(value)
        return last

    # Files

    def folder(self, run_id: str) -> Path:
        return runs_folder(self.home) / run_id

    def log_path(self, run_id: str, attempt: int) -> Path:
        from pumasi.store.logs import log_path

        return log_path(self._logs(run_id), attempt)

    def append_log(self, run_id: str, attempt: int, chunk: bytes) -> None:
        """Whole lines, by the holder of the run's lock. The file stays open for the next chunk."""
        from pumasi.store.logs import LogFile

        path = self.log_path(run_id, attempt)
        with translated(self.home):
            if self._log is None or self._log.path != path:
                if self._log is not None:
                    self._log.close()
                self._log = None
                self._log = LogFile(path)
            self._log.append(chunk)

    def read_log(
        self, run_id: str, *, ranks: Collection[int] = (), since_ms: int | None = None, tail: int | None = None
    ) -> Iterator[Frame]:
        """All attempts in order, of all ranks if none is named; a frame that is being written at the moment is left
        out."""
        from pumasi.store.logs import Wanted, read_frames

        with translated(self.home):
            yield from read_frames(self._logs(run_id), Wanted(ranks, since_ms), tail)

    def last_heard(self, run_id: str, attempt: int) -> dict[int, int]:
        """The number of the last output that is known of each rank."""
        from pumasi.store.logs import last_heard

        with translated(self.home):
            return last_heard(self.log_path(run_id, attempt))

    def follow_log(
        self, run_id: str, *, ranks: Collection[int] = (), since_ms: int | None = None, tail: int | None = None
    ) -> LogFollower:
        """Its first reads give what `read_log` would give, the later ones what has been added."""
        from pumasi.store.logs import LogFollower, Position, Wanted, tail_start

        wanted = Wanted(ranks, since_ms)
        with translated(self.home):
            start = Position(0, 0) if tail is None else tail_start(self._logs(run_id), wanted, tail)
        return LogFollower(self._logs(run_id), wanted, start)

    def reopen(self, run_id: str) -> None:
        """A run that was over goes on."""
        self.update_run(run_id, state="queued", ended=None, outcome=None, exit_code=None, pid=None)
        with translated(self.home):
            (self.folder(run_id) / "complete").unlink(missing_ok=True)
            (self.folder(run_id) / "tmp").mkdir(exist_ok=True)

    def mark_complete(self, run_id: str) -> None:
        """Nothing will be added to the record and the log of this run."""
        with translated(self.home):
            (self.folder(run_id) / "complete").touch()

    def is_complete(self, run_id: str) -> bool:
        return (self.folder(run_id) / "complete").exists()

    # Who steers a run

    def lock(self, run_id: str) -> RunLock:
        """For a manager, to be held as long as it lives. RunBusy: there is one already."""
        from pumasi.store.lock import RunLock

        with translated(self.home):
            try:
                lock = RunLock(self._lock_path(run_id))
            except BlockingIOError:
                raise self._busy(run_id) from None
            except FileNotFoundError:
                raise _missing(run_id) from None
            try:
                lock.claim()
            except OSError:
                lock.release()
                raise
            return lock

    def manager_pid(self, run_id: str) -> int | None:
        """The pid of the living manager, None where there is none."""
        from pumasi.store.lock import manager_pid

        with translated(self.home):
            return manager_pid(self._lock_path(run_id))

    def _busy(self, run_id: str) -> RunBusy:
        pid = self.manager_pid(run_id)
        return RunBusy(
            f"Run {run_id} is steered by another pumasi process{f' ({pid})' if pid else ''}.",
            f"Watch it with `pumasi attach {run_id}`, or end it with `pumasi stop {run_id}`.",
        )

    def _lock_path(self, run_id: str) -> Path:
        return self.folder(run_id) / "lock"

    def _logs(self, run_id: str) -> Path:
        return self.folder(run_id) / "logs"

    def _insert_run(self, values: dict[str, object]) -> bool:
        """False: the id is taken."""
        marks = ", ".join(f":{name}" for name in values)
        with self._db.transaction() as db:
            new = db.execute(f"INSERT OR IGNORE INTO runs ({', '.join(values)}) VALUES ({marks})", values)  # noqa: S608
        return new.rowcount == 1

    def _make_folder(self, run_id: str) -> bool:
        """False: a folder of that name is there, of a run whose record was lost. It is not ours to touch."""
        try:
            self.folder(run_id).mkdir(mode=0o700)
        except FileExistsError:
            self._delete_rows(self._number(run_id))
            return False
        try:
            for name in ("logs", "checkpoints", "tmp"):
                (self.folder(run_id) / name).mkdir()
            self._lock_path(run_id).touch()
        except OSError:
            self.delete_run(run_id)
            raise
        return True

    def _insert_metrics(self, run_id: str, rows: Sequence[MetricRow]) -> None:
        with self._db.transaction() as db:
            number = self._number(run_id)
            db.executemany(
                "INSERT INTO metrics (run, at, attempt, rank, step, epoch, name, value) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                ((number, *row[:7]) for row in rows),
            )
            last = {(row.rank, row.name): row for row in rows}.values()
            db.executemany(
                "INSERT OR REPLACE INTO last_metrics (run, rank, name, attempt, value) VALUES (?, ?, ?, ?, ?)",
                ((number, row.rank, row.name, row.attempt, row.value) for row in last),
            )

    def _number(self, run_id: str) -> int:
        """What the other tables call the run."""
        rows = self._db.read("SELECT number FROM runs WHERE id = ?", (run_id,))
        if not rows:
            raise _missing(run_id)
        return int(rows[0][0])

    def _delete_rows(self, number: int) -> None:
        with self._db.transaction() as db:
            for table in ("metrics", "last_metrics", "events", "tasks", "journal"):
                db.execute(f"DELETE FROM {table} WHERE run = ?", (number,))  # noqa: S608
            db.execute("DELETE FROM runs WHERE number = ?", (number,))


def _missing(run_id: str) -> NotFound:
    return NotFound(f"There is no run {run_id}.", "`pumasi ps` lists the runs that there are.")


def _random_letters() -> str:
    from secrets import choice

    return "".join(choice(_ID_LETTERS) for _ in range(5))
