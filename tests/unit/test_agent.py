"""The agent's parts, each by itself: what becomes of output, who is ours, who is blamed, who is let in."""

from __future__ import annotations

import ast
import base64
import contextlib
import http.client
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.agent import children, ending, environment, folders, links, network, output, processes
from pumasi.agent.config import DEFAULTS, VERSION
from pumasi.agent.files import AGENT, agent_files
from pumasi.agent.frameworks import horovod
from pumasi.agent.hub import SETTLE, Hub
from pumasi.agent.member import Member
from pumasi.agent.pod import pod
from pumasi.core.endings import outcome_of
from pumasi.core.frames import Frame, parse_frames
from pumasi.core.launch import AGENT_VERSION
from pumasi.core.outcome import Verdict
from tests.harness import wait_for

STDOUT = (b"|", b">", b"~")
STDERR = (b":", b"}", b"^")


def stream(voice: output.Voice, kinds: tuple[bytes, bytes, bytes] = STDOUT) -> output.Stream:
    read, write = os.pipe()
    os.close(write)
    made = output.Stream(voice, read, kinds)
    made.close()
    return made


def texts(frames: bytes) -> list[tuple[bytes, bytes]]:
    return [(frame.kind, frame.text) for frame in parse_frames(frames)]


# ---- output

rubbish = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\r\r\n", b"", b"%d %b %%", b"@{}", b"\0"]),
        st.integers(0, 3 * output.PIECE).map(lambda size: b"x" * size),
        st.integers(output.PIECE - 2, output.PIECE + 2).map(lambda size: b"y" * size + b"\r"),
    ),
    max_size=12,
)


@given(st.lists(st.tuples(rubbish.map(b"".join), st.booleans(), st.booleans()), max_size=8))
@settings(max_examples=200)
def test_the_bytes_of_each_stream_come_back_whatever_they_are_and_wherever_they_are_cut(
    writes: list[tuple[bytes, bool, bool]],
) -> None:
    voice = output.Voice(7)
    streams = {False: stream(voice), True: stream(voice, STDERR)}
    framed = b""
    for data, is_stderr, pause in writes:
        framed += streams[is_stderr].feed(data)
        if pause:
            framed += streams[is_stderr].flush()
    framed += b"".join(each.flush() for each in streams.values())
    frames = list(parse_frames(framed))
    for which in (False, True):
        said = b"".join(data for data, is_stderr, _ in writes if is_stderr is which)
        assert b"".join(frame.text + frame.end for frame in frames if frame.is_stderr is which) == said
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))
    assert len(frames) == framed.count(b"\n")
    assert all(frame.rank == 7 and len(frame.text) <= output.PIECE for frame in frames)
    assert all(len(each.rest) <= output.PIECE for each in streams.values())


def test_a_line_is_one_frame_however_it_arrives() -> None:
    out = stream(output.Voice(0))
    framed = b"".join(out.feed(bytes([byte])) for byte in b"loss: 0.31\nok\n")
    assert texts(framed) == [(b"|", b"loss: 0.31"), (b"|", b"ok")]


def test_a_carriage_return_before_the_newline_belongs_to_the_line() -> None:
    out = stream(output.Voice(0))
    assert texts(out.feed(b"dos\r\n") + out.feed(b"torn\r") + out.feed(b"\n")) == [(b"|", b"dos\r"), (b"|", b"torn\r")]


def test_a_progress_bar_is_passed_on_state_by_state() -> None:
    out = stream(output.Voice(0))
    assert texts(out.feed(b"10%\r20%\r30%")) == [(b"~", b"10%"), (b"~", b"20%")]
    assert texts(out.feed(b"\n")) == [(b"|", b"30%")]


def test_a_line_without_end_is_passed_on_in_pieces_and_never_held() -> None:
    out = stream(output.Voice(0))
    framed = b"".join(out.feed(b"x" * 65536) for _ in range(64))
    assert {frame.kind for frame in parse_frames(framed)} == {b">"}
    assert len(out.rest) <= output.PIECE


def test_a_frame_is_readable_even_where_the_clock_was_never_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 12.5)
    (frame,) = parse_frames(stream(output.Voice(0)).feed(b"hello\n"))
    assert frame == Frame(0, 1, 12500, b"|", b"hello")


def test_the_last_lines_are_those_that_a_terminal_would_show() -> None:
    voice = output.Voice(0)
    out = stream(voice)
    out.feed(b"x" * output.TAIL + b"torn\n" + b"10%\r100%\n\nValueError: no\n")
    assert voice.last_lines() == ["100%", "ValueError: no"]


def test_output_that_cannot_be_written_now_is_kept_and_written_in_order() -> None:
    read, write = os.pipe()
    out = output.Output(write)
    sent = b"".join(b"%d\n" % number for number in range(200_000))
    for start in range(0, len(sent), 50_000):
        out.write(sent[start : start + 50_000])
        out.pump()
    assert out.size > 0
    got = b""
    while out.size or len(got) < len(sent):
        got += os.read(read, 1 << 20)
        out.pump()
    assert got == sent
    os.close(read)
    out.write(b"more")
    out.pump()
    assert out.broken
    assert out.size == 0
    os.close(write)


# ---- whose processes


@pytest.fixture
def marked() -> Iterator[Callable[[str, list[str]], subprocess.Popen[bytes]]]:
    """Starts processes that carry a mark."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mark: str, command: list[str]) -> subprocess.Popen[bytes]:
        env = {"PUMASI_GANG": mark, "PATH": os.environ["PATH"], "ZZZ": "last"}
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def name_of(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name[:20]}.{os.getpid()}.{time.monotonic_ns()}"


Start = Callable[[str, list[str]], "subprocess.Popen[bytes]"]


def test_node_one_is_not_node_ten(marked: Start, request: pytest.FixtureRequest) -> None:
    run = name_of(request)
    one = marked(run + ".1", ["sleep", "600"])
    ten = marked(run + ".10", ["sleep", "600"])
    wait_for(lambda: processes.family(f"PUMASI_GANG={run}.") == {one.pid, ten.pid}, "both processes")
    assert processes.family(f"PUMASI_GANG={run}.1") == {one.pid}
    assert processes.family(f"SI_GANG={run}.1") == set()


def test_what_a_marked_process_has_started_belongs_to_it_without_a_mark(
    marked: Start, request: pytest.FixtureRequest
) -> None:
    run = name_of(request)
    shell = marked(run + ".0", ["sh", "-c", "env -i sleep 600 & echo $!; wait"])
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    assert processes.family(f"PUMASI_GANG={run}.0") == {shell.pid, child}
    assert processes.kill_family(f"PUMASI_GANG={run}.0") == set()
    wait_for(lambda: not Path(f"/proc/{child}").exists(), "the end of the child")


@pytest.mark.skipif(not processes.LINUX, reason="threads outlive the first one like this on Linux only")
def test_a_process_whose_first_thread_has_ended_is_still_found(marked: Start, request: pytest.FixtureRequest) -> None:
    run = name_of(request)
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).syscall({'x86_64': 60}.get(__import__('platform').machine(), 93), 0)\n"
    )
    process = marked(run + ".0", ["sh", "-c", 'exec "$0" -c "$1" & wait', sys.executable, code])
    assert process.stdout is not None
    process.stdout.readline()

    def half_dead() -> set[int]:
        return {pid for pid in processes.family(f"PUMASI_GANG={run}.0") if state_of(pid) == "Z"}

    (pid,) = wait_for(half_dead, "the first thread to end")
    processes.kill_family(f"PUMASI_GANG={run}.0")
    wait_for(lambda: not Path(f"/proc/{pid}/task").exists(), "the end of all threads")


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def test_a_kill_takes_nobody_elses_exit_code(request: pytest.FixtureRequest) -> None:
    bystander = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, bystander.pid, os.WEXITED | os.WNOWAIT)
    processes.kill_family(f"PUMASI_GANG={name_of(request)}.0")
    assert bystander.wait() == 3


def test_what_ps_prints_on_a_mac_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = b"""
  10     1 Ss   /usr/bin/python train.py PUMASI_GANG=run.0.n.1 HOME=/x
  11     1 S    /usr/bin/python train.py HOME=/x PUMASI_GANG=run.0.n.10
  12    10 S    sleep 600 HOME=/x
  13     1 Z    (python) PUMASI_GANG=run.0.n.1
"""
    done = subprocess.CompletedProcess([], 0, listing)
    monkeypatch.setattr(processes, "LINUX", False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert processes.family("PUMASI_GANG=run.0.n.1") == {10, 12}
    assert processes.family("PUMASI_GANG=run.0.n.") == {10, 11, 12}


# ---- who is blamed


class FakeAgent:
    """What a hub sees of its agent: a clock that stands still until it is moved, and somebody to talk to."""

    def __init__(self, nodes: int = 2, **config: Any) -> None:
        names = [f"node-{number}" for number in range(nodes)]
        self.config = {"nodes": nodes, "names": names, "deciders": [0, 1], "start_timeout": 60, "silence": 30, **config}
        self.config = {"grace": 15, "parts": [], "launcher": None, "hostfile": None, **self.config}
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.now = 0.0
        self.output = self
        self.words: list[dict[str, Any]] = []

    def after(self, seconds: float, callback: Callable[[], object]) -> None:
        self.timers.append((self.now + seconds, callback))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while due := [timer for timer in self.timers if timer[0] <= self.now]:
            self.timers.remove(due[0])
            due[0][1]()

    def say(self, **words: Any) -> None:
        self.words.append(words)


class Bench:
    """A hub whose members do what the test says."""

    def __init__(self, nodes: int = 2, **config: Any) -> None:
        self.agent = FakeAgent(nodes, **config)
        self.hub = Hub(self.agent.config, self.agent, self.agent)  # type: ignore[arg-type]
        self.told: dict[int, list[dict[str, Any]]] = {node: [] for node in range(nodes)}
        for node in range(nodes):
            self.hub.join(node, links.Near(self.told[node].append))

    def exit(self, rank: int, node: int = 0, **facts: Any) -> None:
        usual = {"t": "exit", "rank": rank, "cause": "exit", "code": 1, "signal": None, "error": None, "tail": []}
        self.hub.handle(node, {**usual, **facts})
        self.agent.pass_time(0)

    def done(self, rank: int, node: int = 0) -> None:
        self.exit(rank, node, cause="done", code=0)

    def mpirun_ends(self, **facts: Any) -> None:
        usual = {"t": "launcher", "rank": 0, "cause": "done", "code": 0, "signal": None, "error": None, "tail": []}
        self.hub.handle(0, {**usual, **facts})

    @property
    def outcome(self) -> dict[str, Any]:
        assert self.hub.outcome is not None
        return self.hub.outcome

    def orders(self, node: int) -> list[str]:
        return [message["t"] for message in self.told[node]]


def test_nobody_starts_before_everybody_is_there() -> None:
    bench = Bench()
    bench.hub.handle(0, {"t": "here", "address": "10.0.0.1", "ports": {"0": 1}})
    assert bench.orders(0) == []
    bench.hub.handle(1, {"t": "here", "address": "10.0.0.2", "ports": {"1": 2}})
    assert bench.orders(0) == bench.orders(1) == ["go"]


def test_a_gang_that_is_not_whole_in_time_ends_and_names_who_is_missing() -> None:
    bench = Bench(3)
    bench.hub.handle(0, {"t": "here", "address": "10.0.0.1", "ports": {}})
    bench.agent.pass_time(60)
    assert bench.outcome == {"cause": "absent", "nodes": ["node-1", "node-2"]}
    assert bench.orders(0) == ["end"]


def test_who_comes_when_all_is_decided_is_sent_home() -> None:
    bench = Bench(3)
    bench.agent.pass_time(60)
    late: list[dict[str, Any]] = []
    bench.hub.join(2, links.Near(late.append))
    assert [message["t"] for message in late] == ["end"]


def test_a_member_that_called_twice_counts_once() -> None:
    bench = Bench()
    first = bench.hub.links[1]
    bench.hub.join(1, links.Near(lambda _: None))
    assert first.closed
    assert bench.hub.outcome is None


def test_a_member_that_is_lost_before_it_arrived_may_call_again_but_not_after() -> None:
    bench = Bench()
    bench.hub.lost(1)
    assert bench.hub.outcome is None
    bench.hub.join(1, links.Near(lambda _: None))
    bench.hub.handle(1, {"t": "here", "address": "10.0.0.2", "ports": {}})
    bench.hub.lost(1)
    assert (bench.outcome["cause"], bench.outcome["node"]) == ("silent", 1)


def test_an_agent_in_the_place_of_one_that_had_arrived_ends_the_gang_and_starts_nothing() -> None:
    bench = Bench()
    for node in range(2):
        bench.hub.handle(node, {"t": "here", "address": f"10.0.0.{node}", "ports": {}})
    late: list[dict[str, Any]] = []
    bench.hub.join(1, links.Near(late.append))
    bench.hub.handle(1, {"t": "here", "address": "10.0.0.9", "ports": {}})
    assert (bench.outcome["cause"], bench.outcome["node"]) == ("silent", 1)
    assert bench.orders(0) == ["go", "end"]
    assert [message["t"] for message in late] == ["end"]


def test_a_pod_of_a_job_picks_what_is_meant_for_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    each = [{"node": number, "ranks": []} for number in range(3)]
    config = json.dumps({"cwd": str(tmp_path / "work"), "each": each}).encode()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PUMASI_BOOT_CONFIG", base64.b64encode(zlib.compress(config)).decode())
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    found = pod()
    assert (found["node"], found["cwd"]) == (2, str(tmp_path / "work"))
    assert "each" not in found


def test_the_gang_is_done_when_all_that_decide_are() -> None:
    bench = Bench(deciders=[0, 1])
    bench.done(0)
    assert bench.hub.outcome is None
    bench.done(1, node=1)
    assert bench.outcome == {"cause": "done"}


def test_a_parameter_server_decides_nothing_but_its_failure_counts() -> None:
    bench = Bench(deciders=[0])
    bench.done(1)
    bench.done(2)
    assert bench.hub.outcome is None
    bench.exit(3, code=2)
    assert (bench.outcome["rank"], bench.outcome["code"]) == (3, 2)


def test_a_server_that_outlives_those_who_decide_is_ended() -> None:
    bench = Bench(deciders=[0])
    bench.done(0)
    assert bench.outcome == {"cause": "done"}
    assert bench.orders(1) == ["end"]


def test_the_first_failure_is_told_at_once() -> None:
    bench = Bench()
    bench.exit(1, code=3, tail=["ValueError: no"])
    bench.exit(0, signal="SIGTERM", code=None)
    assert (bench.outcome["rank"], bench.outcome["code"], bench.outcome["tail"]) == (1, 3, ["ValueError: no"])


@pytest.mark.parametrize(
    "echo",
    [
        {"tail": ["RuntimeError: Connection closed by peer [127.0.0.1]:5"]},
        {"tail": ["UNAVAILABLE: Socket closed"]},
        {"cause": "signal", "code": None, "signal": "SIGABRT"},
        {"cause": "signal", "code": None, "signal": "SIGTERM"},
    ],
)
def test_an_echo_that_comes_first_waits_for_its_cause(echo: dict[str, Any]) -> None:
    bench = Bench()
    bench.exit(0, **echo)
    assert bench.hub.outcome is None
    bench.exit(1, code=9)
    assert bench.outcome["rank"] == 1


def test_an_echo_without_a_cause_is_told_after_a_moment() -> None:
    bench = Bench()
    bench.exit(1, tail=["Connection reset by peer"])
    bench.exit(0, tail=["Broken pipe"])
    bench.agent.pass_time(SETTLE)
    assert bench.outcome["rank"] == 1


@pytest.mark.parametrize(("cause", "signal"), [("signal", "SIGKILL"), ("oom", "SIGKILL")])
def test_a_killed_rank_is_no_echo_whatever_it_said_before(cause: str, signal: str) -> None:
    bench = Bench()
    bench.exit(1, cause=cause, signal=signal, code=None, tail=["connection reset, trying again"])
    assert bench.outcome["rank"] == 1


def test_under_mpi_those_that_mpirun_kills_are_not_to_blame() -> None:
    bench = Bench(parts=["openmpi"], launcher=["mpirun"])
    bench.exit(0, cause="signal", signal="SIGKILL", code=None)
    bench.exit(1, code=5)
    assert bench.outcome["rank"] == 1


def test_mpirun_gets_time_to_tidy_up_after_its_ranks_but_not_for_ever() -> None:
    bench = Bench(parts=["openmpi"], launcher=["mpirun"])
    bench.done(0)
    bench.done(1)
    assert bench.hub.outcome is None
    bench.mpirun_ends()
    bench.agent.pass_time(0)
    assert bench.outcome == {"cause": "done"}
    patient = Bench(parts=["openmpi"], launcher=["mpirun"])
    patient.done(0)
    patient.done(1)
    patient.agent.pass_time(processes.HARD)
    assert patient.outcome == {"cause": "done"}


def test_a_rank_knows_more_about_its_failure_than_mpirun() -> None:
    bench = Bench(parts=["openmpi"], launcher=["mpirun"])
    bench.mpirun_ends(cause="exit", code=14)
    bench.exit(1, code=5)
    assert (bench.outcome["rank"], bench.outcome["code"]) == (1, 5)


def test_a_failure_of_mpirun_alone_is_told() -> None:
    bench = Bench(parts=["openmpi"], launcher=["mpirun"])
    bench.mpirun_ends(cause="exit", code=205, tail=["no daemon"])
    bench.agent.pass_time(SETTLE)
    assert (bench.outcome["code"], bench.outcome["tail"]) == (205, ["no daemon"])


def test_mpirun_is_not_believed_when_a_rank_has_vanished() -> None:
    bench = Bench(parts=["openmpi"], launcher=["mpirun"])
    bench.done(0)
    bench.mpirun_ends()
    bench.agent.pass_time(SETTLE)
    assert (bench.outcome["cause"], bench.outcome["rank"]) == ("vanished", 1)


def test_the_end_is_told_when_all_members_are_gone_or_time_is_up() -> None:
    bench = Bench()
    bench.hub.handle(0, {"t": "stop", "cause": "stopped", "grace": 5})
    bench.hub.handle(0, {"t": "ended"})
    assert not bench.hub.over
    bench.agent.pass_time(5 + 2 * processes.HARD)
    assert bench.told[1][-1] == {"t": "over", "outcome": {"cause": "stopped", "node": 0}}


def test_a_second_stop_without_grace_kills() -> None:
    bench = Bench()
    bench.hub.handle(0, {"t": "stop", "cause": "stopped", "grace": 500})
    bench.hub.handle(0, {"t": "stop", "cause": "stopped", "grace": 0})
    assert bench.orders(1) == ["end", "kill"]


# ---- links


def test_a_message_larger_than_what_the_network_takes_at_once_arrives_whole() -> None:
    with selectors.DefaultSelector() as selector:
        here, there = socket.socketpair()
        got: list[dict[str, Any]] = []
        sender = links.Link(here, selector, lambda: None)
        receiver = links.Link(there, selector, lambda: got.extend(receiver.receive()))
        sender.send(text="x" * 5_000_000)
        deadline = time.monotonic() + 60
        while not got and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                key.data()
        assert [len(message["text"]) for message in got] == [5_000_000]
        assert selector.get_key(here).events == selectors.EVENT_READ
        sender.close()
        receiver.close()
        receiver.wake()


@pytest.mark.parametrize("line", [b"[1]", b"7", b"null", b"{", b"\xff\xfe", b"[" * 50_000])
def test_what_is_no_message_closes_the_link_and_nothing_else(line: bytes) -> None:
    with selectors.DefaultSelector() as selector:
        here, there = socket.socketpair()
        link = links.Link(here, selector, lambda: None)
        there.sendall(line + b"\n")
        assert link.receive() == []
        assert link.closed
        link.close()
        there.close()


# ---- what else the agent offers and knows


@pytest.fixture
def key_store() -> int:
    listener = socket.socket()
    listener.bind(("", 0))
    listener.listen()
    threading.Thread(target=horovod.serve_keys, args=(listener, {"127.0.0.1"}), daemon=True).start()
    return int(listener.getsockname()[1])


def ask(port: int, method: str, path: str, body: bytes | None = None, source: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(source, 0))
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_horovods_store_keeps_what_it_is_given(key_store: int) -> None:
    assert ask(key_store, "GET", "/global/0")[0] == 404
    assert ask(key_store, "PUT", "/global/0", b"\0value")[0] == 200
    assert ask(key_store, "GET", "/global/0") == (200, b"\0value")
    assert ask(key_store, "DELETE", "/global/0")[0] == 200
    assert ask(key_store, "GET", "/global/0")[0] == 404


@pytest.mark.skipif(not processes.LINUX, reason="only Linux has more than one loopback address")
def test_horovods_store_does_not_answer_strangers(key_store: int) -> None:
    ask(key_store, "PUT", "/global/0", b"value")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(key_store, "GET", "/global/0", source="127.0.0.99")
    assert ask(key_store, "GET", "/global/0") == (200, b"value")


def test_ports_that_are_held_are_free_different_and_nobody_elses() -> None:
    first, second = network.free_ports(40), network.free_ports(40)
    ports = [sock.getsockname()[1] for sock in first + second]
    for sock in first + second:
        sock.close()
    assert len(set(ports)) == 80
    assert all(port in network.PORTS for port in ports)


def test_too_few_free_ports_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PORTS", range(20000, 20003))
    with pytest.raises(OSError, match="no 4 free ones between 20000 and 20003"):
        network.free_ports(4)


@pytest.fixture
def small_agent(tmp_path: Path) -> Iterator[Member]:
    """An agent that is not run; its output goes nowhere."""
    config = {**DEFAULTS, "gang": "g", "dir": str(tmp_path), "grace": 1, "silence": 1}
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    made = Member(config, None)
    yield made
    os.dup2(saved, 1)
    os.close(saved)
    os.close(nowhere)
    made.loop.selector.close()


@pytest.mark.parametrize(
    ("status", "killed_for_memory", "cause", "code", "signal"),
    [
        (0, False, "done", 0, None),
        (7 << 8, False, "exit", 7, None),
        (9, False, "signal", None, "SIGKILL"),
        (9, True, "oom", None, "SIGKILL"),
        (137 << 8, True, "oom", 137, None),
        (1 << 8, True, "exit", 1, None),
        (11 | 128, False, "signal", None, "SIGSEGV"),
        (40, False, "signal", None, "signal 40"),
    ],
)
def test_exit_codes_and_signals_are_kept(
    small_agent: Member,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    killed_for_memory: bool,
    cause: str,
    code: int | None,
    signal: str | None,
) -> None:
    small_agent.children.oom_before = 4
    monkeypatch.setattr(children, "oom_kills", lambda: 5 if killed_for_memory else 4)
    facts = small_agent.children.exit_facts(output.Voice(2), status)
    assert (facts["cause"], facts["code"], facts["signal"]) == (cause, code, signal)


def test_an_agent_that_waits_for_the_last_processes_looks_for_them_in_one_place_only(
    small_agent: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every rank that ends makes it look; the looks must not each go on by themselves."""
    monkeypatch.setattr(ending, "family", lambda *_: {1})
    monkeypatch.setattr(children, "reap_all", lambda: ({}, False))
    for _ in range(40):
        small_agent.ending.check()
    assert len(small_agent.loop.timers) == 1
    assert not small_agent.ending.gone


def test_what_was_made_goes_to_its_place_with_what_describes_it(tmp_path: Path) -> None:
    draft, place = tmp_path / "attempts" / "3-model.h5", tmp_path / "model" / "3-model.h5"
    folders.clear_folder(str(draft.parent))
    for name in (draft.name, f"{draft.name}.json", "history.csv"):
        (draft.parent / name).write_text(name)
    folders.deliver(str(draft), str(place))
    assert sorted(each.name for each in place.parent.iterdir()) == ["3-model.h5", "3-model.h5.json"]
    assert [each.name for each in draft.parent.iterdir()] == ["history.csv"]
    (draft.parent / "history.csv").unlink()
    draft.write_text("another")
    folders.deliver(str(draft), str(place))
    assert place.read_text() == "another"
    assert not draft.parent.exists()


def test_a_rank_that_made_nothing_is_not_done(small_agent: Member, tmp_path: Path) -> None:
    small_agent.makes = {0: [str(tmp_path / "draft" / "m.h5"), str(tmp_path / "model" / "m.h5")]}
    facts = small_agent.children.exit_facts(output.Voice(0), 0)
    small_agent.deliver(facts)
    assert (facts["cause"], facts["error"]) == ("unmade", f"{tmp_path}/draft/m.h5: No such file or directory")
    assert not (tmp_path / "model").exists()


def test_only_placeholders_are_filled() -> None:
    values: dict[str, dict[str, object]] = {
        "host": {"0": "10.0.0.1"},
        "port": {"0": 20001, "torch": 20002},
        "file": {"rsh": "/d/rsh"},
    }
    text = "{host:0}:{port:0} {port:torch} {file:rsh} {host:9} {x:0} {} {port:A}"
    assert environment.fill(text, values) == "10.0.0.1:20001 20002 /d/rsh {host:9} {x:0} {} {port:A}"


def test_peers_are_kept_from_a_proxy_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    env = {"no_proxy": "10.0.0.1"}
    environment.add_proxies(env)
    assert env == {}
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost")
    env = {"no_proxy": "10.0.0.1"}
    environment.add_proxies(env)
    assert env == {"no_proxy": "localhost,10.0.0.1"}


def test_files_with_environments_are_for_nobody_else_to_read(tmp_path: Path) -> None:
    folders.write_file(str(tmp_path / "deep" / "0.json"), json.dumps({"TOKEN": "secret"}))
    assert (tmp_path / "deep" / "0.json").stat().st_mode & 0o777 == 0o600


def agent_told(config: dict[str, Any], folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Its exit code and its own words."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    done = subprocess.run([sys.executable, "-I", "-S", AGENT, path], capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]


def test_a_configuration_of_a_newer_version_ends_the_gang_in_a_sentence_that_names_both(tmp_path: Path) -> None:
    testament = tmp_path / "testament"
    code, words = agent_told({"version": VERSION + 1, "node": 1, "testament": str(testament)}, tmp_path)
    (over,) = words
    assert (code, over["event"], over["outcome"]["cause"], over["outcome"]["node"]) == (1, "over", "version", 1)
    assert json.loads(testament.read_text())["cause"] == "version"
    outcome = outcome_of(over["outcome"], ["a", "b"], 2)
    assert outcome.verdict is Verdict.FAILED
    assert f"up to version {VERSION}, and was given one of version {VERSION + 1}." in outcome.reason


def test_a_pod_that_is_given_a_newer_configuration_touches_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"version": VERSION + 1, "cwd": str(tmp_path / "work")}
    monkeypatch.setenv("PUMASI_BOOT_CONFIG", base64.b64encode(zlib.compress(json.dumps(config).encode())).decode())
    assert pod() == config
    assert not (tmp_path / "work").exists()


def test_fields_that_are_unknown_are_ignored_and_missing_ones_have_a_default(tmp_path: Path) -> None:
    rank = {"rank": 0, "command": ["/bin/true"], "env": {}, "mood": "good"}
    config = {"gang": f"defaults.{os.getpid()}.0", "dir": str(tmp_path), "ranks": [rank], "colour": "blue"}
    code, words = agent_told({**config, "deciders": [0]}, tmp_path)
    assert (code, words[-1]["outcome"]) == (0, {"cause": "done"})


def test_configurations_are_of_a_version_that_the_agent_knows() -> None:
    assert AGENT_VERSION == VERSION


@pytest.mark.parametrize("name", sorted(agent_files()))
def test_python_3_8_can_read_the_agent_which_needs_the_standard_library_and_itself_only(name: str) -> None:
    tree = ast.parse(agent_files()[name], feature_version=(3, 8))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.partition(".")[0] == "pumasi"}
    assert {name.partition(".")[0] for name in names - ours} <= set(sys.stdlib_module_names)
    assert all(module_file(name) in agent_files() for name in ours)


def module_file(name: str) -> str:
    base = name.replace(".", "/")
    return f"{base}/__init__.py" if f"{base}/__init__.py" in agent_files() else f"{base}.py"
