"""A run at a terminal that can be left: the process that the shell waits for is not the one that steers the run.

The process that was started becomes the foreground: it waits for its child, passes on signals, and ends with the
child's exit code. The child goes on as if nothing had happened, on the same terminal. To leave the run, the child tells
the foreground to end, and goes on without a terminal. A foreground that is killed takes the child along.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

_LEAVE = signal.SIGUSR2
"""From the child: the user has left the run."""
_PASSED_ON = frozenset((signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT))
_AWAITED = _PASSED_ON | {_LEAVE, signal.SIGCHLD}


class Foreground(NamedTuple):
    """As the child sees it. `lifeline` can be read from when the foreground is gone."""

    pid: int
    lifeline: int

    def release(self) -> None:
        """The shell need not wait any longer."""
        if os.getppid() == self.pid:
            os.kill(self.pid, _LEAVE)


def split() -> Foreground | int:
    """Called once, before there are threads or an event loop. In the child it returns at once; in the foreground when
    that is to end, with the exit code."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    lifeline, held = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    # Asked now: a terminal that has hung up does not say any more that it is one.
    terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
    foreground = os.getpid()
    child = os.fork()
    if child:
        os.close(lifeline)
        return _wait_for(child, terminals)
    os.close(held)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Foreground(foreground, lifeline)


def _wait_for(child: int, terminals: Sequence[int]) -> int:
    while True:
        number, by_user = _next_signal()
        if number == _LEAVE:
            return 0
        if number == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return _ended(status)
        elif number != signal.SIGINT or by_user:  # Ctrl-C has reached the child too
            _pass_on(child, number, terminals)


def _next_signal() -> tuple[int, bool]:
    """And whether somebody sent it: not the terminal. Where that can't be known, an interrupt is the terminal's."""
    if sys.platform == "darwin":
        return signal.sigwait(_AWAITED), False
    info = signal.sigwaitinfo(_AWAITED)
    return info.si_signo, info.si_code <= 0


def _pass_on(child: int, number: int, terminals: Sequence[int]) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:  # nohup
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)
    if number == signal.SIGHUP:
        _let_go_of(terminals)


def _let_go_of(terminals: Sequence[int]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in terminals:
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _ended(status: int) -> int:
    """The exit code of the child; a child that was killed is followed in the same way."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    return code
