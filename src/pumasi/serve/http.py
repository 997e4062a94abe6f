"""HTTP/1.1 as a server reads and writes it: strictly, and within limits. Pure: bytes in, requests out.

What is not understood without doubt is refused. Bodies come with a Content-Length or not at all, so there is no second
opinion on where a request ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl

HEAD_LIMIT = 16 * 1024
_MOST_FIELDS = 32
_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]*|\*) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(
    rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*((?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?)[ \t]*"
)
_LENGTH = re.compile(r"[0-9]{1,12}")
_ONCE = frozenset(("host", "content-length", "content-type", "transfer-encoding", "authorization", "origin", "expect"))


class Refusal(Exception):
    """What a request is answered with in place of what it asked for. `code` is a word for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str = "", *, after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint, self.after = status, code, message, hint, after


class Request(NamedTuple):
    """`headers` have their names in lower case. `lasting`: the connection may be used again."""

    method: str
    target: str
    headers: Mapping[str, str]
    lasting: bool
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """Empty where there is too much of it: nothing is lost by that."""
        try:
            return fields_of(self.target.partition("?")[2])
        except Refusal:
            return {}

    @property
    def cookies(self) -> dict[str, str]:
        pairs = (pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";"))
        return {name: value for name, equals, value in pairs if equals}

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def wants_page(self) -> bool:
        return "text/html" in self.headers.get("accept", "")


class Response(NamedTuple):
    status: int
    body: bytes = b""
    media: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


def fields_of(text: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        raise Refusal(400, "bad_request", "The request has too many fields.") from None


Admit = Callable[[Request], int]
"""The head of a request ─► how many bytes its body may have; a `Refusal` if nothing of it is wanted."""


class Reader:
    """Bytes of one connection ─► its requests, one after the other. A body is not waited for until `admit` is asked."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._buffer = bytearray()
        self._searched = 0
        self.head: Request | None = None
        """Of the request that is being read."""
        self._length = 0
        self.continues = False
        """The client waits for a word before it sends the body."""

    @property
    def began(self) -> bool:
        """There is a part of a request."""
        return bool(self._buffer) or self.head is not None

    @property
    def ahead(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Request | None:
        """The next request, once it is whole; a `Refusal` after which nothing of the connection can be understood."""
        if self.head is None and not self._read_head():
            return None
        assert self.head is not None
        if len(self._buffer) < self._length:
            return None
        request = self.head._replace(body=bytes(self._buffer[: self._length]))
        del self._buffer[: self._length]
        self.head, self._searched, self.continues = None, 0, False
        return request

    def _read_head(self) -> bool:
        if self._searched == 0 and self._buffer.startswith(b"\r\n"):
            del self._buffer[:2]
        if self._buffer == b"\r":
            return False
        if self._buffer and not 65 <= self._buffer[0] <= 90:
            raise Refusal(400, "bad_request", "This is no HTTP request.", "The server speaks HTTP/1.1, not HTTPS.")
        end = self._buffer.find(b"\r\n\r\n", max(0, self._searched - 3))
        if end > HEAD_LIMIT or (end < 0 and len(self._buffer) > HEAD_LIMIT):
            raise Refusal(431, "head_too_large", f"The head of a request can have {HEAD_LIMIT:,} bytes at most.")
        if end < 0:
            self._searched = len(self._buffer)
            return False
        head = read_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self.head = head
        self._length = self._length_of(head)
        self.continues = "expect" in head.headers and len(self._buffer) < self._length
        return True

    def _length_of(self, head: Request) -> int:
        if "transfer-encoding" in head.headers:
            if "content-length" in head.headers:
                raise Refusal(400, "bad_request", "A request has a Content-Length or a Transfer-Encoding, not both.")
            raise Refusal(411, "length_required", "A body needs a Content-Length.", "Chunks are not taken.")
        said = head.headers.get("content-length", "0")
        if not _LENGTH.fullmatch(said):
            raise Refusal(400, "bad_request", "The Content-Length makes no sense.")
        length = int(said)
        if length and length > (limit := self._admit(head)):
            raise Refusal(413, "body_too_large", f"The body can have {limit:,} bytes at most.")
        return length


def read_head(text: bytes) -> Request:
    """`text` without the empty line at its end."""
    first, *lines = text.split(b"\r\n")
    words = _REQUEST.fullmatch(first)
    if words is None:
        raise Refusal(400, "bad_request", "The first line of the request makes no sense.")
    if words[3] != b"1":
        raise Refusal(505, "version", "The server speaks HTTP/1.1.")
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refusal(400, "bad_request", "A header of the request makes no sense.")
        name, value = header[1].decode().lower(), header[2].decode("latin-1")
        if name in headers and name in _ONCE:
            raise Refusal(400, "bad_request", f"The request has the header {name} twice.")
        headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in headers else value
    is_current = words[4] != b"0"
    if is_current and "host" not in headers:
        raise Refusal(400, "bad_request", "The request has no Host.")
    if headers.get("expect", "100-continue").lower() != "100-continue":
        raise Refusal(417, "expectation", "The server meets no expectation but 100-continue.")
    tokens = {token.strip() for token in headers.get("connection", "").lower().split(",")}
    lasting = "close" not in tokens and (is_current or "keep-alive" in tokens)
    return Request(words[1].decode(), words[2].decode(), headers, lasting)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def written(response: Response, *, date: str, lasting: bool, bodiless: bool = False) -> bytes:
    """`bodiless`: as HEAD wants it, with the length of what is left out."""
    headers = [
        ("Date", date),
        ("Content-Type", response.media),
        ("Content-Length", str(len(response.body))),
        ("Connection", "keep-alive" if lasting else "close"),
        *response.headers,
    ]
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}", *(f"{k}: {v}" for k, v in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (b"" if bodiless else response.body)


def form_of(request: Request) -> dict[str, bytes]:
    """The fields of a form that a browser has sent, in either of the two ways in which it does that."""
    if request.media == "multipart/form-data":
        return _parts(request)
    return {name: value.encode("utf-8", "replace") for name, value in fields_of(request.body.decode("latin-1")).items()}


_BOUNDARY = re.compile(r';\s*boundary="?([0-9A-Za-z\'()+_,\-./:=? ]{1,70})"?')
_NAME = re.compile(rb'^content-disposition:\s*form-data;\s*name="([a-z]+)"', re.IGNORECASE | re.MULTILINE)


def _parts(request: Request) -> dict[str, bytes]:
    boundary = _BOUNDARY.search(request.headers.get("content-type", ""))
    if boundary is None:
        raise Refusal(400, "bad_form", "The form has no boundary.")
    _, *parts = (b"\r\n" + request.body).split(b"\r\n--" + boundary[1].encode(), _MOST_FIELDS + 1)
    if not parts or not parts[-1].startswith(b"--"):
        raise Refusal(400, "bad_form", "The form does not end.")
    form = {}
    for part in parts[:-1]:
        head, found, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if not found or name is None:
            raise Refusal(400, "bad_form", "A field of the form makes no sense.")
        form[name[1].decode()] = value
    return form
