"""Bad input: a sentence that names what is wrong and what to do, the right exit code, and nothing started."""

from __future__ import annotations

import pytest

from tests.harness import Workplace


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "nothing.py"], "There is no nothing.py"),
        (["run", "trian.py"], "train.py"),
        (["run", "folder.py"], "is a folder"),
        (["run", "./folder"], "is a folder"),
        (["run", "broken.py"], "line 2"),
        (["run", "--slots", "0", "train.py"], "--slots"),
        (["run", "--slots", "-1", "train.py"], "--slots"),
        (["run", "--slots", "1000000000", "train.py"], "4096"),
        (["run", "--slots", "two", "train.py"], '"two" is not a whole number'),
        (["run", "--slots"], "--slots"),
        (["run", "--slts", "2", "train.py"], "--slots"),
        (["run", "--framework", "pytorch", "train.py"], "torch"),
        (["run", "--on", "mars", "train.py"], "mars"),
        (["run", "--timeout", "soon", "train.py"], "--timeout"),
        (["run", "--env", "=x", "train.py"], "--env"),
        (["run", "--python", "/no/python", "train.py"], "/no/python"),
        (["run", "no-such-program"], "no-such-program"),
        (["run", "a" * 300 + ".py"], "There is no aaa"),
        (["run", "./plain.txt"], "not executable"),
        (["run"], "nothing to run"),
        (["rnu"], "run"),
        (["plan", "--slots", "9", "--free", "x"], "--free"),
        (["plan", "--slots", "11", "--free", "5,3,2"], "10"),
        (["logs", "--rank", "x"], "--rank"),
        (["run", "--gpus", "1", "train.py"], "GPU"),
    ],
)
def test_a_mistake_is_named(workplace: Workplace, words: list[str], expected: str) -> None:
    workplace.script("print(1)")
    workplace.script("x = 1\ny = (\n", "broken.py")
    (workplace.folder / "folder.py").mkdir()
    (workplace.folder / "folder").mkdir()
    (workplace.folder / "plain.txt").write_text("hello")
    done = workplace.run(*words)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("verb", ["show", "logs", "metrics", "wait", "stop", "delete", "attach"])
def test_a_run_that_is_not_there_is_not_found(workplace: Workplace, verb: str) -> None:
    done = workplace.run(verb, "imdb-x7k2p")
    assert done.returncode == 6
    assert "imdb-x7k2p" in done.stderr


def test_a_mistake_in_pumasi_yaml_is_named_with_its_line(workplace: Workplace) -> None:
    workplace.script("print(1)")
    (workplace.folder / "pumasi.yaml").write_text("restarts: 1\nslotss: 4\n")
    done = workplace.run("run", "train.py")
    assert done.returncode == 2
    assert "pumasi.yaml, line 2" in done.stderr
    assert "slots" in done.stderr


def test_what_stands_after_the_script_belongs_to_the_script(workplace: Workplace) -> None:
    workplace.script("import sys; print(sys.argv[1:])")
    done = workplace.run("run", "train.py", "--slots", "3", "--", "-d", "--help")
    assert done.stdout == "['--slots', '3', '--', '-d', '--help']\n"


def test_a_port_that_the_script_wants_but_is_taken_is_explained(workplace: Workplace) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        workplace.script(f"""
            import socket
            socket.socket().bind(("127.0.0.1", {taken.getsockname()[1]}))
        """)
        done = workplace.run("run", "train.py")
    assert done.returncode == 1
    assert "port" in done.stderr
