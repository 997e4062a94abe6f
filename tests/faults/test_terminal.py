"""What Ctrl-C and a lost terminal do, at a real (pseudo-)terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import threading

import pytest

from tests.harness import PUMASI, Workplace, wait_for

SLEEPER = """
    import time
    print("ready", flush=True)
    time.sleep(600)
"""


class Terminal:
    """`pumasi` at a terminal of its own: what it shows is read all the time, what is typed goes in."""

    def __init__(self, workplace: Workplace, *words: str) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(workplace.folder)
            os.execve(PUMASI, [PUMASI, *words], {**workplace.environ, "TERM": "xterm", "COLUMNS": "100"})
        self.pid = pid
        self.shown = b""
        self.leaving = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        while not self.leaving.is_set():
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.shown += os.read(self.fd, 65536)
                except OSError:
                    return

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text.encode() in self.shown, f"{text!r} on the terminal, which shows {self.shown!r}")

    def exit_code(self) -> int:
        def ended() -> tuple[int, int] | None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (pid, status) if pid else None

        _, status = wait_for(ended, f"the end; the terminal shows {self.shown!r}")
        return os.waitstatus_to_exitcode(status)

    def hang_up(self) -> None:
        """The reader first: a terminal that somebody reads from does not go away."""
        self.leaving.set()
        self.reader.join()
        os.close(self.fd)


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
    sleeping.type("\n")
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
