""".jsonl: a JSON value a line. Empty lines are no rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pumasi.data.files import Tick
from pumasi.data.formats.base import Classes, Source, damaged, unknown_key
from pumasi.data.formats.lines import LineStream, lines
from pumasi.errors import UsageError


def open_source(path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
    classes = None if key is None else Classes(path, key)

    def look(first: int, rows: list[bytes]) -> None:
        values = [_value(path, first + index, row) for index, row in enumerate(rows)]
        if classes is not None and key is not None:
            classes.add(_field(path, first + index, value, key) for index, value in enumerate(values))

    stream = LineStream(path, lambda: _rows(path))
    return Source(stream.survey(look, tick), [stream], None if classes is None else classes.codes)


def _rows(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in lines(path, file):
            if not line.isspace():
                yield line


def _value(path: Path, number: int, row: bytes) -> Any:
    try:
        return json.loads(row)
    except (ValueError, RecursionError):
        raise damaged(path, f"has no whole JSON value in row {number:,}", "Mend that row, or fetch it again.") from None


def _field(path: Path, number: int, value: Any, key: str) -> str:
    if not isinstance(value, dict):
        raise UsageError(f"Row {number:,} of {path} is no object, and has no {key}.", "Leave out --stratify.")
    if key not in value:
        raise unknown_key(path, key, f"key in row {number:,} called", value)
    # Texts, because lists can't be looked up, and because 1, 1.0 and true would be the same.
    return repr(value[key])
