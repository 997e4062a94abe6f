"""pumasi data: a data set in parts, one for each who trains on it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments, closest
from pumasi.cli.view.output import columns, say, show, show_json
from pumasi.cli.view.text import count, table
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from pumasi.data import PartSet

_FOR_SPLIT = "For split"
VERB = Verb(
    name="data",
    usage=("pumasi data split FILE -n N [options]", "pumasi data copy FILE -n N [options]"),
    about="""Splits a data set into N parts, or copies it N times. FILE is an .npz, .npy, .csv, .jsonl or .parquet file
    of any size, or a folder of files. The sizes of the parts differ by one row at most, and rows keep their order.

    The parts are 0.npz, 1.npz and so on in a folder, with a manifest.json that has their checksums. The folder is there
    when it is whole, or not at all. Where it is there already, nothing is done.""",
    options=(
        Option(("-n", "--parts"), "so many parts or copies", "N"),
        Option(("--to",), "the folder of the parts (default: FILE-N, copies: FILE-N-copies)", "DIR"),
        Option(("--force",), "replace a folder of parts that were made otherwise"),
        JSON,
        Option(("--shuffle",), "shuffle the rows before", group=_FOR_SPLIT),
        Option(
            ("--seed",), "in this one of the possible orders (default: 0); the same everywhere", "S", group=_FOR_SPLIT
        ),
        Option(
            ("--stratify",),
            "every class evenly in all parts; KEY: the array or column that names it (default: y; of a folder: the"
            " folders in it)",
            "[KEY]",
            group=_FOR_SPLIT,
        ),
    ),
    takes=(0, None),
    completes=("split or copy", "split", "copy"),
    examples=(
        ("pumasi data split reviews.npz -n 5", "reviews-5/0.npz … 4.npz"),
        ("pumasi data split photos -n 4 --shuffle --stratify", "a class a folder: photos/cats, photos/dogs"),
        ("pumasi data split people.csv -n 4 --stratify city", ""),
        ("pumasi data copy reviews.npz -n 5 --to /data/reviews", ""),
    ),
)
_MODES = ("split", "copy")
_MOST_DIGITS = 20


def main(arguments: Arguments) -> int:
    mode, file = _asked(arguments)
    n = _number(arguments, "parts", "-n")
    if n is None:
        raise UsageError(f"'pumasi data {mode}' needs -n, the number of parts.", "Write -n 5.")
    from pumasi.data import copy, split

    to, force = arguments.last("to"), arguments.has("force")
    with _Progress() as progress:
        if mode == "copy":
            made = copy(file, n, to, force=force, progress=progress)
        else:
            stratify = arguments.last("stratify")
            made = split(file, n, to, seed=_seed(arguments), stratify=stratify, force=force, progress=progress)
    _tell(mode, made, as_json=arguments.has("json"))
    return 0


def _asked(arguments: Arguments) -> tuple[str, str]:
    usage = f"Usage: {VERB.usage[0]}"
    mode, *files = arguments.rest or [""]
    if mode not in _MODES:
        near = closest(mode, _MODES)
        hint = f"Did you mean 'pumasi data {near}'?" if near else usage
        raise UsageError(f"'pumasi data' can split and copy, not '{mode}'." if mode else "split or copy?", hint)
    if not files:
        raise UsageError(f"'pumasi data {mode}' needs FILE, before --stratify.", usage.replace("split", mode))
    if len(files) > 1:
        raise UsageError(f"'pumasi data {mode}' takes only one FILE; '{files[1]}' is too much.", usage)
    if mode == "copy":
        stray = [option.key for option in VERB.options if option.group == _FOR_SPLIT and arguments.has(option.key)]
        if stray:
            raise UsageError(f"--{stray[0]} is for split: copies have all rows.", f"Leave out --{stray[0]}.")
    return mode, files[0]


def _seed(arguments: Arguments) -> int | None:
    seed = _number(arguments, "seed", "--seed")
    if not arguments.has("shuffle"):
        if seed is not None:
            raise UsageError("--seed says how to shuffle, but --shuffle was not given.", "Add --shuffle.")
        return None
    return seed or 0


def _number(arguments: Arguments, key: str, option: str) -> int | None:
    text = arguments.last(key)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise UsageError(f"{option} takes a whole number; '{text}' is none.", f"Write {option} 5.")
    return int(text)


def _tell(mode: str, made: PartSet, *, as_json: bool) -> None:
    if as_json:
        parts = [{"path": str(made.folder / part.name), **part._asdict()} for part in made.parts]
        show_json({"folder": str(made.folder), "made": made.made, "mode": mode, "parts": parts})
        return
    rows = [(part.name, f"{part.rows:,}", f"{part.bytes:,}", part.sha256[:12]) for part in made.parts]
    show(table(("part", "rows", "bytes", "sha256"), rows, columns(), right=(1, 2)))
    what = count(len(made.parts), "part" if mode == "split" else "copy").replace("copys", "copies")
    say(f"{made.folder} has {what}." if made.made else f"{made.folder} is already there, whole: {what}. Nothing to do.")


class _Progress:
    """Silent for a second; then a bar on a terminal, and elsewhere a line every few seconds."""

    _PATIENCE = 1.0
    _PAUSE = 5.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = clock() + self._PATIENCE
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what.startswith("waiting"):
            say(f"{what} …")
        elif self._clock() >= self._due:
            if sys.stderr.isatty():
                self._draw(what, done, total)
            else:
                self._due = self._clock() + self._PAUSE
                say(f"{what}: {100 * done // max(total, 1)} %")

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bar is None or self._task is None:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("")
        self._bar.update(self._task, description=what, completed=done, total=total)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
