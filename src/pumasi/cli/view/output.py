"""Where Pumasi's own words go: stderr, in colour on a terminal. What was asked for goes to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36, "bold": 1, "dim": 2}
STATE_COLOURS = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "cyan",
    "ending": "yellow",
    "done": "green",
    "failed": "red",
    "lost": "magenta",
    "timed out": "magenta",
    "stopped": "yellow",
}


def is_colourful(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO) -> str:
    if colour not in _COLOURS or not is_colourful(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def columns() -> int:
    """How wide the terminal is; wide where there is none, so that nothing is cut for a file."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return 10_000


def say(text: str, *more: str) -> None:
    """A line on stderr that says who speaks, and lines that belong to it."""
    head = paint("pumasi:", "bold", sys.stderr)
    try:
        sys.stderr.write("\n".join([f"{head} {text}", *(f"  {line}" for line in more)]) + "\n")
        sys.stderr.flush()
    except OSError:
        # Where nobody listens any more, nothing is lost by going on.
        hush(sys.stderr)


def hush(stream: TextIO) -> None:
    """For a stream that can't be written any more: what is left of it goes nowhere. Python would try it once more at
    its end, and then take an exit code of its own."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), stream.fileno())


def show(lines: Iterable[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def show_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def paint_row(line: str, state: str) -> str:
    """A line of a table, with the word for its state in colour. Two spaces stand before a column: the id of a run may
    begin with such a word too."""
    return line.replace(f"  {state}", f"  {paint(state, STATE_COLOURS.get(state, ''), sys.stdout)}", 1)
