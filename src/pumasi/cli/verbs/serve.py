"""pumasi serve: a page and a JSON API for a trained model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import given, kind_of, no_nodes, others, pool_with_nodes
from pumasi.cli.view.output import say
from pumasi.errors import UsageError

if TYPE_CHECKING:
    from rich.status import Status

    from pumasi.pools.pool import Pool
    from pumasi.serve.running import Started

_MOST_PORT = 65535
MOST = 10_000_000


def elsewhere() -> list[Any]:
    """What serves models in other pools: see `Pool.serving`."""
    return [serving for pool in others() if (serving := pool.serving()) is not None]


def _options() -> list[Option]:
    return [option for each in elsewhere() for option in each.OPTIONS]


VERB = Verb(
    name="serve",
    usage=(
        "pumasi serve FILE [options]",
        *(line for each in elsewhere() for line in each.USAGE),
    ),
    about="""Serves a trained model as a page and a JSON API: a .keras or .h5 file of Keras, or a TorchScript .pt. What
    people type is turned into numbers as it was for the training, by FILE.preprocessing.json: docs/serve.md says how a
    training script writes it. Files that change are loaded again, and at once on SIGHUP, without a request being lost.

    Only this machine can ask, unless --host says otherwise; then only who has the token that is printed. Ctrl-C ends
    it at once; SIGTERM lets it finish what it is answering.

    """
    + "".join(f"{each.ABOUT}\n\n" for each in elsewhere())
    + "Options whose help ends in * may be given several times.",
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
        *_options(),
    ),
    takes=(0, 1),
    completes=("FILE",),
    examples=(
        ("pumasi serve final.keras", ""),
        ("pumasi serve final.keras --vote runs", "all models of runs vote"),
        ("pumasi serve final.keras --host 0.0.0.0", "for others, who need the token in the address"),
        *(example for each in elsewhere() for example in each.EXAMPLES),
    ),
)


_HERE_ONLY = ("host", "port", "for")


def main(arguments: Arguments) -> int:
    if not arguments.has("on"):
        for pool in others():
            for key in given(arguments, [each for each in _options_of(pool) if each.key != "on"]):
                raise UsageError(f"--{key} is for {kind_of(pool)}.", f"Add --on {pool.name}.")
        _check_file(arguments, [])
        return _serve_here(arguments)
    if wrong := next(filter(arguments.has, _HERE_ONLY), None):
        raise UsageError(f"--{wrong} is for this machine, but --on names a cluster.", "Leave one of the two out.")
    word = arguments.last("on") or ""
    serving = pool_with_nodes(word).serving()
    if serving is None:
        raise no_nodes(word)
    _check_file(arguments, serving.WITHOUT_FILE)
    with Telling("asking the cluster …") as telling:
        code: int = serving.main(arguments, telling)
        return code


def _options_of(pool: Pool) -> Sequence[Option]:
    serving = pool.serving()
    return serving.OPTIONS if serving else ()


def _check_file(arguments: Arguments, without: Sequence[str]) -> None:
    if not arguments.rest and not any(map(arguments.has, without)):
        raise UsageError("'pumasi serve' needs FILE.", f"Usage: {VERB.usage[0]}")


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
