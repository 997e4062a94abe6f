"""The journal of a run: what its flow was asked and told, in order, so that whoever goes on with it repeats that.

Entries are JSON objects that are only ever added:

    {"v": 1, "offered": NAME}                                  the flow gave this task
    {"v": 1, "task": NAME, "state": …, "attempt": …, …}        what has changed about one that is on its way
    {"v": 1, "ended": NAME, "attempt": …, "outcome": {…}, …}   it has ended for good

Only the first and the last kind are history; of the other kind the newest values count, and none once the task has
ended. A reader passes over entries and fields that it does not know: a later version wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

VERSION = 1
DETAILS = ("reason", "hint", "tail")
"""Of an outcome: what is for people. A flow that goes on does without it."""

Entry = dict[str, Any]


def offered(name: str) -> Entry:
    return {"v": VERSION, "offered": name}


def changed(name: str, fields: Mapping[str, Any]) -> Entry:
    return {"v": VERSION, "task": name, **fields}


def ended(name: str, fields: Mapping[str, Any]) -> Entry:
    return {"v": VERSION, "ended": name, **fields}


def is_history(entry: Mapping[str, Any]) -> bool:
    return "offered" in entry or "ended" in entry


def summary(entry: Mapping[str, Any]) -> Entry:
    """Without the details; how it ended, and what it measured, stay."""
    outcome = entry.get("outcome")
    if not outcome:
        return dict(entry)
    return {**entry, "outcome": {name: value for name, value in outcome.items() if value and name not in DETAILS}}


def tasks(entries: Iterable[Mapping[str, Any]], before: Mapping[str, dict[str, Any]] = {}) -> dict[str, dict[str, Any]]:
    """How each task stands after these entries, by the words that they have for it. `before` is what was known without
    a journal."""
    found = dict(before)
    for entry in entries:
        if "offered" in entry:
            found.setdefault(entry["offered"], {"state": "queued", "attempt": 0})
        elif name := entry.get("task") or entry.get("ended"):
            told = {key: value for key, value in entry.items() if key not in ("v", "task", "ended")}
            found[name] = {**found.get(name, {}), **told, **({"state": "ended"} if "ended" in entry else {})}
    return found
