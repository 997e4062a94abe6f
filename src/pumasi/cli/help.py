"""Help on the terminal, and the reference in docs/cli.md: both made from the verbs themselves.

`python -m pumasi.cli.help > docs/cli.md` writes the reference anew; a test fails when it is stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pumasi.cli.grammar import EXIT_CODES, GROUPS, HELP, SUMMARIES, Option, Verb, load
from pumasi.cli.view.text import pad
from pumasi.registry import EXAMPLES

if TYPE_CHECKING:
    from pumasi.core.events import Event

_ABOUT = "Pumasi trains a model on all the machines that you have: this one, or a Kubernetes cluster."
_EXAMPLES = (
    ("pumasi run train.py --epochs 3", "one process; what stands after the script belongs to it"),
    ("pumasi run --slots 4 train.py", "four processes that train one model together"),
)
_LAST_EXAMPLE = ("pumasi ps", "what runs, and what ran")


def _examples() -> list[tuple[str, str]]:
    return [*_EXAMPLES, *EXAMPLES, _LAST_EXAMPLE]


def short_help() -> str:
    lines = [
        _ABOUT,
        "",
        *_aligned(_examples()),
        "",
        "'pumasi --help' tells all; 'pumasi VERB --help' more of each verb.",
    ]
    return "\n".join(lines) + "\n"


def full_help() -> str:
    lines = ["Usage: pumasi VERB [options] [arguments]", "", _ABOUT]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:", *_aligned(verbs.items(), column=12)]
    lines += ["", "Options:", *_aligned([("--version", "show the version"), ("-h, --help", HELP.help)], column=12)]
    lines += ["", "Examples:", *_aligned(_examples())]
    lines += ["", "RUN is a run's id or its beginning; left out, your last run is meant (`delete` asks first)."]
    lines += ["", "Exit codes:", *_aligned((str(code), meaning) for code, meaning in EXIT_CODES)]
    return "\n".join(lines) + "\n"


def verb_help(verb: Verb, columns: int) -> str:
    verb = verb._replace(options=(*verb.options, *verb.more()))
    usage = [("Usage: " if index == 0 else "       ") + line for index, line in enumerate(verb.usage)]
    lines = [*usage, "", *_wrap(verb.about, columns)]
    for group, options in by_group(verb).items():
        lines += ["", f"{group}:", *_option_lines(options, columns)]
    if verb.examples:
        lines += ["", "Examples:", *_aligned(verb.examples)]
    return "\n".join(lines) + "\n"


def by_group(verb: Verb) -> dict[str, list[Option]]:
    groups: dict[str, list[Option]] = {}
    for option in (*verb.options, HELP):
        groups.setdefault(option.group, []).append(option)
    return groups


def _heading(option: Option) -> str:
    return ", ".join(option.names) + (f" {option.value}" if option.value else "")


_HELP_COLUMN = 26


def _option_lines(options: Iterable[Option], columns: int) -> list[str]:
    lines = []
    for option in options:
        head = "  " + _heading(option)
        first, *more = _wrap(option.help, columns - _HELP_COLUMN)
        if len(head) < _HELP_COLUMN:
            lines.append(pad(head, _HELP_COLUMN) + first)
        else:
            lines += [head, " " * _HELP_COLUMN + first]
        lines += [" " * _HELP_COLUMN + line for line in more]
    return lines


def _aligned(rows: Iterable[tuple[str, str]], column: int = 0) -> list[str]:
    rows = list(rows)
    column = column or max(len(left) for left, _ in rows) + 3
    return [f"  {pad(left, column)}{right}".rstrip() for left, right in rows]


def _wrap(text: str, columns: int) -> list[str]:
    """`text` in lines; paragraphs are told apart by empty lines."""
    from textwrap import wrap

    paragraphs = [wrap(" ".join(part.split()), max(columns, 30)) for part in text.split("\n\n")]
    return [line for index, part in enumerate(paragraphs) for line in ([""] if index else []) + part]


def reference() -> str:
    """docs/cli.md: every verb, every option, every exit code."""
    parts = [
        "# The command line\n",
        "<!-- Made from the code by `python -m pumasi.cli.help > docs/cli.md`: change it there. -->\n",
        "RUN is a run's id or its beginning; left out, your last run is meant. `--json` prints JSON wherever it is an"
        " option. What your program prints goes to stdout, what Pumasi has to say to stderr.\n",
        _markdown_table(("Verb", "What it does"), [(f"[{name}](#{name})", said) for name, said in SUMMARIES.items()]),
    ]
    parts += [_reference_of(load(name)) for name in SUMMARIES]
    parts += [_JSON_LINES, events_table()]
    parts += ["## Exit codes\n", _markdown_table(("Code", "Meaning"), [(str(code), said) for code, said in EXIT_CODES])]
    return "\n".join(parts)


_JSON_LINES = """\
## JSON lines

`pumasi run --json` and `pumasi attach --json` print one object a line; `event` says which, `at` when, and `v` is the
version of the form, which rises only when a reader of the one before would misunderstand it. More fields and more
events may come without that: ignore those that you do not know. The same events are in `pumasi show --json`.

In a run of several tasks, events also have `task`, the task that they are about, and where it has processes, `numbers`:
the number of the first of them in the run, and how many there are.
"""
_OUTPUT = {
    "rank": "which process",
    "stream": "stdout or stderr",
    "text": "the line",
    "end": "what ended it, or nothing",
}
_METRICS = {"rank": "which process", "step": "", "epoch": "", "values": "by name; null for one that is not a number"}


def events_table() -> str:
    """Every event, and what else is in it."""
    from pumasi.core.events import EVENTS

    rows = [(f"`{made.kind}`", made.about, _fields(_own(made))) for made in EVENTS]
    rows += [("`output`", "a line of a process", _fields(_OUTPUT.items()))]
    rows += [("`metrics`", "a measurement in the output", _fields(_METRICS.items()))]
    return _markdown_table(("event", "when", "what else is in it"), rows)


def _own(made: type[Event]) -> Iterable[tuple[str, str]]:
    from pumasi.core.events import described

    return ((name, about) for name, about, _ in described(made) if about)


def _fields(fields: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"`{name}`: {about}" if about else f"`{name}`" for name, about in fields)


def _reference_of(verb: Verb) -> str:
    parts = [f"## {verb.name}\n", "```\n" + "\n".join(verb.usage) + "\n```\n", "\n".join(_wrap(verb.about, 120)) + "\n"]
    for group, options in by_group(verb).items():
        rows = [(f"`{_heading(option)}`", option.help) for option in options if option is not HELP]
        parts += [_markdown_table((group, ""), rows)] if rows else []
    if verb.examples:
        parts.append("```\n" + "\n".join(line[2:] for line in _aligned(verb.examples)) + "\n```\n")
    return "\n".join(parts)


def _markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(reference())
