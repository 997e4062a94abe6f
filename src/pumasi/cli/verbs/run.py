"""pumasi run: a script or a program, as one process or as a gang."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pumasi.cli.foreign import is_count
from pumasi.cli.grammar import CLUSTER, JSON, NODES, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import examples_of, in_full, names
from pumasi.cli.runs import open_store, size_of
from pumasi.cli.view.output import say, show, show_json
from pumasi.cli.view.sentences import left_words
from pumasi.errors import UsageError
from pumasi.registry import DEFAULT_POOL

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_FRAMEWORKS = ("auto", "none", "tensorflow", "torch", "jax", "horovod", "mpi")
_PROCESSES = "How many, and where"
APART = "Training apart (--strategy average)"
_WIRING = "How they find each other"
_LIFE = "How long"
_OUTPUT = "What you see"

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
        Option(("--slots",), "so many processes (default: 1)", "N", group=_PROCESSES),
        Option(("--gpus",), "so many processes, each with a GPU; 0: without any", "N", group=_PROCESSES),
        Option(
            ("--per-node",), "one process a node, for launchers that start their own (torchrun, …)", group=_PROCESSES
        ),
        Option(("--ps",), "parameter servers, in addition (TensorFlow)", "N", group=_PROCESSES),
        Option(("--evaluator",), "an evaluator, in addition (TensorFlow)", group=_PROCESSES),
        Option(
            ("--on",),
            f"where to run: {DEFAULT_POOL} (default), {in_full()}",
            "POOL",
            names(),
            _PROCESSES,
        ),
        Option(("--nodes",), "pretend that this machine is several nodes: 5,1 (for tests)", "N,N", group=_PROCESSES),
        Option(
            ("--strategy",),
            "together (default): one model; average: copies that are averaged",
            "NAME",
            ("together", "average"),
            APART,
        ),
        Option(("--split",), "each trainer gets its share of this data: {shard}", "FILE", group=APART),
        Option(("--copy",), "each trainer gets a copy of this data: {shard}", "FILE", group=APART),
        Option(("--rounds",), "average so many times, and train on from there: {init} (default: 1)", "N", group=APART),
        Option(("--init",), "the model to begin with: {init} in the first round", "FILE", group=APART),
        Option(("--evaluate",), 'what measures a model: "evaluate.py --modelpath {model}"', "COMMAND", group=APART),
        Option(("--min-models",), "the fewest models to average (default: half of them)", "N", group=APART),
        Option(("--best",), "keep the best model, not the last average", group=APART),
        Option(("--save",), "where the final model goes (default: the run's folder)", "FILE", group=APART),
        Option(
            ("--framework",),
            "auto (default), none, tensorflow, torch, jax, horovod or mpi",
            "NAME",
            _FRAMEWORKS,
            _WIRING,
        ),
        Option(("--python",), "the Python to run scripts with; on a cluster one of the image", "PATH", group=_WIRING),
        Option(
            ("--requirements",),
            "install these packages first: a requirements.txt, pyproject.toml or uv.lock",
            "FILE",
            group=_WIRING,
        ),
        Option(
            ("--setup",),
            'run this on each node first, after the packages: "python prepare.py", \'sh -c "…"\' *',
            "COMMAND",
            group=_WIRING,
        ),
        Option(("--env",), "set a variable; NAME alone takes its value from here *", "NAME=VALUE", group=_WIRING),
        Option(
            ("--env-file",),
            "set the variables of this file, NAME=VALUE on each line; --env wins *",
            "FILE",
            group=_WIRING,
        ),
        Option(
            ("--workdir",), "run in this folder; the script is looked up there (default: here)", "DIR", group=_WIRING
        ),
        Option(("--see-gpus",), "what each process sees: auto, own or all", "WHICH", ("auto", "own", "all"), _WIRING),
        Option(("--slot-as-node",), "show each slot as a node of its own (Lightning)", group=_WIRING),
        Option(("--no-shim",), "change nothing in the program's Python", group=_WIRING),
        Option(("--restarts",), "start the gang again after a failure, so many times (default: 0)", "N", group=_LIFE),
        Option(("--timeout",), "stop after so long: 90, 15m, 2h30m", "TIME", group=_LIFE),
        Option(("--start-timeout",), "how long starting may take (default: 10m)", "TIME", group=_LIFE),
        Option(("--grace",), "from asking a process to end to killing it (default: 15s)", "TIME", group=_LIFE),
        Option(("--silence",), "a node silent for so long is lost (default: 30s)", "TIME", group=_LIFE),
        Option(("--no-wait",), "fail at once where what is needed is busy", group=_LIFE),
        Option(("-n", "--namespace"), "the namespace (default: that of the kubeconfig)", "NAME", group=CLUSTER),
        Option(("--image",), "the container image (default: python:3.12-slim)", "IMAGE", group=CLUSTER),
        Option(("--cpus",), "CPUs a slot: 2, 0.5, 500m", "N", group=CLUSTER),
        Option(("--memory",), "memory a slot: 8Gi, 500M, 16G", "SIZE", group=CLUSTER),
        Option(("--gpu-resource",), "what the cluster calls a GPU (default: nvidia.com/gpu)", "NAME", group=CLUSTER),
        Option(("--max-per-node",), "at most so many slots on one node", "N", group=CLUSTER),
        *NODES,
        Option(
            ("--env-from-secret",),
            "variables from a Secret: all its keys, or NAME=SECRET/KEY for one *",
            "SECRET",
            group=CLUSTER,
        ),
        Option(("--mount",), "mount a volume, given by its claim; :ro to read only *", "CLAIM:/PATH", group=CLUSTER),
        Option(
            ("--volume",),
            "a volume for the run's files, by its claim; made where it is not there: imdb, imdb:20Gi",
            "NAME[:SIZE]",
            group=CLUSTER,
        ),
        Option(("--priority-class",), "the priority class of the pods", "NAME", group=CLUSTER),
        Option(("--label",), "a label for the pods *", "KEY=VALUE", group=CLUSTER),
        Option(("--annotation",), "an annotation for the pods *", "KEY=VALUE", group=CLUSTER),
        Option(
            ("--set",),
            "change any field of the pods: spec.dnsPolicy=None, spec.containers[0].tty=true; null removes *",
            "PATH=VALUE",
            group=CLUSTER,
        ),
        Option(("--as-image-user",), "run as the image's own user, not as an ordinary one", group=CLUSTER),
        Option(("--keep",), "how long a finished run stays in the cluster (default: 7d)", "TIME", group=CLUSTER),
        Option(("--name",), "what the run's id starts with (default: the script's name)", "NAME", group=_OUTPUT),
        Option(("-d", "--detach"), "go on in the background; prints the run's id", group=_OUTPUT),
        Option(("-q", "--quiet"), "say nothing unless something goes wrong", group=_OUTPUT),
        Option(("--dry-run",), "show what would be started, and start nothing", group=_OUTPUT),
        JSON._replace(help="print one JSON object a line instead", group=_OUTPUT),
    ),
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

_SWITCHES: dict[str, tuple[str, bool]] = {
    "per-node": ("per_node", True),
    "best": ("best", True),
    "evaluator": ("evaluator", True),
    "as-image-user": ("as_image_user", True),
    "slot-as-node": ("slot_as_node", True),
    "no-shim": ("shim", False),
    "no-wait": ("wait", False),
}
_REPEATED = frozenset(
    (
        "setup",
        "env-file",
        "node-selector",
        "toleration",
        "topology",
        "env-from-secret",
        "mount",
        "label",
        "annotation",
        "set",
    )
)
_OURS = frozenset(("detach", "quiet", "dry-run", "json", "env"))


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
    """The options as `build_spec` takes them: as they were written. It names every mistake in them."""
    flags: dict[str, object] = {"command": arguments.rest}
    for key in arguments.values:
        if key in _SWITCHES:
            field, value = _SWITCHES[key]
            flags[field] = value
        elif key in _REPEATED:
            flags[key] = arguments.all(key)
        elif key not in _OURS:
            flags[key] = arguments.last(key)
    if arguments.has("env"):
        flags["env"] = [_with_value(pair) for pair in arguments.all("env")]
    return flags


def _with_value(pair: str) -> str:
    if "=" in pair:
        return pair
    if pair not in os.environ:
        raise UsageError(f"--env {pair} takes {pair} from the environment, but it is not set there.", f"--env {pair}=…")
    return f"{pair}={os.environ[pair]}"


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
