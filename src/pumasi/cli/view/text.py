"""Text as a person wants to read it: aligned tables, durations, ages, numbers, small curves. Pure.

Small on purpose: rich would draw tables too, but takes longer to import than `pumasi ps` takes to answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pumasi.core.noted import NOTED_FIRST
from pumasi.core.printable import clean

ELLIPSIS = "…"
_BARS = "▁▂▃▄▅▆▇█"


def width(text: str) -> int:
    """Columns that `text` takes on a terminal: two for Korean, Chinese and Japanese characters, none for accents."""
    if text.isascii():
        return len(text)
    return sum(_character_width(character) for character in text)


def _character_width(character: str) -> int:
    import unicodedata

    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """`text` cut to at most `columns`, with an ellipsis where something was cut off."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    kept, used = [], 1
    for character in text:
        used += _character_width(character)
        if used > columns:
            break
        kept.append(character)
    return "".join(kept) + ELLIPSIS


def pad(text: str, columns: int, *, right: bool = False) -> str:
    space = " " * (columns - width(text))
    return space + text if right else text + space


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], columns: int, *, right: Sequence[int] = (), flexible: int = -1
) -> list[str]:
    """Lines of a table that is at most `columns` wide: the flexible column gives way (the last one, if not told).
    `right` are the columns that are aligned to the right."""
    cells = [tuple(clean(cell) for cell in row) for row in (heads, *rows)]
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    flexible %= len(widths)
    others = sum(widths) - widths[flexible] + 2 * (len(widths) - 1)
    widths[flexible] = max(min(widths[flexible], columns - others), min(widths[flexible], width(heads[flexible]), 8))
    return [
        "  ".join(
            pad(fit(cell, widths[index]), widths[index], right=index in right) for index, cell in enumerate(row)
        ).rstrip()
        for row in cells
    ]


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """3.2 s · 2 min 5 s · 1 h 3 min · 2 d 4 h"""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for size, (unit, name) in enumerate(_UNITS):
        if whole >= unit:
            below, below_name = _UNITS[size + 1] if size + 1 < len(_UNITS) else (1, "s")
            rest = whole % unit // below
            return f"{whole // unit} {name} {rest} {below_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def age(seconds: float) -> str:
    """12 s · 5 min · 3 h · 4 d: as much as a column has room for."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return f"{max(int(seconds), 0)} s"


def clock(seconds: float) -> str:
    """0:07 · 12:30 · 1:02:03"""
    minutes, second = divmod(max(int(seconds), 0), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def number(value: float) -> str:
    """Four digits that matter; whole numbers in full."""
    if abs(value) < 1e15 and value == int(value):
        return str(int(value))
    return format(value, ".4g")


def aligned(values: Sequence[float | None]) -> list[str]:
    """As `number` has them, one below the other: with as many digits behind the point as any of them has."""
    texts = ["–" if value is None else number(value) for value in values]
    digits = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=0)
    return [
        text if value is None or "e" in text or not math.isfinite(value) else format(value, f".{digits}f")
        for text, value in zip(texts, values, strict=True)
    ]


def count(amount: int, noun: str) -> str:
    """1 slot · 4 slots"""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def notable(values: Mapping[str, float], most: int = 3) -> str:
    """The metrics that one looks at first, on one line: loss 0.31 · accuracy 0.88"""
    first = [name for name in NOTED_FIRST if name in values]
    names = (first + [name for name in values if name not in first])[:most]
    return " · ".join(f"{clean(name)} {number(values[name])}" for name in names)


def sparkline(values: Sequence[float], columns: int) -> str:
    """A curve one line high; many values are thinned out to `columns` means."""
    finite = [value for value in values if abs(value) != float("inf") and value == value]
    if not finite:
        return ""
    if len(finite) > columns:
        edges = [index * len(finite) // columns for index in range(columns + 1)]
        finite = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(finite), max(finite)
    steps = (len(_BARS) - 1) / (high - low) if high > low else 0
    return "".join(_BARS[round((value - low) * steps)] for value in finite)


def with_finite_metrics(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    metrics = outcome.get("metrics") or {}
    return {**outcome, **({"metrics": {name: finite(value) for name, value in metrics.items()}} if metrics else {})}


def finite(value: float) -> float | None:
    """JSON has no word for a loss that is not a number."""
    return value if value == value and abs(value) != float("inf") else None
