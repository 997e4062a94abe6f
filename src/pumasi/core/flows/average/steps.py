"""What a run does between the user's own programs: it divides data, and averages models.

Each is a task like any other, with the Python of the user's programs, wherever they run: what it needs beside the
standard library is numpy, and for Keras' files h5py, which are there where such files come from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pumasi.errors import PumasiError, UsageError
from pumasi.report import report


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="pumasi")
    steps = parser.add_subparsers(required=True)
    for mode in ("split", "copy"):
        data = steps.add_parser(mode)
        data.add_argument("source")
        data.add_argument("-n", type=int, required=True)
        data.add_argument("--to", required=True)
        data.set_defaults(step=divide, mode=mode)
    average = steps.add_parser("average")
    average.add_argument("models", nargs="+")
    average.add_argument("--output", required=True)
    average.add_argument("--samples", default="")
    average.add_argument("--least", type=int, default=1)
    average.set_defaults(step=combine)
    given = parser.parse_args(words)
    try:
        given.step(given)
    except PumasiError as error:
        sys.stderr.write("\n".join(filter(None, (error.message, error.hint))) + "\n")
        return error.exit_code
    return 0


def divide(given: argparse.Namespace) -> None:
    from pumasi.data import copy, split

    made = (split if given.mode == "split" else copy)(given.source, given.n, to=given.to)
    rows = ", ".join(f"{part.rows:,}" for part in made.parts)
    say(f"{given.source}: {len(made.parts)} parts of {rows} rows" + ("" if made.made else ", there already"))


def combine(given: argparse.Namespace) -> None:
    """A model that has diverged is left out, if the others are enough."""
    from pumasi.models import Diverged, average

    Path(given.output).parent.mkdir(parents=True, exist_ok=True)
    models = list(given.models)
    while True:
        weights = samples(models, Path(given.samples)) if given.samples else []
        try:
            made = average(models, given.output, weights, force=True)
            break
        except Diverged as error:
            if len(models) <= given.least:
                raise
            models = [model for model in models if Path(model) != error.path]
            say(f"{error.message} It is left out.")
            report({f"left_out_{_index(error.path)}": 1})
    for note in made.notes:
        say(note)
    say(f"{given.output}: the average of {len(made.inputs)}" if len(made.inputs) > 1 else given.output)


def _index(model: str | Path) -> int:
    """Of the trainer, which the model's name begins with."""
    return int(Path(model).name.partition("-")[0])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def samples(models: Sequence[str], folder: Path) -> list[int]:
    """How many rows each model was trained on: those of its trainer's part."""
    from pumasi.data.manifest import read

    manifest = read(folder)
    if manifest is None:
        raise UsageError(f"{folder} is no folder of parts.", "`pumasi data split` makes one.")
    return [manifest.parts[_index(model)].rows for model in models]
