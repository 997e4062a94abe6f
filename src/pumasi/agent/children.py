"""The processes of this node: started, read, reaped."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time

from pumasi.agent.links import READ
from pumasi.agent.output import Stream, Words
from pumasi.agent.processes import oom_kills, reap_all, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Mapping

    from pumasi.agent.links import Message
    from pumasi.agent.loop import Loop
    from pumasi.agent.output import Output, Voice

HELD = 4 << 20
"""Bytes of output held for a slow reader before the ranks have to wait."""
PIPE = 1 << 20
"""The most that a pipe can hold."""
QUIET = 0.2
"""Seconds after which text without a newline is passed on as it is, unless it grows; and then after AGE seconds."""
AGE = 1.0
STDOUT, STDERR = (b"|", b">", b"~"), (b":", b"}", b"^")


class Child:
    """A process of ours. `kind` is "rank", "setup" (the installer), or whatever a framework's part calls its own. `pid`
    is None when it has ended, and for a rank that somebody else starts."""

    def __init__(self, voice: Voice, kind: str, pid: int | None = None) -> None:
        self.voice = voice
        self.kind = kind
        self.pid = pid
        self.streams: list[Stream] = []


class Children:
    """`ended` is called with a child and its wait status when it has ended and all that it had printed is passed on."""

    def __init__(self, loop: Loop, output: Output, ended: Callable[[Child, int], None]) -> None:
        self.loop = loop
        self.output = output
        self.ended = ended
        self.by_pid: dict[int, Child] = {}
        self.guests: list[Child] = []
        self.oom_before = oom_kills()
        self.blocked = False
        self.paused = False

    def start(self, voice: Voice, kind: str, command: list[str], env: Mapping[str, str], cwd: str) -> Child:
        """A process of its own group. Raises OSError or ValueError where it can't be started."""
        process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        process.returncode = 0  # we reap by ourselves
        child = Child(voice, kind, process.pid)
        self.by_pid[process.pid] = child
        self.read_from(child, *(os.dup(pipe.fileno()) for pipe in (process.stdout, process.stderr) if pipe))
        return child

    def read_from(self, child: Child, out: int, err: int) -> None:
        self.add(child, Stream(child.voice, out, STDOUT))
        self.add(child, Stream(child.voice, err, STDERR))

    def hear(self, child: Child, hear: Callable[[Message], None]) -> None:
        """What `child` prints on its standard output is for us."""
        old = child.streams[0]
        self.loop.unwatch(old.fd)
        child.streams[0] = Words(old.fd, hear)
        self.listen_to(child.streams[0])

    def expect(self, child: Child, out: int, err: int) -> None:
        """A process that somebody else starts, and that writes into these pipes."""
        self.guests.append(child)
        self.read_from(child, out, err)

    def add(self, child: Child, stream: Stream) -> None:
        child.streams.append(stream)
        self.listen_to(stream)

    def all(self) -> list[Child]:
        return [*self.by_pid.values(), *self.guests]

    def living(self) -> bool:
        return any(child.pid for child in self.by_pid.values())

    def has(self, kind: str) -> bool:
        return any(child.kind == kind and child.pid for child in self.by_pid.values())

    # -- reading

    def pace(self) -> None:
        """When nobody reads our output, the ranks wait, as they would at a terminal that is stopped."""
        if bool(self.output.size) != self.blocked:
            self.blocked = not self.blocked
            if self.blocked:
                self.loop.watch(self.output.fd, self.output.pump, selectors.EVENT_WRITE)
            else:
                self.loop.unwatch(self.output.fd)
        crowded = self.output.size > (HELD // 4 if self.paused else HELD)
        if crowded != self.paused:
            self.paused = crowded
            for stream in self.open_streams():
                if crowded:
                    self.loop.unwatch(stream.fd)
                else:
                    self.listen_to(stream)

    def open_streams(self) -> list[Stream]:
        return [stream for child in self.all() for stream in child.streams if not stream.done]

    def listen_to(self, stream: Stream) -> None:
        if not self.paused:
            self.loop.watch(stream.fd, lambda: self.output.size > HELD or self.read_stream(stream))

    def read_stream(self, stream: Stream) -> int:
        """One read, so that no rank keeps the others and the star waiting; how much it was."""
        # An earlier event of the same turn may have closed it.
        if stream.done:
            return 0
        try:
            data = os.read(stream.fd, READ)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self.output.write(stream.flush())
            self.loop.unwatch(stream.fd)
            stream.close()
            return 0
        stream.heard = time.monotonic()
        if not stream.rest or b"\n" in data:
            stream.begun = stream.heard
        self.output.write(stream.feed(data))
        if stream.rest and not stream.timed:
            stream.timed = True
            self.loop.after(QUIET, lambda: self.flush_quiet(stream))
        return len(data)

    def flush_quiet(self, stream: Stream) -> None:
        """A prompt, say, or a row of dots. While we do not read, nobody knows what is quiet."""
        due = min(stream.heard + QUIET, stream.begun + AGE)
        left = QUIET if self.paused else due - time.monotonic()
        if stream.rest and left > 0:
            self.loop.after(left, lambda: self.flush_quiet(stream))
        else:
            stream.timed = False
            self.output.write(stream.flush())

    def drain(self, child: Child) -> None:
        """What a process that has ended has left in its pipes, and no more: others may hold them, and go on writing."""
        for stream in child.streams:
            left = PIPE
            while left > 0:
                got = self.read_stream(stream)
                left = left - got if got else 0
            self.output.write(stream.flush())

    # -- ends

    def reap(self) -> bool:
        """Whether we still have children; where orphans become ours, that is whether anything of ours is left."""
        ended, left = reap_all()
        for pid, status in ended.items():
            child = self.by_pid.get(pid)
            if child is not None and child.pid:
                child.pid = None
                self.end(child, status)
        return left

    def end(self, child: Child, status: int) -> None:
        self.drain(child)
        self.ended(child, status)

    def exit_facts(self, voice: Voice, status: int | None = None, error: str | None = None) -> Message:
        code = number = None
        if status is not None:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            code = os.WEXITSTATUS(status) if number is None else None
        cause = "exit"
        if error is not None:
            cause = "unstartable"
        elif code == 0:
            cause = "done"
        elif (number == signal.SIGKILL or code == 128 + signal.SIGKILL) and oom_kills() > self.oom_before:
            cause = "oom"
        elif number is not None:
            cause = "signal"
        return {
            "rank": voice.rank,
            "cause": cause,
            "code": code,
            "signal": None if number is None else signal_name(number),
            "error": error,
            "tail": voice.last_lines(),
        }
