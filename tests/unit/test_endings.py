"""The agents' words about an end become a verdict, a sentence and a hint."""

from __future__ import annotations

from typing import Any

import pytest

from pumasi.core.endings import outcome_of
from pumasi.core.outcome import Outcome, Verdict

NODES = ("node-1", "node-0")


def end(cause: str, size: int = 2, **facts: Any) -> Outcome:
    return outcome_of({"cause": cause, **facts}, NODES, size)


def test_a_done_gang_is_done() -> None:
    assert end("done").verdict is Verdict.DONE


def test_a_failure_names_rank_node_code_and_keeps_the_last_lines() -> None:
    outcome = end("exit", rank=3, node=1, code=7, signal=None, tail=["first", "ValueError: no"])
    assert outcome.verdict is Verdict.FAILED
    assert outcome.reason == "Rank 3 on node-0 failed first, with exit code 7."
    assert (outcome.rank, outcome.node, outcome.code, outcome.signal) == (3, "node-0", 7, None)
    assert outcome.tail == ("first", "ValueError: no")


def test_a_process_that_is_alone_is_called_the_program() -> None:
    assert end("exit", size=1, rank=0, node=0, code=1).reason == "The program on node-1 failed, with exit code 1."


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_crash_is_the_programs_own_failure(signal: str) -> None:
    outcome = end("signal", rank=1, node=1, signal=signal)
    assert outcome.verdict is Verdict.FAILED
    assert signal in outcome.reason


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM", "signal 40"])
def test_a_kill_from_outside_is_a_loss(signal: str) -> None:
    outcome = end("signal", rank=1, node=1, signal=signal)
    assert outcome.verdict is Verdict.LOST
    assert outcome.reason == f"Rank 1 on node-0 was killed ({signal})."


def test_out_of_memory_is_told_as_such() -> None:
    outcome = end("oom", rank=1, node=0, signal="SIGKILL")
    assert outcome.verdict is Verdict.LOST
    assert "memory ran out" in outcome.reason
    assert "smaller batch" in outcome.hint


@pytest.mark.parametrize(
    ("cause", "facts", "verdict", "words"),
    [
        ("unstartable", {"rank": 0, "node": 0, "error": "/x: No such file"}, Verdict.FAILED, "Rank 0 on node-1 could"),
        (
            "unstartable",
            {"node": 1, "error": "disk full"},
            Verdict.FAILED,
            "Node node-0 could not be started: disk full",
        ),
        ("vanished", {"rank": 1, "node": 0}, Verdict.LOST, "Rank 1 on node-1 never told how it ended"),
        ("silent", {"node": 1}, Verdict.LOST, "Node node-0 was lost: its agent fell silent."),
        ("agent died", {"node": 0}, Verdict.LOST, "Node node-1 was lost: its agent was killed."),
        ("absent", {"nodes": ["node-0", "c"]}, Verdict.LOST, "node-0, c did not come"),
        ("hub lost", {}, Verdict.LOST, "The chief's node was lost."),
        ("no hub", {"error": "refused"}, Verdict.LOST, "The chief's node could not be reached."),
        ("parent died", {"node": 0}, Verdict.LOST, "The manager was killed"),
        ("stopped", {"node": 0}, Verdict.STOPPED, "Stopped on request."),
    ],
)
def test_every_other_end_has_its_sentence(cause: str, facts: dict[str, Any], verdict: Verdict, words: str) -> None:
    outcome = end(cause, **facts)
    assert outcome.verdict is verdict
    assert words in outcome.reason
    assert outcome.reason.endswith(".")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ModuleNotFoundError: No module named 'keras.src'", "Install keras.src for the Python of the run"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "GPU's memory is full"),
        ("MemoryError", "Memory is full"),
        ("OSError: [Errno 28] No space left on device", "A disk is full"),
        ("OSError: [Errno 98] Address already in use", "Another program has that port"),
        ("train.py: error: unrecognized arguments: --slots", "handed to the script"),
        ("ValueError: something of the user's own", ""),
    ],
)
def test_well_known_last_lines_come_with_a_hint(line: str, words: str) -> None:
    hint = end("exit", rank=0, node=0, code=1, tail=["{curly} %s", line]).hint
    assert words in hint
    assert bool(hint) == bool(words)


def test_the_last_clue_counts() -> None:
    tail = ["No module named 'ujson'", "falling back", "No space left on device"]
    assert "disk is full" in end("exit", rank=0, node=0, code=1, tail=tail).hint
