"""pumasi models: averages, compares and shows models that are files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.view.output import columns, say, show, show_json
from pumasi.cli.view.text import count, finite, number, table
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from pumasi.models import Compared

VERB = Verb(
    name="models",
    usage=(
        "pumasi models average FILE|FOLDER … -o FILE [--weights N,N,…]",
        "pumasi models diff FILE FILE",
        "pumasi models show FILE",
    ),
    about="""Averages models that were trained apart, compares two, or shows what one is made of. Reads .h5, .keras,
    .npz, .safetensors, .pt and .pth, without the framework that wrote them.

    The average is a copy of the first file with other numbers in it, so the framework loads it as any other. A folder
    stands for all models in it. docs/models.md says what is averaged how.

    diff ends with 0 if the models are equal, with 1 if they differ.""",
    options=(
        Option(("-o", "--output"), "average: the file to write", "FILE"),
        Option(("--weights",), "average: how much each file counts, such as its samples; else all the same", "N,N,…"),
        Option(("-f", "--force"), "average: overwrite the file, if there is one"),
        JSON,
    ),
    takes=(1, None),
    completes=("what to do: average, diff or show", "average", "diff", "show"),
    examples=(
        ("pumasi models average runs/*.h5 -o final.h5", ""),
        ("pumasi models average a.pt b.pt -o final.pt --weights 3,1", "a was trained on three times as much"),
        ("pumasi models diff a.keras b.keras", ""),
        ("pumasi models show final.safetensors", ""),
    ),
)


def main(arguments: Arguments) -> int:
    actions = {"average": _average, "diff": _diff, "show": _show}
    action, *words = arguments.rest
    if action not in actions:
        raise UsageError(f"'pumasi models' can't {action}.", f"It can {', '.join(actions)}.")
    stray = [each.names[-1] for each in VERB.options if each.help.startswith("average:") and arguments.has(each.key)]
    if stray and action != "average":
        raise UsageError(f"'pumasi models {action}' has no option {stray[0]}.", "It is for 'pumasi models average'.")
    return actions[action](words, arguments)


def _average(words: list[str], arguments: Arguments) -> int:
    from pumasi import models

    output = arguments.last("output")
    if output is None:
        raise UsageError("'pumasi models average' needs --output.", "Write --output final.h5.")
    given = arguments.last("weights")
    weights = [] if given is None else given.split(",")
    averaged = models.average(words, output, weights, force=arguments.has("force"))
    if arguments.has("json"):
        show_json({**_plain(averaged._asdict()), "inputs": [str(path) for path in averaged.inputs]})
    else:
        done = " · ".join(f"{amount} {rule}" for rule, amount in averaged.rules.items())
        say(f"{averaged.output} is the average of {count(len(averaged.inputs), 'model')}: {done}", *averaged.notes)
    return 0


def _diff(words: list[str], arguments: Arguments) -> int:
    from pumasi import models

    if len(words) != 2:
        raise UsageError("'pumasi models diff' compares two files.", f"Usage: {VERB.usage[1]}")
    compared = models.diff(*words)
    if arguments.has("json"):
        show_json({"equal": compared.equal, "different": [_plain(each._asdict()) for each in compared.different]})
    else:
        _show_differences(compared)
    return 1 if compared.different else 0


def _show_differences(compared: Compared) -> None:
    rows = [
        (each.name, each.why or _number(each.largest), *map(_number, (each.relative, each.cosine)))
        for each in compared.different
    ]
    if rows:
        show(table(("tensor", "largest difference", "relative", "cosine"), rows, columns(), right=(2, 3), flexible=0))
    equal, total = len(compared.equal), len(compared.equal) + len(rows)
    say("The models are equal." if not rows else f"{equal} of {count(total, 'tensor')} are equal.")


def _show(words: list[str], arguments: Arguments) -> int:
    from pumasi import models

    if len(words) != 1:
        raise UsageError("'pumasi models show' takes one file.", f"Usage: {VERB.usage[2]}")
    shown = models.show(words[0])
    if arguments.has("json"):
        show_json({**_plain(shown._asdict()), "tensors": [_plain(each._asdict()) for each in shown.tensors]})
        return 0
    rows = [
        (
            each.name,
            " × ".join(map(str, each.shape)),
            each.dtype,
            f"{each.nbytes:,}",
            *map(_number, (each.least, each.mean, each.largest)),
        )
        for each in shown.tensors
    ]
    heads = ("tensor", "shape", "type", "bytes", "least", "mean", "largest")
    show(table(heads, rows, columns(), right=(3, 4, 5, 6), flexible=0))
    total = sum(each.nbytes for each in shown.tensors)
    writer = f", written by {shown.framework}" if shown.framework else ""
    say(f"{shown.path} is {shown.format}{writer}: {count(len(rows), 'tensor')}, {total:,} bytes.")
    return 0


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    """As JSON has it."""
    return {
        key: finite(value) if isinstance(value, float) else str(value) if isinstance(value, Path) else value
        for key, value in values.items()
    }


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if finite(value) is None else number(value)
