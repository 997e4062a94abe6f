"""A container's log, over breaks, repetitions, rotations and excuses: every line once, or a gap in numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain, pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.errors import Forbidden, NotThere, Rejected, Unreachable
from pumasi.kube import logs
from pumasi.kube.api import Api
from pumasi.kube.config import Connection
from pumasi.kube.logs import Sieve, follow
from tests.serving import Handler, Request, Step, answer, asynchronous, chunked, in_turn, refusal, serve, silence, until

WAITING = refusal(400, 'container "main" in pod "a" is waiting to start: ContainerCreating')
GONE = refusal(404, 'pods "a" not found')
WORDS = b'@{"event": "running"}'


def frame(rank: int, seq: int) -> bytes:
    return b"%d.%d 1763240000123|line %d" % (rank, seq, seq)


def frames(rank: int, numbers: Iterable[int]) -> bytes:
    return b"".join(frame(rank, seq) + b"\n" for seq in numbers)


def timed(lines: bytes, second: int = 0) -> bytes:
    """As the kubelet tells them; every line has a time of its own within the second."""
    each = lines.split(b"\n")[:-1]
    return b"".join(b"2026-11-16T10:00:%02d.%09dZ %s\n" % (second, place, line) for place, line in enumerate(each))


def sieved(sieve: Sieve, wire: bytes, cuts: Sequence[int] = ()) -> bytes:
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    return b"".join(sieve.pass_on(wire[start:end]) for start, end in pairwise(edges))


# ---- the sieve


def test_what_was_passed_on_is_not_passed_on_again() -> None:
    sieve = Sieve()
    assert sieved(sieve, timed(frames(0, range(1, 6)))) == frames(0, range(1, 6))
    sieve.restart()
    assert sieved(sieve, timed(frames(0, range(3, 9)))) == frames(0, range(6, 9))
    assert sieve.missing == {}


def test_a_jump_in_the_numbers_of_a_rank_is_a_gap_of_that_rank() -> None:
    sieve = Sieve({0: 10, 1: 20})
    wire = frames(0, [9, 10, 11, 15]) + frames(1, [21, 22]) + frames(2, [4]) + frames(0, [17])
    assert sieved(sieve, timed(wire)) == frames(0, [11, 15]) + frames(1, [21, 22]) + frames(2, [4]) + frames(0, [17])
    assert sieve.missing == {0: 4, 2: 3}


def test_the_agents_own_words_pass_once_for_each_time_that_they_were_said() -> None:
    sieve = Sieve()
    said = timed(WORDS + b"\n", 1) + timed(WORDS + b"\n", 2)
    assert sieved(sieve, said) == WORDS + b"\n" + WORDS + b"\n"
    sieve.restart()
    assert sieved(sieve, said + timed(frames(0, [1]), 3)) == frames(0, [1])
    assert sieve.take_others() == []


def test_lines_that_are_nobodys_are_kept_apart_and_come_once() -> None:
    sieve = Sieve()
    excuse = b"unable to retrieve container logs for containerd://abc\n"
    wire = timed(b"Traceback (most recent call last):\n\n@torn{\n@[\n") + excuse + timed(frames(0, [1]), 1)
    for _ in range(2):
        sieve.restart()
        sieved(sieve, wire)
    others = ["Traceback (most recent call last):", "", "@torn{", "@[", excuse.decode().rstrip()]
    assert sieve.take_others() == others
    assert sieve.take_others() == []


def test_a_torn_line_waits_for_its_rest_and_comes_anew_after_a_break() -> None:
    sieve = Sieve()
    whole = timed(frames(0, [1, 2]))
    assert sieve.pass_on(whole[:-5]) == frames(0, [1])
    sieve.restart()
    assert sieve.pass_on(whole) == frames(0, [2])
    assert sieve.pass_on(timed(frames(0, [3]))[:-1]) == b""
    assert sieve.finish() == frames(0, [3])
    assert sieve.finish() == b""
    assert sieve.take_others() == []


@pytest.mark.parametrize(
    ("time", "since"),
    [
        ("2026-11-16T10:00:59.999999999Z", "2026-11-16T10:00:58Z"),
        ("2026-11-16T00:00:00Z", "2026-11-15T23:59:59Z"),
        ("2026-11-16T10:00:59.5+09:00", "2026-11-16T10:00:58+09:00"),
    ],
)
def test_the_log_is_asked_for_again_from_a_second_before_its_last_line(time: str, since: str) -> None:
    sieve = Sieve()
    assert sieve.since == ""
    sieve.pass_on(f"{time} anything\n".encode())
    assert sieve.since == since


LINES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 30)).map(lambda pair: frame(*pair))
    | st.sampled_from([WORDS, b'@{"event": "over"}', b"@torn", b"Traceback", b"", b"\xff\xfe", b"0.1 17|x"]),
    max_size=30,
).map(lambda lines: b"".join(line + b"\n" for line in lines))


@given(lines=LINES, cuts=st.lists(st.integers(0, 2000)), untimed=st.binary(max_size=20))
def test_wherever_the_wire_cuts_the_result_is_the_same(lines: bytes, cuts: list[int], untimed: bytes) -> None:
    wire = timed(lines) + untimed + b"\n"
    whole, cut, crumbs = Sieve(), Sieve(), Sieve()
    results = [sieved(whole, wire), sieved(cut, wire, cuts), sieved(crumbs, wire, range(len(wire)))]
    assert results[0] == results[1] == results[2]
    assert whole.missing == cut.missing == crumbs.missing
    assert whole.take_others() == cut.take_others() == crumbs.take_others()


@given(total=st.integers(0, 60), breaks=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4000))))
def test_however_often_it_breaks_every_line_comes_once_and_in_order(total: int, breaks: list[tuple[int, int]]) -> None:
    """Each break is at some byte, and the next stream begins at some line that was had, or before it."""
    everything = frames(0, range(1, total + 1)) + WORDS + b"\n"
    sieve, got, had = Sieve(), b"", 0
    wire = timed(everything)
    starts = [0, *(place + 1 for place, byte in enumerate(wire) if byte == ord("\n"))]
    for back, length in [*breaks, (0, len(wire))]:
        begin = starts[max(0, had - back)]
        sieve.restart()
        got += sieved(sieve, wire[begin : begin + length])
        had = got.count(b"\n")
    assert got == everything
    assert sieve.missing == {}


# ---- following


class Reader:
    """`follow` at work; `ended` says whether the container is known to have ended."""

    def __init__(self) -> None:
        self.got = b""
        self.others: list[str] = []
        self.ended = False
        self.sieve = Sieve()

    def deliver(self, chunk: bytes) -> None:
        self.got += chunk

    def start(self, api: Api, idle: float) -> None:
        over = (self.sieve, lambda: self.ended, self.deliver, self.others.append)
        self.task = asyncio.ensure_future(follow(api, "ns", "a", *over, idle=idle))

    async def hears(self, lines: bytes) -> None:
        await until(lambda: len(self.got) >= len(lines) or self.task.done())
        assert self.got == lines


@asynccontextmanager
async def reading(*steps: Step, idle: float = 10.0) -> AsyncIterator[tuple[Reader, list[Request]]]:
    async with serve(in_turn(*steps)) as server, Api(Connection("c", server.url, "ns")) as api:
        reader = Reader()
        reader.start(api, idle)
        try:
            yield reader, server.requests
        finally:
            reader.task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await reader.task


def part(wire: bytes, *, clean: bool = True, linger: bool = False) -> Handler:
    """A stream that has these bytes, and then ends, breaks or goes on without a word."""

    async def handler(request: Request) -> bytes | None:
        await request.send(chunked([wire], end=False))
        if linger:
            await silence(request)
        return b"0\r\n\r\n" if clean else None

    return handler


@asynchronous
async def test_it_is_over_when_the_container_has_ended_and_the_log_was_read_to_its_end_after_that() -> None:
    all_of_it = timed(frames(0, range(1, 6)) + WORDS + b"\n")
    async with reading(part(all_of_it[:200]), part(all_of_it), chunked([all_of_it])) as (reader, asked):
        await reader.hears(frames(0, range(1, 6)) + WORDS + b"\n")
        assert not reader.task.done()
        reader.ended = True
        await reader.task
        await reader.hears(frames(0, range(1, 6)) + WORDS + b"\n")
        assert [each.query["follow"] for each in asked] == ["true", "true", "false"]
        assert [each.query.get("sinceTime") for each in asked] == [None, *["2026-11-16T09:59:59Z"] * 2]


@asynchronous
async def test_breaks_torn_lines_and_repetitions_leave_no_trace() -> None:
    wire = timed(frames(0, range(1, 41)))
    torn = [part(wire[:333], clean=False), part(wire[:777], clean=False), part(wire[:1501])]
    async with reading(*torn, part(wire, linger=True)) as (reader, _):
        await reader.hears(frames(0, range(1, 41)))
        assert reader.sieve.missing == {}
        assert reader.others == []


@asynchronous
async def test_a_link_that_was_cut_silently_is_left_for_a_new_one() -> None:
    first, second = timed(frames(0, [1])), timed(frames(0, [1, 2]))
    async with reading(part(first, linger=True), part(second, linger=True), idle=0.1) as (reader, _):
        await reader.hears(frames(0, [1, 2]))


@asynchronous
async def test_what_was_rotated_away_is_a_gap() -> None:
    steps = [part(timed(frames(0, [1, 2]))), part(timed(frames(0, [1000, 1001]), 5), linger=True)]
    async with reading(*steps) as (reader, _):
        await reader.hears(frames(0, [1, 2, 1000, 1001]))
        assert reader.sieve.missing == {0: 997}


@asynchronous
async def test_a_container_that_has_not_started_is_waited_for() -> None:
    unbound = refusal(400, "pod a does not have a host assigned")
    busy = refusal(500, "Get https://10.0.0.1:10250/containerLogs: connection refused")
    kubelet = refusal(404, 'pod "a" does not exist')
    async with reading(unbound, WAITING, busy, kubelet, part(timed(frames(0, [1])), linger=True)) as (reader, _):
        await reader.hears(frames(0, [1]))


@asynchronous
async def test_excuses_and_last_words_of_others_are_handed_over_once() -> None:
    excuse = answer(b"failed to try resolving symlinks in path /var/log/pods/a: no such file or directory")
    crash = timed(b"python3: can't open file 'agent.py'\n")
    async with reading(excuse, part(crash, clean=False), part(crash, clean=False), chunked([crash])) as (reader, _):
        await until(lambda: reader.others)
        reader.ended = True
        await reader.task
        assert reader.got == b""
        assert "python3: can't open file 'agent.py'" in reader.others
        assert len(reader.others) == len(set(reader.others))


@asynchronous
async def test_the_last_line_counts_even_if_nothing_ended_it() -> None:
    async with reading(WAITING, chunked([timed(frames(0, [1, 2]))[:-1]])) as (reader, asked):
        await until(lambda: asked)
        reader.ended = True
        await reader.task
        assert reader.got == frames(0, [1, 2])


@pytest.mark.parametrize("answered", [GONE, WAITING], ids=["gone", "never started"])
@asynchronous
async def test_of_a_pod_that_is_gone_or_never_started_nothing_is_left_to_read(answered: bytes) -> None:
    async with reading(WAITING, answered) as (reader, asked):
        await until(lambda: asked)
        reader.ended = True
        await reader.task
        assert reader.got == b""


@asynchronous
async def test_the_end_is_noticed_while_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the pause between two tries is over."""
    monkeypatch.setattr(logs, "pauses", lambda: chain([0.01] * 4, repeat(20.0)))
    async with reading(*[WAITING] * 5, chunked([timed(frames(0, [1]))])) as (reader, asked):
        await until(lambda: len(asked) == 5)
        reader.ended = True
        await asyncio.wait_for(reader.task, 15)
        assert reader.got == frames(0, [1])


@pytest.mark.parametrize(
    ("answered", "kind"),
    [
        (refusal(403, "pods/log is forbidden"), Forbidden),
        (refusal(400, "container x is not valid for pod a"), Rejected),
    ],
)
@asynchronous
async def test_what_can_never_be_read_is_told(answered: bytes, kind: type[Exception]) -> None:
    async with reading(answered) as (reader, _):
        with pytest.raises(kind):
            await reader.task


@pytest.mark.parametrize(
    ("answered", "kind"),
    [(refusal(500, "dial tcp 10.0.0.1:10250: i/o timeout"), Unreachable), (refusal(404, "not here"), NotThere)],
)
@asynchronous
async def test_the_rest_of_a_log_on_a_lost_node_is_given_up_after_a_while(
    answered: bytes, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LAST_PATIENCE", 0.5)
    async with reading(part(timed(frames(0, [1]))), *[answered] * 9) as (reader, _):
        await reader.hears(frames(0, [1]))
        reader.ended = True
        with pytest.raises(kind):
            await reader.task


def test_every_line_of_these_tests_is_what_an_agent_writes() -> None:
    from pumasi.core.frames import parse_frame

    parsed = parse_frame(frame(3, 17))
    assert parsed is not None
    assert (parsed.rank, parsed.seq, parsed.text) == (3, 17, b"line 17")
    assert json.loads(WORDS[1:])
