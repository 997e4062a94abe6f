"""pumasi render: a run as a file that kubectl, or a tool that keeps files applied, runs without Pumasi being there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pumasi.catalogue import built_in
from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.options import as_option, flags_in, options_of_runs
from pumasi.cli.parsing import Arguments
from pumasi.cli.view.output import say
from pumasi.core.options import declared
from pumasi.errors import UsageError
from pumasi.registry import FLOWS

if TYPE_CHECKING:
    from pumasi.core.launch import Program
    from pumasi.core.spec import Spec
    from pumasi.pools.kubernetes.manifests import Object


def _of_flows() -> list[str]:
    """A flow starts one task after the other, which somebody has to do."""
    sections = (each.section for each in built_in() if each.field == "strategy")
    return [as_option(known).key for section in sections for known in declared(section).values()]


_NOT_HERE = frozenset(("on", "strategy", "nodes", "topology", "no-wait", "name", *_of_flows()))
"""Options of `pumasi run` that ask for somebody who looks at the cluster, or at this terminal."""
_FILE = "What is written"
_OWN = (
    Option(("--pods",), "so many pods; default: one a slot, or one for --max-per-node slots", "N", group=_FILE),
    Option(("-o", "--output"), "write to this file instead of stdout", "FILE", group=_FILE),
    JSON._replace(help="write JSON", group=_FILE),
)

VERB = Verb(
    name="render",
    usage=(
        "pumasi render [options] SCRIPT [arguments of the script …]",
        "pumasi render [options] -- PROGRAM [arguments …]",
    ),
    about="""Writes a run as Kubernetes objects: a Job, a Service, and Secrets with the code. `kubectl apply -f` runs
    them, without Pumasi being there. The same input gives the same file, so it can be kept beside the code.

    Nobody is there to look for room, so all pods have the same share of the slots, and the cluster's scheduler places
    them. The processes start when all pods are there, and end together when one of them fails, as in any run.

    Options whose help ends in * may be given several times.""",
    options=(
        *_OWN,
        Option(("--name",), "the name of the Job (default: the script's)", "NAME", group=_FILE),
        *(option for option in options_of_runs() if option.key not in _NOT_HERE),
    ),
    takes=(0, None),
    passes_on=True,
    completes=("FILE",),
    examples=(
        ("pumasi render --slots 4 train.py | kubectl apply -f -", "four pods"),
        ("pumasi render --gpus 8 --pods 2 -o train.yaml train.py", "two pods with four GPUs each"),
    ),
)


def main(arguments: Arguments) -> int:
    from pumasi.agent.files import agent_text
    from pumasi.pools.kubernetes.rendering import needs_server_side, open_secrets, render
    from pumasi.runs.config import build_spec, current_folder

    pods = _pods(arguments)
    flags = flags_in(arguments, [option.key for option in _OWN])
    spec = build_spec({**flags, "on": "k8s"}, current_folder(), os.environ)
    if not FLOWS.get(spec.strategy).is_single:
        raise UsageError(
            f"A file can't be a run with the strategy {spec.strategy}: somebody has to start one task after the other.",
            "In the cluster, without this machine, it runs with: pumasi run --on k8s -d",
        )
    program, packed = _packed(spec, arguments.last("output"))
    objects = render(spec, program, agent_text(), packed, pods)
    _write(arguments.last("output"), _text(spec, objects, as_json=arguments.has("json")))
    for note in program.notes:
        say(note)
    for file in arguments.all("env-file"):
        say(f"Who reads the file can read the variables of {file}.")
    for name in open_secrets(spec.env):
        say(f"Who reads the file can read {name}.", f"A reference keeps it out: --env-from-secret {name}=SECRET/KEY")
    if needs_server_side(objects):
        say("It is too large for a plain `kubectl apply`: add --server-side.")
    return 0


def _pods(arguments: Arguments) -> int | None:
    given = arguments.last("pods")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and int(given[:6]) > 0):
        raise UsageError(f"--pods: '{given}' is no number of pods.", "Give 1 or more, as in --pods 2.")
    return int(given)


def _packed(spec: Spec, output: str | None) -> tuple[Program, bytes]:
    """Without what is being written, and what was written before: else the same input would not give the same file."""
    from pumasi.pools.kubernetes.rendering import MARK
    from pumasi.runs.session import pack_program

    target = _status(output)

    def is_rendered(status: os.stat_result, head: bytes) -> bool:
        return head.startswith(f"# {MARK}".encode()) or (target is not None and os.path.samestat(status, target))

    return pack_program(spec, say, is_rendered)


def _status(output: str | None) -> os.stat_result | None:
    """Of the file that is written, if there is one already."""
    try:
        return os.fstat(sys.stdout.fileno()) if output is None else Path(output).stat()
    except (OSError, ValueError):
        return None


def _text(spec: Spec, objects: Sequence[Object], *, as_json: bool) -> str:
    import json

    from pumasi import __version__
    from pumasi.kube.documents import to_list, to_yaml
    from pumasi.pools.kubernetes.rendering import remarks

    if as_json:
        return json.dumps(to_list(objects), ensure_ascii=False, indent=2) + "\n"
    return to_yaml(objects, remarks(spec, objects, __version__))


def _write(file: str | None, text: str) -> None:
    if file is None:
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}.", "Check the name and the folder.") from None
