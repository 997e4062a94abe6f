#!/usr/bin/env python3
"""The agent stands in front of the user's program on every node of a gang.

It needs nothing but a Python >= 3.8, because it also runs where nothing of Pumasi is installed. It starts the ranks of
its node, numbers their output, and ends whatever it has started, however it is ended itself.

The agents of a gang form a star around the chief's agent, the hub. The star starts the ranks only when every agent is
there; ends all of them when one fails, when a member falls silent or when those that decide are done; passes on a stop;
carries MPI's launch requests; and tells who failed first.

    agent.py CONFIG.json         be an agent (`-`: the configuration is the first line of standard input, and what
                                 follows is a lifeline: when it closes, the parent is dead)
    agent.py pod                 be an agent in a pod: configuration and code are in the environment or in files
    agent.py rsh HOST COMMAND    mpirun's way to another node, instead of ssh
    agent.py rank COMMAND        stands between mpirun and one rank, so that its output and its end are known
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import itertools
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterable

Message = Dict[str, Any]

PIECE = 4096
"""Longest text in a frame: log readers on Kubernetes tear longer lines."""
HELD = 4 << 20
"""Bytes of output held for a slow reader before the ranks have to wait."""
READ = 1 << 16
PIPE = 1 << 20
"""The most that a pipe can hold."""
TAIL = 8192
TAIL_LINES = 20
QUIET = 0.2
"""Seconds after which text without a newline is passed on as it is, unless it grows; and then after AGE seconds."""
AGE = 1.0
SETTLE = 1.5
"""Seconds that the hub waits for the cause when the first failure looks like the echo of another."""
HARD = 5.0
"""Seconds that a killed process gets to disappear, and a member to say that it has."""
BRIEF = 1.0
"""Seconds that an installation gets to end: nothing of it is worth waiting for."""
LOOK = 0.2
"""Seconds after which we look again for what is left. Our children tell when they end; theirs do not."""
STRANGERS = 64
"""Connections that may be open, beyond one a node, without having shown that they know the secret."""
PORTS = range(20000, 32000)
"""Below the range from which systems take the ports of outgoing connections."""

ECHO = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket closed|UNAVAILABLE|heartbeat|HorovodInternal"
    r"|coordination service|peer.{0,20}(exited|disconnected|died)|gloo.{0,80}(timed? ?out|error)|Shutdown barrier",
    re.IGNORECASE,
)
TOKEN = re.compile(r"\{(host|port|file):([a-z0-9]+)\}")
GENTLE = ("OMP_NUM_THREADS",)
"""Set only where the user has not set it."""
PRETENDED = {"OMPI_MCA_coll": "^han", "OMPI_MCA_btl": "self,tcp"}
"""For nodes that are one machine: OpenMPI 5 takes them for one by their name, and hangs or crashes in shared memory."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
LINUX = sys.platform.startswith("linux")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


# ---- processes -------------------------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Linux: grandchildren whose parent has gone become ours instead of init's, so that they can be found."""
    if LINUX:
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def family(marker: str, ancestor: int | None = None) -> set[int]:
    """Ids of all processes that carry `marker` in their environment or descend from such a one or from `ancestor`.
    A marker that ends in a dot stands for all that begin with it: `…1` must not mean `…10`."""
    parents, marked = _proc_table(marker) if LINUX else _ps_table(marker)
    found = {pid for pid in marked if pid != os.getpid()}
    grown = True
    while grown:
        more = {p for p, parent in parents.items() if (parent in found or parent == ancestor) and p not in found}
        found |= more
        grown = bool(more)
    found.discard(os.getpid())
    return found


def _proc_table(marker: str) -> tuple[dict[int, int], set[int]]:
    parents, marked = {}, set()
    needle = b"\0" + marker.encode() + (b"" if marker.endswith(".") else b"\0")
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            # A process whose first thread has ended looks like a zombie while its other threads go on.
            if fields[0] == b"Z" and int(fields[17]) < 2:
                continue
            parents[int(entry)] = int(fields[1])
            with open("/proc/%s/environ" % entry, "rb") as file:
                if needle in b"\0" + file.read():
                    marked.add(int(entry))
        except OSError:
            continue
    return parents, marked


def _ps_table(marker: str) -> tuple[dict[int, int], set[int]]:
    parents, marked = {}, set()
    listing = subprocess.run(
        ["ps", "-axEww", "-o", "pid=,ppid=,stat=,command="], stdout=subprocess.PIPE, timeout=30, check=False
    ).stdout.decode("utf-8", "replace")
    needle = " " + marker + ("" if marker.endswith(".") else " ")
    for line in listing.splitlines():
        fields = line.split(None, 3)
        if len(fields) < 3 or fields[2].startswith("Z"):
            continue
        parents[int(fields[0])] = int(fields[1])
        if needle in line + " ":
            marked.add(int(fields[0]))
    return parents, marked


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_family(marker: str, ancestor: int | None = None, seconds: float = HARD) -> set[int]:
    """Kill until none is left, since a process may fork while we look; what survives `seconds` is returned. To see none
    once is no proof: one that forks and exits all the time may hide from a look, though hardly from several."""
    deadline = time.monotonic() + seconds
    quiet = 0
    while quiet < 3:
        pids = family(marker, ancestor)
        if time.monotonic() > deadline:
            return pids
        quiet = 0 if pids else quiet + 1
        signal_all(pids, signal.SIGKILL)
        time.sleep(0.002)
    return set()


def strike() -> None:
    """Kill our children, adopted ones too, as fast as they come: one that forks and exits lives for a moment only."""
    path = "/proc/self/task/%d/children" % os.getpid()
    with contextlib.suppress(OSError):
        for _ in range(100):
            with open(path, "rb") as file:
                pids = [int(pid) for pid in file.read().split()]
            if not pids:
                return
            signal_all(pids, signal.SIGKILL)


def reap_all() -> tuple[dict[int, int], bool]:
    """Exit statuses of children that have ended, {pid: status}, and whether there are others that have not."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return ended, True
            ended[pid] = status
    except ChildProcessError:
        return ended, False


def oom_kills() -> int:
    """How many processes were killed for memory so far: in our control group, or, where that is not told, in all."""
    groups = {}
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            groups[kinds] = path
    old = "/sys/fs/cgroup/memory%s/memory.oom_control" % groups.get("memory")
    new = "/sys/fs/cgroup%s/memory.events" % groups.get("")
    for path in (old, new, "/proc/vmstat"):
        with contextlib.suppress(OSError), open(path, "rb") as counts:
            found = re.search(rb"^oom_kill (\d+)", counts.read(), re.MULTILINE)
            if found:
                return int(found.group(1))
    return 0


# ---- output ----------------------------------------------------------------------------------------------------------


def stamp() -> bytes:
    """The time in a frame: 13 digits, even where the clock was never set."""
    return b"%013d" % (time.time() * 1000)


class Output:
    """Our standard output. Never blocks: the star has to go on when nobody reads."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.queue: list[bytes] = []
        self.head = memoryview(b"")
        self.size = 0
        self.broken = False
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        if data and not self.broken:
            self.queue.append(data)
            self.size += len(data)

    def say(self, **words: Any) -> None:
        self.write(b"@" + json.dumps(words).encode() + b"\n")

    def pump(self) -> None:
        """Write what fits."""
        while self.size and not self.broken:
            if not self.head:
                self.head = memoryview(b"".join(self.queue))
                self.queue = []
            try:
                written = os.write(self.fd, self.head[: 1 << 20])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                self.queue, self.size = [], 0
                return
            self.head = self.head[written:]
            self.size -= written


class Stream:
    """One pipe of one rank, cut into frames. `rest` is the unfinished line; it began at `begun` and grew at `heard`."""

    def __init__(self, voice: Voice, fd: int, kinds: tuple[bytes, bytes, bytes]) -> None:
        self.voice = voice
        self.fd = fd
        self.line, self.piece, self.progress = kinds
        self.rest = b""
        self.begun = 0.0
        self.heard = 0.0
        self.timed = False
        self.done = False
        os.set_blocking(fd, False)

    def close(self) -> None:
        self.done = True
        os.close(self.fd)

    def feed(self, data: bytes) -> bytes:
        """Frames for `data`; the unfinished end is kept."""
        voice = self.voice
        voice.tail = (voice.tail + data)[-TAIL:]
        if voice.rank is None:
            return b""
        now = stamp()
        text = self.rest + data
        lines = text.split(b"\n")
        self.rest = lines.pop()
        if b"\r" in text:
            frames = b"".join([self.split(line, now, self.line) for line in lines])
        else:
            frames = self.frames(lines, now, self.line)
        if len(self.rest) > PIECE or b"\r" in self.rest:
            frames += self.shorten(now)
        return frames

    def shorten(self, now: bytes) -> bytes:
        """Pass on what is certain of the unfinished line: whole pieces, and all up to its last carriage return."""
        cut = self.rest.rfind(b"\r", 0, -1) + 1
        if len(self.rest) - cut > PIECE:
            cut = len(self.rest) - (len(self.rest) - cut) % PIECE
        certain, self.rest = self.rest[:cut], self.rest[cut:]
        return self.unfinished(certain, now)

    def flush(self) -> bytes:
        """What is left without a newline."""
        rest, self.rest = self.rest, b""
        return self.unfinished(rest, stamp())

    def unfinished(self, text: bytes, now: bytes) -> bytes:
        if not text:
            return b""
        if text.endswith(b"\r"):
            return self.split(text[:-1], now, self.progress)
        return self.split(text, now, self.piece)

    def split(self, line: bytes, now: bytes, kind: bytes) -> bytes:
        """Frames for a line with carriage returns; one before the newline belongs to the line."""
        ended = line.endswith(b"\r") and kind == self.line
        parts = (line[:-1] if ended else line).split(b"\r")
        if ended:
            parts[-1] += b"\r"
        return self.frames(parts[:-1], now, self.progress) + self.frames(parts[-1:], now, kind)

    def frames(self, texts: list[bytes], now: bytes, kind: bytes) -> bytes:
        """A frame for each text: all at once where none has to be cut, since there may be a million a second."""
        if max(map(len, texts), default=0) > PIECE:
            return b"".join([self.cut(text, now, kind) for text in texts])
        form = b"%d.%%d %b%b%%b\n" % (Voice.first + (self.voice.rank or 0), now, kind)
        words = tuple(itertools.chain.from_iterable(enumerate(texts, self.voice.seq + 1)))
        self.voice.seq += len(texts)
        return form * len(texts) % words

    def cut(self, text: bytes, now: bytes, kind: bytes) -> bytes:
        pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)] or [b""]
        return self.frames(pieces[:-1], now, self.piece) + self.frames(pieces[-1:], now, kind)


class Words(Stream):
    """What the installer says to us, one JSON object a line. The Python that runs it may print lines of its own."""

    def __init__(self, fd: int, hear: Callable[[Message], None]) -> None:
        super().__init__(Voice(None), fd, (b"", b"", b""))
        self.hear = hear

    def feed(self, data: bytes) -> bytes:
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        for line in lines:
            with contextlib.suppress(ValueError):
                self.hear(parse(line))
        return b""

    def flush(self) -> bytes:
        return b""


class Voice:
    """Whose output it is: a rank's, or that of one of MPI's daemons (no rank), of which only the end is kept. In a run
    of several tasks the ranks of this one are numbered from `first` on."""

    first = 0

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.seq = 0
        self.tail = b""

    def last_lines(self) -> list[str]:
        text = self.tail.decode("utf-8", "replace")
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
        if len(self.tail) == TAIL and len(lines) > 1:
            lines = lines[1:]
        return [line for line in lines if line.strip()][-TAIL_LINES:]


class Child:
    """A process of ours. `kind`: "rank", "launcher" (mpirun), "setup" (the installer), or the number of a launch
    request. `pid` is None when it has ended, and for a rank that mpirun starts."""

    def __init__(self, voice: Voice, kind: str, pid: int | None = None) -> None:
        self.voice = voice
        self.kind = kind
        self.pid = pid
        self.streams: list[Stream] = []


# ---- links between agents --------------------------------------------------------------------------------------------


class Link:
    """A connection that carries one JSON object a line. `heed` is called when something has come, or it has closed."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, heed: Callable[[], object]) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.selector = selector
        self.heed = heed
        self.inbox = b""
        self.outbox = b""
        self.heard = time.monotonic()
        self.closed = False
        self.events = selectors.EVENT_READ
        selector.register(sock, self.events, self.wake)

    def wake(self) -> None:
        # An earlier event of the same turn may have closed it.
        if self.sock.fileno() >= 0:
            self.flush()
            self.heed()

    def send(self, **message: Any) -> None:
        self.outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what fits; the selector tells when there is room for the rest."""
        try:
            while self.outbox and not self.closed:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outbox else 0)
        if events != self.events and not self.closed:
            self.events = events
            self.selector.modify(self.sock, events, self.wake)

    def receive(self, limit: int = 1 << 24) -> list[Message]:
        """Messages that have come; marks the link as closed at its end, at rubbish and at a line without end."""
        try:
            data = self.sock.recv(READ)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data or len(self.inbox) > limit:
            self.closed = True
            return []
        self.heard = time.monotonic()
        lines = (self.inbox + data).split(b"\n")
        self.inbox = lines.pop()
        try:
            return [parse(line) for line in lines]
        except ValueError:
            self.closed = True
            return []

    def is_silent(self, seconds: float) -> bool:
        return time.monotonic() - self.heard > seconds

    def close(self) -> None:
        self.closed = True
        if self.sock.fileno() >= 0:
            self.selector.unregister(self.sock)
            self.sock.close()


def parse(line: bytes) -> Message:
    """A message; ValueError for whatever else a stranger may send."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def proof(secret: str, *words: object) -> str:
    import hmac

    text = json.dumps([str(word) for word in words])
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def proves(claim: object, *words: str) -> bool:
    import hmac

    return hmac.compare_digest(str(claim).encode("utf-8", "replace"), proof(*words).encode())


def call_hub(address: tuple[str, int], secret: str, who: str, seconds: float) -> socket.socket:
    """Connect to the hub, show that we know the secret, and have it show the same."""
    deadline = time.monotonic() + seconds
    sock = socket.create_connection(address, timeout=seconds)
    try:
        nonce = read_words(sock, deadline).get("nonce")
        mine = os.urandom(16).hex()
        words = {"who": who, "nonce": mine, "proof": proof(secret, "member", who, nonce)}
        sock.sendall(json.dumps(words).encode() + b"\n")
        if not proves(read_words(sock, deadline).get("proof"), secret, "hub", who, mine):
            raise ConnectionRefusedError("the hub does not know the secret of this run")
    except BaseException:
        sock.close()
        raise
    return sock


def read_words(sock: socket.socket, deadline: float) -> Message:
    """One JSON line, and not a byte more: what follows belongs to the link."""
    line = b""
    while not line.endswith(b"\n"):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        byte = sock.recv(1)
        if not byte or len(line) > PIECE:
            raise ConnectionResetError("the hub closed the connection")
        line += byte
    return parse(line)


class Guest:
    """A connection to the hub that has not shown yet who it is."""

    def __init__(self, sock: socket.socket, hub: Hub) -> None:
        self.link = Link(sock, hub.agent.selector, lambda: hub.meet(self))
        self.secret = hub.agent.config["secret"]
        self.nonce = os.urandom(16).hex()
        self.link.send(nonce=self.nonce)

    def identify(self) -> str | None:
        """Who it is, or None as long as it has not said; a wrong answer closes the link."""
        for message in self.link.receive(PIECE):
            who = str(message.get("who"))
            if proves(message.get("proof"), self.secret, "member", who, self.nonce):
                self.link.send(proof=proof(self.secret, "hub", who, message.get("nonce")))
                return who
            self.link.closed = True
        return None


def free_ports(count: int) -> list[socket.socket]:
    """Sockets that hold `count` free ports until the ranks start."""
    held: list[socket.socket] = []
    start = int.from_bytes(os.urandom(4), "big")
    for step in range(len(PORTS)):
        if len(held) == count:
            break
        sock = socket.socket()
        try:
            # A step that is prime to the number of ports comes by each of them once.
            sock.bind(("", PORTS[(start + step * 7919) % len(PORTS)]))
            held.append(sock)
        except OSError:
            sock.close()
    if len(held) < count:
        raise OSError("there are no %d free ones between %d and %d" % (count, PORTS.start, PORTS.stop))
    return held


def interface_of(address: str) -> str | None:
    """The name of the network interface that has `address`; gloo asks for it where the host's name does not resolve."""
    if address.startswith("127."):
        return "lo" if LINUX else "lo0"
    if LINUX:
        import fcntl
        import struct

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
                    if socket.inet_ntoa(answer[20:24]) == address:
                        return name
    return None


def serve_keys(listener: socket.socket, allowed: set[str]) -> None:
    """Horovod's rendezvous: a key-value store over HTTP, for the hosts of this gang only. Runs in a thread."""
    import http.server

    values: dict[str, bytes] = {}

    class Keys(http.server.BaseHTTPRequestHandler):
        def answer(self, code: int, body: bytes = b"") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            value = values.get(self.path)
            self.answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            values[self.path] = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 20))
            self.answer(200)

        def do_DELETE(self) -> None:
            values.pop(self.path, None)
            self.answer(200)

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return client_address[0] in allowed

    server = Server(listener.getsockname()[:2], Keys, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()


# ---- the hub ---------------------------------------------------------------------------------------------------------


class Hub:
    """The chief's part of the star. Talks to every node, its own included, in the same words."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        config = agent.config
        self.nodes = config["nodes"]
        self.names = config["names"]
        self.deciders = set(config["deciders"])
        self.links: dict[int, Link | Near] = {}
        self.hosts: dict[int, str] = {}
        self.ports: dict[int, dict[str, int]] = {}
        self.pids: dict[int, dict[int, int | None]] = {}
        self.exits: dict[int, Message] = {}
        self.failures: list[Message] = []
        self.ended: set[int] = set()
        self.outcome: Message | None = None
        self.over = False
        self.launching = bool(config["launcher"])
        self.launches: dict[str, tuple[Link, int]] = {}
        self.guests: list[Guest] = []
        # What MPI does to the ranks that are left when one has failed looks like a kill.
        self.echoes = {"SIGABRT", "SIGTERM"} | ({"SIGKILL"} if config["hostfile"] else set())
        agent.after(config["start_timeout"], self.check_arrivals)

    def join(self, node: int, link: Link | Near) -> None:
        if node in self.links:
            self.links[node].close()
        self.links[node] = link
        if self.outcome:
            link.send(t="end", grace=0)

    def tell_all(self, **message: Any) -> None:
        for link in list(self.links.values()):
            link.send(**message)

    def handle(self, node: int, message: Message) -> None:
        getattr(self, "on_" + message["t"])(node, message)

    def on_beat(self, node: int, message: Message) -> None:
        pass

    def on_here(self, node: int, message: Message) -> None:
        if node in self.hosts:
            # Another agent in the place of one that had arrived: Jobs start their pods again one by one.
            self.conclude(cause="silent", node=node, grace=min(HARD, self.agent.config["grace"]))
            return
        self.hosts[node] = message["address"]
        self.ports[node] = message["ports"]
        if len(self.hosts) == self.nodes and not self.outcome:
            hosts = [self.hosts[n] for n in range(self.nodes)]
            self.tell_all(t="go", hosts=hosts, ports=[self.ports[n] for n in range(self.nodes)])

    def check_arrivals(self) -> None:
        missing = [self.names[n] for n in range(self.nodes) if n not in self.hosts]
        if missing:
            self.conclude(cause="absent", nodes=missing, grace=0)

    def on_started(self, node: int, message: Message) -> None:
        self.pids[node] = message["pids"]
        if len(self.pids) == self.nodes and not self.outcome:
            ranks = [{"rank": int(r), "node": n, "pid": p} for n, pids in self.pids.items() for r, p in pids.items()]
            self.agent.output.say(event="running", ranks=sorted(ranks, key=lambda r: r["rank"]))

    def on_exit(self, node: int, message: Message) -> None:
        rank = message["rank"]
        self.exits[rank] = message
        if self.outcome:
            return
        if message["cause"] != "done":
            self.failed(node, message)
        else:
            self.conclude_if_done()

    def conclude_if_done(self) -> None:
        """When all that decide are done; and mpirun too, which tidies up after its ranks."""
        if all(self.exits.get(rank, {}).get("cause") == "done" for rank in self.deciders):
            end = functools.partial(self.conclude, cause="done", grace=min(HARD, self.agent.config["grace"]))
            self.agent.after(HARD if self.launching else 0, end)

    def failed(self, node: int, message: Message) -> None:
        """The first failure is the one that matters, unless it is the echo of one that is slower to show."""
        failure = dict(message, node=node)
        self.failures.append(failure)
        if not self.seems_echo(failure):
            self.blame()
        elif len(self.failures) == 1:
            self.agent.after(SETTLE, self.blame)

    def seems_echo(self, failure: Message) -> bool:
        if failure["signal"] in self.echoes and failure["cause"] != "oom":
            return True
        return failure["signal"] != "SIGKILL" and ECHO.search("\n".join(failure["tail"])) is not None

    def blame(self) -> None:
        if self.outcome:
            return
        causes = [failure for failure in self.failures if not self.seems_echo(failure)]
        first = (causes or self.failures)[0]
        facts = {key: first[key] for key in ("cause", "rank", "node", "code", "signal", "error", "tail")}
        self.conclude(grace=min(HARD, self.agent.config["grace"]), **facts)

    def on_launcher(self, node: int, message: Message) -> None:
        """mpirun has ended. A rank that failed knows more about it, and comes first. mpirun's exit code 0 is not to be
        trusted: OpenMPI 5 says so when a daemon was killed."""
        self.launching = False
        self.conclude_if_done()
        self.agent.after(SETTLE, lambda: self.check_ranks(node, message))

    def check_ranks(self, node: int, message: Message) -> None:
        silent = sorted(self.deciders - set(self.exits))
        if message["cause"] != "done":
            self.failures.append(dict(message, node=node))
        elif silent:
            self.failures.append(dict(message, node=node, cause="vanished", rank=silent[0]))
        if self.failures:
            self.blame()

    def on_stop(self, node: int, message: Message) -> None:
        self.conclude(cause=message["cause"], node=node, grace=message["grace"])
        if message["grace"] <= 0:
            self.tell_all(t="kill")

    def on_ended(self, node: int, message: Message) -> None:
        self.ended.add(node)
        self.finish_if_ended()

    def lost(self, node: int) -> None:
        """A member's connection has closed, or it has been silent for too long. Who has not arrived may call again."""
        self.links.pop(node).close()
        if node not in self.hosts and not self.outcome:
            return
        self.ended.add(node)
        self.conclude(cause="silent", node=node, grace=min(HARD, self.agent.config["grace"]))
        self.finish_if_ended()

    def conclude(self, cause: str, grace: float, **facts: Any) -> None:
        if self.outcome:
            return
        self.outcome = dict(facts, cause=cause)
        self.agent.output.say(event="ending", outcome=self.outcome)
        self.tell_all(t="end", grace=grace)
        self.agent.after(grace + 2 * HARD, self.finish)

    def finish_if_ended(self) -> None:
        if self.ended.issuperset(self.links):
            self.finish()

    def finish(self) -> None:
        if not self.over:
            self.over = True
            self.tell_all(t="over", outcome=self.outcome)

    def check_silence(self) -> None:
        for node, link in list(self.links.items()):
            if isinstance(link, Link) and (link.closed or link.is_silent(self.agent.config["silence"])):
                self.lost(node)

    # The way in: a member or mpirun's `rsh` shows that it knows the secret.

    def listen(self) -> None:
        host, port = self.agent.config["hub"]
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        listener.setblocking(False)
        self.agent.config["hub"] = [self.agent.config["address"] or host, listener.getsockname()[1]]
        self.agent.watch(listener, lambda: self.welcome(listener))
        self.agent.output.say(event="listening", port=self.agent.config["hub"][1])

    def welcome(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        guest = Guest(sock, self)
        self.guests.append(guest)
        self.agent.after(2 * HARD, lambda: self.forget(guest))
        if len(self.guests) > self.nodes + STRANGERS:
            self.forget(self.guests[0])

    def forget(self, guest: Guest) -> None:
        if guest in self.guests:
            self.guests.remove(guest)
            guest.link.close()

    def meet(self, guest: Guest) -> None:
        who, link = guest.identify(), guest.link
        if who is None or link.closed:
            if link.closed:
                self.forget(guest)
            return
        self.guests.remove(guest)
        if who == "rsh":
            link.heed = lambda: self.read_rsh(link)
        else:
            link.heed = lambda: self.read_member(int(who), link)
            self.join(int(who), link)

    def read_member(self, node: int, link: Link) -> None:
        for message in link.receive():
            self.handle(node, message)
        if link.closed and self.links.get(node) is link:
            self.lost(node)

    def read_rsh(self, link: Link) -> None:
        for message in link.receive():
            self.launch(link, message)
        if link.closed:
            self.drop(link)
            link.close()

    # MPI's launch requests: from `agent.py rsh` to us, from us to the node, and its exit code back.

    def launch(self, guest_link: Link, message: Message) -> None:
        node = next((n for n, host in self.hosts.items() if host == message["host"]), None)
        if node is None or node not in self.links or self.outcome:
            guest_link.send(code=255, said=["no agent of this gang is on " + message["host"]])
            return
        number = str(len(self.launches))
        self.launches[number] = (guest_link, node)
        self.links[node].send(t="run", id=number, command=message["command"])

    def on_ran(self, node: int, message: Message) -> None:
        link, _ = self.launches[message["id"]]
        link.send(code=message["code"], said=message["said"])

    def drop(self, guest_link: Link) -> None:
        """mpirun has ended its `rsh`: what that had started on the other node ends too."""
        for number, (link, node) in self.launches.items():
            if link is guest_link and node in self.links:
                self.links[node].send(t="cut", id=number)


class Near:
    """The hub's link to its own node, and that node's link to the hub: no network in between."""

    def __init__(self, deliver: Callable[[Message], None]) -> None:
        self.deliver = deliver
        self.closed = False

    @classmethod
    def nowhere(cls) -> Near:
        link = cls(lambda _: None)
        link.closed = True
        return link

    def send(self, **message: Any) -> None:
        if not self.closed:
            self.deliver(message)

    def close(self) -> None:
        self.closed = True


# ---- the agent -------------------------------------------------------------------------------------------------------


class Agent:
    def __init__(self, config: Message, lifeline: int | None, commands: bytes = b"") -> None:
        self.config = config
        Voice.first = config.get("first", 0)
        self.node = config["node"]
        self.marker = "PUMASI_GANG=" + config["gang"]
        self.output = Output(1)
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Callable[[], object]]] = []
        self.timer_numbers = itertools.count()
        self.children: dict[int, Child] = {}
        self.by_mpi: dict[int, Child] = {}
        self.launched: dict[str, Child] = {}
        self.voices: dict[int, Voice] = {}
        self.doing = ""
        self.environment_made: Message = {}
        self.makes: dict[int, list[str]] = {rank["rank"]: rank["makes"] for rank in config["ranks"] if "makes" in rank}
        self.up: Link | Near = Near.nowhere()
        self.hub: Hub | None = None
        self.held: list[socket.socket] = []
        self.ending = False
        self.give_up: float | None = None
        self.looking = False
        self.gone = False
        self.blocked = False
        self.paused = False
        self.asked = False
        self.alone: Message = {"cause": "stopped"}
        self.result: Message | None = None
        self.oom_before = oom_kills()
        self.lifeline = lifeline
        self.orphaned = False
        self.commands = commands
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            self.watch(lifeline, lambda: self.read_commands(lifeline))

    # -- loop

    def watch(self, fd: int | socket.socket, callback: Callable[[], object]) -> None:
        self.selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int | socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(fd)

    def after(self, seconds: float, callback: Callable[[], object]) -> None:
        heapq.heappush(self.timers, (time.monotonic() + seconds, next(self.timer_numbers), callback))

    def run(self) -> int:
        self.watch_signals()
        for note in make_checkpoint_folders(self.config["ranks"]):
            self.output.say(event="note", text=note)
        try:
            self.open_star()
            self.obey(b"")
            self.after(0, self.beat)
            while self.result is None:
                self.turn()
        finally:
            if not self.gone:
                kill_family(self.marker, os.getpid())
        self.close(self.result)
        return 0 if self.result.get("cause") == "done" else 1

    def turn(self) -> None:
        self.output.pump()
        self.pace()
        timeout = max(0.0, min(0.5, self.timers[0][0] - time.monotonic()))
        for key, _ in self.selector.select(timeout):
            key.data()
        while self.timers and self.timers[0][0] <= time.monotonic():
            heapq.heappop(self.timers)[2]()
        if self.output.broken:
            self.parent_died()

    def pace(self) -> None:
        """When nobody reads our output, the ranks wait, as they would at a terminal that is stopped."""
        if bool(self.output.size) != self.blocked:
            self.blocked = not self.blocked
            if self.blocked:
                self.selector.register(self.output.fd, selectors.EVENT_WRITE, self.output.pump)
            else:
                self.unwatch(self.output.fd)
        crowded = self.output.size > (HELD // 4 if self.paused else HELD)
        if crowded != self.paused:
            self.paused = crowded
            for stream in self.streams():
                if crowded:
                    self.unwatch(stream.fd)
                else:
                    self.listen_to(stream)

    def streams(self) -> list[Stream]:
        children = [*self.children.values(), *self.by_mpi.values()]
        return [stream for child in children for stream in child.streams if not stream.done]

    def listen_to(self, stream: Stream) -> None:
        if not self.paused:
            self.watch(stream.fd, lambda: self.output.size > HELD or self.read_stream(stream))

    def watch_signals(self) -> None:
        self.wake, self.waker = socket.socketpair()
        self.wake.setblocking(False)
        self.waker.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            # Not SIG_IGN, which the ranks would inherit.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))
        self.watch(self.wake, self.on_signal)

    def on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        if self.asked:
            self.asked = False
            self.stop("stopped", self.config["grace"])
        self.reap()
        if self.ending and not self.living():
            self.check_gone()

    def close(self, result: Message) -> None:
        """Hand over what is left. A parent on the lifeline may take its time: it will notice when that is gone."""
        for child in [*self.children.values(), *self.by_mpi.values()]:
            self.drain(child)
        self.output.say(event="over", outcome=result)
        if self.config.get("testament"):
            write_testament(self.config["testament"], result)
        self.output.pump()
        left, since = self.output.size, time.monotonic()
        while self.output.size:
            self.turn()
            if self.output.size < left:
                left, since = self.output.size, time.monotonic()
            elif (self.lifeline is None or self.orphaned) and time.monotonic() - since > self.config["silence"]:
                break

    # -- the star

    def open_star(self) -> None:
        if self.node == 0:
            hub = self.hub = Hub(self)
            hub.join(0, Near(self.handle))
            self.up = Near(lambda message: hub.handle(0, message))
            try:
                if self.config["nodes"] > 1 or self.config["hostfile"]:
                    hub.listen()
            except OSError as error:
                self.refuse(Voice(self.config["seats"][0]), error, "%s:%d" % tuple(self.config["hub"]))
                return
            self.set_up(self.config["address"])
        else:
            self.deadline = time.monotonic() + self.config["start_timeout"]
            self.call()

    def call(self) -> None:
        """Reach the hub, which may not be there yet."""
        try:
            sock = call_hub(tuple(self.config["hub"]), self.config["secret"], str(self.node), HARD)
        except (OSError, ValueError) as error:
            if time.monotonic() > self.deadline:
                self.end_alone(cause="no hub", error=str(error))
            else:
                self.after(0.2, self.call)
            return
        link = self.up = Link(sock, self.selector, lambda: self.read_hub(link))
        self.set_up(self.config["address"] or sock.getsockname()[0])

    def read_hub(self, link: Link) -> None:
        for message in link.receive():
            self.handle(message)
        if link.closed:
            self.lose_hub(link)

    def lose_hub(self, link: Link) -> None:
        link.close()
        self.end_alone(cause="hub lost")

    def beat(self) -> None:
        if not self.up.closed:
            self.up.send(t="beat")
        if self.hub:
            self.hub.tell_all(t="beat")
            self.hub.check_silence()
        elif isinstance(self.up, Link) and not self.up.closed and self.up.is_silent(self.config["silence"]):
            self.lose_hub(self.up)
        self.after(self.config["silence"] / 5, self.beat)

    def arrive(self) -> None:
        named = self.config["chief_ports"] if self.node == 0 else []
        self.names = [str(rank) for rank in self.config["seats"]] + named
        try:
            self.held = free_ports(len(self.names))
        except OSError as error:
            self.refuse(Voice(self.config["seats"][0]), error, "ports")
            return
        ports = {name: sock.getsockname()[1] for name, sock in zip(self.names, self.held)}
        self.up.send(t="here", address=self.address, ports=ports)

    def handle(self, message: Message) -> None:
        getattr(self, "on_" + message["t"])(message)

    def on_beat(self, message: Message) -> None:
        pass

    # -- packages, and the user's own commands, before the ranks

    def set_up(self, address: str) -> None:
        """We are here when all is installed, so that the ranks start when every node is ready. Meanwhile we hear of the
        end, and say that we live."""
        self.address = address
        setup = self.config.get("setup")
        if not setup:
            self.arrive()
            return
        folder = self.config["dir"]
        order = os.path.join(folder, "setup.json")
        voice = self.voice(self.config["seats"][0])
        try:
            write_file(os.path.join(folder, "installer.py"), self.config["files"]["installer.py"])
            write_file(order, json.dumps(dict(setup, folder=folder)))
        except OSError as error:
            self.refuse(voice, error, folder)
            return
        env = dict(os.environ, PUMASI_GANG=self.config["gang"])
        self.start(voice, "setup", [setup["python"], os.path.join(folder, "installer.py"), order], env)

    def hear_installer(self, words: Message) -> None:
        self.doing = words.get("doing", self.doing)
        self.environment_made = words.get("environment", self.environment_made)
        if "note" in words:
            where = "%s: " % self.config["names"][self.node] if self.config["nodes"] > 1 else ""
            self.output.say(event="note", text=where + words["note"])

    def finish_set_up(self, voice: Voice, facts: Message) -> None:
        if self.ending:
            return
        if facts["cause"] != "done":
            cause = facts["cause"] if facts["cause"] == "oom" else "setup"
            self.up.send(t="exit", **dict(facts, cause=cause, error=self.doing))
            return
        voice.tail = b""
        if self.environment_made["in_use"]:
            import fcntl

            # Held until we end, and the ranks with us: nobody removes what is in use.
            in_use = os.open(self.environment_made["in_use"], os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(in_use, fcntl.LOCK_SH)
        self.arrive()

    def settled(self, program: str) -> str:
        """The program of that name in the environment that was made, where it has one instead of the Python's own."""
        if not self.environment_made:
            return program
        python, folder = self.config["setup"]["python"], os.path.join(self.environment_made["root"], "bin")
        if program == python:
            return os.path.join(folder, "python")
        own = os.path.join(folder, os.path.basename(program))
        beside = (self.environment_made["beside"], os.path.dirname(python))
        return own if os.path.dirname(program) in beside and "/" in program and os.path.exists(own) else program

    def voice(self, rank: int) -> Voice:
        """One for each rank: the frames of what was installed before it started are numbered through with its own."""
        return self.voices.setdefault(rank, Voice(rank))

    # -- starting

    def on_go(self, message: Message) -> None:
        ports = {name: port for node in message["ports"] for name, port in node.items()}
        owners = {name: host for host, node in zip(message["hosts"], message["ports"]) for name in node}
        files = {name: os.path.join(self.config["dir"], name) for name in ("hostfile", "rsh")}
        self.values = {"host": owners, "port": ports, "file": files}
        self.release_ports(set(message["hosts"]))
        try:
            self.write_files()
            for draft, _ in self.makes.values():
                clear_folder(os.path.dirname(draft))
            for rank in self.config["ranks"] if self.config["launcher"] else ():
                self.expect(rank)
        except OSError as error:
            self.refuse(Voice(self.config["seats"][0]), error, self.config["dir"])
            return
        pids = self.start_launcher() if self.config["launcher"] else self.start_ranks()
        if pids is not None:
            self.up.send(t="started", pids=pids)

    def start_ranks(self) -> dict[int, int | None] | None:
        pids: dict[int, int | None] = {}
        for rank in self.config["ranks"]:
            command = [self.settled(rank["command"][0]), *rank["command"][1:]]
            child = self.start(self.voice(rank["rank"]), "rank", command, self.environment(rank["env"]))
            if child is None:
                return None
            pids[rank["rank"]] = child.pid
        return pids

    def start_launcher(self) -> dict[int, int | None] | None:
        if self.node == 0:
            program = self.config["ranks"][0]["command"][0]
            known = {"{self}": self.myself(), program: [self.settled(program)]}
            words = [w for word in self.config["launcher"] for w in known.get(word, [word])]
            env = self.environment(self.config["ranks"][0]["env"])
            # The mpirun beside their Python is the one that its MPI belongs to; an image may have others. That of an
            # environment of ours is on the path already, behind what the environment has itself.
            beside = "" if self.environment_made else os.path.dirname(program)
            env["PATH"] = os.pathsep.join(filter(None, [beside, env.get("PATH", os.defpath)]))
            if self.start(self.by_mpi[0].voice, "launcher", words, env) is None:
                return None
        return dict.fromkeys(self.by_mpi)

    def myself(self) -> list[str]:
        return [sys.executable, "-I", "-S", os.path.abspath(__file__)]

    def refuse(self, voice: Voice, error: Exception, what: str) -> None:
        """What can't be started ends the gang like a rank that fails."""
        reason = "%s: %s" % (getattr(error, "filename", None) or what, getattr(error, "strerror", None) or error)
        # A file's name need not be text, but a sentence has to be.
        reason = reason.encode("utf-8", "backslashreplace").decode()
        self.up.send(t="exit", **self.exit_facts(voice, error=reason))

    def release_ports(self, hosts: set[str]) -> None:
        for name, sock in zip(self.names, self.held):
            if name == "horovod":
                sock.listen(1024)
                self.watch(sock, functools.partial(self.open_keys, sock, hosts))
            else:
                sock.close()

    def open_keys(self, listener: socket.socket, hosts: set[str]) -> None:
        import threading

        self.unwatch(listener)
        allowed = hosts | {"127.0.0.1", self.address}
        threading.Thread(target=serve_keys, args=(listener, allowed), daemon=True).start()

    def write_files(self) -> None:
        """The shim for every rank's Python, and what mpirun needs to reach the other nodes."""
        folder = self.config["dir"]
        for name, text in self.config["files"].items():
            write_file(os.path.join(folder, name), text)
        if self.config["hostfile"]:
            words = " ".join(shlex.quote(word) for word in [*self.myself(), "rsh"])
            write_file(os.path.join(folder, "hostfile"), self.fill(self.config["hostfile"]))
            write_file(os.path.join(folder, "rsh"), '#!/bin/sh\nexec %s "$@"\n' % words, 0o700)

    def fill(self, text: str) -> str:
        """Hosts, ports and files for their placeholders; what is none of ours stays as it is."""
        return TOKEN.sub(lambda found: str(self.values[found.group(1)].get(found.group(2), found.group())), text)

    def environment(self, wanted: dict[str, str]) -> dict[str, str]:
        """Our own environment, and over it what `core` has prepared, with hosts and ports filled in."""
        env = dict(os.environ)
        for name, value in wanted.items():
            if name not in GENTLE or name not in os.environ:
                env[name] = self.fill(value)
        env["PUMASI_GANG"] = self.config["gang"]
        env["PUMASI_DIR"] = self.config["dir"]
        if self.environment_made:
            root, beside = self.environment_made["root"], self.environment_made["beside"]
            path = [os.path.join(root, "bin"), beside, env.get("PATH", os.defpath)]
            env.update(VIRTUAL_ENV=root, PATH=os.pathsep.join(path))
            env.pop("PYTHONHOME", None)
        if "shim/sitecustomize.py" in self.config["files"]:
            shim = os.path.join(self.config["dir"], "shim")
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [shim, env.get("PYTHONPATH")]))
            env["PUMASI_SHIM_FALLBACK"] = os.path.join(self.config["dir"], "fallback")
        interface = interface_of(self.address) if self.config["total"] > 1 else None
        if interface:
            env.setdefault("GLOO_SOCKET_IFNAME", interface)
            env.setdefault("HOROVOD_GLOO_IFACE", interface)
        self.add_proxies(env)
        if self.config["hostfile"]:
            env["PUMASI_HUB"] = "%s:%d" % tuple(self.config["hub"])
            env["PUMASI_SECRET"] = self.config["secret"]
            if self.config["nodes"] > 1 and self.address.startswith("127."):
                for name, value in PRETENDED.items():
                    env.setdefault(name, value)
        return env

    def add_proxies(self, env: dict[str, str]) -> None:
        """The peers are added to what the user excludes from a proxy, if there is one: JAX warns of such variables."""
        for name in ("no_proxy", "NO_PROXY"):
            mine, peers = os.environ.get(name), env.pop(name, None)
            if peers and peers != mine and any(key.lower() in PROXIES for key in os.environ):
                env[name] = ",".join(filter(None, [mine, peers]))
            elif mine is not None:
                env[name] = mine

    def start(self, voice: Voice, kind: str, command: list[str], env: dict[str, str]) -> Child | None:
        """A process of its own group."""
        try:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=self.config["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.refuse(voice, error, command[0])
            return None
        process.returncode = 0  # we reap by ourselves
        child = Child(voice, kind, process.pid)
        self.children[process.pid] = child
        self.read_from(child, *(os.dup(pipe.fileno()) for pipe in (process.stdout, process.stderr) if pipe))
        return child

    def read_from(self, child: Child, out: int, err: int) -> None:
        streams = [Stream(child.voice, out, (b"|", b">", b"~")), Stream(child.voice, err, (b":", b"}", b"^"))]
        if child.kind == "setup":
            streams[0] = Words(out, self.hear_installer)
        for stream in streams:
            child.streams.append(stream)
            self.listen_to(stream)

    def expect(self, rank: Message) -> None:
        """A rank that mpirun will start: `agent.py rank` opens these pipes and tells of its end."""
        number = rank["rank"]
        base = os.path.join(self.config["dir"], str(number))
        write_file(base + ".json", json.dumps(self.environment(rank["env"])))
        ends = []
        for name in (".out", ".err", ".end"):
            os.mkfifo(base + name, 0o600)
            # Open for writing too: it does not end when one writer does.
            ends.append(os.open(base + name, os.O_RDWR | os.O_NONBLOCK))
        child = Child(self.voice(number), "rank")
        self.by_mpi[number] = child
        self.read_from(child, ends[0], ends[1])
        self.watch(ends[2], lambda: self.read_end(child, ends[2]))

    # -- reading

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
            self.unwatch(stream.fd)
            stream.close()
            return 0
        stream.heard = time.monotonic()
        if not stream.rest or b"\n" in data:
            stream.begun = stream.heard
        self.output.write(stream.feed(data))
        if stream.rest and not stream.timed:
            stream.timed = True
            self.after(QUIET, lambda: self.flush_quiet(stream))
        return len(data)

    def flush_quiet(self, stream: Stream) -> None:
        """A prompt, say, or a row of dots. While we do not read, nobody knows what is quiet."""
        due = min(stream.heard + QUIET, stream.begun + AGE)
        left = QUIET if self.paused else due - time.monotonic()
        if stream.rest and left > 0:
            self.after(left, lambda: self.flush_quiet(stream))
        else:
            stream.timed = False
            self.output.write(stream.flush())

    def read_end(self, child: Child, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in os.read(fd, READ).splitlines():
                status = int(line)
                self.drain(child)
                self.report(child, status)

    def drain(self, child: Child) -> None:
        """What a process that has ended has left in its pipes, and no more: others may hold them, and go on writing."""
        for stream in child.streams:
            left = PIPE
            while left > 0:
                got = self.read_stream(stream)
                left = left - got if got else 0
            self.output.write(stream.flush())

    def read_commands(self, lifeline: int) -> None:
        """Commands of our parent; the end of file is its death."""
        try:
            data = os.read(lifeline, READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.unwatch(lifeline)
            self.parent_died()
            return
        self.obey(data)

    def obey(self, data: bytes) -> None:
        lines = (self.commands + data).split(b"\n")
        self.commands = lines.pop()
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.stop("stopped", float(parse(line)["grace"]))

    # -- ending

    def reap(self) -> bool:
        """Whether we still have children; where orphans become ours, that is whether anything of ours is left."""
        ended, left = reap_all()
        for pid, status in ended.items():
            child = self.children.get(pid)
            if child is not None and child.pid:
                self.drain(child)
                child.pid = None
                self.report(child, status)
        return left

    def living(self) -> bool:
        return any(child.pid for child in self.children.values())

    def report(self, child: Child, status: int) -> None:
        facts = self.exit_facts(child.voice, status)
        if child.kind == "launcher":
            self.up.send(t="launcher", **facts)
        elif child.kind == "setup":
            self.finish_set_up(child.voice, facts)
        elif child.kind == "rank":
            if facts["cause"] == "done" and facts["rank"] in self.makes:
                self.deliver(facts)
            self.output.say(event="exit", rank=child.voice.rank, code=facts["code"], signal=facts["signal"])
            self.up.send(t="exit", **facts)
        else:
            code = 255 if facts["code"] is None else facts["code"]
            self.up.send(t="ran", id=child.kind, code=code, said=facts["tail"])

    def deliver(self, facts: Message) -> None:
        """What a rank has made goes to its place; one that has not made it is not done."""
        draft, place = self.makes[facts["rank"]]
        try:
            deliver(draft, place)
        except OSError as error:
            facts.update(cause="unmade", error="%s: %s" % (draft, error.strerror))

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

    def stop(self, cause: str, grace: float) -> None:
        if not self.up.closed:
            self.up.send(t="stop", cause=cause, grace=grace)
        else:
            self.end_alone(cause=cause)

    def parent_died(self) -> None:
        if not self.orphaned:
            self.orphaned = True
            self.stop("parent died", min(HARD, self.config["grace"]))

    def end_alone(self, **outcome: Any) -> None:
        """Without the hub: end our own ranks, so that nothing of a gang that has lost its head goes on."""
        self.alone = outcome
        self.on_end({"grace": min(HARD, self.config["grace"])})
        if self.gone:
            self.on_over({"outcome": outcome})

    def on_end(self, message: Message) -> None:
        if not self.ending:
            self.ending = True
            setting_up = any(child.kind == "setup" and child.pid for child in self.children.values())
            self.after(min(BRIEF, message["grace"]) if setting_up else message["grace"], lambda: self.on_kill({}))
            signal_all(self.check_gone(), signal.SIGTERM)

    def on_kill(self, message: Message) -> None:
        self.ending = True
        if self.give_up is None:
            self.give_up = time.monotonic() + HARD
            self.check_gone()

    def look_again(self) -> None:
        self.looking = False
        self.check_gone()

    def check_gone(self) -> set[int]:
        """After the end was asked for: are all our processes gone, grandchildren too? When their grace is over, kill
        until they are, since a process may fork while we look. Answers which are left."""
        if self.gone:
            return set()
        children = self.reap()
        left = family(self.marker, os.getpid())
        if self.give_up is not None:
            signal_all(left, signal.SIGKILL)
            strike()
        if (left or children or self.living()) and not (self.give_up and time.monotonic() > self.give_up):
            if not self.looking:
                self.looking = True
                self.after(LOOK, self.look_again)
            return left
        self.gone = True
        if not self.up.closed:
            self.up.send(t="ended")
        else:
            self.on_over({"outcome": self.alone})
        return set()

    def on_over(self, message: Message) -> None:
        self.result = message["outcome"]

    # -- MPI's daemons

    def on_run(self, message: Message) -> None:
        if self.ending:
            return
        command = ["/bin/sh", "-c", message["command"]]
        child = self.start(Voice(None), message["id"], command, self.environment({}))
        if child:
            self.launched[message["id"]] = child

    def on_cut(self, message: Message) -> None:
        child = self.launched.get(message["id"])
        if child and child.pid:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)


# ---- for mpirun ------------------------------------------------------------------------------------------------------


def rsh(words: list[str]) -> int:
    """What mpirun calls instead of ssh: have the agent on that host run the command, and wait for it."""
    host, port = os.environ["PUMASI_HUB"].rsplit(":", 1)
    sock = call_hub((host, int(port)), os.environ["PUMASI_SECRET"], "rsh", 30)
    sock.settimeout(None)
    message = {"host": words[0], "command": " ".join(words[1:])}
    sock.sendall(json.dumps(message).encode() + b"\n")
    answer = json.loads(sock.makefile("rb").readline() or b'{"code": 255, "said": []}')
    for line in answer["said"]:
        print(line, file=sys.stderr)
    return int(answer["code"])


def write_file(path: str, text: str, mode: int = 0o600) -> None:
    """For nobody else to read: an environment may hold secrets."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)


def clear_folder(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def deliver(draft: str, place: str) -> None:
    """A file, and before it those beside it whose names begin with its own: they describe it."""
    folder, name = os.path.split(draft)
    os.stat(draft)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    for each in sorted(os.listdir(folder), reverse=True):
        if each.startswith(name):
            os.replace(os.path.join(folder, each), place + each[len(name) :])
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def rank(command: list[str]) -> int:
    """Run one rank for mpirun, with the output and the environment that the agent has prepared for it."""
    own = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    base = os.path.join(os.environ["PUMASI_DIR"], own)
    with open(base + ".json") as file:
        env = dict(json.load(file), **mpi_variables())
    with open(base + ".out", "wb") as out, open(base + ".err", "wb") as err:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=err)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _: process.send_signal(n))
    code = process.wait()
    status = code << 8 if code >= 0 else -code
    with open(base + ".end", "wb", buffering=0) as end:
        end.write(b"%d\n" % status)
    return code if code >= 0 else 128 - code


def write_testament(path: str, result: Message) -> None:
    """Where Kubernetes looks for a container's last words: they outlive its log, but are cut at 4096 bytes."""
    words = dict(result, tail=list(result.get("tail") or ()))
    while len(json.dumps(words)) > PIECE and words["tail"]:
        words["tail"].pop(0)
    with contextlib.suppress(OSError):
        write_file(path, json.dumps(words)[:PIECE])


def pod() -> Message:
    """What a pod was given, out of the way of the user's program: its environment is to be its own."""
    import base64
    import zlib

    config = parse(zlib.decompress(base64.b64decode(os.environ.pop("PUMASI_BOOT_CONFIG"))))
    if "each" in config:
        # All pods of a Job are given the same, and a number.
        config.update(config.pop("each")[int(os.environ["JOB_COMPLETION_INDEX"])])
    config["secret"] = os.environ.pop("PUMASI_BOOT_SECRET", "")
    config["address"] = os.environ.pop("PUMASI_BOOT_ADDRESS", "")
    node = os.environ.pop("PUMASI_BOOT_NODE", "")
    for rank in config["ranks"]:
        # Who made the pod may not know where the scheduler puts it.
        rank["env"]["PUMASI_NODE"] = node or rank["env"]["PUMASI_NODE"]
    os.makedirs(config["cwd"], exist_ok=True)
    with contextlib.suppress(OSError):
        os.makedirs(os.environ.get("HOME") or "/", exist_ok=True)
    unpack(packed_code(), config["cwd"])
    return config


def make_checkpoint_folders(ranks: list[Message]) -> list[str]:
    """What the user should know about them: a volume may belong to somebody else."""
    notes = []
    for folder in sorted({rank["env"].get("PUMASI_CHECKPOINT_DIR", "") for rank in ranks} - {""}):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            notes.append("The folder for checkpoints, %s, can't be made: %s." % (folder, error.strerror))
    return notes


def packed_code() -> bytes:
    """The user's files: in pieces in the environment, or, where they are too large for that, in files."""
    import base64
    import glob

    pieces = sorted(name for name in os.environ if name.startswith("PUMASI_BOOT_CODE_"))
    text = "".join(os.environ.pop(name) for name in pieces)
    packed = base64.b64decode(text)
    for path in sorted(glob.glob("/pumasi/code/*")):
        with open(path, "rb") as file:
            packed += file.read()
    return packed


def unpack(packed: bytes, folder: str) -> None:
    import io
    import tarfile

    if packed:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            # The user's own files, packed by us; a filter is there to keep newer Pythons from warning.
            options = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
            archive.extractall(folder, **options)  # type: ignore[arg-type]  # noqa: S202


def mpi_variables() -> dict[str, str]:
    """mpirun tells its ranks who they are through these."""
    prefixes = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_", "HYDRA_", "I_MPI_", "MPI_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def main(argv: list[str]) -> int:
    if argv[0] == "rsh":
        return rsh(argv[1:])
    if argv[0] == "rank":
        return rank(argv[1:])
    adopt_orphans()
    if argv[0] == "pod":
        return Agent(pod(), None).run()
    if argv[0] == "-":
        config, _, commands = read_config(0).partition(b"\n")
        return Agent(json.loads(config), 0, commands).run()
    with open(argv[0], encoding="utf-8") as file:
        return Agent(json.load(file), None).run()


def read_config(fd: int) -> bytes:
    """The first line, and perhaps the beginning of what follows."""
    data = b""
    while b"\n" not in data:
        more = os.read(fd, READ)
        if not more:
            sys.exit(1)
        data += more
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
