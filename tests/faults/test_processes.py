"""Processes that die, hang, refuse to die or run away: the run tells it, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Workplace, wait_for

SLEEPER = """
    import os, time
    print("rank", os.environ["PUMASI_RANK"], "is there", flush=True)
    time.sleep(600)
"""


def start_sleepers(workplace: Workplace, slots: int = 2, *options: str, **how: Any) -> subprocess.Popen[str]:
    workplace.script(SLEEPER)
    process = workplace.start("run", "--slots", str(slots), *options, "train.py", **how)
    wait_for(lambda: len(workplace.ranks()) == slots and workplace.last()["state"] == "running", "all ranks")
    return process


def test_a_killed_rank_ends_the_gang_as_lost_and_is_named(workplace: Workplace) -> None:
    process = start_sleepers(workplace)
    victim = next(pid for pid in workplace.ranks() if b"PUMASI_RANK=1\0" in environ_of(pid))
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Rank 1" in err
    assert "SIGKILL" in err


def environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_a_killed_agent_ends_its_ranks_and_the_run_is_lost(workplace: Workplace) -> None:
    process = start_sleepers(workplace)
    os.kill(workplace.agents()[0], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "agent" in err


def test_a_killed_member_agent_ends_the_whole_star(workplace: Workplace) -> None:
    process = start_sleepers(workplace, 3, "--nodes", "2,1")
    os.kill(max(workplace.agents()), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 3


def test_a_frozen_member_agent_is_lost_after_its_silence(workplace: Workplace) -> None:
    process = start_sleepers(workplace, 3, "--nodes", "2,1", "--silence", "4")
    frozen = max(workplace.agents())
    os.kill(frozen, signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "silent" in err


def test_a_killed_manager_takes_everything_along_and_is_told_later(workplace: Workplace) -> None:
    process = start_sleepers(workplace)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not workplace.processes(), "the end of all processes")
    assert workplace.last()["state"] == "lost"
    assert workplace.run("wait").returncode == 3


def test_manager_and_agent_killed_together_leave_ranks_that_the_next_command_ends(workplace: Workplace) -> None:
    process = start_sleepers(workplace)
    agent = workplace.agents()[0]
    process.kill()
    os.kill(agent, signal.SIGKILL)
    process.communicate(timeout=60)
    assert workplace.last()["state"] == "lost"
    wait_for(lambda: not workplace.processes(), "the end of all processes")


def test_one_interrupt_stops_a_run_without_a_terminal(workplace: Workplace) -> None:
    process = start_sleepers(workplace)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "topped" in err


def start_deaf(workplace: Workplace, grace: str) -> subprocess.Popen[str]:
    """A rank that does not hear when it is told to end."""
    workplace.script("""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(600)
    """)
    process = workplace.start("run", "--grace", grace, "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "deaf\n"
    return process


def test_a_second_interrupt_does_not_wait_for_the_grace(workplace: Workplace) -> None:
    process = start_deaf(workplace, "500")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: workplace.last()["state"] == "ending", "the stop to begin")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 5


def test_a_rank_that_ignores_sigterm_is_killed_after_its_grace(workplace: Workplace) -> None:
    process = start_deaf(workplace, "1")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 5


def test_a_rank_may_use_its_grace_to_save(workplace: Workplace) -> None:
    workplace.script("""
        import signal, sys, time
        def save(*_):
            open("saved", "w").write("yes")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(600)
    """)
    process = workplace.start("run", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 5
    assert (workplace.folder / "saved").read_text() == "yes"


def test_a_hang_up_without_a_terminal_stops_the_run(workplace: Workplace) -> None:
    process = start_sleepers(workplace, start_new_session=True)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 5


def test_a_run_under_nohup_outlives_its_terminal(workplace: Workplace) -> None:
    workplace.script("""
        import pathlib, time
        print("ready", flush=True)
        while not pathlib.Path("hung up").exists():
            time.sleep(0.01)
    """)
    process = workplace.start("run", "train.py", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    (workplace.folder / "hung up").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_module_that_is_named_like_one_of_pythons_does_not_disturb_a_detached_run(workplace: Workplace) -> None:
    workplace.script("raise RuntimeError('this is not the one that you want')", "queue.py")
    workplace.script("print('trained')")
    assert workplace.run("run", "-d", "train.py").returncode == 0
    assert workplace.run("wait").returncode == 0


def test_a_run_that_starts_again_counts_its_time_from_the_first_start(workplace: Workplace) -> None:
    workplace.script("""
        import os
        if os.environ["PUMASI_ATTEMPT"] == "0":
            raise SystemExit(1)
    """)
    assert workplace.run("run", "--restarts", "1", "train.py").returncode == 0
    events = json.loads(workplace.run("show", "--json").stdout)["events"]
    assert workplace.last()["started"] == next(event["at"] for event in events if event["event"] == "running")


def test_a_rank_that_forks_away_does_not_get_away(workplace: Workplace) -> None:
    workplace.script("""
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for fd in (0, 1, 2):
                    os.close(fd)
                time.sleep(600)
            os._exit(0)
        os.wait()
        print("done")
    """)
    done = workplace.run("run", "train.py")
    assert (done.returncode, done.stdout) == (0, "done\n")
    workplace.assert_nothing_left()


def test_a_daemon_that_holds_the_pipe_open_does_not_keep_the_run(workplace: Workplace) -> None:
    workplace.script("""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
        print("done")
    """)
    done = workplace.run("run", "--grace", "2", "train.py")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_sixty_four_slots_start_and_end_together(workplace: Workplace) -> None:
    workplace.script("""
        import os
        print("rank", os.environ["PUMASI_RANK"])
    """)
    done = workplace.run("run", "--slots", "64", "train.py")
    assert done.returncode == 0
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {str(rank) for rank in range(64)}


def test_the_exit_code_of_the_script_is_told(workplace: Workplace) -> None:
    workplace.script("import sys; sys.exit(7)")
    done = workplace.run("run", "train.py")
    assert done.returncode == 1
    assert "exit code 7" in done.stderr


def test_a_run_that_takes_too_long_is_timed_out(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    done = workplace.run("run", "--timeout", "2s", "train.py")
    assert done.returncode == 4
    assert "timeout" in done.stderr


def test_a_gang_is_restarted_as_a_whole_and_knows_its_attempt(workplace: Workplace) -> None:
    workplace.script("""
        import os, pathlib, sys, time
        folder = pathlib.Path(os.environ["PUMASI_CHECKPOINT_DIR"])
        attempt, rank = os.environ["PUMASI_ATTEMPT"], os.environ["PUMASI_RANK"]
        print("attempt", attempt, "rank", rank, "sees", sorted(p.name for p in folder.iterdir()), flush=True)
        (folder / f"{attempt}-{rank}").touch()
        if attempt == "0":
            if rank == "1":
                while len(list(folder.iterdir())) < 2:
                    time.sleep(0.01)
                sys.exit(1)
            time.sleep(600)
    """)
    done = workplace.run("run", "--slots", "2", "--restarts", "1", "train.py")
    assert done.returncode == 0
    for rank in (0, 1):
        assert f"attempt 1 rank {rank} sees ['0-0', '0-1'" in done.stdout


INTERRUPTED = """
import signal, sys
from pumasi.runs import terminal
from pumasi.cli.main import main

def make(*words, _make=terminal.{name}, **options):
    made = _make(*words, **options)
    signal.raise_signal(signal.SIGINT)
    return made

terminal.{name} = make
sys.exit(main(["run", "train.py"]))
"""


@pytest.mark.parametrize("name", ["new_record", "Session"])
def test_an_interrupt_between_the_record_and_its_manager_ends_the_run(workplace: Workplace, name: str) -> None:
    workplace.script(SLEEPER)
    command = [sys.executable, "-c", INTERRUPTED.format(name=name)]
    done = subprocess.run(
        command, env=workplace.environ, cwd=workplace.folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 5, done.stderr
    assert workplace.last()["state"] == "stopped"


def test_an_interrupt_right_after_the_record_was_made_leaves_no_run_without_an_end(workplace: Workplace) -> None:
    workplace.script(SLEEPER)
    for number in range(10):
        process = workplace.start("run", "train.py", stdout=subprocess.DEVNULL)
        wait_for(lambda: len(list(workplace.home.glob("runs/*/lock"))) == number + 1, "the record")  # noqa: B023
        time.sleep(number / 50)  # a different moment each time
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        assert process.returncode == 5
    assert [run["state"] for run in workplace.runs()] == ["stopped"] * 10
