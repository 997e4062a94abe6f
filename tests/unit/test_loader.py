"""What takes files for a volume: whole, with the right checksum, on the volume and nowhere else."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pumasi.agent.files import loader_text
from pumasi.agent.loader import Loader
from tests.frameworks.reference import free_ports
from tests.harness import wait_for

CONTENT = bytes(range(256)) * 40


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Taker:
    """A loader, asked as over HTTP."""

    def __init__(self, folder: Path) -> None:
        self.loader = Loader(str(folder))

    def ask(self, action: str, body: bytes = b"", **query: str) -> dict[str, Any]:
        return self.loader.answer(f"/{action}", {name: [value] for name, value in query.items()}, body)

    def begin(self, path: str, content: bytes = CONTENT) -> dict[str, Any]:
        return self.ask("begin", path=path, size=str(len(content)), sha256=sha256(content))

    def piece(self, path: str, at: int, piece: bytes, content: bytes = CONTENT) -> dict[str, Any]:
        return self.ask("piece", piece, path=path, at=str(at), sha256=sha256(content))

    def finish(self, path: str, content: bytes = CONTENT) -> dict[str, Any]:
        return self.ask("finish", path=path, sha256=sha256(content))


@pytest.fixture
def taker(tmp_path: Path) -> Taker:
    (tmp_path / "volume").mkdir()
    return Taker(tmp_path / "volume")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    return tmp_path / "volume"


def shown(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_has_its_name_only_when_it_is_whole(taker: Taker, volume: Path) -> None:
    assert taker.begin("a/b.keras") == {"has": 0}
    assert taker.piece("a/b.keras", 0, CONTENT[:5000]) == {"has": 5000}
    assert taker.piece("a/b.keras", 5000, CONTENT[5000:]) == {"has": len(CONTENT)}
    assert not (volume / "a" / "b.keras").exists()
    assert taker.finish("a/b.keras") == {"done": True}
    assert shown(volume) == ["a/b.keras"]
    assert (volume / "a" / "b.keras").read_bytes() == CONTENT


def test_what_is_there_already_is_not_sent_again(taker: Taker, volume: Path) -> None:
    (volume / "a").write_bytes(CONTENT)
    assert taker.begin("a") == {"there": True}
    (volume / "a").write_bytes(CONTENT[::-1])
    assert taker.begin("a") == {"has": 0}


def test_what_is_asked_twice_because_an_answer_was_lost_does_no_harm(taker: Taker, volume: Path) -> None:
    for _ in range(2):
        assert taker.begin("a") == {"has": 0}
    for _ in range(2):
        assert taker.piece("a", 0, CONTENT) == {"has": len(CONTENT)}
    for _ in range(2):
        assert taker.finish("a") == {"done": True}
    assert (volume / "a").read_bytes() == CONTENT


def test_it_says_where_to_go_on(taker: Taker, volume: Path) -> None:
    taker.begin("a")
    taker.piece("a", 0, CONTENT[:100])
    assert taker.piece("a", 5000, CONTENT[5000:]) == {"has": 100}
    assert Taker(volume).begin("a") == {"has": 100}


def test_an_empty_file_is_a_file(taker: Taker, volume: Path) -> None:
    assert taker.begin("empty", b"") == {"has": 0}
    assert taker.finish("empty", b"") == {"done": True}
    assert (volume / "empty").read_bytes() == b""


def test_a_damaged_file_is_not_kept(taker: Taker, volume: Path) -> None:
    taker.begin("a")
    taker.piece("a", 0, CONTENT[::-1])
    assert taker.finish("a")["error"] == "damaged"
    assert shown(volume) == []


def test_a_file_that_does_not_fit_is_refused_before_it_is_sent(taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    about = os.statvfs("/")
    small = os.statvfs_result([*about[:2], about.f_blocks, 0, 0, *about[5:10]])
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    assert taker.begin("a") == {"error": "full", "details": "0 bytes are free"}


@pytest.mark.parametrize("path", ["../a", "/etc/a", "a/../../b", "link/a", "", "a/"])
def test_nothing_is_written_beside_the_volume(taker: Taker, volume: Path, tmp_path: Path, path: str) -> None:
    (volume / "link").symlink_to(tmp_path)
    assert taker.begin(path)["error"] == "outside"
    assert shown(volume) == []


def test_of_a_folder_only_what_is_named_is_kept(taker: Taker, volume: Path, tmp_path: Path) -> None:
    for name in ("old", "former", "new"):
        (volume / "serve" / name).mkdir(parents=True)
        (volume / "serve" / name / "model").touch()
    (tmp_path / "precious").touch()
    (volume / "serve" / "link").symlink_to(tmp_path)
    gone = taker.ask("keep", json.dumps(["former", "new"]).encode(), folder="serve")["gone"]
    assert sorted(gone) == ["link", "old"]
    assert shown(volume) == ["serve/former/model", "serve/new/model"]
    assert (tmp_path / "precious").exists()
    assert taker.ask("keep", b"[]", folder="nowhere") == {"gone": []}


# ---- the program


@contextmanager
def loading(folder: Path, patience: float) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (port,) = free_ports(1)
    command = [sys.executable, "-I", "-S", "-c", loader_text(), str(folder), str(port), str(patience)]
    process = subprocess.Popen(command, env={"PUMASI_LOADER_TOKEN": "right"}, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: answers(port), "it to listen")
        yield process, port
    finally:
        process.kill()
        process.communicate()


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def post(port: int, token: str, target: str, body: bytes = b"") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", target, body, {"X-Pumasi-Token": token})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


BEGIN = f"/begin?path=a&size={len(CONTENT)}&sha256={sha256(CONTENT)}"


def test_only_who_has_the_token_may_send(tmp_path: Path) -> None:
    with loading(tmp_path, 60) as (_, port):
        assert post(port, "wrong", BEGIN)[0] == 401
        assert shown(tmp_path) == []
        assert post(port, "right", "/elsewhere")[0] == 404
        assert post(port, "right", BEGIN) == (200, {"has": 0})


@pytest.mark.parametrize(
    ("token", "length", "status"), [("wrong", "9" * 8, 401), ("right", "9" * 8, 413), ("right", "-1", 413)]
)
def test_nobody_makes_it_read_without_end(tmp_path: Path, token: str, length: str, status: int) -> None:
    with loading(tmp_path, 60) as (_, port), socket.create_connection(("127.0.0.1", port), 30) as connection:
        head = f"POST {BEGIN} HTTP/1.1\r\nHost: x\r\nX-Pumasi-Token: {token}\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.makefile("rb").readline().split()[1] == str(status).encode()


def test_asked_to_go_it_takes_along_what_is_unfinished(tmp_path: Path) -> None:
    with loading(tmp_path, 60) as (process, port):
        post(port, "right", BEGIN)
        assert len(shown(tmp_path)) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert shown(tmp_path) == []


def test_when_nobody_speaks_any_more_it_goes_by_itself(tmp_path: Path) -> None:
    with loading(tmp_path, 5) as (process, port):
        post(port, "right", BEGIN)
        assert process.wait(30) == 0
        assert shown(tmp_path) == []
