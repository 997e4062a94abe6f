"""What the command line is made of: verbs, their options, their examples. Data only: the parser, the help, the
reference and the completion scripts are all made from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Option(NamedTuple):
    """`value` is what it takes, as the help shows it ("N"); without one it is a switch, and "[N]" may be left out. The
    last name is the one that `Arguments` knows it by."""

    names: tuple[str, ...]
    help: str
    value: str = ""
    choices: tuple[str, ...] = ()
    group: str = "Options"

    @property
    def key(self) -> str:
        return self.names[-1].lstrip("-")


class Verb(NamedTuple):
    """`takes` is the fewest and the most arguments; None is no limit. With `passes_on` the first argument ends our
    options: what follows belongs to the user's program. `completes` says what an argument is: a run, a file, words."""

    name: str
    usage: tuple[str, ...]
    about: str
    options: tuple[Option, ...] = ()
    takes: tuple[int, int | None] = (0, 0)
    passes_on: bool = False
    completes: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    more: Callable[[], tuple[Option, ...]] = tuple
    """Options that are known only now and then, since it takes time to find them."""


RUNS = ("RUN",)
"""What `completes` says where an argument is a run's id."""

HELP = Option(("-h", "--help"), "show this help")
JSON = Option(("--json",), "print JSON, for programs")

WHERE = (
    Option(("--on",), "where to look for the run: k8s, k8s:CONTEXT; else among those known here", "POOL"),
    Option(("-n", "--namespace"), "in that namespace of the cluster", "NAME"),
    Option(("-A", "--all-namespaces"), "in all namespaces of the cluster"),
)
"""For the verbs that are about a run."""

CLUSTER = "On a cluster"
NODES = (
    Option(("--node-selector",), "only nodes with this label *", "KEY=VALUE", group=CLUSTER),
    Option(
        ("--toleration",),
        "nodes with this taint too; KEY alone: any value; all: any taint *",
        "KEY[=VALUE][:EFFECT]",
        group=CLUSTER,
    ),
    Option(
        ("--topology",), "labels of nodes that say what is near to what, from narrow to wide *", "LABEL", group=CLUSTER
    ),
)
"""For the verbs that place slots on a cluster's nodes."""

GROUPS: dict[str, dict[str, str]] = {
    "Start": {
        "run": "run a script or a program, as one process or as a gang",
        "attach": "return to a run that goes on without a terminal",
        "render": "write a run as a file for kubectl, which trains without Pumasi being there",
    },
    "Look": {
        "ps": "list runs",
        "show": "tell everything about a run",
        "logs": "print what its processes wrote",
        "metrics": "print what it measured: loss, accuracy, …",
    },
    "End": {
        "wait": "wait until a run ends, and end with its exit code",
        "stop": "stop a run",
        "delete": "forget a finished run, with its logs",
    },
    "Files": {
        "data": "split a data set into parts, or copy it, for several who train on it",
        "models": "average, compare or show models, without the framework that wrote them",
        "serve": "show a trained model to people and programs: a page and a JSON API",
    },
    "Know": {
        "nodes": "list the GPUs of this machine or of a cluster: what is free, who holds the rest",
        "plan": "ask the planner what it would put where",
        "doctor": "tell what this machine has, and what is missing",
        "setup": "give a cluster's namespace what runs with -d need there",
        "completion": "print a completion script for your shell",
    },
}
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}

EXIT_CODES = (
    (0, "done"),
    (1, "the training failed"),
    (2, "what was asked for makes no sense: an option, a value, a file"),
    (3, "lost: out of memory, killed, a node gone"),
    (4, "timed out"),
    (5, "stopped"),
    (6, "no such run"),
    (7, "this machine or the cluster stands in the way: a full disk, an address that does not answer"),
    (70, "a mistake in Pumasi; a file with the details is named"),
)


def load(name: str) -> Verb:
    """The verb called `name`: its module is imported only now, since each needs other things."""
    from importlib import import_module

    verb: Verb = import_module(f"pumasi.cli.verbs.{name}").VERB
    return verb
