"""pumasi run: a script or a program, as one process or as a gang."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from pumasi.cli.foreign import is_count
from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.options import flags_in, options_of_installed, options_of_runs
from pumasi.cli.parsing import Arguments
from pumasi.cli.runs import open_store, size_of
from pumasi.cli.view.output import say, show, show_json
from pumasi.cli.view.sentences import left_words
from pumasi.core.options import OUTPUT
from pumasi.errors import UsageError
from pumasi.registry import FLOWS

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
        ("pumasi run --on k8s --gpus 6 --image IMG train.py", "on the GPUs of a cluster"),
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
        if spec.pool != "local" and FLOWS.get(spec.strategy).is_single:
            return _preview_there(spec, arguments)
        return _preview(spec, as_json=arguments.has("json"))
    if arguments.has("detach"):
        return _detach(spec, arguments)
    return _run_here(spec, arguments)


def flags_of(arguments: Arguments) -> dict[str, object]:
    return flags_in(arguments, [option.key for option in _OWN])


def _run_here(spec: Spec, arguments: Arguments) -> int:
    from pumasi.cli.view.printer import to_streams_patiently
    from pumasi.cli.view.views import choose_view
    from pumasi.runs.session import run

    view = choose_view(
        to_streams_patiently,
        ranks=size_of(spec.dump()),
        as_json=arguments.has("json"),
        quiet=arguments.has("quiet"),
        words=sys.argv[2:],
    )
    try:
        outcome = run(open_store(), spec, view, terminal=sys.stdin.isatty() and sys.stderr.isatty())
    finally:
        view.close()
    return outcome.verdict.exit_code if outcome else 0


def _detach(spec: Spec, arguments: Arguments) -> int:
    if spec.pool == "local":
        from pumasi.runs.session import detach

        record, _ = detach(open_store(), spec)
    else:
        from pumasi.pools.kubernetes.runs import detach as detach_there

        record = detach_there(open_store(), spec, say, warn=say)
    if arguments.has("json"):
        show_json({"run": record.id})
        return 0
    show([record.id])
    sys.stdout.flush()
    if not arguments.has("quiet"):
        say(*left_words(record.id))
    return 0


def _preview(spec: Spec, *, as_json: bool) -> int:
    from pumasi.runs.session import preview

    told: dict[str, Any] = preview(spec)
    if as_json:
        show_json(told)
    else:
        show(_outline(told))
    return 0


def _preview_there(spec: Spec, arguments: Arguments) -> int:
    """The objects themselves. What only programs read is cut short in YAML, which is for people."""
    import asyncio

    from pumasi.kube.documents import abridged, to_yaml
    from pumasi.pools.kubernetes.rehearsal import preview_cluster
    from pumasi.runs.session import prepare
    from pumasi.store import default_home

    spec, program, packed = prepare(spec, default_home(os.environ), say)
    objects = asyncio.run(preview_cluster(spec, program, packed, say, detached=arguments.has("detach")))
    for note in program.notes:
        say(note)
    if arguments.has("json"):
        show_json(objects)
    else:
        remark = "What would be made, and is not. Long texts are cut short here: --json prints all of them."
        sys.stdout.write(to_yaml(map(abridged, objects), [remark]))
    return 0


def _outline(value: Any, indent: str = "") -> list[str]:
    """Nested values as one would write them in YAML."""
    lines: list[str] = []
    pairs = value.items() if isinstance(value, dict) else (("-", item) for item in value)
    for key, item in pairs:
        head = f"{indent}{key}" if key == "-" else f"{indent}{key}:"
        if isinstance(item, (dict, list, tuple)) and item:
            lines += [head, *_outline(item, indent + "  ")]
        else:
            lines.append(f"{head} {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    """In quotes where YAML would take it for something else."""
    import json
    import re

    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/.~][\w/.,+@%=~-]*", value)
    return value if plain and value.lower() not in _YAML_WORDS else json.dumps(value, ensure_ascii=False)


_YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "~", "y", "n"))
