"""What Ctrl-C and a lost terminal do, at a real (pseudo-)terminal."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.harness import Workplace, wait_for
from tests.terminal import TICKING, Terminal

SLEEPER = """
    import time
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def sleeping(workplace: Workplace) -> Terminal:
    workplace.script(SLEEPER)
    terminal = Terminal(workplace, "run", "train.py")
    terminal.wait_for("ready")
    wait_for(lambda: workplace.last()["state"] == "running", "the run")
    return terminal


def test_an_interrupt_asks_and_s_stops(sleeping: Terminal) -> None:
    sleeping.type("\x03")
    sleeping.wait_for("[l]eave")
    sleeping.type("s\n")
    assert sleeping.exit_code() == 5


def test_a_second_interrupt_stops_without_an_answer(sleeping: Terminal) -> None:
    sleeping.type("\x03")
    sleeping.wait_for("[l]eave")
    sleeping.type("\x03")
    assert sleeping.exit_code() == 5


def test_enter_goes_on(sleeping: Terminal, workplace: Workplace) -> None:
    sleeping.type("\x03")
    sleeping.wait_for("[l]eave")
    shown = len(sleeping.shown)
    sleeping.type("\n")
    wait_for(lambda: b"train-" in sleeping.shown[shown:], "the line that had made room for the question")
    assert workplace.last()["state"] == "running"
    shown = len(sleeping.shown)
    sleeping.type("\x03")
    wait_for(lambda: b"[l]eave" in sleeping.shown[shown:], "the question again")
    sleeping.type("s\n")
    assert sleeping.exit_code() == 5


def test_a_run_that_is_left_goes_on_and_can_be_attached_to_and_stopped(
    sleeping: Terminal, workplace: Workplace
) -> None:
    sleeping.type("\x03")
    sleeping.wait_for("[l]eave")
    sleeping.type("l\n")
    assert sleeping.exit_code() == 0
    assert workplace.last()["state"] == "running"
    assert len(workplace.ranks()) == 1
    attached = Terminal(workplace, "attach")
    attached.wait_for("ready")
    stopped = workplace.run("stop")
    assert stopped.returncode == 0
    assert attached.exit_code() == 5
    assert workplace.last()["state"] == "stopped"


def test_a_run_that_is_left_ends_by_itself_with_its_outcome(workplace: Workplace) -> None:
    workplace.script("""
        import os, time
        print("ready", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.02)
        print("loss: 0.25")
    """)
    terminal = Terminal(workplace, "run", "train.py")
    terminal.wait_for("ready")
    terminal.type("\x03")
    terminal.wait_for("[l]eave")
    terminal.type("l\n")
    assert terminal.exit_code() == 0
    (workplace.folder / "go").touch()
    assert workplace.run("wait").returncode == 0
    assert "loss: 0.25" in workplace.run("logs").stdout


def test_a_lost_terminal_leaves_the_run_running(sleeping: Terminal, workplace: Workplace) -> None:
    sleeping.hang_up()
    wait_for(lambda: len(workplace.ranks()) == 1, "the rank")
    assert workplace.last()["state"] == "running"
    assert workplace.run("stop").returncode == 0
    assert sleeping.exit_code() == 5


def test_a_terminal_that_hangs_up_twice_leaves_the_run_running(workplace: Workplace) -> None:
    """As `tmux kill-session` does it: the kernel tells the run, and the shell that is told too tells it once more."""
    workplace.script(TICKING)
    pauses = [0.0001, 0.0002, 0.0003, 0.0004, 0.0006, 0.001]
    terminals = [Terminal(workplace, "run", "train.py") for _ in pauses]
    for terminal, pause in zip(terminals, pauses, strict=True):
        terminal.wait_for("tick")
        os.kill(terminal.pid, signal.SIGHUP)
        time.sleep(pause)  # the very thing: how far apart they are
        os.kill(terminal.pid, signal.SIGHUP)
        terminal.hang_up()
    lines = {run["id"]: len(workplace.run("logs", run["id"]).stdout.splitlines()) for run in workplace.runs()}
    for run, seen in lines.items():
        wait_for(lambda: len(workplace.run("logs", run).stdout.splitlines()) > seen + 50, "more lines")  # noqa: B023
    assert [run["state"] for run in workplace.runs()] == ["running"] * len(pauses)
    assert workplace.run("stop", *lines).returncode == 0
    assert [terminal.exit_code() for terminal in terminals] == [5] * len(pauses)


def test_a_terminal_that_hangs_up_while_a_question_is_open_leaves_the_run_running(
    sleeping: Terminal, workplace: Workplace
) -> None:
    sleeping.type("\x03")
    sleeping.wait_for("[l]eave")
    sleeping.hang_up()
    wait_for(lambda: not _reads_a_terminal(sleeping.pid), "the end of the terminal")
    assert workplace.last()["state"] == "running"
    assert workplace.run("stop").returncode == 0
    assert sleeping.exit_code() == 5


def _reads_a_terminal(pid: int) -> bool:
    return str(Path(f"/proc/{pid}/fd/0").readlink()) != os.devnull


@pytest.mark.parametrize("redirected", ["< /dev/null", "> out.log 2>&1", "2> err.log", "> out.log < /dev/null 2>&1"])
def test_a_lost_terminal_leaves_a_run_running_that_is_redirected(workplace: Workplace, redirected: str) -> None:
    workplace.script(TICKING)
    terminal = Terminal(workplace, "run", "train.py", redirected=redirected)
    wait_for(lambda: workplace.runs() and workplace.last()["state"] == "running", "the run")
    terminal.hang_up()
    lines = len(workplace.run("logs").stdout.splitlines())
    wait_for(lambda: len(workplace.run("logs").stdout.splitlines()) > lines + 50, "more lines")
    assert workplace.last()["state"] == "running"
    if redirected.startswith(">"):
        written = (workplace.folder / "out.log").read_text().count("tick")
        wait_for(lambda: (workplace.folder / "out.log").read_text().count("tick") > written + 50, "more in the file")
    assert workplace.run("stop").returncode == 0
    assert terminal.exit_code() == 5


def test_attach_leaves_a_detached_run_running(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    assert workplace.run("run", "-d", "train.py").returncode == 0
    attached = Terminal(workplace, "attach")
    attached.wait_for("ready")
    attached.type("\x03")
    attached.wait_for("[l]eave")
    attached.type("l\n")
    assert attached.exit_code() == 0
    assert workplace.last()["state"] == "running"
    assert workplace.run("stop").returncode == 0


def test_a_detached_run_survives_the_terminal_that_started_it(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    terminal = Terminal(workplace, "run", "-d", "train.py")
    assert terminal.exit_code() == 0
    terminal.hang_up()
    wait_for(lambda: workplace.last()["state"] == "running", "the run")
    assert workplace.run("stop").returncode == 0


def test_a_detached_manager_that_is_killed_takes_its_gang_along(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    assert workplace.run("run", "-d", "train.py").returncode == 0
    wait_for(lambda: workplace.last()["state"] == "running", "the run")
    os.kill(workplace.last()["pid"], signal.SIGKILL)
    wait_for(lambda: not workplace.processes(), "the end of all processes")
    assert workplace.last()["state"] == "lost"


def test_who_stopped_a_run_is_told(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    assert workplace.run("run", "-d", "train.py").returncode == 0
    wait_for(lambda: workplace.last()["state"] == "running", "the run")
    assert workplace.run("stop", "train").returncode == 0
    who = f"{getpass.getuser()} from {socket.gethostname()}"
    assert workplace.last()["outcome"]["reason"] == f"Stopped by {who}."
    shown = workplace.run("show").stdout
    assert f"Stopped by {who}." in shown
    assert f"  by         {who}\n" in shown


def test_a_frozen_manager_is_ended_by_a_forced_stop(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    assert workplace.run("run", "-d", "--grace", "1", "train.py").returncode == 0
    wait_for(lambda: workplace.last()["state"] == "running", "the run")
    os.kill(workplace.last()["pid"], signal.SIGSTOP)
    stopped = workplace.run("stop", "--force")
    assert stopped.returncode == 0, stopped.stderr
    assert workplace.last()["state"] == "stopped"


def test_two_runs_at_once_do_not_disturb_each_other(workplace: Workplace) -> None:
    workplace.script("""
        import os, time
        name = os.environ["PUMASI_RUN"]
        open(name, "w").close()
        while len([n for n in os.listdir(".") if n.startswith("train-")]) < 2:
            time.sleep(0.02)
        print("name:", name)
    """)
    both = [workplace.start("run", "--slots", "2", "train.py", stderr=subprocess.DEVNULL) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    names = [{line.split()[-1] for line in out.splitlines()} for out in outputs]
    assert [len(n) for n in names] == [1, 1]
    assert names[0] != names[1]


def test_an_answer_that_is_none_is_asked_for_again(sleeping: Terminal, workplace: Workplace) -> None:
    sleeping.type("\x03")
    sleeping.wait_for("[l]eave")
    shown = len(sleeping.shown)
    sleeping.type("lecho\n")
    wait_for(lambda: b"[l]eave" in sleeping.shown[shown:], "the question again")
    assert workplace.last()["state"] == "running"
    sleeping.type("s\n")
    assert sleeping.exit_code() == 5


def test_the_question_stays_in_sight_while_the_script_goes_on_printing(workplace: Workplace) -> None:
    workplace.script("""
        import time
        while True:
            print("chatter", flush=True)
            time.sleep(0.01)
    """)
    terminal = Terminal(workplace, "run", "train.py")
    terminal.wait_for("chatter")
    terminal.type("\x03")
    terminal.wait_for("[l]eave")
    lines = len(workplace.run("logs").stdout.splitlines())
    wait_for(lambda: len(workplace.run("logs").stdout.splitlines()) > lines + 50, "more lines")
    assert b"chatter" not in terminal.shown.rpartition(b"[l]eave")[2]
    terminal.type("s\n")
    assert terminal.exit_code() == 5


def test_a_killed_foreground_takes_the_run_along(sleeping: Terminal, workplace: Workplace) -> None:
    """What the shell waits for is not what steers the run; but nobody shall have to know."""
    assert workplace.last()["pid"] != sleeping.pid
    os.kill(sleeping.pid, signal.SIGKILL)
    assert sleeping.exit_code() == -signal.SIGKILL
    wait_for(lambda: not workplace.ranks(), "the end of the ranks")
    assert workplace.last()["state"] == "lost"


def test_a_killed_manager_takes_the_foreground_along(sleeping: Terminal, workplace: Workplace) -> None:
    os.kill(workplace.last()["pid"], signal.SIGKILL)
    assert sleeping.exit_code() == -signal.SIGKILL
    assert workplace.last()["state"] == "lost"


def test_signals_to_the_foreground_reach_the_run(sleeping: Terminal, workplace: Workplace) -> None:
    os.kill(sleeping.pid, signal.SIGINT)
    sleeping.wait_for("[l]eave")
    os.kill(sleeping.pid, signal.SIGTERM)
    assert sleeping.exit_code() == 5
    assert workplace.last()["state"] == "stopped"
