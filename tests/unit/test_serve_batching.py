"""Inputs that arrive together are answered together, each with its own answer, or a refusal in time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.serve.batching import Batcher, Line, Waiting, padded
from pumasi.serve.http import Refusal
from pumasi.serve.limits import Limits, Rates, client_of
from tests.serving import asynchronous, until

LIMITS = Limits(queue=10, batch=4, wait=0.5)


def waiting(loop: asyncio.AbstractEventLoop, since: float = 0.0, shape: tuple[int, ...] = (2,)) -> Waiting:
    return Waiting(np.zeros(shape), loop.create_future(), since)


@given(st.integers(1, 200))
def test_a_batch_is_padded_to_a_power_of_two(count: int) -> None:
    rows = [np.full(3, number) for number in range(count)]
    batch = padded(rows)
    assert len(batch) & (len(batch) - 1) == 0
    assert count <= len(batch) < 2 * count
    assert (batch[:count] == np.stack(rows)).all()


@asynchronous
async def test_a_batch_begins_when_it_is_full_or_somebody_has_waited_long_enough() -> None:
    loop, line = asyncio.get_running_loop(), Line(LIMITS)
    assert line.due() is None
    line.join([waiting(loop, 7.0), waiting(loop, 7.1)])
    assert line.due() == 7.5
    line.join([waiting(loop, 7.2), waiting(loop, 7.2), waiting(loop, 7.2)])
    assert line.due() == 7.0
    assert len(line.take()) == 4
    assert line.due() == 7.7


@asynchronous
async def test_who_has_gone_away_is_not_waited_for_and_shapes_are_not_mixed() -> None:
    loop, line = asyncio.get_running_loop(), Line(LIMITS)
    here, gone, other = waiting(loop), waiting(loop), waiting(loop, shape=(3,))
    line.join([gone, here, other])
    gone.answer.cancel()
    assert line.take() == [here]
    assert line.take() == [other]
    assert line.take() == []


@asynchronous
async def test_all_of_a_request_have_room_or_none() -> None:
    loop, line = asyncio.get_running_loop(), Line(LIMITS)
    line.join([waiting(loop) for _ in range(8)])
    with pytest.raises(Refusal) as caught:
        line.join([waiting(loop) for _ in range(3)])
    assert (caught.value.status, caught.value.after) == (503, 1)
    assert len(line) == 8
    line.join([waiting(loop) for _ in range(2)])


def doubled(rows: Any) -> Any:
    return rows[:, None] * 2


@asynchronous
async def test_everybody_gets_their_own_answer() -> None:
    sizes: list[int] = []
    batcher = Batcher(doubled, Limits(batch=8, queue=1000), sizes.append)
    answers = await asyncio.gather(*(batcher.predict([np.array([number])]) for number in range(100)))
    assert [answer[0].tolist() for answer in answers] == [[[2 * number]] for number in range(100)]
    assert max(sizes) == 8
    assert sum(sizes) == 100
    batcher.end()


@asynchronous
async def test_a_model_that_fails_or_hangs_is_a_refusal_and_the_next_one_is_answered() -> None:
    hold = threading.Event()

    def predict(rows: Any) -> Any:
        if rows[0, 0] == 1:
            raise RuntimeError("no such id\nand a long story")
        if rows[0, 0] == 2:
            hold.wait()
        return doubled(rows)

    batcher = Batcher(predict, Limits(prediction=1.5), lambda size: None)
    with pytest.raises(Refusal, match=r"^The model failed: no such id$"):
        await batcher.predict([np.array([1])])
    with pytest.raises(Refusal, match="took too long") as caught:
        await batcher.predict([np.array([2])])
    assert caught.value.status == 504
    assert not batcher.is_stuck
    await until(lambda: batcher.is_stuck)
    hold.set()
    assert (await batcher.predict([np.array([3])]))[0].tolist() == [[6]]
    assert not batcher.is_stuck
    batcher.end()


@asynchronous
async def test_a_batcher_that_ends_answers_who_waits_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    batcher = Batcher(doubled, Limits(), lambda size: None)
    answer = asyncio.ensure_future(batcher.predict([np.array([1])]))
    await asyncio.sleep(0)
    batcher.end()
    assert (await answer)[0].tolist() == [[2]]
    await until(lambda: set(threading.enumerate()) <= before)


@given(st.lists(st.floats(0, 3), max_size=60), st.integers(1, 5))
def test_no_client_gets_more_than_its_rate(pauses: list[float], rate: int) -> None:
    rates, now, allowed = Rates(rate), 0.0, 0
    for pause in pauses:
        now += pause
        wait = rates.take("a", now)
        allowed += wait == 0
        assert 0 <= wait <= 1
        assert allowed <= 2 * rate + now * rate + 1e-6
    assert rates.take("b", now) == 0


def test_who_waits_as_long_as_told_may_go_on() -> None:
    rates = Rates(0.25)
    assert rates.take("a", 0.0) == 0
    assert rates.take("a", 0.0) == 4
    assert rates.take("a", 4.0) == 0
    assert Rates(0).take("a", 0.0) == 0


def test_a_client_is_an_address_or_a_network_of_ipv6() -> None:
    assert client_of("10.0.0.1") == "10.0.0.1"
    assert client_of("::ffff:10.0.0.1") != client_of("::ffff:10.0.0.2")
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:2")
    assert client_of("fe80::1%eth0") == "fe80::"
    assert client_of("") == ""


def no_thirteen(rows: Any) -> Any:
    if (rows == 13).any():
        raise ValueError("13 brings bad luck")
    return doubled(rows)


@asynchronous
async def test_a_bad_input_is_nobody_elses() -> None:
    batcher = Batcher(no_thirteen, Limits(batch=8, queue=100), lambda size: None)
    asked = [batcher.predict([np.array([number])]) for number in range(10, 16)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = answers.pop(3)
    assert isinstance(refused, Refusal)
    assert "13 brings bad luck" in refused.message
    assert [answer[0].tolist() for answer in answers if isinstance(answer, list)] == [
        [[20]],
        [[22]],
        [[24]],
        [[28]],
        [[30]],
    ]


@asynchronous
async def test_who_began_before_the_end_is_still_answered() -> None:
    before = set(threading.enumerate())
    batcher = Batcher(doubled, LIMITS, lambda size: None)
    with batcher.in_use():
        batcher.end()
        await asyncio.sleep(0)
        answers = await batcher.predict([np.array([21])])
    assert answers[0].tolist() == [[42]]
    await until(lambda: set(threading.enumerate()) <= before)
