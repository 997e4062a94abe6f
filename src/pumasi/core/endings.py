"""What the agents tell about an end, as an outcome that a person understands: who, where, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.core import frameworks
from pumasi.core.outcome import Outcome, Verdict


class Setting(NamedTuple):
    """What good advice depends on: the image that the program runs in, if any; how much memory a slot may use, where
    there is a limit, and twice that, both as users write it; whether checkpoints outlive what wrote them; and the
    framework of the run."""

    image: str = ""
    memory: tuple[str, str] | None = None
    keeps_checkpoints: bool = True
    framework: str = ""


HERE = Setting()
"""This machine."""


_SETUP_CLUES = (
    (
        r"neither uv nor pip",
        "Take an --image that has one of them; here, add one to the environment, or choose another --python.",
    ),
    (r"No space left on device", "A disk is full: free some space, or install less."),
    (
        r"establish a new connection|name resolution|dns error|Network is unreachable|error sending request"
        r"|ould not connect|Connection refused|timed out",
        "No package index could be reached. --env PIP_INDEX_URL=URL names another one; or put wheels into the folder "
        "(on a cluster: on a volume, with --mount): --env PIP_FIND_LINKS=wheels --env PIP_NO_INDEX=1.",
    ),
    (
        r"requires a different Python|Requires-Python|[Nn]one of .* satisf.* Python",
        "A package does not fit the Python of the run: choose another version of it, or another Python or image.",
    ),
    (
        r"satisfies the requirement|No matching distribution|not found in the package registry|No solution found",
        "Check the name and the version; --env PIP_INDEX_URL=URL names another package index.",
    ),
    (
        r"command '\S*(cc|gcc|g\+\+|clang)\S*' failed|(gcc|cc): not found|[Uu]nable to find a compatible compiler"
        r"|No such file or directory: '\S*(gcc|cc)'",
        "A package has to be compiled, and no compiler is there: choose a version with a wheel, or another image.",
    ),
    (
        r"Read-only file system|Permission denied",
        "What is installed may only write to the environment of the run, and its home: commands that need more "
        "belong into the image.",
    ),
)


class Ending(NamedTuple):
    verdict: Verdict
    reason: str
    hint: str = ""


def outcome_of(facts: Mapping[str, Any], nodes: Sequence[str], size: int, setting: Setting = HERE) -> Outcome:
    """`facts` are the agent's own words about the end, `nodes` the gang's nodes by name, `size` the number of ranks."""
    node = nodes[facts["node"]] if facts.get("node") is not None else None
    tail = frameworks.without_noise(facts.get("tail") or (), setting.framework)
    ending = _ending(facts, _who(facts, node, size), tail, setting)
    return Outcome(
        ending.verdict,
        ending.reason,
        ending.hint,
        rank=facts.get("rank"),
        node=node,
        code=facts.get("code"),
        signal=facts.get("signal"),
        tail=tail,
        cause=facts["cause"],
    )


def _who(facts: Mapping[str, Any], node: str | None, size: int) -> str:
    if facts.get("rank") is None:
        return f"Node {node}" if node else "The gang"
    where = f" on {node}" if node else ""
    if facts["cause"] == "setup":
        return f"{facts['error']}{where}"
    return f"Rank {facts['rank']}{where}" if size > 1 else f"The program{where}"


def _ending(facts: Mapping[str, Any], who: str, tail: Sequence[str], setting: Setting) -> Ending:
    match facts["cause"]:
        case "exit":
            first = " first" if who.startswith("Rank") else ""
            hint = facts.get("hint") or _clue(tail, setting)
            return Ending(Verdict.FAILED, f"{who} failed{first}, with exit code {facts['code']}.", hint)
        case "signal":
            return _signalled(str(facts["signal"]), who)
        case "unstartable":
            hint = _clue([str(facts["error"])], setting) or "Check the command."
            return Ending(Verdict.FAILED, f"{who} could not be started: {facts['error']}.", hint)
        case "setup":
            return _not_set_up(facts, who, tail)
        case "unmade":
            return Ending(Verdict.FAILED, f"{who} ended well, but there is no model: {facts['error']}.", _UNMADE_HINT)
        case "cluster":
            return Ending(Verdict(facts["verdict"]), facts["reason"], facts["hint"])
        case "absent" | "late":
            late = facts.get("who") or f"{', '.join(facts['nodes'])} did not come"
            hint = facts.get("hint") or "--start-timeout gives it more time."
            return Ending(Verdict.LOST, f"The gang was not whole in time: {late}.", hint)
        case "oom":
            return Ending(Verdict.LOST, f"{who} was killed because memory ran out.", _about_memory(setting))
        case cause if cause in _LOST:
            return Ending(Verdict.LOST, _LOST[cause].format(who=who), _about_restarts(setting))
        case cause:
            verdict, reason, hint = _PLAIN[cause]
            return Ending(verdict, reason.format(who=who, error=facts.get("error")), hint)


_UNMADE_HINT = "It has to save its model in the file that {model} stands for, under exactly that name."
_PLAIN = {
    "done": Ending(Verdict.DONE, "Done."),
    "stopped": Ending(Verdict.STOPPED, "Stopped on request."),
    "version": Ending(
        Verdict.FAILED,
        "{error}.",
        "A run keeps the agent that it began with, and a newer Pumasi has started it again: start a new run.",
    ),
    "vanished": Ending(
        Verdict.LOST,
        "{who} never told how it ended, though mpirun said that all is well.",
        "One of MPI's daemons was probably killed.",
    ),
}
_LOST = {
    "silent": "{who} was lost: its agent fell silent.",
    "agent died": "{who} was lost: its agent was killed.",
    "no hub": "The chief's node could not be reached.",
    "hub lost": "The chief's node was lost.",
    "parent died": "The manager was killed, so the gang ended itself.",
}
_CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"}


def _not_set_up(facts: Mapping[str, Any], who: str, tail: Sequence[str]) -> Ending:
    how = f"was killed ({facts['signal']})" if facts.get("signal") else f"failed, with exit code {facts['code']}"
    return Ending(Verdict.FAILED, f"{who} {how}.", _setup_clue(tail))


def _signalled(name: str, who: str) -> Ending:
    """A crash is the program's own failure; a kill came from outside."""
    if name in _CRASHES:
        return Ending(Verdict.FAILED, f"{who} crashed ({name}).", "The last lines of its log may tell more.")
    hint = "Somebody or something on the machine killed it; if memory was short, try a smaller batch."
    return Ending(Verdict.LOST, f"{who} was killed ({name}).", hint)


def _about_restarts(setting: Setting) -> str:
    if setting.keeps_checkpoints:
        return "--restarts N starts the gang again by itself; the script goes on from its checkpoint."
    return (
        "--restarts N starts the gang again by itself, from the beginning: checkpoints are lost with the pod, unless "
        "the run has a volume for them (--volume NAME, or --mount CLAIM:/path)."
    )


def _about_memory(setting: Setting) -> str:
    if setting.memory is not None:
        may, more = setting.memory
        return f"Each slot may use {may}: raise it, as in --memory {more}, or try a smaller batch."
    if setting.image:
        return "Its node was full: --memory reserves what each slot needs; or try a smaller batch."
    return "Try a smaller batch, fewer slots on one node, or a machine with more memory."


def _about_module(setting: Setting, name: str) -> str:
    packages = "a list of packages with --requirements requirements.txt"
    if setting.image:
        return f"The image {setting.image} has no {name}. Name an image that has it with --image, or {packages}."
    return f"Install {name} for the Python of the run, or name another Python with --python, or {packages}."


_CLUES: tuple[tuple[str, str | Callable[..., str]], ...] = (
    (r"No module named '([\w.]+)'", _about_module),
    (r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY", "The GPU's memory is full: try a smaller batch."),
    (r"\bMemoryError\b|Cannot allocate memory", lambda setting: f"Memory is full. {_about_memory(setting)}"),
    (r"No space left on device", "A disk is full: free some space, or have the script write elsewhere."),
    (r"ddress already in use", "Another program has that port. The ports that Pumasi hands out are free ones."),
    (r"\bEOFError\b", "Programs have no standard input here: give them what they need as arguments or files."),
    (r"error: (unrecognized|the following) arguments", "What stands after the script's name is handed to the script."),
)
"""What a last line shows, and what to do: a sentence, or what makes one of the setting and what was found."""


def _clue(tail: Sequence[str], setting: Setting) -> str:
    known = frameworks.hint(tail, setting.framework)
    if known:
        return known
    for line in reversed(tail):
        for pattern, hint in _CLUES:
            found = re.search(pattern, line)
            if found:
                return hint if isinstance(hint, str) else hint(setting, *found.groups())
    return ""


def _setup_clue(tail: Sequence[str]) -> str:
    """The most certain first, wherever it stands: pip tells first of a lost connection, then that nothing was found."""
    text = "\n".join(tail)
    return next((hint for pattern, hint in _SETUP_CLUES if re.search(pattern, text)), "")
