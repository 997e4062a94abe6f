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
_POD = "On a cluster: kubectl get pods -l pumasi.dev/run=RUN, then kubectl"
_VERB_HINTS = {
    "start": _RUN,
    "submit": _RUN,
    "launch": _RUN,
    "queue": "'pumasi ps' lists the runs, also those that wait; 'pumasi show RUN' says what one waits for.",
    "top": "'pumasi nodes --watch' shows the GPUs (add --on k8s for a cluster), 'pumasi attach RUN' what a run does.",
    "init": "There is nothing to prepare: pumasi run train.py. 'pumasi setup' is for runs with -d on a cluster.",
    "exec": f"{_POD} exec -it POD -- sh",
    "cp": f"{_POD} cp POD:FILE FILE",
}
_ALL = "Pumasi takes the number of processes in all, --slots N, and places them itself"
_OPTION_HINTS = {
    "--nproc-per-node": f"{_ALL}; --max-per-node N limits them on each node of a cluster.",
    "--nnodes": f"{_ALL}; --per-node runs one launcher, such as torchrun, on each node.",
    "--num-workers": f"{_ALL}. An option of your script stands after the script.",
    "--num-processes": f"{_ALL}. An option of your script stands after the script.",
    "--ntasks": f"{_ALL}.",
    "--hosts": f"{_ALL}: on a cluster with --on k8s.",
}


def verb_hint(name: str) -> str:
    return _VERB_HINTS.get(name, "")


def option_hint(name: str) -> str:
    return _OPTION_HINTS.get(name.replace("_", "-"), "")


def translated(words: Sequence[str]) -> list[str]:
    """A command line in our own words."""
    return [*VERBS.get(words[0], words[:1]), *words[1:]]


def is_count(word: str) -> bool:
    return word.isascii() and word.isdigit()
