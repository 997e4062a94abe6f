"""The tables, as a list of numbered steps that only ever gets longer.

A store's version is the number of steps that it has been through. A published step is never edited: a change of the
tables is a new step at the end, and old stores catch up when they are opened.
"""

from __future__ import annotations

MIGRATIONS: list[tuple[str, ...]] = [
    (
        # AUTOINCREMENT: the number of a deleted run is never given to another one, so what is left to clean up
        # after it can be named by its number.
        """CREATE TABLE runs (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            state TEXT NOT NULL,
            spec TEXT NOT NULL,
            created REAL NOT NULL,
            started REAL,
            ended REAL,
            attempt INTEGER NOT NULL,
            pid INTEGER,
            placement TEXT NOT NULL,
            framework TEXT NOT NULL,
            ranks INTEGER NOT NULL,
            outcome TEXT,
            exit_code INTEGER,
            detached INTEGER NOT NULL
        )""",
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY,
            run INTEGER NOT NULL,
            at REAL NOT NULL,
            kind TEXT NOT NULL,
            data TEXT NOT NULL
        )""",
        "CREATE INDEX events_of_run ON events (run)",
        # A value that is NULL is a NaN: SQLite has no other way to keep one.
        """CREATE TABLE metrics (
            seq INTEGER PRIMARY KEY,
            run INTEGER NOT NULL,
            at REAL NOT NULL,
            attempt INTEGER NOT NULL,
            rank INTEGER NOT NULL,
            step INTEGER,
            epoch INTEGER,
            name TEXT NOT NULL,
            value REAL
        )""",
        "CREATE INDEX metrics_of_run ON metrics (run)",
        # The last value of every metric, so that a view need not read a million rows to show ten numbers.
        """CREATE TABLE last_metrics (
            run INTEGER NOT NULL,
            rank INTEGER NOT NULL,
            name TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            value REAL,
            PRIMARY KEY (run, rank, name)
        ) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE tasks (
            run INTEGER NOT NULL,
            name TEXT NOT NULL,
            fields TEXT NOT NULL,
            UNIQUE (run, name)
        )""",
    ),
    (
        "ALTER TABLE runs ADD COLUMN user TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN host TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN started_here INTEGER NOT NULL DEFAULT 1",
        # Until now nothing told copies of other people's runs from one's own that have a manager in the cluster.
        "UPDATE runs SET started_here = 0 WHERE detached AND pid IS NULL AND json_extract(spec, '$.on') LIKE 'k8s%'",
    ),
    (
        # What is in the table tasks was kept by versions that had no journal.
        """CREATE TABLE journal (
            seq INTEGER PRIMARY KEY,
            run INTEGER NOT NULL,
            entry TEXT NOT NULL
        )""",
        "CREATE INDEX journal_of_run ON journal (run)",
    ),
]
