"""What a server takes for a request, and what it refuses."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.serve.http import HEAD_LIMIT, Reader, Refusal, Request, Response, form_of, read_head, written

LIMIT = 1000


def read(data: bytes, pieces: int = 1) -> list[Request]:
    reader, found = Reader(lambda head: LIMIT), []
    size = max(1, -(-len(data) // pieces))
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
        while (request := reader.next()) is not None:
            found.append(request)
    return found


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [b"POST /predict HTTP/1.1", b"Host: here", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 400))
def test_requests_are_the_same_in_whatever_pieces_they_come(one: bytes, two: bytes, pieces: int) -> None:
    found = read(post(one) + b"\r\n" + post(two), pieces)
    assert [(each.method, each.path, each.body) for each in found] == [
        ("POST", "/predict", one),
        ("POST", "/predict", two),
    ]


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_request_or_a_refusal(data: bytes) -> None:
    with suppress(Refusal):
        assert all(request.path.startswith(("/", "*")) for request in read(data, 3))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
        (post(b"x", b"Content-Length: 2"), 400),
        (post(b"x", b"Transfer-Encoding: chunked"), 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: miracles\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * HEAD_LIMIT, 431),
    ],
)
def test_what_is_not_understood_without_doubt_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(Refusal) as caught:
        read(data)
    assert caught.value.status == status


def test_a_connection_lasts_unless_somebody_says_otherwise() -> None:
    assert read_head(b"GET / HTTP/1.1\r\nHost: a").lasting
    assert not read_head(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close").lasting
    assert not read_head(b"GET / HTTP/1.0").lasting
    assert read_head(b"GET / HTTP/1.0\r\nConnection: keep-alive").lasting


def test_who_waits_for_a_word_before_the_body_is_noticed() -> None:
    reader = Reader(lambda head: LIMIT)
    reader.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert reader.next() is None
    assert reader.continues
    reader.feed(b"ab")
    assert reader.next() is not None
    assert not reader.continues


def test_a_form_is_read_in_both_ways_in_which_browsers_send_it() -> None:
    body = b"text=a+b%26%ED%95%9C&example=1"
    (plain,) = read(post(body, b"Content-Type: application/x-www-form-urlencoded"))
    assert form_of(plain) == {"text": "a b&한".encode(), "example": b"1"}
    body = (
        b'--x-1\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
        b"\x89PNG\r\n\x1a\n\r\n--x-1\r\n"
        b'Content-Disposition: form-data; name="text"\r\n\r\n\r\n--x-1--\r\n'
    )
    (multipart,) = read(post(body, b"Content-Type: multipart/form-data; boundary=x-1"))
    assert form_of(multipart) == {"file": b"\x89PNG\r\n\x1a\n", "text": b""}


@given(st.binary(max_size=300))
def test_a_damaged_form_is_a_refusal(body: bytes) -> None:
    for media in (b"multipart/form-data; boundary=a", b"multipart/form-data", b"application/x-www-form-urlencoded"):
        (request,) = read(post(body, b"Content-Type: " + media))
        with suppress(Refusal):
            assert all(isinstance(value, bytes) for value in form_of(request).values())


def test_an_answer_to_head_has_a_length_and_no_body() -> None:
    text = written(Response(200, b"body"), date="now", lasting=False, bodiless=True)
    assert text.endswith(b"\r\n\r\n")
    assert b"Content-Length: 4\r\n" in text
