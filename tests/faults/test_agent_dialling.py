"""A hub that is told where its members are, and calls them: on loopback, with real agents."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pumasi.agent import network
from pumasi.agent.links import member_mark, proof, proves
from tests.agents import AgentProcess, Star, Stars, making_stars
from tests.harness import wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has many loopback addresses")

THREE = {"a": 1, "b": 1, "c": 1}
HELLO = "echo rank $PUMASI_RANK"
LONG = 1000.0


@pytest.fixture
def stars(tmp_path: Path) -> Iterator[Stars]:
    yield from making_stars(tmp_path)


def free_port() -> int:
    (sock,) = network.free_ports(1)
    port: int = sock.getsockname()[1]
    sock.close()
    return port


def dialled(star: Star, call_after: float = LONG) -> Star:
    """A gang whose members wait to be called."""
    port = free_port()
    for config in star.configs:
        config.update(door=[config["address"], port], call_after=call_after)
    return star


def addresses(star: Star) -> dict[str, list[Any]]:
    return {str(config["node"]): config["door"] for config in star.configs[1:]}


def order(star: Star, members: Mapping[str, Any], secret: str | None = None, gang: str | None = None) -> dict[str, str]:
    nonce, text = secrets.token_hex(8), json.dumps(members)
    claim = proof(secret or star.secret, "members", gang or star.configs[0]["gang"], nonce, text)
    return {"nonce": nonce, "members": text, "proof": claim}


def post(star: Star, body: bytes, path: str = "/members") -> tuple[int, dict[str, Any]]:
    host, port = star.configs[0]["door"]
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def tell(star: Star, members: Mapping[str, Any] | None = None, **words: str) -> tuple[int, dict[str, Any]]:
    return post(star, json.dumps(order(star, addresses(star) if members is None else members, **words)).encode())


def start_hub(star: Star) -> AgentProcess:
    hub = star.start(0)
    hub.wait_until_it_says("listening")
    return hub


def all_said_hello(star: Star) -> None:
    assert [agent.ends() for agent in star.agents.values()] == [{"cause": "done"}] * len(star.agents)
    said = [agent.output(rank) for rank, agent in sorted(star.agents.items())]
    assert said == [b"rank %d\n" % rank for rank in range(len(star.agents))]


def test_a_hub_that_is_told_where_its_members_are_calls_them(stars: Stars) -> None:
    star = dialled(stars(THREE, HELLO))
    star.start_all()
    sent = order(star, addresses(star))
    code, answer = post(star, json.dumps(sent).encode())
    assert code == 200
    assert proves(answer["proof"], star.secret, "told", star.configs[0]["gang"], sent["nonce"])
    all_said_hello(star)


def test_members_may_come_after_their_addresses_and_these_may_change(stars: Stars) -> None:
    star = dialled(stars(THREE, HELLO))
    start_hub(star)
    stale = {number: ["127.0.0.77", port] for number, (_, port) in addresses(star).items()}
    assert tell(star, stale)[0] == 200
    assert tell(star)[0] == 200
    for node in (2, 1):
        star.start(node)
    assert tell(star)[0] == 200
    all_said_hello(star)


@pytest.mark.parametrize("words", [{"secret": "wrong"}, {"gang": "another.1.n.0"}])
def test_addresses_are_taken_of_nobody_who_does_not_know_the_secret_of_this_attempt(
    stars: Stars, words: dict[str, str]
) -> None:
    star = dialled(stars(THREE, HELLO))
    star.start_all()
    with socket.socket() as bait:
        bait.bind(("127.0.0.9", 0))
        bait.listen()
        bait.setblocking(False)
        assert tell(star, {"1": list(bait.getsockname())}, **words)[0] == 403
        assert tell(star)[0] == 200
        all_said_hello(star)
        with pytest.raises(BlockingIOError):
            bait.accept()


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", 400), (b"[]", 400), (b"{", 400), (b'{"nonce": 1}', 400), (b"[" * 100_000, 400), (b"\xff", 400)],
)
def test_what_is_no_list_of_members_is_refused(stars: Stars, body: bytes, code: int) -> None:
    star = dialled(stars({"a": 1, "b": 1}, HELLO))
    star.start_all()
    assert post(star, body)[0] == code
    assert post(star, json.dumps(order(star, addresses(star))).encode(), path="/other")[0] == 404
    assert post(star, json.dumps(order(star, {"1": "nowhere"})).encode())[0] == 400
    assert tell(star, {"0": ["127.0.0.1", 1], "7": ["127.0.0.1", 1]})[0] == 200
    assert tell(star)[0] == 200
    all_said_hello(star)


def test_silence_rubbish_and_crowds_at_the_counter_keep_nobody_out(stars: Stars) -> None:
    star = dialled(stars({"a": 1, "b": 1}, HELLO))
    star.start_all()
    crowd = [socket.create_connection(star.configs[0]["door"]) for _ in range(100)]
    for sock in crowd[:50]:
        sock.sendall(b"GET / HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 100)
    assert tell(star)[0] == 200
    all_said_hello(star)
    for sock in crowd:
        sock.close()


def test_who_answers_without_the_secret_is_no_member(stars: Stars) -> None:
    """The address of a pod that has gone may be somebody else's by now."""
    star = dialled(stars({"a": 1, "b": 1}, HELLO, start_timeout=3.0))
    hub = start_hub(star)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.9", 0))
        stranger.listen()
        assert tell(star, {"1": list(stranger.getsockname())})[0] == 200
        called, _ = stranger.accept()
        with called, called.makefile("rwb") as lines:
            lines.write(json.dumps({"nonce": "n"}).encode() + b"\n")
            lines.flush()
            claim = json.loads(lines.readline())
            assert claim["who"] == member_mark(star.configs[0]["gang"], 1)
            lines.write(json.dumps({"proof": claim["proof"]}).encode() + b"\n")
            lines.write(json.dumps({"t": "here", "address": "127.0.0.9", "ports": {}}).encode() + b"\n")
            lines.flush()
            assert lines.readline() == b""
    assert hub.ends() == {"cause": "absent", "nodes": [star.configs[0]["names"][1]]}


def test_a_member_does_not_believe_a_hub_without_the_secret_and_waits_for_its_own(stars: Stars) -> None:
    star = dialled(stars({"a": 1, "b": 1}, HELLO))
    star.start_all()
    false_hub = wait_for(lambda: connected(star.configs[1]["door"]), "the member's door")
    with false_hub, false_hub.makefile("rwb") as lines:
        json.loads(lines.readline())
        words = {"who": star.configs[1]["gang"], "nonce": "n", "proof": "0" * 64}
        lines.write(json.dumps(words).encode() + b"\n")
        lines.flush()
        assert lines.readline() == b""
    assert tell(star)[0] == 200
    all_said_hello(star)


def connected(address: list[Any]) -> socket.socket | None:
    try:
        return socket.create_connection((address[0], address[1]), timeout=30)
    except ConnectionRefusedError:
        return None


def test_a_member_that_has_a_hub_takes_no_other(stars: Stars) -> None:
    star = dialled(stars({"a": 1, "b": 1}, "echo rank $PUMASI_RANK; sleep 600", grace=1.0))
    star.start_all()
    assert tell(star)[0] == 200
    star.hub.wait_until_it_says("running")
    second = connected(star.configs[1]["door"])
    assert second is not None
    with second, second.makefile("rwb") as lines:
        nonce = json.loads(lines.readline())["nonce"]
        who = star.configs[1]["gang"]
        words = {"who": who, "nonce": "n", "proof": proof(star.secret, "dialling hub", who, nonce)}
        lines.write(json.dumps(words).encode() + b"\n")
        lines.flush()
        assert b'"t"' not in lines.read()
    assert not star.hub.said("ending")
    star.hub.stop(0)
    assert star.hub.ends()["cause"] == "stopped"


def test_members_that_nobody_calls_end_when_the_start_timeout_is_over(stars: Stars) -> None:
    star = dialled(stars({"a": 1, "b": 1}, HELLO, start_timeout=2.0))
    star.start_all()
    assert star.agents[0].ends() == {"cause": "absent", "nodes": [star.configs[0]["names"][1]]}
    assert star.agents[1].ends() == {"cause": "no hub", "error": "the hub has not called"}


def test_members_that_nobody_calls_call_by_themselves_in_time(stars: Stars) -> None:
    star = dialled(stars(THREE, HELLO), call_after=0.5)
    star.start_all()
    all_said_hello(star)


def test_a_member_that_is_lost_before_it_has_arrived_is_called_again(stars: Stars) -> None:
    star = dialled(stars({"a": 1, "b": 1}, HELLO))
    start_hub(star)
    with socket.socket() as first:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind(tuple(star.configs[1]["door"]))
        first.listen()
        assert tell(star)[0] == 200
        called, _ = first.accept()
        with called, called.makefile("rwb") as lines:
            lines.write(json.dumps({"nonce": "n"}).encode() + b"\n")
            lines.flush()
            claim = json.loads(lines.readline())
            answer = proof(star.secret, "dialled member", claim["who"], claim["nonce"])
            lines.write(json.dumps({"proof": answer}).encode() + b"\n")
            lines.flush()
    star.start(1)
    all_said_hello(star)
