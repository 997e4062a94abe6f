#!/usr/bin/env python3
"""The agent stands in front of the user's program on every node of a gang.

It needs nothing but a Python >= 3.8, because it also runs where nothing of Pumasi is installed. It starts the ranks of
its node, numbers their output, and ends whatever it has started, however it is ended itself.

The agents of a gang form a star around the chief's agent, the hub. The star starts the ranks only when every agent is
there; ends all of them when one fails, when a member falls silent or when those that decide are done; passes on a stop;
carries MPI's launch requests; and tells who failed first.

    agent.py CONFIG.json         be an agent (`-`: the configuration is the first line of standard input, and what
                                 follows is a lifeline: when it closes, the parent is dead)
    agent.py rsh HOST COMMAND    mpirun's way to another node, instead of ssh
    agent.py rank COMMAND        stands between mpirun and one rank, so that its output and its end are known
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import heapq
import hmac
import itertools
import json
import os
import random
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Any, Callable, Dict, Iterable

Message = Dict[str, Any]

PIECE = 4096
"""Longest text in a frame: log readers on Kubernetes tear longer lines."""
HELD = 4 << 20
"""Bytes of output held for a slow reader before the ranks have to wait."""
READ = 1 << 16
TAIL = 8192
TAIL_LINES = 20
QUIET = 0.2
"""Seconds after which text without a newline is passed on as it is."""
SETTLE = 1.5
"""Seconds that the hub waits for the cause when the first failure looks like the echo of another."""
HARD = 5.0
"""Seconds that a killed process gets to disappear, and a member to say that it has."""
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
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def family(marker: str, ancestor: int | None = None) -> set[int]:
    """Ids of all processes that carry `marker` in their environment or descend from such a one or from `ancestor`."""
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
    needle = marker.encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state == b"Z":
                continue
            parents[int(entry)] = int(parent)
            with open("/proc/%s/environ" % entry, "rb") as file:
                if needle in file.read():
                    marked.add(int(entry))
        except OSError:
            continue
    return parents, marked


def _ps_table(marker: str) -> tuple[dict[int, int], set[int]]:
    parents, marked = {}, set()
    listing = subprocess.run(
        ["ps", "-axEww", "-o", "pid=,ppid=,stat=,command="], stdout=subprocess.PIPE, timeout=30, check=False
    ).stdout.decode("utf-8", "replace")
    for line in listing.splitlines():
        fields = line.split(None, 3)
        if len(fields) < 3 or fields[2].startswith("Z"):
            continue
        parents[int(fields[0])] = int(fields[1])
        if marker in line:
            marked.add(int(fields[0]))
    return parents, marked


def signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_family(marker: str, ancestor: int | None = None, seconds: float = HARD) -> set[int]:
    """Kill until none is left, since a process may fork while we look; what survives `seconds` is returned."""
    deadline = time.monotonic() + seconds
    while True:
        pids = family(marker, ancestor)
        if not pids or time.monotonic() > deadline:
            return pids
        signal_all(pids, signal.SIGKILL)
        reap_all()
        time.sleep(0.01)


def reap_all() -> dict[int, int]:
    """Exit statuses of children that have ended: {pid: status}."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended


def oom_kills() -> int:
    """How many processes this kernel has killed for memory so far."""
    with contextlib.suppress(OSError), open("/proc/vmstat", "rb") as file:
        for line in file:
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return 0


# ---- output ----------------------------------------------------------------------------------------------------------


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

    def drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.pump()
        while self.size and time.monotonic() < deadline:
            with selectors.PollSelector() as selector:
                selector.register(self.fd, selectors.EVENT_WRITE)
                selector.select(0.5)
            self.pump()


class Stream:
    """One pipe of one rank, cut into frames."""

    def __init__(self, voice: Voice, fd: int, kinds: tuple[bytes, bytes, bytes]) -> None:
        self.voice = voice
        self.fd = fd
        self.line, self.piece, self.progress = kinds
        self.rest = b""
        self.done = False
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> bytes:
        """Frames for `data`; the unfinished end is kept."""
        voice = self.voice
        voice.tail = (voice.tail + data)[-TAIL:]
        if voice.rank is None:
            return b""
        now = b"%d" % (time.time() * 1000)
        lines = (self.rest + data).split(b"\n")
        self.rest = lines.pop()
        frames = []
        rank, seq, kind = voice.rank, voice.seq, self.line
        plain = not lines or (b"\r" not in data and b"\r" not in lines[0])
        for line in lines:
            if plain and len(line) <= PIECE:
                seq += 1
                frames.append(b"%d.%d %b%b%b\n" % (rank, seq, now, kind, line))
            else:
                voice.seq = seq
                frames.append(self.cut(line, now, kind))
                seq = voice.seq
        voice.seq = seq
        if len(self.rest) > PIECE or b"\r" in self.rest:
            frames.append(self.shorten(now))
        return b"".join(frames)

    def shorten(self, now: bytes) -> bytes:
        """Pass on what is certain of the unfinished line: whole pieces, and all up to its last carriage return."""
        cut = self.rest.rfind(b"\r", 0, -1) + 1
        if len(self.rest) - cut > PIECE:
            cut = len(self.rest) - (len(self.rest) - cut) % PIECE
        if not cut:
            return b""
        certain, self.rest = self.rest[:cut], self.rest[cut:]
        if certain.endswith(b"\r"):
            return self.cut(certain[:-1], now, self.progress)
        return self.cut(certain, now, self.piece)

    def cut(self, line: bytes, now: bytes, kind: bytes) -> bytes:
        """Frames for a line with carriage returns or of any length; a `\\r` before the newline belongs to the line."""
        frames = []
        ended = line.endswith(b"\r") and kind == self.line
        parts = (line[:-1] if ended else line).split(b"\r")
        if ended:
            parts[-1] += b"\r"
        for number, part in enumerate(parts):
            last = kind if number == len(parts) - 1 else self.progress
            while len(part) > PIECE:
                frames.append(self.frame(now, self.piece, part[:PIECE]))
                part = part[PIECE:]
            frames.append(self.frame(now, last, part))
        return b"".join(frames)

    def frame(self, now: bytes, kind: bytes, text: bytes) -> bytes:
        self.voice.seq += 1
        return b"%d.%d %b%b%b\n" % (self.voice.rank or 0, self.voice.seq, now, kind, text)

    def flush(self) -> bytes:
        """What is left without a newline, as a piece."""
        rest, self.rest = self.rest, b""
        if not rest:
            return b""
        now = b"%d" % (time.time() * 1000)
        if rest.endswith(b"\r"):
            return self.cut(rest[:-1], now, self.progress)
        return self.cut(rest, now, self.piece)


class Voice:
    """Whose output it is: a rank's, or that of one of MPI's daemons (no rank), of which only the end is kept."""

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
    """A process of ours. `kind`: "rank", "launcher" (mpirun), or the number of a launch request. `pid` is None when it
    has ended, and for a rank that mpirun starts."""

    def __init__(self, voice: Voice, kind: str, pid: int | None = None) -> None:
        self.voice = voice
        self.kind = kind
        self.pid = pid
        self.streams: list[Stream] = []
        self.pipes: list[IO[bytes]] = []


# ---- links between agents --------------------------------------------------------------------------------------------


class Link:
    """A connection that carries one JSON object a line."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.inbox = b""
        self.outbox = b""
        self.heard = time.monotonic()
        self.closed = False

    def send(self, **message: Any) -> None:
        self.outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self.outbox and not self.closed:
            try:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
            except BlockingIOError:
                return
            except OSError:
                self.closed = True

    def receive(self, limit: int = 1 << 24) -> list[Message]:
        """Messages that have come; marks the link as closed at its end or at a line without end."""
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
            return [json.loads(line) for line in lines]
        except ValueError:
            self.closed = True
            return []

    def close(self) -> None:
        self.closed = True
        self.sock.close()


def proof(secret: str, *words: str) -> str:
    return hmac.new(secret.encode(), "\n".join(words).encode(), "sha256").hexdigest()


def call_hub(address: tuple[str, int], secret: str, who: str, seconds: float) -> socket.socket:
    """Connect to the hub, show that we know the secret, and have it show the same."""
    sock = socket.create_connection(address, timeout=seconds)
    nonce = read_words(sock).get("nonce", "")
    mine = secrets.token_hex(16)
    words = {"who": who, "nonce": mine, "proof": proof(secret, "member", who, nonce)}
    sock.sendall(json.dumps(words).encode() + b"\n")
    answer = read_words(sock).get("proof", "")
    if not hmac.compare_digest(answer, proof(secret, "hub", who, mine)):
        sock.close()
        raise ConnectionRefusedError("the hub does not know the secret of this run")
    return sock


def read_words(sock: socket.socket) -> Message:
    """One JSON line, and not a byte more: what follows belongs to the link."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte or len(line) > PIECE:
            raise ConnectionResetError("the hub closed the connection")
        line += byte
    words: Message = json.loads(line)
    return words


class Guest:
    """A connection to the hub that has not shown yet who it is."""

    def __init__(self, sock: socket.socket, secret: str) -> None:
        self.link = Link(sock)
        self.secret = secret
        self.known = False
        self.nonce = secrets.token_hex(16)
        self.link.send(nonce=self.nonce)

    def identify(self) -> str | None:
        """Who it is, or None as long as it has not said; a wrong answer closes the link."""
        for message in self.link.receive(PIECE):
            who = str(message.get("who", ""))
            if hmac.compare_digest(str(message.get("proof", "")), proof(self.secret, "member", who, self.nonce)):
                self.link.send(proof=proof(self.secret, "hub", who, str(message.get("nonce", ""))))
                return who
            self.link.closed = True
        return None


def free_ports(count: int) -> list[socket.socket]:
    """Sockets that hold `count` free ports until the ranks start."""
    held: list[socket.socket] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(held) == count:
            return held
        sock = socket.socket()
        try:
            sock.bind(("", port))
            held.append(sock)
        except OSError:
            sock.close()
    raise OSError("no %d free ports between %d and %d" % (count, PORTS.start, PORTS.stop))


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
        self.launches: dict[str, tuple[Link, int]] = {}
        agent.after(config["start_timeout"], self.check_arrivals)

    def join(self, node: int, link: Link | Near) -> None:
        self.links[node] = link

    def tell_all(self, **message: Any) -> None:
        for link in list(self.links.values()):
            link.send(**message)

    def handle(self, node: int, message: Message) -> None:
        getattr(self, "on_" + message["t"])(node, message)

    def on_beat(self, node: int, message: Message) -> None:
        pass

    def on_here(self, node: int, message: Message) -> None:
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
        elif self.deciders and all(self.exits.get(r, {}).get("cause") == "done" for r in self.deciders):
            self.conclude(cause="done", grace=min(HARD, self.agent.config["grace"]))

    def failed(self, node: int, message: Message) -> None:
        """The first failure is the one that matters, unless it is the echo of one that is slower to show."""
        self.failures.append(dict(message, node=node))
        if not ECHO.search("\n".join(message["tail"])) and message["signal"] != "SIGABRT":
            self.blame()
        elif len(self.failures) == 1:
            self.agent.after(SETTLE, self.blame)

    def blame(self) -> None:
        if self.outcome:
            return
        causes = [f for f in self.failures if not ECHO.search("\n".join(f["tail"])) and f["signal"] != "SIGABRT"]
        first = (causes or self.failures)[0]
        facts = {key: first[key] for key in ("cause", "rank", "node", "code", "signal", "error", "tail")}
        self.conclude(grace=min(HARD, self.agent.config["grace"]), **facts)

    def on_launcher(self, node: int, message: Message) -> None:
        """mpirun has ended. Its exit code is not to be trusted: OpenMPI 5 says 0 when a daemon was killed."""
        if self.outcome:
            return
        if message["cause"] != "done":
            self.failures.append(dict(message, node=node))
            self.agent.after(SETTLE, self.blame)
        else:
            self.agent.after(SETTLE, lambda: self.check_ranks(node, message))

    def check_ranks(self, node: int, message: Message) -> None:
        silent = sorted(self.deciders - set(self.exits))
        if not self.outcome and silent:
            self.failures.append(dict(message, node=node, cause="vanished", rank=silent[0]))
            self.blame()

    def on_stop(self, node: int, message: Message) -> None:
        self.conclude(cause=message["cause"], node=node, grace=message["grace"])
        if message["grace"] <= 0:
            self.tell_all(t="kill")

    def on_ended(self, node: int, message: Message) -> None:
        self.ended.add(node)
        self.finish_if_ended()

    def lost(self, node: int) -> None:
        """A member's connection has closed, or it has been silent for too long."""
        link = self.links.pop(node)
        link.close()
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
        now = time.monotonic()
        for node, link in list(self.links.items()):
            if node and (link.closed or now - link.heard > self.agent.config["silence"]):
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
        guest = Guest(sock, self.agent.config["secret"])
        self.agent.watch(sock, lambda: self.meet(guest))
        self.agent.after(10, lambda: self.forget(guest))

    def forget(self, guest: Guest) -> None:
        if guest.known:
            return
        self.agent.unwatch(guest.link.sock)
        guest.link.close()

    def meet(self, guest: Guest) -> None:
        who = guest.identify()
        if guest.link.closed:
            self.forget(guest)
            return
        if who is None:
            return
        guest.known = True
        link = guest.link
        self.agent.unwatch(link.sock)
        if who == "rsh":
            self.agent.watch(link.sock, lambda: self.read_rsh(link))
        else:
            self.join(int(who), link)
            self.agent.watch(link.sock, lambda: self.read_member(int(who), link))

    def read_member(self, node: int, link: Link) -> None:
        for message in link.receive():
            self.handle(node, message)
        if link.closed:
            self.agent.unwatch(link.sock)
            if node in self.links:
                self.lost(node)

    def read_rsh(self, link: Link) -> None:
        for message in link.receive():
            self.launch(link, message)
        if link.closed:
            self.agent.unwatch(link.sock)
            self.drop(link)
            link.close()

    # MPI's launch requests: from `agent.py rsh` to us, from us to the node, and its exit code back.

    def launch(self, guest_link: Link, message: Message) -> None:
        node = next((n for n, host in self.hosts.items() if host == message["host"]), None)
        if node is None or node not in self.links:
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
        self.heard = 0.0

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
        self.node = config["node"]
        self.marker = "PUMASI_GANG=" + config["gang"]
        self.output = Output(1)
        self.selector = selectors.DefaultSelector()
        self.timers: list[tuple[float, int, Callable[[], object]]] = []
        self.timer_numbers = itertools.count()
        self.children: dict[int, Child] = {}
        self.by_mpi: dict[int, Child] = {}
        self.launched: dict[str, Child] = {}
        self.up: Link | Near = Near.nowhere()
        self.hub: Hub | None = None
        self.held: list[socket.socket] = []
        self.ending = False
        self.gone = False
        self.paused = False
        self.result: Message | None = None
        self.oom_before = oom_kills()
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            self.commands = commands
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
        try:
            self.open_star()
            self.after(0, self.beat)
            while self.result is None:
                self.turn()
        finally:
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
        if not self.paused and self.output.size > HELD:
            self.paused = True
            for stream in self.streams():
                self.unwatch(stream.fd)
            self.selector.register(self.output.fd, selectors.EVENT_WRITE, self.output.pump)
        elif self.paused and self.output.size < HELD // 4:
            self.paused = False
            self.unwatch(self.output.fd)
            for stream in self.streams():
                self.listen_to(stream)
        elif self.output.size and not self.paused:
            self.after(0.01, self.output.pump)

    def streams(self) -> list[Stream]:
        children = [*self.children.values(), *self.by_mpi.values()]
        return [stream for child in children for stream in child.streams if not stream.done]

    def listen_to(self, stream: Stream) -> None:
        if not self.paused:
            self.watch(stream.fd, lambda: self.read_stream(stream))

    def watch_signals(self) -> None:
        wake, waker = socket.socketpair()
        wake.setblocking(False)
        waker.setblocking(False)
        self.wake, self.waker = wake, waker
        signal.set_wakeup_fd(waker.fileno())
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Not SIG_IGN, which the ranks would inherit.
            signal.signal(number, lambda *_: None)
        self.watch(wake, self.on_signal)

    def on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if signal.SIGTERM in self.wake.recv(4096):
                self.stop("stopped", self.config["grace"])
        self.reap()

    def close(self, result: Message) -> None:
        self.drain_streams()
        self.output.say(event="over", outcome=result)
        self.output.drain(self.config["silence"])

    # -- the star

    def open_star(self) -> None:
        if self.node == 0:
            hub = self.hub = Hub(self)
            hub.join(0, Near(self.handle))
            self.up = Near(lambda message: hub.handle(0, message))
            if self.config["nodes"] > 1 or self.config["hostfile"]:
                hub.listen()
            self.arrive(self.config["address"])
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
        link = self.up = Link(sock)
        self.watch(sock, lambda: self.read_hub(link))
        self.arrive(self.config["address"] or sock.getsockname()[0])

    def read_hub(self, link: Link) -> None:
        for message in link.receive():
            self.handle(message)
        if link.closed:
            self.lose_hub(link)

    def lose_hub(self, link: Link) -> None:
        self.unwatch(link.sock)
        link.close()
        self.end_alone(cause="hub lost")

    def beat(self) -> None:
        if not self.up.closed:
            self.up.send(t="beat")
        if self.hub:
            self.hub.tell_all(t="beat")
            self.hub.check_silence()
        elif isinstance(self.up, Link):
            if time.monotonic() - self.up.heard > self.config["silence"]:
                self.lose_hub(self.up)
            self.up.flush()
        self.after(self.config["silence"] / 5, self.beat)

    def arrive(self, address: str) -> None:
        self.address = address
        named = self.config["chief_ports"] if self.node == 0 else []
        self.names = [str(rank["rank"]) for rank in self.config["ranks"]] + named
        try:
            self.held = free_ports(len(self.names))
        except OSError as error:
            self.up.send(t="exit", **self.exit_facts(Voice(self.config["first"]), error=str(error)))
            return
        ports = {name: sock.getsockname()[1] for name, sock in zip(self.names, self.held)}
        self.up.send(t="here", address=address, ports=ports)

    def handle(self, message: Message) -> None:
        getattr(self, "on_" + message["t"])(message)

    def on_beat(self, message: Message) -> None:
        pass

    # -- starting

    def on_go(self, message: Message) -> None:
        ports = {name: port for node in message["ports"] for name, port in node.items()}
        owners = {name: host for host, node in zip(message["hosts"], message["ports"]) for name in node}
        files = {name: os.path.join(self.config["dir"], name) for name in ("hostfile", "rsh")}
        self.values = {"host": owners, "port": ports, "file": files}
        self.release_ports(set(message["hosts"]))
        self.write_files()
        pids: dict[int, int | None] = {}
        for rank in self.config["ranks"]:
            if self.config["launcher"]:
                self.expect(rank)
                pids[rank["rank"]] = None
                continue
            voice = Voice(rank["rank"])
            child = self.start(voice, "rank", rank["command"], self.environment(rank["env"]))
            if child is None:
                return
            pids[rank["rank"]] = child.pid
        if self.config["launcher"] and self.node == 0:
            words = [w for word in self.config["launcher"] for w in (self.myself() if word == "{self}" else [word])]
            env = self.environment(self.config["ranks"][0]["env"])
            if self.start(self.by_mpi[0].voice, "launcher", words, env) is None:
                return
        self.up.send(t="started", pids=pids)

    def myself(self) -> list[str]:
        return [sys.executable, os.path.abspath(__file__)]

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
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        if self.config["hostfile"]:
            with open(os.path.join(folder, "hostfile"), "w") as file:
                file.write(self.fill(self.config["hostfile"]))
            path = os.path.join(folder, "rsh")
            with open(path, "w") as file:
                words = [*self.myself(), "rsh"]
                file.write('#!/bin/sh\nexec %s "$@"\n' % " ".join(shlex.quote(word) for word in words))
            os.chmod(path, 0o700)

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
        if self.config["files"]:
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
        """A process of its own group. One that can't be started ends the gang like one that fails."""
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
        except OSError as error:
            reason = "%s: %s" % (error.filename or command[0], error.strerror)
            self.up.send(t="exit", **self.exit_facts(voice, error=reason))
            return None
        process.returncode = 0  # we reap by ourselves
        child = Child(voice, kind, process.pid)
        self.children[process.pid] = child
        child.pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe]
        self.read_from(child, *(pipe.fileno() for pipe in child.pipes))
        return child

    def read_from(self, child: Child, out: int, err: int) -> None:
        for fd, kinds in ((out, (b"|", b">", b"~")), (err, (b":", b"}", b"^"))):
            stream = Stream(child.voice, fd, kinds)
            child.streams.append(stream)
            self.listen_to(stream)

    def expect(self, rank: Message) -> None:
        """A rank that mpirun will start: `agent.py rank` opens these pipes and tells of its end."""
        number = rank["rank"]
        base = os.path.join(self.config["dir"], str(number))
        with open(base + ".json", "w") as file:
            json.dump(self.environment(rank["env"]), file)
        ends = []
        for name in (".out", ".err", ".end"):
            os.mkfifo(base + name, 0o600)
            ends.append(os.open(base + name, os.O_RDONLY | os.O_NONBLOCK))
            os.open(base + name, os.O_WRONLY)
        child = Child(Voice(number), "rank")
        self.by_mpi[number] = child
        self.read_from(child, ends[0], ends[1])
        self.watch(ends[2], lambda: self.read_end(child, ends[2]))

    # -- reading

    def read_stream(self, stream: Stream) -> bool:
        """One read, so that no rank keeps the others and the star waiting; False when there is no more."""
        try:
            data = os.read(stream.fd, READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            stream.done = True
            self.output.write(stream.flush())
            self.unwatch(stream.fd)
            return False
        self.output.write(stream.feed(data))
        if stream.rest:
            self.after(QUIET, functools.partial(self.flush_quiet, stream, stream.rest))
        return True

    def flush_quiet(self, stream: Stream, rest: bytes) -> None:
        if stream.rest == rest:
            self.output.write(stream.flush())

    def read_end(self, child: Child, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in os.read(fd, READ).splitlines():
                status = int(line)
                self.drain(child)
                self.report(child, status)

    def drain(self, child: Child) -> None:
        for stream in child.streams:
            while not stream.done and self.output.size < 4 * HELD and self.read_stream(stream):
                pass
            self.output.write(stream.flush())

    def drain_streams(self) -> None:
        for child in [*self.children.values(), *self.by_mpi.values()]:
            self.drain(child)

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
        lines = (self.commands + data).split(b"\n")
        self.commands = lines.pop()
        for line in lines:
            self.stop("stopped", json.loads(line)["grace"])

    # -- ending

    def reap(self) -> None:
        for pid, status in reap_all().items():
            child = self.children.get(pid)
            if child is None:
                continue
            self.drain(child)
            child.pid = None
            self.report(child, status)
        self.check_gone()

    def report(self, child: Child, status: int) -> None:
        facts = self.exit_facts(child.voice, status)
        if child.kind == "launcher":
            self.up.send(t="launcher", **facts)
        elif child.kind == "rank":
            self.output.say(event="exit", rank=child.voice.rank, code=facts["code"], signal=facts["signal"])
            self.up.send(t="exit", **facts)
        else:
            code = 255 if facts["code"] is None else facts["code"]
            self.up.send(t="ran", id=child.kind, code=code, said=facts["tail"])

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
        elif number is not None:
            cause = "oom" if number == signal.SIGKILL and oom_kills() > self.oom_before else "signal"
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
        if not self.ending:
            self.stop("parent died", min(HARD, self.config["grace"]))

    def end_alone(self, **outcome: Any) -> None:
        """Without the hub: end our own ranks, so that nothing of a gang that has lost its head goes on."""
        self.alone = outcome
        self.on_end({"grace": min(HARD, self.config["grace"])})
        if self.gone:
            self.on_over({"outcome": outcome})

    def on_end(self, message: Message) -> None:
        if self.ending:
            return
        self.ending = True
        signal_all(family(self.marker, os.getpid()), signal.SIGTERM)
        self.after(message["grace"], lambda: self.on_kill({}))
        self.check_gone()

    def on_kill(self, message: Message) -> None:
        self.ending = True
        kill_family(self.marker, os.getpid())
        self.reap()
        self.check_gone(force=True)

    def check_gone(self, force: bool = False) -> None:
        """After the end was asked for: are all our processes gone, grandchildren too?"""
        if not self.ending or self.gone:
            return
        living = any(child.pid for child in self.children.values())
        if not force and (living or family(self.marker, os.getpid())):
            self.after(0.05, self.check_gone)
            return
        self.gone = True
        if not self.up.closed:
            self.up.send(t="ended")
        else:
            self.on_over({"outcome": getattr(self, "alone", {"cause": "stopped"})})

    def on_over(self, message: Message) -> None:
        self.result = message["outcome"]

    # -- MPI's daemons

    def on_run(self, message: Message) -> None:
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
