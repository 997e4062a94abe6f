"""HTTP as servers, proxies and broken links speak it."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.kube.http import HEAD_LIMIT, Answer, Chunked, Client, HttpTrouble, proxy_from
from tests.serving import Request, Server, Step, answer, asynchronous, chunked, in_turn, serve, silence, until
from tools.cluster import keys


@asynccontextmanager
async def talking(*steps: Step) -> AsyncIterator[tuple[Client, Server]]:
    async with serve(in_turn(*steps)) as server:
        client = Client(server.url)
        try:
            yield client, server
        finally:
            await client.close()


async def read(client: Client, method: str = "GET", path: str = "/", body: bytes = b"") -> bytes:
    return await (await client.request(method, path, body=body)).read()


async def hear(got: Answer, heard: list[bytes], idle: float = 5.0) -> None:
    """`heard` has what came, also when it ends in trouble."""
    async for data in got.stream(idle):
        heard += [data]


def decode(wire: bytes, cuts: Sequence[int]) -> tuple[bytes, bytes, bool]:
    """What a decoder makes of the bytes when they come in pieces: the body, what is left over, whether it was all."""
    decoder, buffer, body = Chunked(), bytearray(), b""
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    for start, end in itertools.pairwise(edges):
        buffer += wire[start:end]
        body += decoder.take(buffer)
    return body, bytes(buffer), decoder.done


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40)),
    extension=st.sampled_from([b"", b";a=b", b" ; a"]),
    trailer=st.sampled_from([b"", b"Sum: 1\r\n", b"A: 1\r\nB: 2\r\n"]),
    beyond=st.binary(max_size=10),
    cuts=st.lists(st.integers(0, 400)),
)
def test_chunks_give_the_same_body_wherever_the_wire_cuts_them(
    pieces: list[bytes], extension: bytes, trailer: bytes, beyond: bytes, cuts: list[int]
) -> None:
    wire = b"".join(b"%X%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces)
    wire += b"0%s\r\n%s\r\n" % (extension, trailer)
    assert decode(wire + beyond, cuts) == (b"".join(pieces), beyond, True)
    body, _, done = decode(wire[:-1], cuts)
    assert (body, done) == (b"".join(pieces), False)


@given(wire=st.binary(max_size=60) | st.text("0123456789aA;\r\n ", max_size=60).map(str.encode))
def test_no_bytes_whatsoever_confuse_the_decoder(wire: bytes) -> None:
    def outcome(cuts: Sequence[int]) -> object:
        try:
            return decode(wire, cuts)[0::2]
        except HttpTrouble:
            return None

    assert outcome([]) == outcome(range(len(wire)))


@asynchronous
async def test_bodies_come_by_length_in_chunks_until_the_end_or_not_at_all() -> None:
    async def until_the_end(request: Request) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\n\r\n", b"until ", b"the end")

    async def in_small_pieces(request: Request) -> bytes:
        whole = chunked([b"in ", b"chunks"])
        await request.send(*(whole[place : place + 1] for place in range(len(whole) - 1)))
        return whole[-1:]

    nothing = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with talking(answer(b"by length"), in_small_pieces, nothing, until_the_end) as (client, server):
        assert [await read(client) for _ in range(4)] == [b"by length", b"in chunks", b"", b"until the end"]
        assert server.connections == 1


@asynchronous
async def test_a_request_says_what_a_server_needs_to_know() -> None:
    async with serve(in_turn(answer(b"", Date="today"))) as server:
        client = Client(f"{server.url}/k8s/clusters/c-1")
        got = await client.request("POST", "/api?a=b", {"Authorization": "Bearer x"}, b"{}")
        assert (got.status, got.reason, got.headers["date"]) == (200, "Because", "today")
        asked = server.requests[0]
        assert (asked.method, asked.target, asked.body) == ("POST", "/k8s/clusters/c-1/api?a=b", b"{}")
        assert asked.headers["host"] == server.url.removeprefix("http://")
        assert asked.headers["authorization"] == "Bearer x"
        with pytest.raises(HttpTrouble, match="line breaks"):
            await client.request("GET", "/", {"Authorization": "Bearer x\r\nHost: other"})
        await client.close()


@asynchronous
async def test_answers_that_only_announce_one_are_passed_over() -> None:
    async with talking(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\n" + answer(b"x")) as (
        client,
        _,
    ):
        assert await read(client) == b"x"


@asynchronous
async def test_a_connection_is_used_again_unless_the_server_says_that_it_closes() -> None:
    steps = [answer(b"1"), answer(b"2", Connection="close"), answer(b"3"), answer(b"4")]
    async with talking(*steps) as (client, server):
        for _ in steps:
            await read(client)
        assert server.connections == 2


@asynchronous
async def test_requests_at_the_same_time_have_connections_of_their_own_which_are_kept() -> None:
    arrived = asyncio.Event()

    async def wait(request: Request) -> bytes:
        await arrived.wait()
        return answer(b"x")

    async with serve(wait) as server:
        client = Client(server.url)
        for _ in range(2):
            arrived.clear()
            together = asyncio.gather(*(read(client) for _ in range(5)))
            await until(lambda: len(server.requests) % 5 == 0 and server.requests)
            arrived.set()
            await together
        assert server.connections == 5
        await client.close()


@asynchronous
async def test_a_kept_connection_that_breaks_before_the_answer_is_replaced_once() -> None:
    async with talking(answer(b"1"), None, answer(b"2")) as (client, server):
        assert [await read(client), await read(client)] == [b"1", b"2"]
        assert server.connections == 2
    async with talking(answer(b"1"), None, None) as (client, server):
        await read(client)
        with pytest.raises(HttpTrouble, match="closed before an answer"):
            await read(client)
        assert len(server.requests) == 3


@asynchronous
async def test_what_could_be_done_twice_is_not_asked_twice() -> None:
    async with talking(answer(b"1"), None) as (client, server):
        await read(client)
        with pytest.raises(HttpTrouble, match="closed before an answer"):
            await read(client, "POST", body=b"{}")
        assert len(server.requests) == 2


@asynchronous
async def test_a_connection_that_ended_while_it_was_kept_costs_nothing() -> None:
    async def answer_and_go(request: Request) -> None:
        await request.send(answer(b"1"))

    async with talking(answer_and_go, answer(b"2")) as (client, server):
        await read(client)
        await until(lambda: all(wire.ended for wire in client._wires))
        assert await read(client, "POST", body=b"{}") == b"2"
        assert len(server.requests) == 2


@asynchronous
async def test_an_answer_that_has_begun_is_not_asked_for_again() -> None:
    async def tear(request: Request) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\nContent-")

    async with talking(answer(b"1"), tear) as (client, server):
        await read(client)
        with pytest.raises(HttpTrouble, match="closed before an answer"):
            await read(client)
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "torn",
    [answer(b"12345", Content_Length="6"), chunked([b"12345"], end=False), chunked([b"12345"])[:-2]],
    ids=["length", "between chunks", "within the last chunk"],
)
@asynchronous
async def test_what_came_before_a_break_is_handed_out_and_the_break_is_told(torn: bytes) -> None:
    async def tear(request: Request) -> None:
        await request.send(torn)

    async with talking(tear) as (client, _):
        heard: list[bytes] = []
        with pytest.raises(HttpTrouble, match="in the middle of the answer"):
            await hear(await client.request("GET", "/"), heard)
        assert b"".join(heard) == b"12345"


@asynchronous
async def test_a_cut_connection_is_no_end_of_a_body_without_a_length() -> None:
    async def cut(request: Request) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\n\r\n12345")
        request.reset()

    async with talking(cut) as (client, _):
        with pytest.raises(HttpTrouble, match="reset"):
            await read(client)


@asynchronous
async def test_silence_is_told_before_an_answer_and_within_one() -> None:
    async def pause(request: Request) -> None:
        await request.send(chunked([b"1"], end=False))
        await silence(request)

    async with talking(silence, pause) as (client, _):
        with pytest.raises(HttpTrouble, match="no answer within") as caught:
            await client.request("GET", "/", seconds=0.1)
        assert caught.value.silent
        got = await client.request("GET", "/")
        heard: list[bytes] = []
        with pytest.raises(HttpTrouble) as caught:
            await hear(got, heard, idle=0.1)
        assert caught.value.silent
        assert heard == [b"1"]


@pytest.mark.parametrize(
    ("wire", "sentence"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "makes no sense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "length makes no sense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "length makes no sense"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "unknown coding"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "chunks make no sense"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", "not as long as they say"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000, "does not end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 20000, "trailer is too long"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * HEAD_LIMIT, "headers do not end"),
    ],
)
@asynchronous
async def test_nonsense_is_called_so(wire: bytes, sentence: str) -> None:
    async def send(request: Request) -> None:
        await request.send(wire)
        await silence(request)

    async with talking(send) as (client, _):
        with pytest.raises(HttpTrouble, match=sentence):
            await read(client)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("http://127.0.0.1:1", "nothing listens there"),
        ("http://nowhere.invalid", "name is not known"),
    ],
)
@asynchronous
async def test_who_is_not_there_is_told_in_words(address: str, sentence: str) -> None:
    with pytest.raises(HttpTrouble, match=sentence):
        await Client(address).request("GET", "/")


@pytest.mark.parametrize("address", ["ftp://somewhere", "somewhere:6443", "https://", "https://host:port"])
def test_addresses_that_are_none_are_refused_without_their_passwords(address: str) -> None:
    with pytest.raises(HttpTrouble, match="address"):
        Client(address)
    with pytest.raises(HttpTrouble) as caught:
        Client("http://good", proxy="socks5://user:secret@host")
    assert "secret" not in str(caught.value)


@asynchronous
async def test_a_slow_reader_holds_the_server_back_and_not_the_memory() -> None:
    total = 64 * 1024 * 1024

    async def flood(request: Request) -> None:
        await request.send(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
        for _ in range(64):
            request.writer.write(bytes(1024 * 1024))
            await request.writer.drain()

    async with talking(flood) as (client, _):
        got = await client.request("GET", "/")
        most = heard = 0
        async for data in got.stream(5):
            most = max(most, len(data))
            heard += len(data)
            await asyncio.sleep(0.002)
        assert heard == total
        assert most < 4 * 1024 * 1024


@asynchronous
async def test_closing_ends_streams_and_a_cancelled_request_leaves_no_connection() -> None:
    async with talking(silence, silence) as (client, server):
        request = asyncio.ensure_future(client.request("GET", "/"))
        await until(lambda: server.requests)
        request.cancel()
        await asyncio.wait([request])
        assert not client._wires
        streaming = asyncio.ensure_future(client.request("GET", "/"))
        await until(lambda: len(server.requests) == 2)
        await client.close()
        with pytest.raises(HttpTrouble):
            await streaming


# ---- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's that is good for localhost and kubernetes.default, and not for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates") / "keys"
    keys.make(folder, "https://unused", ["10.0.0.1"], {})
    return folder


def server_side(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    return context


def trusting(certificates: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates / "ca.crt"))


@asynchronous
async def test_a_server_is_believed_when_its_certificate_is(certificates: Path) -> None:
    async with serve(in_turn(answer(b"1"), answer(b"2"), answer(b"3")), server_side(certificates)) as server:
        by_name = Client(server.url.replace("127.0.0.1", "localhost"), trust=trusting(certificates))
        assert [await read(by_name), await read(by_name)] == [b"1", b"2"]
        assert server.connections == 1
        other_name = Client(server.url, trust=trusting(certificates), server_name="kubernetes.default")
        assert await read(other_name) == b"3"
        for untrusted in (Client(server.url, trust=trusting(certificates)), Client(server.url)):
            with pytest.raises(HttpTrouble, match="certificate can't be trusted"):
                await read(untrusted)
        for client in (by_name, other_name):
            await client.close()


@asynchronous
async def test_a_server_without_encryption_is_told_from_one_that_is_not_there() -> None:
    async def bad_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(b"", 400))
        writer.close()

    plain = await asyncio.start_server(bad_request, "127.0.0.1")
    port = plain.sockets[0].getsockname()[1]
    with pytest.raises(HttpTrouble, match="no encryption could be agreed on: wrong version number"):
        await read(Client(f"https://127.0.0.1:{port}"))
    plain.close()


@asynchronous
async def test_large_bodies_and_breaks_come_through_encryption_as_they_are(certificates: Path) -> None:
    large = bytes(range(256)) * 20_000

    async def tear(request: Request) -> None:
        await request.send(chunked([b"1"], end=False))
        request.reset()

    async with serve(in_turn(answer(large), tear), server_side(certificates)) as server:
        client = Client(server.url, trust=trusting(certificates), server_name="localhost")
        assert await read(client, "POST", body=large) == large
        assert server.requests[0].body == large
        with pytest.raises(HttpTrouble, match="in the middle of the answer"):
            await read(client)
        await client.close()


# ---- proxies


async def tunnel(request: Request) -> None:
    """What a proxy does for CONNECT: bytes go through in both directions until one side ends."""
    host, _, port = request.target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await request.send(b"HTTP/1.1 200 Connection established\r\n\r\n")

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)

    ways = [asyncio.ensure_future(pump(*way)) for way in ((request.reader, writer), (reader, request.writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        writer.transport.abort()


@asynchronous
async def test_a_proxy_is_asked_for_a_tunnel_to_an_encrypted_server(certificates: Path) -> None:
    async with serve(in_turn(answer(b"1"), answer(b"2")), server_side(certificates)) as server, serve(tunnel) as proxy:
        through = proxy.url.replace("http://", "http://us%40er:secret@")
        client = Client(server.url, trust=trusting(certificates), server_name="localhost", proxy=through)
        assert [await read(client), await read(client)] == [b"1", b"2"]
        assert [asked.method for asked in proxy.requests] == ["CONNECT"]
        assert proxy.requests[0].target == server.url.removeprefix("https://")
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic dXNAZXI6c2VjcmV0"
        assert "proxy-authorization" not in server.requests[0].headers
        await client.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 can't speak TLS inside of TLS")
@asynchronous
async def test_a_proxy_may_be_encrypted_itself(certificates: Path) -> None:
    tls = server_side(certificates)
    async with serve(in_turn(answer(b"1")), tls) as server, serve(tunnel, tls) as proxy:
        through = proxy.url.replace("127.0.0.1", "localhost")
        client = Client(server.url, trust=trusting(certificates), server_name="localhost", proxy=through)
        assert await read(client) == b"1"
        await client.close()


@pytest.mark.skipif(sys.version_info >= (3, 11), reason="Python 3.11 and newer can")
@asynchronous
async def test_an_old_python_says_that_it_can_not_use_an_encrypted_proxy(certificates: Path) -> None:
    async with serve(in_turn(b"HTTP/1.1 200 OK\r\n\r\n"), server_side(certificates)) as proxy:
        through = proxy.url.replace("127.0.0.1", "localhost")
        client = Client("https://somewhere.invalid", trust=trusting(certificates), proxy=through)
        with pytest.raises(HttpTrouble, match="can't speak TLS inside of TLS"):
            await read(client)
        await client.close()


@asynchronous
async def test_a_proxy_gets_whole_addresses_for_a_server_without_encryption() -> None:
    async with serve(in_turn(answer(b"1"))) as proxy:
        client = Client("http://somewhere.invalid:8080/base", proxy=proxy.url)
        assert await read(client, path="/x?a=b") == b"1"
        assert proxy.requests[0].target == "http://somewhere.invalid:8080/base/x?a=b"
        assert proxy.requests[0].headers["host"] == "somewhere.invalid:8080"
        await client.close()


@asynchronous
async def test_a_proxy_that_refuses_or_is_not_there_is_named() -> None:
    async with serve(in_turn(answer(b"", 407))) as proxy:
        with pytest.raises(HttpTrouble, match=r"the proxy 127.0.0.1:\d+ refuses: 407"):
            await read(Client("https://somewhere.invalid", proxy=proxy.url))
    with pytest.raises(HttpTrouble, match=r"the proxy 127\.0\.0\.1:1: nothing listens"):
        await read(Client("https://somewhere.invalid", proxy="http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://a.b", {}, ""),
        ("https://a.b", {"HTTPS_PROXY": "http://p"}, "http://p"),
        ("https://a.b", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("https://a.b", {"HTTP_PROXY": "http://p"}, ""),
        ("http://a.b", {"HTTP_PROXY": "http://p", "HTTPS_PROXY": "http://q"}, "http://p"),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://127.8.8.8:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, ""),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "no_proxy": "c, b"}, ""),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b"}, ""),
        ("https://x.a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b"}, ""),
        ("https://xa.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b"}, "http://p"),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".a.b"}, "http://p"),
        ("https://x.a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*.a.b"}, ""),
        ("https://a.b:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b:6443"}, ""),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b:443"}, ""),
        ("https://a.b", {"HTTPS_PROXY": "http://p", "NO_PROXY": "a.b:6443"}, "http://p"),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://11.1.2.3", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, "http://p"),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.1.2.3:6443"}, ""),
        ("https://[fd00::1]", {"HTTPS_PROXY": "http://p", "NO_PROXY": "fd00::/8"}, ""),
        ("https://[fd00::1]:443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "[fd00::1]:443"}, ""),
    ],
)
def test_the_environment_chooses_a_proxy_as_it_does_for_kubectl(
    server: str, environ: Mapping[str, str], proxy: str
) -> None:
    assert proxy_from(server, environ) == proxy
