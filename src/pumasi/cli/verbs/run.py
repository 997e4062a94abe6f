"""pumasi run: a script or a program, as one process or as a gang."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pumasi.cli.foreign import is_count
from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.options import flags_in, options_of_installed, options_of_runs
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import examples_of
from pumasi.cli.runs import open_store, size_of
from pumasi.cli.view.output import say, show, show_json
from pumasi.cli.view.sentences import left_words
from pumasi.core.options import OUTPUT
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_OWN = (
    Option(("-d", "--detach"), "go on in the background; prints the run's id", group=OUTPUT),
    Option(("-q", "--quiet"), "say nothing unless something goes wrong", group=OUTPUT),
    Option(("--dry-run",), "show what would be started, and start nothing", group=OUTPUT),
    JSON._replace(help="print one JSON object a line instead", group=OUTPUT),
)
VERB = Verb(
    name="run",
    usage=(
        "pumasi run [options] SCRIPT [arguments of the script …]",
        "pumasi run [options] -- PROGRAM [arguments …]",
    ),
    about="""Runs a training script, or any program, as one process or as a gang of processes that train one model
    together. What stands after the script belongs to the script, even if it looks like an option of ours. What it
    prints goes to stdout, what Pumasi has to say to stderr.

    What is asked of the run can also stand in pumasi.yaml (slots: 4) or in the environment (PUMASI_SLOTS=4). A terminal
    that is closed leaves the run running; Ctrl-C asks.

    Options whose help ends in * may be given several times.""",
    options=(
        *options_of_runs(),
        *_OWN,
    ),
    more=options_of_installed,
    takes=(0, None),
    passes_on=True,
    completes=("FILE",),
    examples=(
        ("pumasi run train.py --epochs 3", "one process"),
        ("pumasi run --slots 4 train.py", "four that train one model together"),
        ("pumasi run --slots 4 --restarts 3 train.py", "started again when one of them fails"),
        ("pumasi run --per-node -- torchrun train.py", "the launcher starts its own"),
        ("pumasi run -d train.py; pumasi attach", "in the background, and back to it"),
        ("pumasi run --requirements requirements.txt train.py", "with these packages installed first"),
        *examples_of("run"),
    ),
)


def main(arguments: Arguments) -> int:
    from pumasi.runs.config import build_spec, current_folder

    namespace = arguments.last("namespace")
    if namespace and is_count(namespace):
        raise UsageError(
            f"-n {namespace}: -n is the namespace on a cluster, as kubectl has it.",
            f"For {namespace} processes: --slots {namespace}",
        )
    is_plan = arguments.has("dry-run")
    spec = build_spec(flags_of(arguments), current_folder(), os.environ, without_values=is_plan)
    if is_plan:
        return _preview(spec, arguments)
    if arguments.has("detach"):
        return _detach(spec, arguments)
    return _run_here(spec, arguments)


def flags_of(arguments: Arguments) -> dict[str, object]:
    return flags_in(arguments, [option.key for option in _OWN])


def _run_here(spec: Spec, arguments: Arguments) -> int:
    """At a terminal the run can be left: then the process that the shell waits for is another one, from the start."""
    from pumasi.runs.foreground import split

    foreground = split() if sys.stdin.isatty() and sys.stderr.isatty() else None
    if isinstance(foreground, int):
        return foreground
    from pumasi.cli.view.printer import to_streams_patiently
    from pumasi.cli.view.views import choose_view
    from pumasi.runs.terminal import run

    view = choose_view(
        to_streams_patiently,
        ranks=size_of(spec.dump()),
        as_json=arguments.has("json"),
        quiet=arguments.has("quiet"),
        words=sys.argv[2:],
    )
    try:
        outcome = run(open_store(), spec, view, foreground=foreground)
    finally:
        view.close()
    return outcome.verdict.exit_code if outcome else 0


def _detach(spec: Spec, arguments: Arguments) -> int:
    from pumasi.pools import pool_named
    from pumasi.runs.background import detach

    warn = say if pool_named(spec.on).tells_notes else lambda text: None
    record = detach(open_store(), spec, say, warn)
    if arguments.has("json"):
        show_json({"run": record.id})
        return 0
    show([record.id])
    sys.stdout.flush()
    if not arguments.has("quiet"):
        say(*left_words(record.id))
    return 0


def _preview(spec: Spec, arguments: Arguments) -> int:
    from pumasi.runs.preview import preview

    shown = preview(spec, say, detached=arguments.has("detach"))
    if arguments.has("json"):
        show_json(shown.value)
    else:
        sys.stdout.write(shown.text)
    return 0
