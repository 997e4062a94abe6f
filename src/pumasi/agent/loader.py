"""Takes files for a volume, in a short-lived pod that has it: see `kube.uploading`, which is the other side.

A request is a POST with the token in a header; its answer is JSON, and 200 whatever became of it, so that any other
status is known to be one of the cluster's own. A file grows under a hidden name and gets its own when it is whole.
Ends when nobody has asked anything for a while, and takes along what is unfinished.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Query = dict[str, list[str]]
    Answer = dict[str, Any]

_BLOCK = 1 << 20
LARGEST = 16 << 20
"""Bytes of one request."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Trouble(Exception):
    """`args`: one of the words that the other side knows, and details."""


class Loader:
    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._lock = threading.Lock()
        self._unfinished: set[str] = set()
        self._heard = time.monotonic()
        self.actions = {"/begin": self._begin, "/piece": self._piece, "/finish": self._finish, "/keep": self._keep}

    @property
    def silence(self) -> float:
        """Seconds since the last request was answered."""
        return 0.0 if self._lock.locked() else time.monotonic() - self._heard

    def answer(self, action: str, query: Query, body: bytes) -> Answer:
        try:
            with self._lock:
                return self.actions[action](query, body)
        except Trouble as trouble:
            return {"error": trouble.args[0], "details": trouble.args[1]}
        except OSError as error:
            word = "full" if error.errno in _FULL else "refused" if error.errno in _REFUSED else "failed"
            return {"error": word, "details": error.strerror or str(error)}
        finally:
            self._heard = time.monotonic()

    def tidy(self) -> None:
        for part in self._unfinished:
            with suppress(OSError):
                os.remove(part)

    def _begin(self, query: Query, body: bytes) -> Answer:
        target, part, size = self._place(query["path"][0]), self._part(query), int(query["size"][0])
        if _size(target) == size and _digest(target) == query["sha256"][0]:
            return {"there": True}
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self._unfinished.add(part)
        has = _size(part) or 0
        if has > size:
            os.truncate(part, 0)
            has = 0
        about = os.statvfs(os.path.dirname(target))
        free = about.f_bavail * about.f_frsize
        if free < size - has:
            raise Trouble("full", "%d bytes are free" % free)
        # An empty file has no pieces, but has to be there too.
        open(part, "ab").close()
        return {"has": has}

    def _piece(self, query: Query, body: bytes) -> Answer:
        """One that comes twice, because its first answer was lost, changes nothing."""
        part, at = self._part(query), int(query["at"][0])
        has = _size(part) or 0
        if at == has:
            with open(part, "ab") as file:
                file.write(body)
            has += len(body)
        return {"has": has}

    def _finish(self, query: Query, body: bytes) -> Answer:
        target, part = self._place(query["path"][0]), self._part(query)
        if _size(part) is None and _size(target) is not None and _digest(target) == query["sha256"][0]:
            return {"done": True}
        if _digest(part) != query["sha256"][0]:
            os.remove(part)
            raise Trouble("damaged", "")
        _sync(part)
        os.replace(part, target)
        self._unfinished.discard(part)
        _sync(os.path.dirname(target))
        return {"done": True}

    def _keep(self, query: Query, body: bytes) -> Answer:
        """Of all that is in a folder, only these."""
        folder, kept = self._place(query["folder"][0]), json.loads(body)
        gone = [name for name in (os.listdir(folder) if os.path.isdir(folder) else []) if name not in kept]
        for name in gone:
            path = os.path.join(folder, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.remove(path)
        return {"gone": gone}

    def _place(self, path: str) -> str:
        """Never outside of the volume, also not by a link that somebody left there."""
        whole = os.path.join(self._root, path)
        parent = os.path.realpath(os.path.dirname(whole))
        outside = os.path.commonpath([self._root, parent]) != self._root
        if os.path.isabs(path) or ".." in path.split("/") or outside or not os.path.basename(path):
            raise Trouble("outside", path)
        return whole

    def _part(self, query: Query) -> str:
        folder, name = os.path.split(self._place(query["path"][0]))
        return os.path.join(folder, ".%s.%s.part" % (name, query["sha256"][0][:16]))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _digest(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(_BLOCK), b""):
            found.update(block)
    return found.hexdigest()


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def handler_for(loader: Loader, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 120

        def do_POST(self) -> None:
            asked = urlsplit(self.path)
            said = self.headers.get("Content-Length", "0")
            length = int(said) if said.isdecimal() and len(said) < 10 else LARGEST + 1
            self.close_connection = True
            if not hmac.compare_digest(self.headers.get("X-Pumasi-Token", "").encode(), token.encode()):
                self._send(401, {"message": "the token is wrong"})
            elif length > LARGEST:
                self._send(413, {"message": "that is too much at once"})
            elif asked.path not in loader.actions:
                self._send(404, {"message": "there is nothing here"})
            else:
                self.close_connection = False
                self._send(200, loader.answer(asked.path, parse_qs(asked.query), self.rfile.read(length)))

        def _send(self, status: int, thing: Answer) -> None:
            text = json.dumps(thing).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words: object) -> None:
            pass

    return Handler


class Server(ThreadingHTTPServer):
    """Pods have an address of the one kind or the other."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET


def main(root: str, port: int, patience: float) -> None:
    loader = Loader(root)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    server = Server(("", port), handler_for(loader, os.environ["PUMASI_LOADER_TOKEN"]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while loader.silence < patience and not over.wait(0.5):
        pass
    server.shutdown()
    loader.tidy()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
