"""Two users with one kubeconfig and one namespace; and users who close their terminal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.place import Place
from tests.cluster.subject import Namespace
from tests.harness import Workplace, wait_for
from tests.terminal import TICKING, Terminal

WAIT = "import time; print('ready', flush=True); time.sleep(600)"
STOPPED = 5


@pytest.fixture
def place(workplace: Workplace, shared_namespace: Namespace) -> Place:
    return Place(workplace, shared_namespace)


@pytest.fixture
def colleague(tmp_path: Path, shared_namespace: Namespace) -> Iterator[Place]:
    (tmp_path / "colleague").mkdir()
    desk = Workplace(tmp_path / "colleague")
    try:
        yield Place(desk, shared_namespace)
        desk.assert_nothing_left()
    finally:
        desk.clean_up()


def test_without_a_name_the_run_of_a_colleague_is_never_meant(place: Place, colleague: Place) -> None:
    there = ("--on", "k8s", "-n", place.namespace.name)
    for desk in (place, colleague):
        desk.script(WAIT)
    mine = place.start("--name", "mine", "--grace", "1", "train.py")
    place.wait_for_output("ready")
    theirs = colleague.start("--name", "theirs", "--grace", "1", "train.py")
    colleague.wait_for_output("ready")
    run = colleague.last()["id"]

    assert run in place.pumasi("ps", *there).stdout
    assert place.pumasi("stop", *there).returncode == 0
    _, said = mine.communicate(timeout=60)
    assert mine.returncode == STOPPED, said
    assert "has ended already: stopped" in place.pumasi("stop", *there).stderr
    assert place.pumasi("delete", *there).returncode == 2
    assert place.pumasi("stop", "--all", "-y", *there).returncode == 0
    assert place.pumasi("delete", "--all", "-y", *there).returncode == 0
    assert colleague.last()["state"] == "running"

    assert place.pumasi("stop", run, *there).returncode == 0
    _, said = theirs.communicate(timeout=60)
    assert theirs.returncode == STOPPED
    assert "Stopped by " in said


def test_a_terminal_that_hangs_up_twice_leaves_the_run_running(place: Place) -> None:
    place.script(TICKING)
    words = ("run", "--on", "k8s", "--namespace", place.namespace.name, "--grace", "1", "train.py")
    terminal = Terminal(place.desk, *words, env=place.environ)
    terminal.wait_for("tick")
    os.kill(terminal.pid, signal.SIGHUP)
    time.sleep(0.0004)  # the very thing: how far apart they are
    os.kill(terminal.pid, signal.SIGHUP)
    terminal.hang_up()
    run = place.last()["id"]

    def lines() -> int:
        return len(place.pumasi("logs", run).stdout.splitlines())

    seen = lines()
    wait_for(lambda: lines() > seen + 50, "more lines")
    assert place.last()["state"] == "running"
    assert place.pumasi("stop", run).returncode == 0
    assert terminal.exit_code() == STOPPED
