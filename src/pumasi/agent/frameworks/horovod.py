"""Horovod in Gloo mode: its rendezvous is a key-value store over HTTP, which the chief's agent keeps."""

from __future__ import annotations

import functools

from pumasi.agent.frameworks import MemberPart
from pumasi.agent.network import interface_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any


class Part(MemberPart):
    port = "horovod"

    def serve(self, listener: socket.socket, hosts: set[str]) -> None:
        listener.listen(1024)
        allowed = hosts | {"127.0.0.1", self.member.address}
        self.member.loop.watch(listener, functools.partial(self.open_keys, listener, allowed))

    def open_keys(self, listener: socket.socket, allowed: set[str]) -> None:
        """Only when somebody asks: other frameworks do not, and this costs time."""
        import threading

        self.member.loop.unwatch(listener)
        threading.Thread(target=serve_keys, args=(listener, allowed), daemon=True).start()

    def add_variables(self, env: dict[str, str]) -> None:
        interface = interface_of(self.member.address) if self.member.config["total"] > 1 else None
        if interface:
            env.setdefault("HOROVOD_GLOO_IFACE", interface)


def serve_keys(listener: socket.socket, allowed: set[str]) -> None:
    """Keep values for the hosts of this gang only. Runs in a thread."""
    import http.server

    values: dict[str, bytes] = {}

    class Keys(http.server.BaseHTTPRequestHandler):
        def answer(self, code: int, body: bytes = b"") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            value = values.get(self.path)
            self.answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            values[self.path] = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 20))
            self.answer(200)

        def do_DELETE(self) -> None:
            values.pop(self.path, None)
            self.answer(200)

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def verify_request(self, request: Any, client_address: Any) -> bool:
            return client_address[0] in allowed

    server = Server(listener.getsockname()[:2], Keys, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.serve_forever()
