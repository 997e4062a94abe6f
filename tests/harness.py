"""Runs the real `pumasi` command as a user would, and sees that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PUMASI = str(Path(sys.executable).with_name("pumasi"))
PATIENCE = 60.0
RUN_PATIENCE = 240.0  # six ranks that import TensorFlow on two busy cores
OUR_TRACEBACK = re.compile(r'File ".*/src/pumasi/(?!agent/shim).*", line')


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds:g} s in vain for {what}")


class Workplace:
    """A home, a folder for scripts and a temporary folder, all of this test's own. `mark` is in the environment of
    everything that is started here, so that whatever survives can be found."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.folder = folder / "work"
        self.temporary = folder / "tmp"
        self.mark = f"PUMASI_TEST={os.getpid()}.{time.monotonic_ns()}"
        self.folder.mkdir()
        self.temporary.mkdir()
        name, _, value = self.mark.partition("=")
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("PUMASI_", "VIRTUAL_ENV"))}
        self.environ.update({"PUMASI_HOME": str(self.home), "TMPDIR": str(self.temporary), name: value})

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def start(self, *words: str, env: Mapping[str, str] = {}, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("cwd", self.folder)
        # Should the tests themselves run under nohup: what is started here does not.
        options.setdefault("preexec_fn", lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
        environ = {**self.environ, **env}
        return subprocess.Popen([PUMASI, *words], env=environ, text=True, errors="replace", **options)

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **options)
        try:
            out, err = process.communicate(timeout=RUN_PATIENCE)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert not OUR_TRACEBACK.search(err or ""), err
        return subprocess.CompletedProcess(process.args, process.returncode, out or "", err or "")

    def run_bytes(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = [PUMASI, *words]
        return subprocess.run(
            command, env=self.environ, cwd=self.folder, capture_output=True, timeout=RUN_PATIENCE, check=False
        )

    def runs(self) -> list[dict[str, Any]]:
        return json.loads(self.run("ps", "--json").stdout)  # type: ignore[no-any-return]

    def last(self) -> dict[str, Any]:
        return self.runs()[0]

    def processes(self) -> dict[int, str]:
        """What was started here and still lives: id and command."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                is_ours = self.mark.encode() in (entry / "environ").read_bytes()
                is_zombie = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
                if is_ours and not is_zombie:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(entry.name)] = command
            except OSError:
                continue
        return found

    def agents(self) -> list[int]:
        return [pid for pid, command in self.processes().items() if "agent/__main__.py -" in command]

    def ranks(self) -> list[int]:
        """Processes of the user's script, told from ours by their first words: `python train.py`."""
        return [pid for pid, command in self.processes().items() if re.match(r"\S*python\S* train\.py", command)]

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not self.processes(), f"the end of {self.processes()}")
        assert not list(self.temporary.iterdir()), f"temporary files: {list(self.temporary.iterdir())}"
        kept = list(self.home.glob("runs/*/tmp/*"))
        assert not kept, f"files of agents: {kept}"

    def clean_up(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
