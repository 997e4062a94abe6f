""".csv: a header, which every part repeats, and rows. Fields in quotes may have newlines in them; empty lines are no
rows. The delimiter is the one of , ; | and tab that the first line has most of."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from pumasi.data.files import Tick
from pumasi.data.formats.base import Classes, Source, damaged, unknown_key
from pumasi.data.formats.lines import LONGEST_ROW, LineStream, lines
from pumasi.errors import UsageError

_DELIMITERS = (b",", b";", b"\t", b"|")


def open_source(path: Path, key: str | None, scratch: Path, tick: Tick) -> Source:
    with path.open("rb") as file:
        delimiter = max(_DELIMITERS, key=next(lines(path, file), b"").count)
    head = next(_records(path, delimiter), None)
    if head is None:
        raise UsageError(f"{path} is empty: it has not even a header.", "Put the columns' names on its first line.")
    names = [name.decode(errors="replace") for name in _fields(path, head, delimiter)]
    if key is not None and key not in names:
        raise unknown_key(path, key, "column", names)
    classes = None if key is None else Classes(path, key)
    column = 0 if key is None else names.index(key)

    def look(first: int, rows: list[bytes]) -> None:
        values = []
        for number, row in enumerate(rows, first):
            fields = _fields(path, row, delimiter)
            if len(fields) != len(names):
                raise damaged(
                    path,
                    f"has {len(names)} columns, but in row {number:,} the number of fields is {len(fields)}",
                    "Mend that row, or fetch it again.",
                )
            values.append(fields[column])
        if classes is not None:
            classes.add(values)

    def rows() -> Iterator[bytes]:
        records = _records(path, delimiter)
        next(records)
        return records

    stream = LineStream(path, rows, head)
    return Source(stream.survey(look, tick), [stream], None if classes is None else classes.codes)


def _records(path: Path, delimiter: bytes) -> Iterator[bytes]:
    with path.open("rb") as file:
        rest = lines(path, file)
        for line in rest:
            record = _whole(path, line, rest, delimiter) if b'"' in line else line
            if record.strip(b"\r\n"):
                yield record


def _whole(path: Path, line: bytes, rest: Iterator[bytes], delimiter: bytes) -> bytes:
    """The record that begins with `line`: Python's reader takes as many lines as belong to it."""
    taken = [line]

    def feed() -> Iterator[bytes]:
        yield line
        for more in rest:
            taken.append(more)
            yield more
        raise damaged(path, f"ends inside quotes, in a row that begins with {line[:40].decode(errors='replace')!r}")

    _parse(path, feed(), delimiter)
    return b"".join(taken)


def _fields(path: Path, record: bytes, delimiter: bytes) -> list[bytes]:
    if b'"' not in record:
        return record.rstrip(b"\r\n").split(delimiter)
    return _parse(path, iter(record.splitlines(keepends=True)), delimiter)


def _parse(path: Path, record: Iterator[bytes], delimiter: bytes) -> list[bytes]:
    """Bytes go through the reader as Latin-1, which has a character for each."""
    usual = csv.field_size_limit(LONGEST_ROW)
    try:
        texts = next(csv.reader((line.decode("latin-1") for line in record), delimiter=delimiter.decode()))
    except csv.Error as error:
        raise damaged(path, f"has a row that is no CSV ({error})", "Is a quote missing? Mend that row.") from None
    finally:
        csv.field_size_limit(usual)
    return [text.encode("latin-1") for text in texts]
