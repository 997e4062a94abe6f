"""A server with a made-up model, asked over real sockets: by good clients, bad ones, and ones that mean harm."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pumasi.cli.verbs.serve import VERB
from pumasi.serve import png
from pumasi.serve.app import App, Service
from pumasi.serve.batching import Batcher
from pumasi.serve.ensemble import Ensemble
from pumasi.serve.limits import Limits
from pumasi.serve.preprocessing import Image, Text
from pumasi.serve.server import Connection, Server
from pumasi.serve.texts import ENGLISH, KOREAN, language_of
from tests.models_to_serve import ensemble, share_of_good, sums
from tests.serving import asynchronous, until, within

LIMITS = Limits()


class Place:
    """A server inside of this test. `warnings` are what it complained about: nothing, if all is well."""

    def __init__(self, app: App, server: Server, port: int, warnings: list[str]) -> None:
        self.app, self.server, self.port, self.warnings = app, server, port, warnings

    async def send(self, data: bytes) -> bytes:
        """All that is answered until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()

    async def ask(self, method: str, target: str, body: bytes = b"", **headers: str) -> Told:
        lines = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        return Told(await self.send(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body))

    async def predict(self, said: Any, **headers: str) -> Told:
        return await self.ask("POST", "/predict", json.dumps(said).encode(), Content_Type="application/json", **headers)


class Told:
    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@asynccontextmanager
async def serving(
    served: Ensemble | None, limits: Limits = LIMITS, *, rate: float = 0, token: str = "", is_local: bool = True
) -> AsyncIterator[Place]:
    warnings: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: warnings.append(str(context)))
    app = App(limits, rate=rate, token=token, is_local=is_local, warn=warnings.append)
    server = Server(app.answer, app.refuse_unread, app.admit, limits)
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0)
    if served is not None:
        app.service = Service(served, Batcher(served.predict, limits, app.metrics.batches.observe))
    try:
        yield Place(app, server, listener.sockets[0].getsockname()[1], warnings)
    finally:
        listener.close()
        server.close()
        if app.service:
            app.service.batcher.end()
        await asyncio.sleep(0.01)
    assert warnings == []


@asynchronous
async def test_a_text_is_answered_in_words_and_numbers() -> None:
    async with serving(ensemble(voters=2)) as place:
        told = await place.predict({"input": "Good, good film"})
        assert told.status == 200
        (prediction,) = told.json["predictions"]
        assert prediction["label"] == "good"
        assert prediction["percent"] == 90.0
        assert prediction["probabilities"]["bad"] == pytest.approx(0.1)
        assert [vote["model"] for vote in prediction["votes"]] == ["0<&>.keras", "1<&>.keras"]
        told = await place.predict({"inputs": ["bad", "good"]})
        assert [each["label"] for each in told.json["predictions"]] == ["bad", "good"]


@asynchronous
async def test_the_mean_of_all_votes_counts() -> None:
    first, second = ensemble(), ensemble(lambda rows: 1 - 0.5 * share_of_good(rows))
    served = Ensemble((*first.models, *second.models), first.preprocessing, lacks_words=False)
    async with serving(served) as place:
        (prediction,) = (await place.predict({"input": "bad bad"})).json["predictions"]
        assert [vote["percent"] for vote in prediction["votes"]] == [90.0, 95.0]
        assert [vote["label"] for vote in prediction["votes"]] == ["bad", "good"]
        assert (prediction["label"], prediction["percent"]) == ("good", 52.5)


@asynchronous
async def test_a_form_is_answered_with_a_page_that_shows_everything_as_it_is() -> None:
    async with serving(ensemble(voters=3)) as place:
        text = "</textarea><script>alert(1)</script>&amp; good"
        body = "text=" + "".join(f"%{byte:02x}" for byte in text.encode())
        told = await place.ask("POST", "/predict", body.encode(), Content_Type="application/x-www-form-urlencoded")
        assert told.status == 200
        assert "83.33 % good" in told.text
        assert "&lt;/textarea&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp; good" in told.text
        assert told.text.count("<script") == 1
        assert "<script src=" in told.text
        assert told.text.count("0&lt;&amp;&gt;.keras") >= 2
        assert "<&>" not in told.text
        assert "&lt;b&gt;bad&lt;/b&gt; &amp; &#x27;worse&#x27;" in told.text
        told = await place.ask("POST", "/predict", b"example=1", Content_Type="application/x-www-form-urlencoded")
        assert "83.33 % bad" in told.text
        for form, status in ((b"", 422), (b"text=+", 422), (b"example=9", 422), (b"example=x", 422)):
            told = await place.ask("POST", "/predict", form, Content_Type="application/x-www-form-urlencoded")
            assert told.status == status
            assert 'role="alert"' in told.text


@asynchronous
async def test_every_answer_tells_browsers_to_be_careful() -> None:
    async with serving(ensemble()) as place:
        paths = (
            "/",
            "/docs",
            "/static/app.js",
            "/static/style.css",
            "/openapi.json",
            "/metrics",
            "/healthz",
            "/nothing",
        )
        for told in [*[await place.ask("GET", path) for path in paths], Told(await place.send(b"\r\n\r\nx"))]:
            assert told.headers["x-content-type-options"] == "nosniff"
            assert told.headers["referrer-policy"] == "no-referrer"
            policy = told.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
        for path in ("/", "/docs"):
            page = (await place.ask("GET", path)).text
            assert " style=" not in page
            assert " onclick=" not in page


@asynchronous
async def test_mistakes_of_clients_are_objects_with_a_code() -> None:
    async with serving(sums()) as place:
        cases: list[tuple[bytes, int, str]] = [
            (b"{", 400, "bad_json"),
            (b"", 400, "bad_json"),
            (b'{"input": NaN}', 400, "bad_json"),
            (b"\xff", 400, "bad_json"),
            (b"[" * 200_000, 400, "bad_json"),
            (b'{"input": [' + b"9" * 5000 + b"]}", 400, "bad_json"),
            (b"[1]", 422, "bad_input"),
            (b'{"input": [1, 2]}', 422, "bad_input"),
            (b'{"input": [1, 2, 1e999]}', 422, "bad_input"),
            (b'{"input": "abc"}', 422, "bad_input"),
            (b'{"input": [1, 2, 3], "more": 1}', 422, "bad_input"),
            (b'{"inputs": []}', 422, "bad_input"),
            (b'{"inputs": [[1, 2, 3], [1]]}', 422, "bad_input"),
            (json.dumps({"inputs": [[1, 2, 3]] * 65}).encode(), 422, "bad_input"),
        ]
        for body, status, code in cases:
            told = await place.ask("POST", "/predict", body, Content_Type="application/json")
            assert (told.status, told.code) == (status, code), body[:40]
        assert (await place.ask("POST", "/predict", b"x", Content_Type="text/plain")).code == "media_type"
        told = await place.ask("DELETE", "/predict")
        assert (told.status, told.headers["allow"]) == (405, "POST, GET, HEAD")
        assert (await place.ask("GET", "/../etc/passwd")).status == 404
        assert (await place.ask("GET", "/static/../app.py")).status == 404
        assert (await place.ask("POST", "/nothing", b'{"input": 1}')).status == 404
        told = await place.predict({"inputs": [[1, 2, 3], [1]]})
        assert told.json["error"]["message"].startswith("inputs[1]: ")
        assert (await place.predict({"input": [1, 2, 3]})).json["predictions"][0]["output"] == [6.0]


@asynchronous
async def test_a_model_that_answers_nonsense_is_a_clear_error() -> None:
    for predict, said in (
        (lambda rows: rows * np.nan, "not finite"),
        (lambda rows: rows * 0.0 + 7, "no probabilities"),
    ):
        served = ensemble(lambda rows, predict=predict: predict(rows[:, :1].astype(float)))  # type: ignore[misc]
        async with serving(served) as place:
            told = await place.predict({"input": "good"})
            assert (told.status, told.code) == (500, "model_failed")
            assert said in told.json["error"]["message"]


@asynchronous
async def test_there_is_no_debug_mode_that_shows_a_visitor_what_went_wrong_inside() -> None:
    def fail(rows: Any) -> Any:
        raise ZeroDivisionError("inner")

    served = ensemble(fail)
    async with serving(served) as place:
        told = await place.predict({"input": "good"})
        page = await place.ask("POST", "/predict", b"text=good", Content_Type="application/x-www-form-urlencoded")
        console = await place.ask("GET", "/console")
    assert (told.status, page.status, console.status) == (500, 500, 404)
    for text in (told.text, page.text, console.text):
        assert not [word for word in ("Traceback", "ZeroDivisionError", "line ", __file__) if word in text]
    assert not [name for option in VERB.options for name in option.names if "debug" in name]


@asynchronous
async def test_people_get_pages_in_their_language() -> None:
    assert language_of("ko-KR,ko;q=0.9,en;q=0.8") == "ko"
    assert language_of("en-US,ko;q=0.5") == "en"
    assert language_of("de, fr;q=2, ;;;, ko;q=0.1") == "ko"
    assert language_of("") == "en"
    assert {name for name in KOREAN if not name.startswith("error_")} == set(ENGLISH)
    async with serving(ensemble()) as place:
        korean = await place.ask("GET", "/", Accept_Language="ko")
        assert '<html lang="ko">' in korean.text
        told = await place.ask("GET", "/?lang=ko", Accept_Language="en")
        assert '<html lang="ko">' in told.text
        cookie = told.headers["set-cookie"].partition(";")[0]
        assert '<html lang="ko">' in (await place.ask("GET", "/docs", Accept_Language="en", Cookie=cookie)).text
        missing = await place.ask("GET", "/deep/down", Accept="text/html", Accept_Language="ko")
        assert missing.status == 404
        assert KOREAN["title_404"] in missing.text
        assert 'href="../static/style.css"' in missing.text


@asynchronous
async def test_other_names_and_other_pages_may_not_borrow_a_local_server() -> None:
    async with serving(ensemble()) as place:
        for host in ("evil.example", "localhost.evil.example", "10.0.0.1", "", "[", "localhost:x:y"):
            assert (await place.ask("GET", "/", Host=host)).status == 421
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "me.localhost"):
            assert (await place.ask("GET", "/", Host=host)).status == 200
        assert (await place.predict({"input": "good"}, Origin="http://evil.example")).code == "foreign_page"
        assert (await place.predict({"input": "good"}, Sec_Fetch_Site="cross-site")).code == "foreign_page"
        assert (await place.predict({"input": "good"}, Origin="http://localhost")).status == 200
        assert (await place.predict({"input": "good"}, Origin="null", Sec_Fetch_Site="same-origin")).status == 200


@asynchronous
async def test_beyond_this_machine_only_who_has_the_token_may_ask() -> None:
    async with serving(ensemble(), token="secret-token", is_local=False) as place:
        for path in ("/", "/docs", "/metrics", "/openapi.json", "/nothing"):
            assert (await place.ask("GET", path, Host="any.example")).status == 401
        assert (await place.predict({"input": "good"})).headers["www-authenticate"] == "Bearer"
        assert (await place.predict({"input": "good"}, Authorization="Bearer wrong")).status == 401
        assert (await place.predict({"input": "good"}, Authorization="Bearer \xe9")).status == 401
        assert (await place.predict({"input": "good"}, Authorization="Bearer secret-token")).status == 200
        assert (await place.ask("GET", "/?token=wrong")).status == 401
        head = b"POST /predict HTTP/1.1\r\nHost: any.example\r\nContent-Length: 9999\r\n\r\n"
        assert Told(await place.send(head)).code == "token_required"
        told = await place.ask("GET", "/?token=secret-token")
        assert told.headers["refresh"] == "0; url=./"
        cookie = told.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        assert "secret-token" not in told.text
        assert (await place.ask("GET", "/", Cookie=cookie.partition(";")[0])).status == 200
        assert (await place.ask("GET", "/healthz")).status == 200
        assert (await place.ask("GET", "/readyz")).status == 200


@asynchronous
async def test_who_asks_too_often_is_told_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumasi.serve.app.time", SimpleNamespace(monotonic=lambda: 1000.0))
    async with serving(ensemble(), rate=1) as place:
        statuses = [(await place.predict({"input": "good"})).status for _ in range(4)]
        assert statuses == [200, 200, 429, 429]
        told = await place.predict({"input": "good"})
        assert (told.code, told.headers["retry-after"]) == ("too_many_requests", "1")
        assert (await place.ask("GET", "/healthz")).status == 200


@asynchronous
async def test_a_model_that_is_not_loaded_yet_is_no_mistake() -> None:
    async with serving(None) as place:
        assert (await place.ask("GET", "/healthz")).status == 200
        assert (await place.ask("GET", "/readyz")).status == 503
        told = await place.predict({"input": "good"})
        assert (told.status, told.code, told.headers["retry-after"]) == (503, "loading", "2")
        page = await place.ask("GET", "/", Accept="text/html")
        assert (page.status, page.headers["refresh"]) == (503, "2")
        assert ENGLISH["title_loading"] in page.text


def held(hold: threading.Event) -> Callable[[Any], Any]:
    def predict(rows: Any) -> Any:
        hold.wait(20)
        return share_of_good(rows)

    return predict


@asynchronous
async def test_a_full_queue_turns_away_and_a_slow_model_is_given_up() -> None:
    hold = threading.Event()
    async with serving(ensemble(held(hold)), Limits(queue=2, batch=1, prediction=3, wait=0)) as place:
        asked = [asyncio.ensure_future(place.predict({"input": "good"})) for _ in range(6)]
        statuses = sorted([(await each).status for each in asked])
        assert statuses == [503, 503, 503, 504, 504, 504]
        assert {(await each).headers.get("retry-after") for each in asked if (await each).status == 503} == {"1"}
        hold.set()
        assert (await asyncio.wait_for(when_there_is_room(place), 20)).status == 200


async def when_there_is_room(place: Place) -> Told:
    while (told := await place.predict({"input": "good"})).status == 503:
        assert told.headers["retry-after"] == "1"
    return told


@asynchronous
async def test_slow_and_silent_clients_are_cut_off() -> None:
    limits = Limits(idle=0.3, request=0.6)
    async with serving(ensemble(), limits) as place:
        assert await place.send(b"") == b""
        assert Told(await place.send(b"GET / HTTP/1.1\r\nHost: local")).status == 408
        assert (
            Told(await place.send(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123")).status
            == 408
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        answer = asyncio.ensure_future(reader.readline())
        for letter in b"GET / HTTP/1.1\r\nHost: localhost" + b", and so on" * 20:
            if answer.done():
                break
            writer.write(bytes([letter]))
            await asyncio.sleep(0.05)
        assert answer.done()
        assert (await answer).startswith(b"HTTP/1.1 408 ")
        writer.close()


@asynchronous
async def test_a_client_that_does_not_take_its_answers_is_cut_off() -> None:
    async with serving(ensemble(), Limits(request=0.5)) as place:
        _, writer = await asyncio.open_connection("127.0.0.1", place.port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = b"GET /static/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"
        deadline = time.monotonic() + 15
        while not writer.is_closing() and place.server.connections and time.monotonic() < deadline:
            writer.write(request * 50)
            await asyncio.sleep(0.05)
            if place.server.connections == set():
                break
        assert place.server.connections == set()
        writer.close()


@asynchronous
async def test_there_are_only_so_many_connections() -> None:
    async with serving(ensemble(), Limits(connections=3)) as place:
        opened = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(3)]
        for _, writer in opened:
            writer.write(b"GET ")
        await until(lambda: len(place.server.busy) == 3)
        told = Told(await place.send(b""))
        assert (told.status, told.code) == (503, "busy")
        opened[0][1].close()
        await until(lambda: len(place.server.connections) == 2)
        assert (await place.ask("GET", "/healthz")).status == 200
        for _, writer in opened:
            writer.close()


@asynchronous
async def test_who_is_silent_for_longest_gives_way_to_newcomers() -> None:
    async with serving(ensemble(), Limits(connections=3)) as place:
        opened = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(3)]
        await until(lambda: len(place.server.connections) == 3)
        assert (await place.ask("GET", "/healthz")).status == 200
        assert await opened[0][0].read() == b""
        for _, writer in opened:
            writer.close()


@asynchronous
async def test_a_connection_is_used_again_and_requests_may_be_sent_ahead() -> None:
    async with serving(ensemble()) as place:
        body = b'{"input": "good"}'
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 17\r\n"
        many = (head + b"\r\n" + body) * 20 + head + b"Connection: close\r\n\r\n" + body
        answers = await place.send(many)
        assert answers.count(b"HTTP/1.1 200 OK") == 21
        assert answers.count(b"Connection: close") == 1


@asynchronous
async def test_who_asks_before_sending_a_large_body_is_told_to_go_on_or_not_to() -> None:
    async with serving(ensemble()) as place:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\n"
        writer.write(head + b"Content-Type: application/json\r\nContent-Length: 17\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'{"input": "good"}')
        assert Told(await reader.read()).status == 200
        writer.close()
        told = Told(await place.send(head + b"Content-Length: 99999999\r\n\r\n"))
        assert (told.status, told.code) == (413, "body_too_large")
        large = b"x" * (1024 * 1024 + 1)
        assert (await place.ask("POST", "/predict", large, Content_Type="application/json")).status == 413
        assert (await place.ask("GET", "/healthz", b"x")).status == 413
        told = await place.ask("POST", "/predict", large, Content_Type="multipart/form-data", Accept="text/html")
        assert ENGLISH["title_refusal"] in told.text


@asynchronous
async def test_a_query_that_is_too_long_is_left_aside() -> None:
    async with serving(ensemble()) as place:
        for accept in ("text/html", "*/*"):
            for path, status in (("/", 200), ("/nothing", 404)):
                assert (await place.ask("GET", f"{path}?{'a=1&' * 100}", Accept=accept)).status == status


def reset(writer: asyncio.StreamWriter) -> None:
    """The connection is cut hard; a mere end could also mean that nothing more will be asked."""
    sock = writer.transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynchronous
async def test_a_client_that_has_gone_is_not_calculated_for() -> None:
    hold = threading.Event()
    seen: list[int] = []

    def predict(rows: Any) -> Any:
        seen.append(len(rows))
        hold.wait(20)
        return share_of_good(rows)

    async with serving(ensemble(predict), Limits(batch=1, wait=0)) as place:
        first = asyncio.ensure_future(place.predict({"input": "good"}))
        while not seen:
            await asyncio.sleep(0.01)
        _, writer = await asyncio.open_connection("127.0.0.1", place.port)
        body = b'{"input": "bad"}'
        writer.write(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert place.app.service is not None
        line = place.app.service.batcher._line._waiting
        await until(lambda: line)
        reset(writer)
        await until(lambda: line[0].answer.done())
        hold.set()
        assert (await first).status == 200
        await until(lambda: not line)
        assert seen == [1]


@asynchronous
async def test_what_happened_can_be_read_by_prometheus() -> None:
    async with serving(ensemble()) as place:
        await place.predict({"input": "good"})
        await place.ask("GET", '/made"up\\path')
        text = (await place.ask("GET", "/metrics")).text
        for line in (
            'pumasi_requests_total{path="/predict",code="200"} 1',
            'pumasi_requests_total{path="other",code="404"} 1',
            'pumasi_request_seconds_count{path="/predict"} 1',
            "pumasi_batch_inputs_count 1",
            "pumasi_queue_inputs 0",
            "pumasi_ready 1",
        ):
            assert f"{line}\n" in text


def brightness() -> Ensemble:
    preprocessing = Image(size=(2, 2), labels=("dark", "light"), examples=([[255, 255], [255, 255]],))
    return ensemble(lambda rows: rows.mean(axis=(1, 2))[:, None], preprocessing)


@asynchronous
async def test_a_picture_can_be_sent_in_every_way() -> None:
    data = png.encode(np.full((5, 5), 255))
    async with serving(brightness()) as place:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        for told in (
            await place.predict({"input": [[255, 255], [255, 255]]}),
            await place.predict({"input": url}),
            await place.ask("POST", "/predict", data, Content_Type="image/png"),
        ):
            assert told.json["predictions"][0]["label"] == "light"
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n%s\r\n--b--\r\n'
        told = await place.ask("POST", "/predict", form % data, Content_Type="multipart/form-data; boundary=b")
        assert "100.00 % light" in told.text
        told = await place.ask("POST", "/predict", form % b"GIF89a", Content_Type="multipart/form-data; boundary=b")
        assert told.status == 422
        assert "it is no PNG" in told.text
        told = await place.ask("POST", "/predict", b"example=0", Content_Type="application/x-www-form-urlencoded")
        assert "100.00 % light" in told.text
        assert "<canvas" in (await place.ask("GET", "/")).text
        assert (await place.predict({"inputs": [url, "data:,"]})).json["error"]["message"].startswith("inputs[1]: ")


def bad_request(dice: random.Random) -> bytes:
    """Something near to a request: whole, cut, with bytes changed, or noise."""
    methods = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"get", b"\x00", b"G" * dice.randrange(40))
    paths = (
        b"/",
        b"/predict",
        b"/docs",
        b"/static/app.js",
        b"/metrics",
        b"*",
        b"//",
        b"/%00",
        b"/?lang=%ff&token=",
        b"/?" + b"a&" * 50,
        b"/" + b"a" * 5000,
    )
    bodies = (
        b'{"input": "good"}',
        b'{"input": "\\ud800"}',
        b'{"inputs": [null, 1, {}]}',
        b"[" * dice.randrange(3000),
        b'{"input": ' + b"[" * 100 + b"]" * 100 + b"}",
        b"text=%ff%fe&example=-1",
        b"drawn=data:image/png;base64,iVBORw0KGgo=&json=[1,2",
        b"\x89PNG\r\n\x1a\n" + dice.randbytes(50),
        b'{"input": [[0, 1e308], [1, 255]]}',
        b'{"input": [1, 2, 3e38]}',
        b"a&" * dice.randrange(60),
        b'--b\r\nContent-Disposition: form-data; name="text"\r\n\r\nx\r\n--b--',
        dice.randbytes(dice.randrange(200)),
    )
    media = (
        b"application/json",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=b",
        b"image/png",
        b"",
        b";;",
    )
    body = dice.choice(bodies)
    if dice.random() < 0.5:
        head = (
            b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n"
        )
        return head % (dice.choice(media), dice.choice((b"text/html", b"*/*")), len(body)) + body
    length = dice.choice((len(body), len(body), len(body), 0, len(body) + 1, -1, 10**13))
    lines = [
        dice.choice(methods[:3]) + b" " + dice.choice(paths) + b" HTTP/1.1",
        b"Host: localhost",
        b"Content-Length: %d" % length,
        b"Content-Type: " + dice.choice(media),
        b"Accept: " + dice.choice((b"text/html", b"*/*", b"\xff")),
        b"Accept-Language: " + dice.choice((b"ko", b"q=;;,", b"en;q=9.9.9", b"," * 500)),
        b"Cookie: " + dice.choice((b"pumasi_lang=ko", b"=;=;", b"pumasi_lang=<script>")),
        b"Connection: " + dice.choice((b"close", b"keep-alive", b",")),
    ]
    if dice.random() < 0.3:
        lines[0] = (
            dice.choice(methods)
            + dice.choice((b" ", b"  ", b"\t"))
            + dice.choice(paths)
            + dice.choice((b" HTTP/1.1", b" HTTP/9.9", b""))
        )
    if dice.random() < 0.3:
        extra = (
            b"Host: evil",
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
            b"X",
            b": x",
            b"A: " + b"b" * 20_000,
        )
        lines.append(dice.choice(extra))
    data = dice.choice((b"\r\n", b"\r\n", b"\r\n", b"\n")).join(lines) + b"\r\n\r\n" + body
    if dice.random() < 0.4:
        changed = bytearray(data)
        for _ in range(dice.randrange(1, 6)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        data = bytes(changed)
    if dice.random() < 0.2:
        data = data[: dice.randrange(len(data) + 1)]
    return data


@within(200)
async def test_ten_thousand_bad_requests_leave_the_server_as_it_was() -> None:
    """Each is answered or cut off, and none of them makes the server complain: `serving` sees to that."""
    dice = random.Random(7)
    limits = Limits(idle=5, request=5)

    async def attack(place: Place, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        try:
            writer.write(data)
            if dice.random() < 0.8:
                writer.write_eof()
                answer = await asyncio.wait_for(reader.read(), 60)
                assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            else:
                writer.transport.abort()
        except ConnectionError:
            pass
        finally:
            writer.close()

    for served, good in ((ensemble(), "good"), (brightness(), [[0, 0], [0, 255]]), (sums(), [1, 2, 3])):
        async with serving(served, limits) as place:
            for _ in range(67):
                await asyncio.gather(*(attack(place, bad_request(dice)) for _ in range(50)))
            assert (await place.predict({"input": good})).status == 200
            assert 'code="500"' not in (await place.ask("GET", "/metrics")).text
            await until(lambda: not place.server.busy)


@asynchronous
async def test_a_text_needs_no_labels() -> None:
    served = ensemble(preprocessing=Text(words=("good", "bad"), length=4), voters=2)
    async with serving(served) as place:
        assert (await place.predict({"input": "good"})).json["predictions"][0]["output"] == pytest.approx([5 / 6])
        told = await place.ask("POST", "/predict", b"text=good", Content_Type="application/x-www-form-urlencoded")
        assert "[0.833333]" in told.text
