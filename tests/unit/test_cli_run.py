"""pumasi run, detach, attach and stop, for real: scripts that a user could have written, streams and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from pumasi.catalogue import catalogue_for
from pumasi.cli.parsing import parse
from pumasi.cli.verbs.run import VERB, flags_of
from pumasi.core.options import declared
from pumasi.errors import UsageError
from pumasi.pools.kubernetes.options import KubernetesOptions

PUMASI = [sys.executable, "-m", "pumasi"]
TRAIN = """
import sys
for epoch in range(3):
    print(f"epoch {epoch}: loss={1 / (epoch + 1):.3f}")
print("arguments", sys.argv[1:], file=sys.stderr)
"""
ENDLESS = """
import time
print("begun", flush=True)
while True:
    time.sleep(0.05)
    print("going on", flush=True)
"""
PATIENCE = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "endless.py").write_text(ENDLESS)
    return tmp_path


def environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "PUMASI_HOME": str(folder / "home"), "TERM": "xterm", "NO_COLOR": "1"}


def pumasi(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PUMASI, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=folder,
        env=environ(folder),
        stdin=subprocess.DEVNULL,
    )


class Terminal:
    """A person at a terminal: types, and waits to see something."""

    def __init__(self, fd: int, process: subprocess.Popen[bytes]) -> None:
        self.seen = b""
        self._fd = fd
        self._process = process

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def interrupt(self, answer: str) -> None:
        """Ctrl-C, and the answer to the question that follows."""
        self.type("\x03")
        self.wait_for("[s]top it, [l]eave it running")
        self.type(f"{answer}\n")

    def wait_for(self, text: str) -> None:
        """Until it appears in what has not been waited for yet."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.seen:
            hopeless = time.monotonic() > deadline or self._process.poll() is not None
            self._read()
            assert not hopeless or text.encode() in self.seen, f"{text!r} did not appear in {self.seen[-2000:]!r}"
        self.seen = self.seen.partition(text.encode())[2]

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.seen[-2000:]!r}"
            self._read()
        return self._process.wait()

    def _read(self) -> None:
        if select.select([self._fd], [], [], 0.05)[0]:
            try:
                self.seen += os.read(self._fd, 65536)
            except OSError:
                return


@contextmanager
def at_terminal(folder: Path, *words: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [*PUMASI, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environ(folder),
        start_new_session=True,
        preexec_fn=lambda: _control(theirs),
    )
    os.close(theirs)
    try:
        yield Terminal(ours, child)
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def _control(fd: int) -> None:
    """Makes it the terminal whose Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


def the_run(folder: Path) -> dict[str, object]:
    (run,) = json.loads(pumasi(folder, "ps", "--json").stdout)
    return dict(run)


def test_a_script_prints_what_it_would_print_by_itself(folder: Path) -> None:
    alone = subprocess.run(
        [sys.executable, "train.py", "--slots", "3"], capture_output=True, text=True, cwd=folder, check=True
    )
    answer = pumasi(folder, "run", "train.py", "--slots", "3")
    assert (answer.returncode, answer.stdout) == (0, alone.stdout)
    ours = [line for line in answer.stderr.splitlines(keepends=True) if not line.startswith(("pumasi: ", "  pumasi "))]
    assert "".join(ours) == alone.stderr
    assert answer.stderr.startswith("pumasi: train-")
    assert re.search(r"pumasi: train-\w{5} is done after [\d.]+ s · loss 0.333\n", answer.stderr)


def test_a_quiet_run_is_the_script_and_nothing_else(folder: Path) -> None:
    answer = pumasi(folder, "run", "-q", "train.py", "x")
    assert answer.stdout == "epoch 0: loss=1.000\nepoch 1: loss=0.500\nepoch 2: loss=0.333\n"
    assert answer.stderr == "arguments ['x']\n"


def test_a_gang_prints_whole_lines_with_their_rank(folder: Path) -> None:
    answer = pumasi(folder, "run", "--slots", "2", "train.py")
    assert answer.returncode == 0
    for rank in (0, 1):
        mine = [line for line in answer.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] epoch {epoch}: loss={1 / (epoch + 1):.3f}" for epoch in range(3)]


def test_with_json_every_line_is_an_object_and_the_last_one_is_the_end(folder: Path) -> None:
    answer = pumasi(folder, "run", "--json", "train.py")
    told = [json.loads(line) for line in answer.stdout.splitlines()]
    assert told[-1]["event"] == "finished"
    assert told[-1]["verdict"] == "done"
    texts = [one["text"] for one in told if one["event"] == "output" and one["stream"] == "stdout"]
    assert texts == ["epoch 0: loss=1.000", "epoch 1: loss=0.500", "epoch 2: loss=0.333"]
    assert {"event": "metrics", "v": 1, "rank": 0, "step": None, "epoch": 2, "values": {"loss": 0.333}} in told


def test_a_script_that_fails_says_so_once_with_its_last_lines(folder: Path) -> None:
    (folder / "bad.py").write_text("print('so far')\nraise ValueError('bad news')\n")
    answer = pumasi(folder, "run", "bad.py")
    assert answer.returncode == 1
    assert "exit code 1" in answer.stderr
    assert "  | ValueError: bad news\n" in answer.stderr
    assert re.search(r"\n  pumasi logs bad-\w{5} --rank 0\n", answer.stderr)


def test_a_reader_that_goes_away_does_not_end_the_training(folder: Path) -> None:
    (folder / "long.py").write_text("for line in range(20000): print('line', line)\nopen('proof', 'w').write('done')\n")
    line = f"{' '.join(PUMASI)} run long.py | head -1; echo ${{PIPESTATUS[0]}}"
    answer = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environ(folder),
        timeout=PATIENCE,
        check=True,
    )
    assert answer.stdout == "line 0\n0\n"
    assert (folder / "proof").read_text() == "done"


def test_a_detached_run_goes_on_by_itself_and_can_be_returned_to(folder: Path) -> None:
    answer = pumasi(folder, "run", "-d", "endless.py")
    run_id = answer.stdout.strip()
    assert answer.returncode == 0
    assert f"pumasi attach {run_id}" in answer.stderr
    with at_terminal(folder, "attach", run_id) as terminal:
        terminal.wait_for("begun")
        terminal.wait_for("going on")
        terminal.interrupt("")
        terminal.wait_for("going on")
        terminal.interrupt("l")
        terminal.wait_for("goes on in the background")
        assert terminal.exit_code() == 0
    assert the_run(folder)["state"] == "running"
    with at_terminal(folder, "attach") as terminal:
        terminal.wait_for("going on")
        terminal.interrupt("s")
        assert terminal.exit_code() == 5
    assert the_run(folder)["state"] == "stopped"


def test_without_a_terminal_ctrl_c_leaves_what_was_attached_to_running(folder: Path) -> None:
    pumasi(folder, "run", "-d", "endless.py")
    with subprocess.Popen(
        [*PUMASI, "attach"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=folder, env=environ(folder)
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        child.send_signal(signal.SIGINT)
        child.stdout.read()
    assert child.returncode == 0
    assert the_run(folder)["state"] == "running"
    assert pumasi(folder, "stop", "--force").returncode == 0
    assert the_run(folder)["state"] == "stopped"


def test_ctrl_c_at_a_terminal_asks_first(folder: Path) -> None:
    with at_terminal(folder, "run", "endless.py") as terminal:
        terminal.wait_for("going on")
        terminal.interrupt("")
        terminal.wait_for("going on")
        terminal.interrupt("s")
        terminal.wait_for("was stopped after")
        assert terminal.exit_code() == 5


def test_a_run_that_is_left_at_the_terminal_goes_on(folder: Path) -> None:
    with at_terminal(folder, "run", "endless.py") as terminal:
        terminal.wait_for("going on")
        terminal.interrupt("l")
        terminal.wait_for("goes on in the background")
        terminal.wait_for("pumasi attach endless-")
        assert terminal.exit_code() == 0
    assert the_run(folder)["state"] == "running"
    assert pumasi(folder, "stop").returncode == 0
    assert the_run(folder)["state"] == "stopped"


def test_the_live_view_shows_state_time_and_the_last_metric(folder: Path) -> None:
    (folder / "learn.py").write_text(ENDLESS.replace("going on", "loss: 0.25"))
    with at_terminal(folder, "run", "learn.py") as terminal:
        terminal.wait_for("begun")
        terminal.wait_for(" · running · 0:0")
        terminal.wait_for(" · loss 0.25")
        terminal.interrupt("s")
        assert terminal.exit_code() == 5


def test_nodes_are_watched_until_ctrl_c(folder: Path) -> None:
    with at_terminal(folder, "nodes", "--watch") as terminal:
        terminal.wait_for("\x1b[2J")
        terminal.wait_for("free")
        terminal.wait_for("\x1b[2J")
        terminal.type("\x03")
        assert terminal.exit_code() == 0


def test_a_dry_run_starts_nothing_and_is_yaml(folder: Path) -> None:
    words = ("--slots", "2", "--env", "DEBUG=yes", "train.py", "--lr", "0.10", "a: b")
    answer = pumasi(folder, "run", "--dry-run", *words)
    told = yaml.safe_load(answer.stdout)
    assert told["spec"]["command"] == ["train.py", "--lr", "0.10", "a: b"]
    assert told["spec"]["env"] == {"DEBUG": "yes"}
    assert sum(told["placement"].values()) == 2
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert told["ranks"][1]["env"]["RANK"] == "1"
    assert told["ranks"][1]["env"]["PUMASI_CHECKPOINT_DIR"].endswith("/runs/train-xxxxx/checkpoints")
    assert told == json.loads(pumasi(folder, "run", "--dry-run", "--json", *words).stdout)
    assert json.loads(pumasi(folder, "ps", "--json").stdout) == []


def test_options_are_handed_on_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "abc")
    line = "--slots two --no-shim --per-node --start-timeout 5m --env A=1 --env TOKEN -d --json x.py --slots 3"
    assert flags_of(parse(VERB, line.split())) == {
        "command": ["x.py", "--slots", "3"],
        "slots": "two",
        "shim": False,
        "per_node": True,
        "start-timeout": "5m",
        "env": ["A=1", "TOKEN=abc"],
    }


def test_what_is_wrong_with_a_file_of_variables_is_told_with_file_and_line(folder: Path) -> None:
    (folder / "bad.env").write_text("A=1\nB='\n2=3\n")
    done = pumasi(folder, "run", "--env-file", "bad.env", "x.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "bad.env, line 2: B has a quote that is not closed" in done.stderr
    assert "bad.env, line 3: " in done.stderr
    for name in ("none.env", "."):
        done = pumasi(folder, "run", "--env-file", name, "x.py")
        assert (done.returncode, f"--env-file {name}: it can't be read" in done.stderr) == (2, True)


def test_a_run_has_the_variables_of_a_file_and_its_plan_does_not_show_them(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "x.py").write_text("import os; print(os.environ['TOKEN'], os.getcwd())")
    (folder / ".env").write_text("TOKEN=hidden\n")
    words = ("--env-file", ".env", "--workdir", "sub", "x.py")
    done = pumasi(folder, "run", "-q", *words)
    assert done.stdout == f"hidden {folder / 'sub'}\n"
    for form in ((), ("--json",)):
        plan = pumasi(folder, "run", "--dry-run", *form, *words)
        assert "(from .env)" in plan.stdout
        assert "hidden" not in plan.stdout + plan.stderr


def test_a_folder_that_is_gone_is_told(folder: Path) -> None:
    (folder / "x.py").touch()
    gone = folder / "gone"
    for words in (["run", f"{folder}/x.py"], ["render", f"{folder}/x.py"], ["doctor"]):
        gone.mkdir()
        shell = ["sh", "-c", 'rmdir "$PWD" && exec "$0" "$@"', *PUMASI, *words]
        done = subprocess.run(shell, cwd=gone, env=environ(folder), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "pumasi: The folder that you are in is gone.\n  Change to one that exists: cd\n"


def test_options_that_may_be_repeated_are_handed_on_all_of_them() -> None:
    line = "--on k8s:lab -n team --label a=1 --label b=2 --set spec.x=1 --mount d:/d:ro --as-image-user x.py -n 3"
    assert flags_of(parse(VERB, line.split())) == {
        "command": ["x.py", "-n", "3"],
        "on": "k8s:lab",
        "namespace": "team",
        "label": ["a=1", "b=2"],
        "set": ["spec.x=1"],
        "mount": ["d:/d:ro"],
        "as_image_user": True,
    }


def test_every_field_for_clusters_is_an_option() -> None:
    keys = {f"--{option.key}" for option in VERB.options}
    assert {option.flag for option in declared(KubernetesOptions).values()} <= keys


def test_every_option_with_several_values_may_be_repeated() -> None:
    for key in (option.flag for option in catalogue_for({}).all.values() if option.is_repeated):
        given = flags_of(parse(VERB, [key, "a=1", key, "b=2", "x.py"]))
        assert given[key[2:]] == ["a=1", "b=2"]


def test_a_variable_that_is_not_there_can_not_be_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(UsageError, match="it is not set there"):
        flags_of(parse(VERB, ["--env", "TOKEN", "x.py"]))
