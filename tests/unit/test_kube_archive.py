"""The output that is kept in the cluster: in pieces that it takes, complete, in order, and bounded."""

from __future__ import annotations

import base64
import gzip
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumasi.errors import Unreachable
from pumasi.pools.kubernetes import kept_output
from pumasi.pools.kubernetes.kept_output import LARGEST, MOST, NUMBER, Archive, chunk, pieces
from pumasi.pools.kubernetes.manifests import ATTEMPT, KIND, RUN, Owner
from tests.fake_cluster import NAMESPACE, FakeApi
from tests.serving import asynchronous

RUN_ID = "train-abcde"
OWNER = Owner("ConfigMap", RUN_ID, "owner")


def frames(count: int, start: int = 1) -> bytes:
    return b"".join(b"0.%d 1763240000123|loss: 0.31\n" % seq for seq in range(start, start + count))


def noise(size: int) -> bytes:
    """Lines that no compression makes smaller, as long as the agent lets them be."""
    dice = random.Random(7)
    lines = (dice.randbytes(4096).replace(b"\n", b"?") for _ in range(size // 4096))
    return b"".join(b"0.%d 1763240000123|%s\n" % (seq, line) for seq, line in enumerate(lines, start=1))


async def opened(api: FakeApi) -> Archive:
    kept = Archive(api, NAMESPACE, RUN_ID, OWNER)
    await kept.open()
    return kept


async def output(api: FakeApi) -> dict[int, bytes]:
    """What can be read, by attempt."""
    kept: dict[int, bytes] = {}
    for attempt, part in await kept_output.read(api, NAMESPACE, RUN_ID):
        kept[attempt] = kept.get(attempt, b"") + part
    return kept


# ---- chunks


def test_output_as_people_write_it_is_one_piece() -> None:
    text = frames(100_000)
    ((size, packed),) = pieces(text)
    assert size == len(text)
    assert gzip.decompress(packed) == text


def test_output_that_does_not_shrink_is_cut_between_lines() -> None:
    text = noise(kept_output.RAW)
    cut = pieces(text)
    assert len(cut) > kept_output.RAW // LARGEST
    assert all(len(packed) <= LARGEST for _, packed in cut)
    parts = [gzip.decompress(packed) for _, packed in cut]
    assert [len(part) for part in parts] == [size for size, _ in cut]
    assert all(part.endswith(b"\n") for part in parts)
    assert b"".join(parts) == text


def test_a_piece_is_an_object_of_the_run_with_its_attempt_and_its_number() -> None:
    thing = chunk(RUN_ID, OWNER, 2, 5, b"packed")
    assert thing["metadata"]["name"] == "train-abcde-log-5"
    labels = thing["metadata"]["labels"]
    assert (labels[RUN], labels[KIND], labels[ATTEMPT], labels[NUMBER]) == (RUN_ID, "log", "2", "5")
    assert thing["metadata"]["ownerReferences"] == [OWNER.reference]
    assert base64.b64decode(thing["binaryData"]["frames"]) == b"packed"


# ---- adding and reading


@asynchronous
async def test_what_was_added_is_read_back_in_the_order_of_its_attempts() -> None:
    api = FakeApi()
    kept = await opened(api)
    kept.add(0, frames(2))
    kept.add(1, frames(1))
    kept.add(0, frames(1, start=3))
    assert api.cluster.names("configmaps") == []
    await kept.flush()
    kept.add(1, frames(1, start=2))
    await kept.flush()
    assert await kept_output.read(api, NAMESPACE, RUN_ID) == [(0, frames(3)), (1, frames(1)), (1, frames(1, start=2))]


@asynchronous
async def test_the_output_of_other_runs_is_not_among_it() -> None:
    api = FakeApi()
    other = Archive(api, NAMESPACE, "other-abcde", OWNER)
    other.add(0, frames(9))
    await other.flush()
    kept = await opened(api)
    kept.add(0, frames(1))
    await kept.flush()
    assert await output(api) == {0: frames(1)}


@asynchronous
async def test_nothing_new_writes_nothing() -> None:
    api = FakeApi()
    kept = await opened(api)
    kept.add(0, frames(1))
    await kept.flush()
    before = api.calls
    await kept.flush()
    assert api.calls == before


@asynchronous
async def test_numbers_are_sorted_as_numbers() -> None:
    api = FakeApi()
    kept = await opened(api)
    for seq in range(1, 13):
        kept.add(0, frames(1, start=seq))
        await kept.flush()
    assert await output(api) == {0: frames(12)}


@asynchronous
async def test_it_is_full_when_there_is_a_chunk_and_empty_when_that_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_output, "RAW", 100)
    kept = await opened(FakeApi())
    kept.add(0, b"x" * 99)
    assert not kept.is_full
    kept.add(1, b"\n")
    assert kept.is_full
    await kept.flush()
    assert not kept.is_full


@asynchronous
async def test_of_a_run_that_writes_much_the_oldest_goes_first() -> None:
    api = FakeApi()
    kept = await opened(api)
    for seq in range(1, MOST + 4):
        kept.add(0, frames(1, start=seq))
        await kept.flush()
    assert len(api.cluster.names("configmaps")) == MOST
    assert await output(api) == {0: frames(MOST, start=4)}


@asynchronous
async def test_a_second_manager_goes_on_with_the_next_number() -> None:
    api = FakeApi()
    first = await opened(api)
    first.add(0, frames(2))
    await first.flush()
    second = await opened(api)
    second.add(0, frames(2, start=3))
    await second.flush()
    assert api.cluster.names("configmaps") == [f"{RUN_ID}-log-0", f"{RUN_ID}-log-1"]
    assert await output(api) == {0: frames(4)}


# ---- trouble


@asynchronous
async def test_what_fails_to_be_written_is_written_the_next_time_with_what_came_since() -> None:
    api = FakeApi()
    kept = await opened(api)
    kept.add(0, frames(2))
    kept.add(1, frames(1))
    api.unreachable = True
    with pytest.raises(Unreachable):
        await kept.flush()
    kept.add(0, frames(1, start=3))
    api.unreachable = False
    await kept.flush()
    assert await output(api) == {0: frames(3), 1: frames(1)}


@asynchronous
async def test_a_failure_in_the_middle_repeats_nothing_that_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_output, "LARGEST", 20_000)
    api = FakeApi()
    kept = await opened(api)
    text = noise(160_000)
    kept.add(0, text)
    left = iter(range(3))

    def fail_later(verb: str, path: str) -> None:
        if verb == "create" and next(left, None) is None:
            raise Unreachable("The link is broken.")

    api.before = fail_later
    with pytest.raises(Unreachable):
        await kept.flush()
    assert len(api.cluster.names("configmaps")) == 3
    api.before = lambda verb, path: None
    await kept.flush()
    assert await output(api) == {0: text}


@asynchronous
async def test_a_lost_answer_to_a_creation_costs_nothing() -> None:
    api = FakeApi()
    kept = await opened(api)
    kept.add(0, frames(2))
    api.losing = {"create"}
    await kept.flush()
    kept.add(0, frames(2, start=3))
    await kept.flush()
    assert await output(api) == {0: frames(4)}


@asynchronous
async def test_a_number_that_another_manager_has_taken_is_left_to_it() -> None:
    api = FakeApi()
    late, new = await opened(api), await opened(api)
    late.add(0, frames(2))
    await late.flush()
    new.add(0, frames(2, start=3))
    await new.flush()
    assert await output(api) == {0: frames(4)}


Additions = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans(), st.booleans()), max_size=12)


@settings(max_examples=40)
@given(additions=Additions)
def test_whatever_happens_what_is_read_is_what_was_added(additions: list[tuple[int, int, bool, bool]]) -> None:
    """Each addition may be followed by a flush, which may be refused."""

    @asynchronous
    async def check() -> None:
        api = FakeApi()
        kept = await opened(api)
        added: dict[int, bytes] = {}
        for attempt, count, flush, fail in additions:
            new = frames(count, start=added.get(attempt, b"").count(b"\n") + 1)
            added[attempt] = added.get(attempt, b"") + new
            kept.add(attempt, new)
            api.unreachable = fail
            if flush and fail:
                with pytest.raises(Unreachable):
                    await kept.flush()
            elif flush:
                await kept.flush()
            api.unreachable = False
        await kept.flush()
        assert await output(api) == added

    check()
