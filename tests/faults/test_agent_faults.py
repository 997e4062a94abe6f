"""Real agents, alone and as a star, and what may happen to them: ranks, peers, readers and strangers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from pumasi.agent.files import AGENT
from pumasi.agent.links import call_hub
from pumasi.agent.processes import family, kill_family
from pumasi.catalogue import make_spec
from pumasi.core.frames import Frame
from pumasi.pools.base import Order
from pumasi.pools.local.pool import LocalPool
from pumasi.testing.pools import Witness
from tests.agents import AgentProcess, Star, Stars, is_alive, making_stars
from tests.harness import wait_for

SLEEP = "echo ready; exec sleep 600"
DEAF = "trap '' TERM; echo ready; while :; do sleep 600; done"
TWO_NODES = {"a": 1, "b": 1}


@pytest.fixture
def stars(tmp_path: Path) -> Iterator[Stars]:
    yield from making_stars(tmp_path)


def assert_gapless(frames: list[Frame]) -> None:
    assert [frame.seq for frame in frames] == list(range(1, len(frames) + 1))


def memory_peak(pid: int) -> int:
    """Bytes of memory that the process has had at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process is gone")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# ---- output


def test_binary_rubbish_on_both_streams_comes_through_byte_by_byte(stars: Stars, tmp_path: Path) -> None:
    dice = random.Random(4)
    for name in ("out", "err"):
        rubbish = bytes(dice.choices(range(256), weights=[40 if b in b"\r\n" else 1 for b in range(256)], k=300_000))
        (tmp_path / name).write_bytes(rubbish)
    talker = stars.one("cat out & cat err >&2; wait")
    assert talker.ends()["cause"] == "done"
    assert talker.output() == (tmp_path / "out").read_bytes()
    assert talker.output(stderr=True) == (tmp_path / "err").read_bytes()
    assert_gapless(talker.frames())


def test_a_line_of_a_hundred_megabytes_neither_stops_nor_fills_the_agent(stars: Stars) -> None:
    size = 100_000_000
    talker = stars.one("head -c 100000000 /dev/zero | tr '\\0' x; echo; echo next; exec sleep 600")
    wait_for(lambda: any(line.endswith(b"|next") for line in talker.lines[-1:]), "the next line")
    assert memory_peak(talker.pid) < 60_000_000
    talker.stop(0)
    talker.ends()
    assert_gapless(talker.frames())
    assert sum(len(frame.text) for frame in talker.frames()) == size + len("next")


def test_text_without_a_newline_is_shown_after_a_moment(stars: Stars) -> None:
    talker = stars.one("printf 'Proceed? '; exec sleep 600")
    talker.wait_for_output(b"Proceed? ")
    talker.stop(0)
    assert talker.ends()["cause"] == "stopped"


def test_a_row_of_dots_is_seen_to_grow(stars: Stars) -> None:
    talker = stars.one("while :; do printf .; sleep 0.05; done")
    talker.wait_for_output(b"....")
    talker.stop(0)
    assert talker.ends()["cause"] == "stopped"


def test_ranks_wait_for_readers_that_do_not_read_while_the_star_goes_on(stars: Stars) -> None:
    star = stars(TWO_NODES, "exec yes 'a line of some length that nobody reads for a while'", silence=3.0)
    star.configs[1]["hub"][1] = star.start(0, deaf=True).listens_at()
    star.agents[1] = AgentProcess(star.configs[1], deaf=True)
    agents = list(star.agents.values())
    wait_for(lambda: len(star.ranks()) == 2, "both ranks")
    ranks = star.ranks()
    time.sleep(9)  # three times the silence after which a member counts as lost
    assert star.ranks() == ranks
    assert all(memory_peak(each.pid) < 60_000_000 for each in agents)
    agents[0].stop(0)
    for rank, each in enumerate(agents):
        each.listen()
        assert each.ends()["cause"] == "stopped"
        assert_gapless(each.frames(rank))


def test_a_failure_ends_the_gang_even_while_nobody_reads(stars: Stars, tmp_path: Path) -> None:
    command = "if [ $PUMASI_RANK = 1 ]; then until [ -e go ]; do sleep 0.1; done; exit 4; fi; exec yes"
    talker = stars.one(command, slots=2, deaf=True)
    star = stars.made[0]
    wait_for(lambda: len(star.ranks()) >= 2, "both ranks")
    (tmp_path / "go").touch()
    wait_for(lambda: not star.ranks(), "the end of the ranks")
    talker.listen()
    outcome = talker.ends()
    assert (outcome["rank"], outcome["code"]) == (1, 4)
    assert_gapless(talker.frames(0))
    assert [words["rank"] for words in talker.said("exit")] == [1, 0]


def test_a_late_reader_still_gets_everything_up_to_the_last_word(stars: Stars) -> None:
    talker = stars.one("yes 'some line that is longer than nothing' | head -n 100000", deaf=True)
    star = stars.made[0]
    wait_for(star.ranks, "the rank")
    talker.listen()
    assert talker.ends()["cause"] == "done"
    assert len(talker.frames()) == 100_000


def test_last_words_come_before_the_news_of_the_end_and_a_daemon_that_talks_on_does_not_delay_it(stars: Stars) -> None:
    talker = stars.one("(trap '' TERM; exec yes 'on and on') & seq 1000; exit 3", grace=1.0)
    outcome = talker.ends()
    assert (outcome["cause"], outcome["code"]) == ("exit", 3)
    news = next(index for index, line in enumerate(talker.lines) if line.startswith(b'@{"event": "exit"'))
    before = [line.rpartition(b"|")[2] for line in talker.lines[:news]]
    assert [line for line in before if line.isdigit()] == [b"%d" % number for number in range(1, 1001)]


# ---- starting


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cwd": "/no/such/folder"}, "/no/such/folder: No such file or directory"),
        ({"command": ["/no/such/program"]}, "/no/such/program: No such file or directory"),
        ({"command": ["/etc"]}, "/etc: Permission denied"),
        ({"env": {"BIG": "x" * 200_000}}, "/bin/true: Argument list too long"),
        ({"env": {"NUL": "a\0b"}}, "/bin/true: embedded null byte"),
        ({"command": ["/no/\udce9"]}, "/no/\\udce9: No such file or directory"),
    ],
)
def test_what_cannot_be_started_is_told(stars: Stars, change: dict[str, object], told: str) -> None:
    star = stars({"a": 1}, ["/bin/true"])
    config = star.configs[0]
    config["cwd"] = change.pop("cwd", config["cwd"])
    config["ranks"][0].update(change)
    outcome = star.start().ends()
    assert outcome["cause"] == "unstartable"
    assert outcome["error"] == told


def test_a_folder_that_cannot_be_written_is_told(stars: Stars, tmp_path: Path) -> None:
    star = stars({"a": 1}, ["true"], files={"shim/sitecustomize.py": ""})
    Path(star.configs[0]["dir"]).mkdir(parents=True)
    (Path(star.configs[0]["dir"]) / "shim").touch()
    outcome = star.start().ends()
    assert outcome["cause"] == "unstartable"
    assert "shim" in outcome["error"]


def test_a_hub_whose_port_is_taken_says_so(stars: Stars) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        star = stars(TWO_NODES, "true")
        star.configs[0]["hub"] = ["127.0.0.1", taken.getsockname()[1]]
        outcome = star.start().ends()
    assert outcome["cause"] == "unstartable"
    assert "Address already in use" in outcome["error"]


def test_a_rank_starts_with_ordinary_signals_and_no_input_in_a_group_of_its_own(stars: Stars) -> None:
    code = (
        "import os, signal, sys\n"
        "print([signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)])\n"
        "print(os.getpgrp() == os.getsid(0) == os.getpid(), repr(sys.stdin.read()))\n"
        "print([line for line in open('/proc/self/status') if line.startswith('SigBlk')])\n"
    )
    pipe = "grep SigIgn /proc/self/status"
    nohup = ["sh", "-c", "trap '' INT HUP TERM; exec \"$@\"", "sh"]
    talker = stars.one(f"{pipe}; exec {sys.executable} -c {json.dumps(code)}".replace("\\n", "\n"), prefix=nohup)
    talker.ends()
    ignored, handlers, group, blocked = talker.output().decode().splitlines()
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGINT - 1)) == 0
    assert handlers == "[False, False, False]"
    assert group == "True ''"
    assert "0000000000000000" in blocked


def test_256_ranks_fit_into_1024_open_files_and_give_them_back(stars: Stars) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = "[ $PUMASI_RANK = 0 ] || exit 0; echo ready; read line < fifo"
    os.mkfifo(stars.folder / "fifo")
    talker = stars.one(command, slots=256, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard)))
    wait_for(lambda: len(talker.said("exit")) == 255, "255 ranks to end")
    wait_for(lambda: open_files(talker.pid) < 20, "their files to be closed")
    (stars.folder / "fifo").write_text("go\n")
    assert talker.ends()["cause"] == "done"
    assert {words["rank"] for words in talker.said("exit")} == set(range(256))


# ---- ending


def test_exit_codes_and_signals_of_all_ranks_are_told_even_when_they_had_to_be_killed(stars: Stars) -> None:
    talker = stars.one(DEAF, slots=3)
    for rank in range(3):
        talker.wait_for_output(b"ready", rank)
    talker.stop(0)
    assert talker.ends()["cause"] == "stopped"
    assert sorted((w["rank"], w["code"], w["signal"]) for w in talker.said("exit")) == [
        (rank, None, "SIGKILL") for rank in range(3)
    ]


def test_a_stop_that_comes_with_the_configuration_is_obeyed(stars: Stars) -> None:
    talker = stars.one(SLEEP, more=b'{"grace": 0}\n')
    assert talker.ends()["cause"] == "stopped"


def test_rubbish_on_the_lifeline_is_passed_over(stars: Stars) -> None:
    talker = stars.one(SLEEP)
    talker.wait_for_output(b"ready")
    talker.send(b'\n[]\n{"x": 1}\n\xff\xff\n{"grace": "soon"}\n{"gra')
    talker.send(b'ce": 5}\n')
    assert talker.ends()["cause"] == "stopped"


def test_sigterm_stops_the_gang_and_leaves_it_its_grace(stars: Stars) -> None:
    talker = stars.one("trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    talker.wait_for_output(b"ready")
    talker.signal(signal.SIGTERM)
    assert talker.ends()["cause"] == "stopped"
    assert talker.output() == b"ready\nsaved\n"
    assert talker.process.returncode == 1


def test_an_agent_whose_parent_dies_ends_what_it_started(stars: Stars) -> None:
    talker = stars.one(DEAF, slots=2, grace=0.5)
    for rank in range(2):
        talker.wait_for_output(b"ready", rank)
    talker.cut_lifeline()
    assert talker.ends()["cause"] == "parent died"


def test_an_agent_whose_output_nobody_can_read_any_more_ends_what_it_started(stars: Stars) -> None:
    talker = stars.one("while :; do echo on; sleep 0.1; done", deaf=True)
    assert talker.process.stdout is not None
    wait_for(stars.made[0].ranks, "the rank")
    talker.process.stdout.close()
    talker.process.wait(60)


def test_nobody_gets_away_by_leaving_session_parent_and_environment_behind(stars: Stars, tmp_path: Path) -> None:
    away = "env -i setsid sh -c 'trap \"\" TERM; echo $$ > away; while :; do sleep 600; done' > /dev/null 2>&1 &"
    talker = stars.one(f"({away}); until [ -s away ]; do sleep 0.05; done; echo done", grace=0.5)
    assert talker.ends()["cause"] == "done"
    assert not is_alive(int((tmp_path / "away").read_text()))


def test_nobody_outruns_the_end_by_forking(stars: Stars) -> None:
    runner = "import os, time\nwhile True:\n  if os.fork() == 0: os.setsid(); time.sleep(0.001)\n  else: os._exit(0)"
    talker = stars.one(["/bin/sh", "-c", f"{sys.executable} -S -c '{runner}' & echo ready; wait; exec sleep 600"])
    talker.wait_for_output(b"ready")
    talker.stop(0)
    assert talker.ends()["cause"] == "stopped"


def test_the_agent_buries_the_orphans_that_it_adopts(stars: Stars) -> None:
    talker = stars.one("for i in 1 2 3 4 5; do (setsid sh -c 'exit 1' &) ; done; echo ready; exec sleep 600")
    talker.wait_for_output(b"ready")
    children = Path(f"/proc/{talker.pid}/task/{talker.pid}/children")
    wait_for(lambda: len(children.read_text().split()) == 1, "the agent to have one child left")
    talker.stop(0)
    talker.ends()


def test_an_agent_that_fails_itself_leaves_nothing_behind_and_says_why(stars: Stars) -> None:
    star = stars(TWO_NODES, SLEEP, start_timeout=60.0)
    hub = star.start()
    sock = call_hub(("127.0.0.1", star.port), star.secret, "1", 30)
    sock.sendall(b'{"t": "here", "address": "127.0.0.2", "ports": {"1": 1}}\n')
    hub.wait_for_output(b"ready")
    sock.sendall(b'{"t": "nonsense"}\n')
    hub.process.wait(60)
    sock.close()
    hub.readers[0].join(60)
    assert b"on_nonsense" in hub.errors
    assert not star.ranks()


@pytest.fixture
def small_memory() -> Iterator[list[str]]:
    """A prefix for commands that puts them where there are 100 MB of memory and no more."""
    old = Path("/sys/fs/cgroup/memory")
    group = (old if old.is_dir() else old.parent) / f"pumasi-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text("100000000")
    except OSError as error:
        pytest.skip(f"there is no memory control group to be had here: {error}")
    yield ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    wait_for(lambda: not (group / "cgroup.procs").read_text(), "the control group to be empty")
    group.rmdir()


@pytest.mark.root
def test_a_rank_that_is_killed_for_its_memory_is_told_apart_from_one_that_somebody_killed(
    stars: Stars, small_memory: list[str]
) -> None:
    greedy = [sys.executable, "-c", "import os; held = os.urandom(1 << 20) * 1000"]
    outcome = stars.one(greedy, prefix=small_memory).ends()
    assert (outcome["cause"], outcome["signal"]) == ("oom", "SIGKILL")
    killed = stars.one("kill -9 $$", prefix=small_memory).ends()
    assert (killed["cause"], killed["signal"]) == ("signal", "SIGKILL")


# ---- the star


def test_a_gang_without_one_of_its_nodes_never_starts(stars: Stars, tmp_path: Path) -> None:
    star = stars({"a": 1, "b": 1, "c": 2}, "touch started", start_timeout=10.0)
    hub, member = star.start(0), star.start(1)
    assert hub.ends() == {"cause": "absent", "nodes": ["c"]}
    assert member.ends()["cause"] == "absent"
    assert not (tmp_path / "started").exists()


def test_a_member_that_is_lost_before_the_start_ends_the_gang(stars: Stars) -> None:
    star = stars({"a": 1, "b": 1, "c": 2}, SLEEP)
    hub = star.start()
    with call_hub(("127.0.0.1", star.port), star.secret, "1", 30) as sock:
        sock.sendall(b'{"t": "here", "address": "127.0.0.2", "ports": {"1": 1}}\n')
    outcome = hub.ends()
    assert (outcome["cause"], outcome["node"]) == ("silent", 1)
    assert not hub.said("exit")


def test_a_member_whose_call_broke_off_may_call_again(stars: Stars) -> None:
    star = stars(TWO_NODES, "true")
    hub = star.start()
    call_hub(("127.0.0.1", star.port), star.secret, "1", 30).close()
    assert star.start(1).ends()["cause"] == "done"
    assert hub.ends()["cause"] == "done"


def test_a_frozen_member_is_lost_after_its_silence_and_ends_itself_when_it_thaws(stars: Stars) -> None:
    star = stars(TWO_NODES, SLEEP, silence=3.0, grace=1.0)
    hub, member = star.start_all()
    member.wait_for_output(b"ready", 1)
    member.signal(signal.SIGSTOP)
    outcome = hub.ends()
    assert (outcome["cause"], outcome["node"]) == ("silent", 1)
    member.signal(signal.SIGCONT)
    assert member.ends()["cause"] in ("hub lost", "silent")


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_members_that_lose_their_hub_end_their_ranks(stars: Stars, blow: signal.Signals) -> None:
    star = stars(TWO_NODES, DEAF, silence=3.0, grace=0.5)
    hub, member = star.start_all()
    member.wait_for_output(b"ready", 1)
    hub.signal(blow)
    assert member.ends()["cause"] == "hub lost"
    hub.signal(signal.SIGKILL)
    kill_family(f"PUMASI_GANG={star.run}.")


def test_a_stop_at_any_member_stops_all(stars: Stars) -> None:
    star = stars({"a": 1, "b": 1, "c": 2}, SLEEP)
    hub, first, second = star.start_all()
    second.wait_for_output(b"ready", 3)
    first.signal(signal.SIGTERM)
    for each in (hub, first, second):
        assert each.ends()["cause"] == "stopped"


def test_a_failure_anywhere_ends_all_and_all_know_who_it_was(stars: Stars) -> None:
    star = stars({"a": 1, "b": 1, "c": 2}, "[ $PUMASI_RANK = 2 ] && { echo no >&2; exit 5; }; exec sleep 600")
    for each in star.start_all():
        outcome = each.ends()
        assert (outcome["cause"], outcome["rank"], outcome["node"], outcome["code"]) == ("exit", 2, 2, 5)
        assert outcome["tail"] == ["no"]


def test_twelve_nodes_do_not_take_each_other_for_their_own(stars: Stars) -> None:
    """Node 1 is done long before node 10: its agent must not end what is node 10's."""
    nodes = {f"n{number}": 1 for number in range(12)}
    star = stars(
        nodes, "[ $PUMASI_RANK = 1 ] && exit 0; until [ -e go ]; do sleep 0.2; done; echo end", framework="none"
    )
    agents = star.start_all()
    star.hub.wait_until_it_says("running")
    (stars.folder / "go").touch()
    for each in agents:
        assert each.ends()["cause"] == "done"
        assert not each.errors


def test_a_member_that_comes_late_is_waited_for_but_one_that_knows_no_secret_is_not_let_in(stars: Stars) -> None:
    star = stars(TWO_NODES, "echo $PUMASI_RANK")
    hub = star.start()
    false = json.loads(json.dumps({**star.configs[1], "secret": "wrong", "start_timeout": 1.0}))
    false["hub"][1] = star.port
    false["gang"] += "x"
    impostor = AgentProcess(false)
    assert impostor.ends()["cause"] == "no hub"
    assert not hub.said("running")
    member = star.start(1)
    assert hub.ends()["cause"] == "done"
    assert member.output(1) == b"1\n"


def test_a_member_does_not_obey_a_hub_that_knows_no_secret(stars: Stars) -> None:
    star = stars(TWO_NODES, "true", start_timeout=1.0)
    false_hub = star.configs[0]
    false_hub["secret"] = "wrong"
    star.start()
    member = star.start(1)
    assert member.ends()["cause"] == "no hub"
    assert not member.said("exit")


INSULTS = [
    b"[1]\n",
    b"null\n",
    b'"x"\n',
    b"\xff\xfe\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"[" * 60_000 + b"\n",
    b'{"who": "1", "proof": "\xc3\xa9\xc3\xa9"}\n',
    b'{"who": "\\ud800", "proof": "\\udfff", "nonce": {}}\n',
    b'{"who": ["1"], "proof": {"a": 1}}\n',
    b'{"who": "1", "proof": ""}\n{"t": "stop"}\n',
    b"x" * 200_000,
    b"",
]


def test_strangers_can_neither_get_in_nor_disturb(stars: Stars) -> None:
    star = stars(TWO_NODES, SLEEP)
    hub, member = star.start(0), None
    port = star.port
    for round_ in range(2):
        for insult in INSULTS:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as sock, contextlib.suppress(OSError):
                sock.sendall(insult)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
        if round_ == 0:
            member = star.start(1)
            member.wait_for_output(b"ready", 1)
    assert member is not None
    assert not hub.said("ending")
    hub.stop(1)
    assert hub.ends()["cause"] == "stopped"
    assert hub.errors == b""


def test_connections_that_only_wait_do_not_use_up_the_hub(stars: Stars) -> None:
    star = stars(TWO_NODES, "echo $PUMASI_RANK")
    hub = star.start()
    idle = [socket.create_connection(("127.0.0.1", star.port), timeout=30) for _ in range(300)]
    wait_for(lambda: open_files(hub.pid) > 60, "the hub to answer them")
    member = star.start(1)
    assert hub.ends()["cause"] == "done"
    assert member.ends()["cause"] == "done"
    assert hub.errors == b""
    for sock in idle:
        sock.close()


# ---- the pool that looks after them


def in_pool(star: Star, act: Callable[[Witness], Awaitable[None]]) -> Mapping[str, object]:
    """How the pool tells that the gang ended, after `act` has done to it what it does."""

    async def work() -> Mapping[str, object]:
        pool = LocalPool(make_spec(command=("x",)), stars_home(star), ())
        order = Order("main", 0, star.configs[0]["names"], star.configs)
        witness = Witness(order)
        await pool.launch(order, witness)
        await act(witness)
        facts = await witness.end()
        await pool.close()
        return facts

    return asyncio.run(work())


def stars_home(star: Star) -> Path:
    return Path(star.configs[0]["cwd"])


async def do_nothing(_: Witness) -> None:
    pass


def agent_of(star: Star, node: int) -> int:
    marked = family(f"PUMASI_GANG={star.configs[node]['gang']}")
    return next(pid for pid in marked if str(AGENT).encode() in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_the_pool_does_not_wait_for_a_frozen_agent_when_the_hub_has_said_how_it_ended(stars: Stars) -> None:
    star = stars(TWO_NODES, SLEEP, silence=3.0, grace=1.0)

    async def freeze(witness: Witness) -> None:
        await witness.until(lambda: bool(witness.all("running")))
        os.kill(agent_of(star, 1), signal.SIGSTOP)

    assert in_pool(star, freeze)["cause"] == "silent"


def test_the_pool_tells_why_an_agent_failed(stars: Stars) -> None:
    star = stars({"a": 1}, SLEEP)
    star.configs[0]["ranks"] = 7
    facts = in_pool(star, do_nothing)
    assert (facts["cause"], facts["node"]) == ("agent died", 0)
    assert "TypeError: 'int' object is not iterable" in str(facts["tail"])


def test_the_pool_ends_a_gang_of_which_one_agent_cannot_be_started(stars: Stars) -> None:
    star = stars({"a": 1, "b": 1, "c": 2}, SLEEP)
    Path(star.configs[1]["dir"]).parent.mkdir(parents=True)
    Path(star.configs[1]["dir"]).touch()
    facts = in_pool(star, do_nothing)
    assert (facts["cause"], facts["node"]) == ("unstartable", 1)
    assert "File exists" in str(facts["error"])


def test_a_pool_that_cannot_start_anything_says_so_at_once(stars: Stars) -> None:
    star = stars({"a": 1}, SLEEP)
    Path(star.configs[0]["dir"]).parent.mkdir(parents=True)
    Path(star.configs[0]["dir"]).touch()
    with pytest.raises(OSError, match="File exists"):
        in_pool(star, do_nothing)


# ---- other Pythons


def find_python(version: str) -> str | None:
    beside = [str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    probe = ["-c", f"import sys; sys.exit(not sys.version.startswith({version + '.'!r}))"]
    for python in [shutil.which(f"python{version}") or "false", *beside]:
        if subprocess.run([python, *probe], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return python
    return None


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_other_pythons_run_the_agent_too(stars: Stars, version: str) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"there is no python{version} on the PATH or under ~/.pyenv to run the agent with")
    star = stars({"a": 2, "b": 1}, "echo $PUMASI_RANK; echo oh >&2; [ $PUMASI_RANK = 2 ] && exit 3; exec sleep 600")
    for each in star.start_all(python=python):
        outcome = each.ends()
        assert (outcome["rank"], outcome["code"]) == (2, 3)
        assert each.errors == b""


# ---- MPI

MPIRUN = """#!/bin/sh
# Starts one rank a slot as mpirun does: by itself on the first host, through the rsh agent on the others.
shift 6
rank=0
while read host slots; do
    for slot in $(seq ${slots#slots=}); do
        if [ $rank = 0 ]; then
            OMPI_COMM_WORLD_RANK=$rank "$@" &
        else
            words="OMPI_COMM_WORLD_RANK=$rank $*"
            $OMPI_MCA_plm_rsh_agent $host "(" test ! -r ./.profile "||" . "./.profile;" "$words" ")" &
        fi
        rank=$((rank + 1))
    done
done < $OMPI_MCA_orte_default_hostfile
code=0
for job in $(jobs -p); do wait $job || code=$?; done
exit $code
"""
RANK = """
echo rank $PUMASI_RANK of node $PUMASI_NODE
ls /sys/class/net > net-$PUMASI_RANK
"""


@pytest.fixture
def mpirun(tmp_path: Path) -> str:
    path = tmp_path / "mpirun"
    path.write_text(MPIRUN)
    path.chmod(0o700)
    return str(path)


def rank_script(folder: Path, text: str) -> list[str]:
    (folder / "rank.sh").write_text(text)
    return ["/bin/sh", str(folder / "rank.sh")]


def test_mpirun_reaches_the_other_nodes_through_their_agents(stars: Stars, mpirun: str, tmp_path: Path) -> None:
    star = stars({"a": 1, "b": 2}, rank_script(tmp_path, RANK), framework="mpi", mpirun=mpirun)
    hub, member = star.start_all()
    assert hub.ends()["cause"] == "done"
    assert member.ends()["cause"] == "done"
    assert hub.output(0) == b"rank 0 of node a\n"
    assert (member.output(1), member.output(2)) == (b"rank 1 of node b\n", b"rank 2 of node b\n")


def test_a_rank_that_fails_under_mpirun_is_named(stars: Stars, mpirun: str, tmp_path: Path) -> None:
    failing = rank_script(tmp_path, "[ $PUMASI_RANK = 2 ] && { echo no >&2; kill -SEGV $$; }; exec sleep 600")
    star = stars({"a": 1, "b": 2}, failing, framework="mpi", mpirun=mpirun)
    outcome = star.start_all()[0].ends()
    assert (outcome["cause"], outcome["rank"], outcome["signal"]) == ("signal", 2, "SIGSEGV")
    assert outcome["tail"] == ["no"]


def test_an_mpirun_that_fails_by_itself_is_told_with_its_words(stars: Stars, tmp_path: Path, mpirun: str) -> None:
    Path(mpirun).write_text("#!/bin/sh\necho no such option >&2\nexit 9\n")
    outcome = stars({"a": 2}, ["true"], framework="mpi", mpirun=mpirun).start().ends()
    assert (outcome["cause"], outcome["code"], outcome["tail"]) == ("exit", 9, ["no such option"])


def test_a_launcher_of_the_users_has_what_it_runs_elsewhere_ended_with_its_rsh(stars: Stars, tmp_path: Path) -> None:
    script = (
        "rsh=$PUMASI_DIR/rsh; trap '' TERM\n"
        "$rsh 127.0.0.9 true; echo code $?\n"
        "$rsh 127.0.0.2 'echo said by it; exit 7' 2>&1; echo code $?\n"
        "$rsh 127.0.0.2 'echo $$ > away; exec sleep 600' &\n"
        "until [ -s away ]; do sleep 0.05; done; kill -9 $!\n"
        "while kill -0 $(cat away); do sleep 0.05; done 2> /dev/null; echo gone\n"
    )
    star = stars(TWO_NODES, script, framework="mpi", launcher=True)
    hub, member = star.start_all()
    assert hub.ends()["cause"] == "done"
    assert hub.output().decode().splitlines() == ["code 255", "said by it", "code 7", "gone"]
    assert b"no agent of this gang is on 127.0.0.9" in hub.output(stderr=True)
    assert member.ends()["cause"] == "done"


class Machine(NamedTuple):
    name: str
    cable: str
    address: str

    @property
    def prefix(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]


@pytest.fixture
def two_machines() -> Iterator[list[Machine]]:
    """Two network namespaces with a cable between them."""
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` (iproute2) to make network namespaces with")
    tag = f"{os.getpid() % 100000}{time.monotonic_ns() % 10000}"
    machines = [Machine(f"pumasi-{tag}-{n}", f"pm{tag}-{n}", f"10.203.0.{n}") for n in (1, 2)]
    try:
        for machine in machines:
            run_ip("netns", "add", machine.name)
        run_ip("link", "add", machines[0].cable, "type", "veth", "peer", "name", machines[1].cable)
        for name, cable, address in machines:
            run_ip("link", "set", cable, "netns", name)
            run_ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
            run_ip("-n", name, "link", "set", cable, "up")
            run_ip("-n", name, "link", "set", "lo", "up")
        yield machines
    finally:
        for machine in machines:
            subprocess.run(["ip", "netns", "delete", machine.name], stderr=subprocess.DEVNULL, check=False)


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.mark.root
def test_mpirun_reaches_another_machine_without_ssh(
    stars: Stars, two_machines: list[Machine], mpirun: str, tmp_path: Path
) -> None:
    addresses = [machine.address for machine in two_machines]
    command = rank_script(tmp_path, RANK)
    star = stars({"a": 1, "b": 2}, command, framework="mpi", mpirun=mpirun, addresses=addresses)
    agents = [star.start(node, prefix=machine.prefix) for node, machine in enumerate(two_machines)]
    for each in agents:
        assert each.ends()["cause"] == "done"
        assert each.errors == b""
    assert agents[1].output(2) == b"rank 2 of node b\n"
    for rank, machine in enumerate((two_machines[0], two_machines[1], two_machines[1])):
        assert machine.cable in (tmp_path / f"net-{rank}").read_text().split()


@pytest.mark.root
def test_a_machine_that_falls_off_the_network_is_lost_and_ends_itself(
    stars: Stars, two_machines: list[Machine]
) -> None:
    addresses = [machine.address for machine in two_machines]
    star = stars(TWO_NODES, DEAF, silence=3.0, grace=0.5, addresses=addresses)
    hub, member = (star.start(node, prefix=machine.prefix) for node, machine in enumerate(two_machines))
    member.wait_for_output(b"ready", 1)
    run_ip("-n", two_machines[1].name, "link", "set", two_machines[1].cable, "down")
    assert (hub.ends()["cause"], member.ends()["cause"]) == ("silent", "hub lost")
