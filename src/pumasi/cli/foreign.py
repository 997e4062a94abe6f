"""Words of other tools. Plain synonyms work, the others lead to the right command; neither are listed in the help."""

from __future__ import annotations

from collections.abc import Sequence

VERBS: dict[str, tuple[str, ...]] = {
    "ls": ("ps",),
    "list": ("ps",),
    "rm": ("delete",),
    "remove": ("delete",),
    "cancel": ("stop",),
    "kill": ("stop", "--force"),
    "describe": ("show",),
    "status": ("show",),
}
"""Synonyms of verbs, with the options that make them mean the same."""

OPTIONS = {"--np": "--slots", "-np": "--slots"}
"""Synonyms of options, for the verbs that have the option."""

_RUN = "To start a script: pumasi run train.py; in the background: pumasi run -d train.py"
_VERB_HINTS = {
    "start": _RUN,
    "submit": _RUN,
    "launch": _RUN,
    "queue": "'pumasi ps' lists the runs, also those that wait; 'pumasi show RUN' says what one waits for.",
}
_ALL = "Pumasi takes the number of processes in all, --slots N, and places them itself"
_OPTION_HINTS = {
    "--nproc-per-node": f"{_ALL}; --max-per-node N limits them on each node of a cluster.",
    "--nnodes": f"{_ALL}; --per-node runs one launcher, such as torchrun, on each node.",
    "--num-workers": f"{_ALL}. An option of your script stands after the script.",
    "--num-processes": f"{_ALL}. An option of your script stands after the script.",
    "--ntasks": f"{_ALL}.",
}


def verb_hint(name: str) -> str:
    return _VERB_HINTS.get(name) or _hint_of_pools("verb_hints", name)


def option_hint(name: str) -> str:
    name = name.replace("_", "-")
    return _OPTION_HINTS.get(name) or _hint_of_pools("option_hints", name)


def _hint_of_pools(kind: str, word: str) -> str:
    from pumasi.cli.pools import others, words_of

    hints = (getattr(words_of(pool), kind).get(word, "") for pool in others())
    return next(filter(None, hints), "")


def translated(words: Sequence[str]) -> list[str]:
    """A command line in our own words."""
    return [*VERBS.get(words[0], words[:1]), *words[1:]]


def is_count(word: str) -> bool:
    return word.isascii() and word.isdigit()
