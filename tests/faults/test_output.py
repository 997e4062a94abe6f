"""Output that no log path likes: endless lines, rubbish, floods, bars. What the script wrote is what comes out."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path

import pytest

from tests.harness import Workplace


def test_a_line_of_100_megabytes_arrives_whole(workplace: Workplace) -> None:
    workplace.script("""
        import sys
        for _ in range(100):
            sys.stdout.write("0123456789abcdef" * 65536)
        print()
        print("after")
    """)
    done = workplace.run_bytes("run", "train.py")
    assert done.returncode == 0
    expected = b"0123456789abcdef" * 65536 * 100 + b"\nafter\n"
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(expected).digest()


def test_binary_rubbish_arrives_as_it_was_written(workplace: Workplace) -> None:
    workplace.script("""
        import random, sys
        sys.stdout.buffer.write(random.Random(1).randbytes(300_000))
    """)
    done = workplace.run_bytes("run", "train.py")
    assert done.returncode == 0
    assert done.stdout == random.Random(1).randbytes(300_000)
    assert workplace.run("logs").returncode == 0


def test_progress_bars_arrive_as_they_were_written(workplace: Workplace) -> None:
    workplace.script(r"""
        import sys
        for i in range(5):
            sys.stdout.write(f"\r{i}/5 loss: 0.{i}1")
        sys.stdout.write("\n")
        sys.stdout.write("windows\r\n")
        sys.stdout.write("no newline at the end")
    """)
    done = workplace.run_bytes("run", "train.py")
    bars = b"".join(b"\r%d/5 loss: 0.%d1" % (i, i) for i in range(5))
    assert done.stdout == bars + b"\nwindows\r\nno newline at the end"
    assert "loss" in workplace.run("metrics").stdout


def test_stdout_and_stderr_stay_apart(workplace: Workplace) -> None:
    workplace.script("""
        import sys
        print("to stdout")
        print("to stderr", file=sys.stderr)
    """)
    done = workplace.run_bytes("run", "--quiet", "train.py")
    assert (done.stdout, done.stderr) == (b"to stdout\n", b"to stderr\n")


def test_lines_of_many_ranks_do_not_mix(workplace: Workplace) -> None:
    workplace.script("""
        import os
        rank = os.environ["PUMASI_RANK"]
        for i in range(3000):
            print(rank * 50, i)
    """)
    done = workplace.run("run", "--slots", "8", "train.py")
    seen: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        prefix, text, number = line.split()
        rank = prefix.strip("[]")
        assert text == rank * 50
        seen.setdefault(rank, []).append(int(number))
    assert seen == {str(rank): list(range(3000)) for rank in range(8)}


def test_a_reader_that_goes_away_does_not_take_the_training_along(workplace: Workplace) -> None:
    workplace.script("""
        for i in range(100_000):
            print(i)
    """)
    process = workplace.start("run", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(60) == 0
    assert "Traceback" not in err
    assert len(workplace.run("logs").stdout.splitlines()) == 100_000


def test_a_reader_that_stalls_slows_the_script_but_not_the_star(workplace: Workplace) -> None:
    workplace.script("""
        for i in range(400_000):
            print(i, "x" * 100)
    """)
    process = workplace.start("run", "--slots", "2", "--nodes", "1,1", "--silence", "3", "train.py")
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(9)  # three times the silence after which a member would be lost
    lines = 1 + sum(1 for _ in process.stdout)
    assert process.wait(120) == 0
    assert first
    assert lines == 800_000


@pytest.mark.parametrize("code", [0, 1])
def test_a_reader_that_goes_away_changes_neither_the_run_nor_its_exit_code(workplace: Workplace, code: int) -> None:
    workplace.script(f"""
        import time
        while not __import__("os").path.exists("gone"):
            time.sleep(0.01)
        print("trained", flush=True)
        open("saved", "w").close()
        raise SystemExit({code})
    """)
    process = workplace.start("run", "train.py", env={"PYTHONUNBUFFERED": ""})
    assert process.stdout is not None
    process.stdout.close()
    (workplace.folder / "gone").touch()
    process.communicate(timeout=60)
    assert process.returncode == code
    assert (workplace.folder / "saved").exists()
    assert "trained" in workplace.run("logs").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_whose_output_finds_no_room_ends_with_its_own_exit_code(workplace: Workplace, stream: str) -> None:
    workplace.script("print('trained')\nraise SystemExit(1)")
    with Path("/dev/full").open("wb") as full:
        done = workplace.run("run", "train.py", env={"PYTHONUNBUFFERED": ""}, **{stream: full})
        assert done.returncode == 1
        assert workplace.run("ps", env={"PYTHONUNBUFFERED": ""}, stdout=full).returncode == 7


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_stream_that_is_closed_is_no_trouble(workplace: Workplace, closed: int) -> None:
    workplace.script("print('trained')")
    done = workplace.run("run", "train.py", preexec_fn=lambda: os.close(closed))
    assert done.returncode == 0, done.stderr
    assert workplace.run("ps", preexec_fn=lambda: os.close(closed)).returncode == 0
    assert workplace.run("logs").stdout == "trained\n"
