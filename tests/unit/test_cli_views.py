"""What a user sees of a run: recorded events, output and readings in; a screen, or streams, out."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pumasi.cli.view import live
from pumasi.cli.view.board import Board
from pumasi.cli.view.printer import to_streams
from pumasi.cli.view.text import width
from pumasi.cli.view.views import JsonView, PlainView
from pumasi.core.events import unpack
from pumasi.core.frames import Frame
from pumasi.core.metrics import Reading

PLANNED = {
    "run": "train-x7k2p",
    "placement": {"this": 2},
    "chief": "this",
    "framework": "torch",
    "because": "train.py imports torch",
    "python": "python 3.11 (.venv)",
    "gpus": {},
    "see_gpus": "all",
}
RUNNING = {"attempt": 0, "ranks": [{"rank": rank, "node": "this", "role": "worker", "pid": 7} for rank in (0, 1)]}
FAILED = {
    "verdict": "failed",
    "reason": "Rank 1 on this failed first, with exit code 1.",
    "hint": "Look at its last lines.",
    "rank": 1,
    "node": "this",
    "code": 1,
    "signal": None,
    "tail": ["Traceback (most recent call last):", "ValueError: bad"],
}
DONE: dict[str, Any] = {"verdict": "done", "reason": "Done.", "hint": "", "rank": None, "tail": []}


def play(view: Any, finished: dict[str, Any]) -> None:
    view.event(100.0, unpack("planned", PLANNED))
    view.event(100.1, unpack("starting", {"attempt": 0}))
    view.event(100.2, unpack("running", RUNNING))
    view.output([Frame(0, 0, 100300, b"|", b"hello"), Frame(1, 0, 100300, b":", b"oh")])
    view.reading(0, Reading({"loss": 0.3125, "accuracy": 0.875}, step=3))
    view.event(112.5, unpack("rank ended", {"attempt": 0, "rank": 1, "code": 1, "signal": None}))
    view.event(112.5, unpack("finished", finished))
    view.close()


def test_without_a_terminal_the_plan_the_phases_and_the_end_are_lines_on_stderr(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    play(PlainView(to_streams, ranks=2), DONE)
    out, err = capsysbinary.readouterr()
    assert out == b"[0] hello\n"
    assert err.decode().splitlines() == [
        "pumasi: train-x7k2p · 2 slots on this machine · torch (train.py imports torch) · python 3.11 (.venv)",
        "pumasi: running: 2 processes",
        "[1] oh",
        "pumasi: train-x7k2p is done after 12 s · loss 0.3125 · accuracy 0.875",
        "  pumasi logs train-x7k2p",
        "  pumasi metrics train-x7k2p",
    ]


def test_the_time_that_a_run_waited_is_told_apart_from_the_time_that_it_took(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    view = PlainView(to_streams, ranks=2)
    view.event(60.2, unpack("waiting", {"reason": "4 GPUs are busy."}))
    play(view, DONE)
    assert "pumasi: train-x7k2p is done after 12 s (waited 40 s) · loss" in capsysbinary.readouterr().err.decode()


def test_a_failure_says_who_failed_first_why_what_to_do_and_its_last_lines(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    play(PlainView(to_streams, ranks=2), FAILED)
    assert capsysbinary.readouterr().err.decode().splitlines()[3:] == [
        "pumasi: train-x7k2p failed after 12 s: Rank 1 on this failed first, with exit code 1.",
        "  | Traceback (most recent call last):",
        "  | ValueError: bad",
        "  Look at its last lines.",
        "  pumasi logs train-x7k2p --rank 1",
        "  pumasi show train-x7k2p",
    ]


@pytest.mark.parametrize(
    ("verdict", "words", "command"),
    [
        (
            "lost",
            ["--slots", "4", "train.py", "--lr", "0.1 x"],
            "pumasi run --restarts 3 --slots 4 train.py --lr '0.1 x'",
        ),
        ("lost", ["--restarts", "1", "train.py"], "pumasi show train-x7k2p"),
        ("timed out", ["--timeout=9m", "train.py"], "pumasi show train-x7k2p"),
        ("stopped", ["train.py"], "pumasi show train-x7k2p"),
    ],
)
def test_the_last_line_is_the_command_that_one_would_want_next(
    verdict: str, words: list[str], command: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    play(PlainView(to_streams, ranks=2, words=words), {**FAILED, "verdict": verdict})
    assert capsysbinary.readouterr().err.decode().splitlines()[-1] == f"  {command}"


def test_a_run_that_ran_out_of_memory_is_not_to_be_repeated_as_it_was(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    play(PlainView(to_streams, ranks=2, words=["train.py"]), {**FAILED, "verdict": "lost", "cause": "oom"})
    assert capsysbinary.readouterr().err.decode().splitlines()[-1] == "  pumasi show train-x7k2p"


def test_a_run_that_no_process_and_no_node_has_lost_is_not_started_again_by_more_restarts(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    deleted = {"run": "train-x7k2p", "verdict": "lost", "reason": "Somebody deleted it in the cluster."}
    play(PlainView(to_streams, ranks=2, words=["train.py"]), deleted)
    assert capsysbinary.readouterr().err.decode().splitlines()[-1] == "  pumasi show train-x7k2p"


def test_a_quiet_run_says_nothing_unless_it_goes_wrong(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    play(PlainView(to_streams, ranks=2, quiet=True), DONE)
    assert capsysbinary.readouterr().err == b"[1] oh\n"
    play(PlainView(to_streams, ranks=2, quiet=True), FAILED)
    assert b"failed after 12 s" in capsysbinary.readouterr().err


def test_waiting_notes_and_restarts_are_told_as_they_happen(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    view = PlainView(to_streams, ranks=1)
    view.event(1.0, unpack("note", {"text": "Keras 3 is mended."}))
    view.event(2.0, unpack("waiting", {"reason": "both GPUs are busy"}))
    view.event(3.0, unpack("restarting", {"attempt": 1, "reason": "Rank 0 was killed."}))
    view.event(4.0, unpack("ending", {"why": "stopped"}))
    view.event(5.0, unpack("left", {"run": "train-x7k2p"}))
    assert capsysbinary.readouterr().err.decode().splitlines() == [
        "pumasi: Keras 3 is mended.",
        "pumasi: waiting: both GPUs are busy",
        "pumasi: starting again (attempt 1): Rank 0 was killed.",
        "pumasi: ending: stopped",
        "pumasi: train-x7k2p goes on in the background.",
        "  pumasi attach train-x7k2p",
        "  pumasi stop train-x7k2p",
    ]


def task_event(board: Board, kind: str, task: str, number: int, **data: Any) -> None:
    board.event(100.0, unpack(kind, {"task": task, "numbers": [number, 1], "attempt": 0, **data}))


def test_of_several_tasks_those_that_run_are_shown_by_name() -> None:
    board = Board()
    seats = [{"rank": 0, "node": "this", "role": "worker", "pid": 7}]
    for number in range(2):
        task_event(board, "starting", f"train-1-{number}", number)
        task_event(board, "running", f"train-1-{number}", number, ranks=seats)
    assert "running · 0:00 · 2 tasks: 2 running" in live.draw(board, {}, 100.0, 80, 24)[-1]
    task_event(board, "restarting", "train-1-1", 1, reason="It failed.")
    assert (board.phase, board.reason, board.attempt) == ("running", "", 0)
    assert live.draw(board, {}, 100.0, 80, 24)[-1].endswith("running · 0:00 · train-1-0")
    task_event(board, "task ended", "train-1-0", 0)
    task_event(board, "starting", "average-1", 2)
    assert board.phase == "starting"


def test_a_plan_for_several_nodes_says_what_goes_where(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    gpus = {"node-0": ["GPU-1", "GPU-2"], "node-1": ["GPU-3"]}
    plan = {**PLANNED, "placement": {"node-0": 2, "node-1": 1}, "chief": "node-1", "gpus": gpus, "framework": "none"}
    PlainView(to_streams, ranks=3).event(1.0, unpack("planned", {**plan, "because": "no framework imported"}))
    assert capsysbinary.readouterr().err.decode() == (
        "pumasi: train-x7k2p · 3 slots: 2 on node-0, 1 on node-1; the chief on node-1 · no framework imported"
        " · 3 GPUs, each rank sees all · python 3.11 (.venv)\n"
    )


def test_with_json_there_is_one_object_a_line_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    play(JsonView(to_streams), FAILED)
    out, err = capfd.readouterr()
    told = [json.loads(line) for line in out.splitlines()]
    kinds = ["planned", "starting", "running", "output", "output", "metrics", "rank ended", "finished"]
    assert [one["event"] for one in told] == kinds
    assert told[4] == {"event": "output", "at": 100.3, "rank": 1, "stream": "stderr", "text": "oh", "end": "\n"}
    assert told[5]["values"] == {"loss": 0.3125, "accuracy": 0.875}
    assert told[-1]["tail"] == FAILED["tail"]
    assert err == ""


def test_json_has_no_word_for_a_loss_that_is_not_a_number(capfd: pytest.CaptureFixture[str]) -> None:
    JsonView(to_streams).reading(0, Reading({"loss": float("nan")}))
    assert json.loads(capfd.readouterr().out, parse_constant=pytest.fail)["values"] == {"loss": None}


def board_of(ranks: int, nodes: int = 1) -> Board:
    board = Board()
    board.event(100.0, unpack("planned", PLANNED))
    seats = [{"rank": rank, "node": f"node-{rank % nodes}", "role": "worker"} for rank in range(ranks)]
    board.event(101.0, unpack("running", {"attempt": 0, "ranks": seats}))
    return board


def test_the_live_view_of_one_process_is_a_line_with_state_time_and_metrics() -> None:
    board = board_of(1)
    board.reading(0, Reading({"loss": 0.25}, epoch=2))
    assert live.draw(board, {0: " 40%|████      |"}, 175.0, 80, 24) == [
        " 40%|████      |",
        "train-x7k2p · running · 1:14 · loss 0.25",
    ]


def test_the_live_view_of_a_gang_has_a_row_for_each_rank() -> None:
    board = board_of(2, nodes=2)
    board.reading(1, Reading({"loss": 0.25}, epoch=2))
    board.event(120.0, unpack("rank ended", {"rank": 0, "code": 3, "signal": None}))
    lines = [line.rstrip() for line in live.draw(board, {1: "40%"}, 175.0, 80, 24)]
    assert lines == [
        "[0]  node-0  worker  exit 3",
        "[1]  node-1  worker  running  epoch 2 · loss 0.25 · 40%",
        "train-x7k2p · running · 1:14 · 2 ranks: 1 exit 3, 1 running",
    ]


def test_many_ranks_are_summed_up_in_one_line() -> None:
    board = board_of(64)
    board.reading(5, Reading({"loss": 0.25}))
    board.event(120.0, unpack("rank ended", {"rank": 63, "code": None, "signal": "SIGKILL"}))
    assert live.draw(board, {}, 175.0, 80, 24) == [
        "train-x7k2p · running · 1:14 · 64 ranks: 63 running, 1 SIGKILL · loss 0.25"
    ]


def test_no_line_of_the_live_view_is_wider_than_the_terminal() -> None:
    board = board_of(2)
    board.reading(0, Reading({f"metric_number_{index}": 0.5 for index in range(9)}))
    board.event(120.0, unpack("waiting", {"reason": "품앗이 " * 40}))
    assert all(width(line) < 60 for line in live.draw(board, {1: "x" * 500}, 175.0, 60, 24))


SHOW = """
import sys, time
sys.path[:0] = {path!r}
from test_cli_views import DONE, PLANNED, RUNNING, Frame, Reading, unpack
from pumasi.cli.view.live import LiveView
from pumasi.cli.view.views import is_live
assert is_live()
view = LiveView(ranks=2)
now = time.time()
view.event(now, unpack("planned", PLANNED))
view.event(now, unpack("running", RUNNING))
deadline = now + 20
for step in range(100_000):
    view.output([Frame(step % 2, step, 0, b"|", b"line %d" % step), Frame(0, step, 0, b"^", b"%d done" % step)])
    view.reading(0, Reading({{"loss": 1 / (step + 1)}}, step=step))
    if view._drawn and step > 50:
        break
    time.sleep(0.01)
assert view._drawn == 3, "nothing was drawn"
view.ask("Stop it?")
view.ask("")
view.output([Frame(0, step + 1, 0, b":", b"last line")])
view.event(time.time(), unpack("finished", DONE))
view.close()
"""


def test_on_a_terminal_the_output_scrolls_whole_and_nothing_of_the_live_lines_stays_behind() -> None:
    screen = Terminal()
    screen.feed(run_on_terminal(SHOW.format(path=[str(Path(__file__).parent)])))
    lines = screen.text()
    steps = [line for line in lines if re.fullmatch(r"\[[01]\] line \d+", line)]
    assert steps == [f"[{step % 2}] line {step}" for step in range(len(steps))]
    assert len(steps) > 50
    others = [line for line in lines if line not in steps]
    assert others[0].startswith("pumasi: train-x7k2p · 2 slots on this machine")
    assert others[1:3] == ["pumasi: Stop it?", "[0] last line"]
    assert re.fullmatch(r"pumasi: train-x7k2p is done after [\d.]+ s · loss [\d.e-]+", others[3])
    assert others[4:] == ["  pumasi logs train-x7k2p", "  pumasi metrics train-x7k2p"]


def run_on_terminal(code: str) -> str:
    """What the program writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    ) as child:
        os.close(theirs)
        written = bytearray()
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                break
            if not chunk:
                break
            written += chunk
    os.close(ours)
    assert child.returncode == 0, written[-2000:].decode(errors="replace")
    return written.decode()


class Terminal:
    """As much of a terminal as the live view needs: it keeps everything that scrolled away."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0

    def feed(self, written: str) -> None:
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.row += 1
                self.rows += [[]] if self.row == len(self.rows) else []
            elif part.startswith("\x1b["):
                self._obey(part)
            else:
                self._write(part)

    def _obey(self, order: str) -> None:
        if order.endswith("A"):
            self.row -= int(order[2:-1] or 1)
        elif order.endswith("J"):
            del self.rows[self.row + 1 :]
            del self.rows[self.row][self.column :]
        else:
            assert order.endswith("m"), f"the live view used {order!r}"

    def _write(self, text: str) -> None:
        row = self.rows[self.row]
        row += [" "] * (self.column - len(row))
        row[self.column : self.column + len(text)] = text
        self.column += len(text)

    def text(self) -> list[str]:
        return [line for line in ("".join(row).rstrip() for row in self.rows) if line]
