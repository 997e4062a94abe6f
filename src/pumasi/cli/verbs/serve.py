"""pumasi serve: a page and a JSON API for a trained model."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.options import options_of
from pumasi.cli.parsing import Arguments
from pumasi.cli.view.output import say
from pumasi.errors import UsageError
from pumasi.pools.kubernetes.options import CLUSTER, KubernetesOptions

if TYPE_CHECKING:
    from rich.status import Status

    from pumasi.serve.running import Started

_MOST_PORT = 65535
MOST = 10_000_000

VERB = Verb(
    name="serve",
    usage=(
        "pumasi serve FILE [options]",
        "pumasi serve FILE --on k8s[:CONTEXT] --image IMAGE [options]",
        "pumasi serve --on k8s[:CONTEXT] --list",
        "pumasi serve --on k8s[:CONTEXT] --token|--remove --name NAME",
    ),
    about="""Serves a trained model as a page and a JSON API: a .keras or .h5 file of Keras, or a TorchScript .pt. What
    people type is turned into numbers as it was for the training, by FILE.preprocessing.json: docs/serve.md says how a
    training script writes it. Files that change are loaded again, and at once on SIGHUP, without a request being lost.

    Only this machine can ask, unless --host says otherwise; then only who has the token that is printed. Ctrl-C ends
    it at once; SIGTERM lets it finish what it is answering.

    With --on k8s a cluster serves it, also when you are gone: FILE, and what belongs to it, goes onto a volume there;
    under /volume/ it is there already. The same command with another FILE, or other options, changes what is served
    without a request being lost. Who needs a token has the same one before and after.

    Options whose help ends in * may be given several times.""",
    options=(
        Option(("--vote",), "all models of this folder answer too; the mean counts", "DIR"),
        Option(("--preprocessing",), "the file that says how inputs become numbers", "FILE"),
        Option(("--host",), "listen at this address, for others too; 0.0.0.0: at all (default: 127.0.0.1)", "ADDRESS"),
        Option(("--port",), "listen at this port; 0: any that is free (default: 8000)", "N"),
        Option(
            ("--no-token",), "answer everybody who reaches --host, for example behind a proxy that authenticates users"
        ),
        Option(("--rate",), "requests a second of each client; 0: no limit (default: 100, on a cluster 0)", "N"),
        Option(("--for",), "end when nobody has asked anything for so long", "SECONDS"),
        JSON,
        Option(("--on",), "serve it on a cluster: k8s, or k8s:CONTEXT of your kubeconfig", "POOL", group=CLUSTER),
        Option(("-n", "--namespace"), "the namespace (default: that of the kubeconfig)", "NAME", group=CLUSTER),
        Option(("--name",), "what it is called there (default: as FILE is)", "NAME", group=CLUSTER),
        Option(("--image",), "an image with numpy and the framework of the model", "IMAGE", group=CLUSTER),
        Option(("--python",), "the Python in it (default: python3)", "PATH", group=CLUSTER),
        Option(
            ("--volume",),
            "the volume for the files, by its claim; made where it is not there (default: as --name)",
            "NAME[:SIZE]",
            group=CLUSTER,
        ),
        Option(
            ("--expose",),
            "for whom: ClusterIP (default): the cluster; NodePort: who reaches its nodes; LoadBalancer",
            "HOW",
            ("ClusterIP", "NodePort", "LoadBalancer"),
            CLUSTER,
        ),
        *options_of(KubernetesOptions, "node_selector", "tolerations"),
        Option(("--dry-run",), "print the objects as YAML, and make nothing", group=CLUSTER),
        Option(("--list",), "list what is served in the namespace, and how to reach it", group=CLUSTER),
        Option(("--token",), "print the token of what is served as --name, and its address", group=CLUSTER),
        Option(("--remove",), "remove what is served as --name; the volume stays", group=CLUSTER),
    ),
    takes=(0, 1),
    completes=("FILE",),
    examples=(
        ("pumasi serve final.keras", ""),
        ("pumasi serve final.keras --vote runs", "all models of runs vote"),
        ("pumasi serve final.keras --host 0.0.0.0", "for others, who need the token in the address"),
        ("pumasi serve final.keras --on k8s --image IMG", "by a cluster, also when you are gone"),
        ("pumasi serve --on k8s --list", "what the cluster serves"),
    ),
)


_ABOUT_SERVED = ("list", "token", "remove")
"""Options about what is served already."""
_HERE_ONLY = ("host", "port", "for")
_CLUSTER_ONLY = tuple(option.key for option in VERB.options if option.group == CLUSTER and option.key != "on")


def main(arguments: Arguments) -> int:
    is_far = arguments.has("on")
    if wrong := next(filter(arguments.has, _HERE_ONLY if is_far else _CLUSTER_ONLY), None):
        if is_far:
            raise UsageError(f"--{wrong} is for this machine, but --on names a cluster.", "Leave one of the two out.")
        raise UsageError(f"--{wrong} is for clusters.", "Add --on k8s.")
    if not arguments.rest and not any(map(arguments.has, _ABOUT_SERVED)):
        raise UsageError("'pumasi serve' needs FILE.", f"Usage: {VERB.usage[0]}")
    if not is_far:
        return _serve_here(arguments)
    from pumasi.cli import serving

    with Telling("asking the cluster …") as telling:
        return serving.main(arguments, telling)


def _serve_here(arguments: Arguments) -> int:
    try:
        from pumasi.serve.running import Options, leave, run
    except ModuleNotFoundError as error:
        raise UsageError(f"'pumasi serve' needs {error.name}, which this Python does not have.", _INSTALL) from None

    preprocessing, votes = arguments.last("preprocessing"), arguments.last("vote")
    options = Options(
        Path(arguments.rest[0]),
        Path(votes) if votes else None,
        Path(preprocessing) if preprocessing else None,
        host=arguments.last("host") or "127.0.0.1",
        port=int(number(arguments, "port", 8000, _MOST_PORT)),
        rate=number(arguments, "rate", 100, MOST),
        token="" if arguments.has("no-token") else None,
        alone_for=number(arguments, "for", 0, MOST) if arguments.has("for") else None,
    )
    with Telling("loading …") as telling:
        code = run(options, telling.say, lambda started: telling.ready(started, as_json=arguments.has("json")))
    return leave(code)


_INSTALL = "pip install numpy, into the environment that has the model's framework."


def number(arguments: Arguments, key: str, default: float, most: float) -> float:
    text = arguments.last(key)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 8 or int(text) > most:
        raise UsageError(f"--{key} takes a whole number up to {most:g}; '{text}' is none.", f"Write --{key} 30.")
    return int(text)


class Telling:
    """What is done while the model is loaded goes into one line of a terminal; elsewhere only what takes long is
    told."""

    def __init__(self, first: str) -> None:
        self._first = first
        self._stack = ExitStack()
        self._status: Status | None = None

    def say(self, text: str) -> None:
        if self._status is None:
            if not text.startswith("warming up"):
                say(text)
        elif text.endswith("…"):
            from rich.markup import escape

            self._status.update(f"pumasi: {escape(text)}")
        else:
            say(text)

    def ready(self, started: Started, *, as_json: bool) -> None:
        self.close()
        models, preprocessing = started.ensemble.models, started.ensemble.preprocessing
        if as_json:
            import json
            import os

            line = {
                "event": "ready",
                "url": started.url,
                "host": started.host,
                "port": started.port,
                "token": started.token or None,
                "models": [model.name for model in models],
                "framework": models[0].framework,
                "kind": preprocessing.kind,
                "pid": os.getpid(),
            }
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        names = f"{models[0].name}" + (f" and {len(models) - 1} more that vote" if len(models) > 1 else "")
        hints = []
        if started.ensemble.lacks_words:
            hints.append("It takes ids of words, but no file says which: there is no box for text. See docs/serve.md.")
        say(f"{names} ({models[0].framework}): {started.url}", *hints, "Ctrl-C ends it.")

    def __enter__(self) -> Telling:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = self._stack.enter_context(Console(stderr=True).status(f"pumasi: {self._first}"))
        return self

    def close(self) -> None:
        """What is said from now on stands for itself."""
        self._stack.close()
        self._status = None

    def __exit__(self, *_: object) -> None:
        self.close()
