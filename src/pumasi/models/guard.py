"""Work that may crash or never end, done in a child process.

The HDF5 library, over a file with a few wrong bytes, does both: about one in a hundred such files ends the process that
reads it, or keeps it busy for ever.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LONGEST = 30.0
_SLOWEST = 1e6
_MEMORY = 1 << 30
_PIECE = 1 << 20
_GOOD, _BAD = b"+", b"-"


def apart(work: Callable[[], bytes], size: int = 0) -> bytes:
    """What `work` gives. What it raises, its crash, and no answer in time are a ValueError. `size` is how many bytes it
    has to handle."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _limit(4 * size)
        _answer(work, theirs)
    os.close(theirs)
    try:
        answer = _collect(ours, time.monotonic() + LONGEST + size / _SLOWEST)
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if answer[:1] != _GOOD:
        said = answer[1:].decode(errors="replace")
        raise ValueError(said if answer[:1] == _BAD else "the library for this format crashes over it")
    return answer[1:]


def _collect(pipe: int, deadline: float) -> bytes:
    pieces: list[bytes] = []
    while True:
        if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise ValueError("the library for this format comes to no end with it")
        piece = os.read(pipe, _PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def _limit(size: int) -> None:
    """In the child: so much more memory than it has already, where the system tells how much that is. A crash is told
    in our words, not by those who watch for crashes."""
    with suppress(OSError, ValueError):
        for each in (signal.SIGINT, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE):
            signal.signal(each, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + _MEMORY + size
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _answer(work: Callable[[], bytes], pipe: int) -> None:
    """In the child. Nothing of its parent may happen here: no exception leaves it, no buffer is flushed twice."""
    try:
        answer = _GOOD + work()
    except BaseException as error:  # noqa: BLE001
        answer = _BAD + str(error).encode(errors="replace")
    try:
        with os.fdopen(pipe, "wb") as file:
            file.write(answer)
    finally:
        os._exit(0)
