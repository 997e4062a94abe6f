"""A real (pseudo-)terminal with `pumasi` at it."""

from __future__ import annotations

import os
import pty
import select
import threading
from collections.abc import Mapping

from tests.harness import PUMASI, Workplace, wait_for

TICKING = """
    import time
    while True:
        print("tick", flush=True)
        time.sleep(0.01)
"""


class Terminal:
    """`pumasi` at a terminal of its own: what it shows is read all the time, what is typed goes in."""

    def __init__(self, workplace: Workplace, *words: str, redirected: str = "", env: Mapping[str, str] = {}) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(workplace.folder)
            environ = {**workplace.environ, **env, "TERM": "xterm", "COLUMNS": "100"}
            os.execve("/bin/sh", ["sh", "-c", f'exec "$0" "$@" {redirected}', PUMASI, *words], environ)
        os.set_inheritable(self.fd, False)  # or the next terminal would keep this one from hanging up
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
