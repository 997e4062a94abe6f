"""What the agents tell about an end, as an outcome that a person understands: who, where, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pumasi.core.outcome import Outcome, Verdict

_CLUES = (
    (r"No module named '([\w.]+)'", "Install {} for the Python of the run, or choose another one with --python."),
    (r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY", "The GPU's memory is full: try a smaller batch."),
    (r"\bMemoryError\b|Cannot allocate memory", "Memory is full: try a smaller batch, or fewer slots."),
    (r"No space left on device", "A disk is full: free some space, or have the script write elsewhere."),
    (r"ddress already in use", "Another program has that port. The ports that Pumasi hands out are free ones."),
    (r"\bEOFError\b", "Programs have no standard input here: give them what they need as arguments or files."),
    (r"error: (unrecognized|the following) arguments", "What stands after the script's name is handed to the script."),
)


class Ending(NamedTuple):
    verdict: Verdict
    reason: str
    hint: str = ""


def outcome_of(facts: Mapping[str, Any], nodes: Sequence[str], size: int) -> Outcome:
    """`facts` are the agent's own words about the end, `nodes` the gang's nodes by name, `size` the number of ranks."""
    node = nodes[facts["node"]] if facts.get("node") is not None else None
    tail = tuple(facts.get("tail") or ())
    ending = _ending(facts, _who(facts, node, size), tail)
    return Outcome(
        ending.verdict,
        ending.reason,
        ending.hint,
        rank=facts.get("rank"),
        node=node,
        code=facts.get("code"),
        signal=facts.get("signal"),
        tail=tail,
    )


def _who(facts: Mapping[str, Any], node: str | None, size: int) -> str:
    if facts.get("rank") is None:
        return f"Node {node}" if node else "The gang"
    where = f" on {node}" if node else ""
    return f"Rank {facts['rank']}{where}" if size > 1 else f"The program{where}"


def _ending(facts: Mapping[str, Any], who: str, tail: Sequence[str]) -> Ending:
    match facts["cause"]:
        case "exit":
            first = " first" if who.startswith("Rank") else ""
            return Ending(Verdict.FAILED, f"{who} failed{first}, with exit code {facts['code']}.", _clue(tail))
        case "signal":
            return _signalled(str(facts["signal"]), who)
        case "unstartable":
            return Ending(Verdict.FAILED, f"{who} could not be started: {facts['error']}.", "Check the command.")
        case "unmade":
            return Ending(Verdict.FAILED, f"{who} ended well, but there is no model: {facts['error']}.", _UNMADE_HINT)
        case "cluster":
            return Ending(Verdict(facts["verdict"]), facts["reason"], facts["hint"])
        case "absent":
            missing = ", ".join(facts["nodes"])
            return Ending(Verdict.LOST, f"The gang was not whole in time: {missing} did not come.", _LATE_HINT)
        case "late":
            return Ending(Verdict.LOST, f"The gang was not whole in time: {facts['who']}.", _LATE_HINT)
        case cause:
            verdict, reason, hint = _PLAIN[cause]
            return Ending(verdict, reason.format(who=who), hint)


_UNMADE_HINT = "It has to save its model in the file that {model} stands for, under exactly that name."
_LOST_HINT = "--restarts N starts the gang again by itself; the script goes on from its checkpoint."
_LATE_HINT = "--start-timeout gives it more time."
_PLAIN = {
    "done": Ending(Verdict.DONE, "Done."),
    "stopped": Ending(Verdict.STOPPED, "Stopped on request."),
    "oom": Ending(
        Verdict.LOST,
        "{who} was killed because memory ran out.",
        "Try a smaller batch, fewer slots on one node, or a machine with more memory.",
    ),
    "vanished": Ending(
        Verdict.LOST,
        "{who} never told how it ended, though mpirun said that all is well.",
        "One of MPI's daemons was probably killed.",
    ),
    "silent": Ending(Verdict.LOST, "{who} was lost: its agent fell silent.", _LOST_HINT),
    "agent died": Ending(Verdict.LOST, "{who} was lost: its agent was killed.", _LOST_HINT),
    "no hub": Ending(Verdict.LOST, "The chief's node could not be reached.", _LOST_HINT),
    "hub lost": Ending(Verdict.LOST, "The chief's node was lost.", _LOST_HINT),
    "parent died": Ending(Verdict.LOST, "The manager was killed, so the gang ended itself.", _LOST_HINT),
}
_CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"}


def _signalled(name: str, who: str) -> Ending:
    """A crash is the program's own failure; a kill came from outside."""
    if name in _CRASHES:
        return Ending(Verdict.FAILED, f"{who} crashed ({name}).", "The last lines of its log may tell more.")
    hint = "Somebody or something on the machine killed it; if memory was short, try a smaller batch."
    return Ending(Verdict.LOST, f"{who} was killed ({name}).", hint)


def _clue(tail: Sequence[str]) -> str:
    for line in reversed(tail):
        for pattern, hint in _CLUES:
            found = re.search(pattern, line)
            if found:
                return hint.format(*found.groups())
    return ""
