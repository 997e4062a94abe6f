"""Requests ─► answers: who may ask, what is served where, and how a refusal looks to programs and to people."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, NamedTuple

import numpy as np

from pumasi.serve import pages
from pumasi.serve.answers import Verdict
from pumasi.serve.batching import Batcher
from pumasi.serve.ensemble import Ensemble
from pumasi.serve.http import Refusal, Request, Response, form_of
from pumasi.serve.limits import MEBIBYTE, Limits, Rates, client_of
from pumasi.serve.metrics import Metrics
from pumasi.serve.openapi import described
from pumasi.serve.preprocessing import BadInput, Image, Preprocessing, Text
from pumasi.serve.texts import LANGUAGES, language_of

_TEXT_BODY, _BODY = MEBIBYTE, 8 * MEBIBYTE
_LONG_TEXT = 20_000
"""Characters. What is longer takes milliseconds to take apart, in which the others need not wait."""
_HTML = "text/html; charset=utf-8"
_STATIC = {
    "app.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_LANGUAGE_COOKIE = "pumasi_lang"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([0-9A-Za-z.-]+))(?::[0-9]{1,5})?")
_PROBES = ("/healthz", "/readyz")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SECURITY = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


class Service(NamedTuple):
    """One generation of models. Those who came in its time are answered by it, whatever is loaded meanwhile."""

    ensemble: Ensemble
    batcher: Batcher


class App:
    """`service` is None until the first models are loaded. `token`: who has it may ask; empty: everybody may.
    `is_local`: only names of this machine are taken for the host, so that no page elsewhere can borrow one."""

    def __init__(self, limits: Limits, *, rate: float, token: str, is_local: bool, warn: Callable[[str], None]) -> None:
        self.service: Service | None = None
        self.metrics = Metrics()
        self.is_ending = False
        self.asked = time.monotonic()
        self.connections: Callable[[], int] = lambda: 0
        self._limits, self._token, self._is_local, self._warn = limits, token, is_local, warn
        # Browsers keep one jar for all ports of a host: servers side by side need names of their own.
        self._cookie = f"pumasi_{hashlib.sha256(token.encode()).hexdigest()[:8]}"
        self._rates = Rates(rate)
        self._static = {
            f"/static/{name}": Response(200, files(__package__).joinpath("static", name).read_bytes(), media)
            for name, media in _STATIC.items()
        }
        self._routes: Mapping[str, Mapping[str, Callable[[Request], Awaitable[Response]]]] = {
            "/": {"GET": self._page},
            "/predict": {"POST": self._predict, "GET": self._page},
            "/docs": {"GET": self._docs},
            "/openapi.json": {"GET": self._openapi},
            "/metrics": {"GET": self._metrics},
            "/healthz": {"GET": self._healthz},
            "/readyz": {"GET": self._readyz},
            **{path: {"GET": self._file} for path in self._static},
        }

    def admit(self, head: Request) -> int:
        """How large a body may be. Who may not ask is refused before it is sent."""
        self._check_host(head)
        self._check_token(head)
        if head.path not in self._routes:
            raise _not_found()
        if head.path != "/predict":
            return 0
        return _TEXT_BODY if isinstance(self._running().ensemble.preprocessing, Text) else _BODY

    async def answer(self, request: Request, address: str) -> Response:
        began = time.monotonic()
        try:
            response = await self._answer(request, address)
        except Refusal as refusal:
            response = self.refuse(refusal, request)
        except Exception as error:  # noqa: BLE001
            self._warn(f"A request to {request.path[:100]!r} met a mistake of Pumasi: {type(error).__name__}: {error}")
            response = self.refuse(Refusal(500, "mistake", "Pumasi made a mistake.", "Its log says which."), request)
        path = request.path if request.path in self._routes else "other"
        self.metrics.request(path, response.status, time.monotonic() - began)
        return response._replace(headers=(*response.headers, *_SECURITY))

    def refuse_unread(self, refusal: Refusal, head: Request | None) -> Response:
        """For what is not read to its end, or can't be."""
        self.metrics.request("other", refusal.status, 0.0)
        response = self.refuse(refusal, head)
        return response._replace(headers=(*response.headers, *_SECURITY))

    def refuse(self, refusal: Refusal, request: Request | None) -> Response:
        headers = () if refusal.after is None else (("Retry-After", str(refusal.after)),)
        if refusal.status == 401:
            headers = (*headers, ("WWW-Authenticate", "Bearer"))
        if request is not None and request.wants_page:
            if refusal.code == "loading":
                headers = (*headers, ("Refresh", "2"))
            return _page(pages.refusal(refusal, _language(request), request.path), refusal.status, headers)
        error = {"code": refusal.code, "message": refusal.message, "hint": refusal.hint}
        return _json({"error": error}, refusal.status, headers)

    async def _answer(self, request: Request, address: str) -> Response:
        self._check_host(request)
        methods = self._routes.get(request.path)
        if request.path not in _PROBES:
            self.asked = time.monotonic()
            wait = self._rates.take(client_of(address), self.asked)
            if wait:
                raise Refusal(
                    429, "too_many_requests", "These are too many requests.", f"Wait for {wait} s.", after=wait
                )
            if self._token and "token" in request.query:
                return self._welcome(request)
            if request.path not in self._static:
                self._check_token(request)
        if methods is None:
            raise _not_found()
        method = "GET" if request.method == "HEAD" else request.method
        if method not in methods:
            allowed = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
            refusal = Refusal(405, "method_not_allowed", f"{request.path} does not take {request.method}.", allowed)
            response = self.refuse(refusal, request)
            return response._replace(headers=(*response.headers, ("Allow", allowed)))
        return await methods[method](request)

    def _check_host(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if self._is_local and not _is_loopback(host):
            hint = "The server is there for this machine alone; --host opens it."
            raise Refusal(421, "wrong_host", "This server does not answer to that name.", hint)
        site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "null")
        # Our own forms say "null", because our pages tell nobody where they are.
        foreign = (
            site not in ("same-origin", "none") if site else origin not in ("null", f"http://{host}", f"https://{host}")
        )
        if request.method == "POST" and foreign:
            raise Refusal(403, "foreign_page", "Pages of other servers may not ask this one.")

    def _check_token(self, request: Request) -> None:
        if not self._token:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        offered = given.strip() if scheme.lower() == "bearer" else request.cookies.get(self._cookie, "")
        if not self._is_token(offered):
            hint = "Open the address with ?token=… that pumasi serve printed, or send Authorization: Bearer TOKEN."
            raise Refusal(401, "token_required", "This server needs a token.", hint)

    def _is_token(self, offered: str) -> bool:
        return hmac.compare_digest(offered.encode("utf-8", "replace"), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        """The token moves from the address into a cookie. The browser goes on by itself, not by a redirect: a cookie
        that is strict would not be sent along by one that began at another site."""
        if not self._is_token(request.query["token"]):
            raise Refusal(401, "token_required", "This token is not the right one.", "Is it of an earlier start?")
        cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
        return _page(pages.welcome(_language(request)), 200, (("Set-Cookie", cookie), ("Refresh", "0; url=./")))

    def _running(self) -> Service:
        if self.service is None:
            raise Refusal(503, "loading", "The model is being loaded.", "Try again in a moment.", after=2)
        return self.service

    async def _page(self, request: Request) -> Response:
        service = self._running()
        cookie = _language_cookie(request)
        return _page(pages.home(service.ensemble, _language(request)), 200, cookie)

    async def _docs(self, request: Request) -> Response:
        service = self._running()
        page = pages.docs(
            service.ensemble,
            _language(request),
            self._limits,
            request.headers.get("host", ""),
            needs_token=bool(self._token),
        )
        return _page(page, 200, _language_cookie(request))

    async def _openapi(self, request: Request) -> Response:
        return _json(described(self._running().ensemble, self._limits, needs_token=bool(self._token)))

    async def _file(self, request: Request) -> Response:
        return self._static[request.path]

    async def _healthz(self, request: Request) -> Response:
        """Whether to start it anew would help."""
        if self.service is not None and self.service.batcher.is_stuck:
            raise Refusal(503, "stuck", "The model does not come back from a prediction.")
        return _json({"status": "ok"})

    async def _readyz(self, request: Request) -> Response:
        """Whether to send requests here."""
        if self.is_ending:
            raise Refusal(503, "ending", "The server is about to end.", after=5)
        return _json({"status": "ready", "models": self._running().ensemble.names})

    async def _metrics(self, request: Request) -> Response:
        waiting = self.service.batcher.waiting if self.service else 0
        ready = self.service is not None and not self.is_ending
        gauges = {
            "pumasi_queue_inputs": ("Inputs that wait for the model.", waiting),
            "pumasi_connections": ("Connections that are open.", self.connections()),
            "pumasi_ready": ("1 if models are loaded and the server is not ending.", float(ready)),
        }
        return Response(200, self.metrics.text(gauges).encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _predict(self, request: Request) -> Response:
        service = self._running()
        with service.batcher.in_use():
            return await self._predict_with(service, request)

    async def _predict_with(self, service: Service, request: Request) -> Response:
        media, preprocessing = request.media, service.ensemble.preprocessing
        if media in ("application/x-www-form-urlencoded", "multipart/form-data"):
            return await self._predict_form(request, service)
        if media == "application/json":
            inputs = _inputs(request.body, self._limits.inputs)
        elif media == "image/png" and isinstance(preprocessing, Image):
            inputs = [request.body]
        else:
            raise Refusal(415, "media_type", "The body has to be JSON.", "Send Content-Type: application/json.")
        verdicts = await self._verdicts(service, inputs)
        return _json({"predictions": [each.as_json() for each in verdicts]})

    async def _predict_form(self, request: Request, service: Service) -> Response:
        """The answer is the page again, with what was given and what it is: also where a browser runs no scripts."""
        form, language, ensemble = form_of(request), _language(request), service.ensemble
        typed = form.get("text", form.get("json", b"")).decode("utf-8", "replace")
        seen: Any = None
        try:
            value = _given(form, typed, ensemble.preprocessing)
            if "example" in form and not isinstance(ensemble.preprocessing, Image):
                typed = value if isinstance(value, str) else json.dumps(value)
            if isinstance(ensemble.preprocessing, Image):
                seen = value = await _pixels(ensemble.preprocessing, value)
            (verdict,) = await self._verdicts(service, [value])
        except BadInput as error:
            refusal = Refusal(422, "bad_input", error.message, error.hint)
            return _page(pages.home(ensemble, language, typed, refusal=refusal), refusal.status)
        except Refusal as refusal:
            return _page(pages.home(ensemble, language, typed, refusal=refusal, seen=seen), refusal.status)
        return _page(pages.home(ensemble, language, typed, verdict=verdict, seen=seen))

    async def _verdicts(self, service: Service, inputs: list[object]) -> list[Verdict]:
        places = [f"inputs[{place}]: " for place in range(len(inputs))] if len(inputs) > 1 else [""]
        preprocessing = service.ensemble.preprocessing
        try:
            rows = await asyncio.wait_for(_rows(preprocessing, inputs, places), self._limits.prediction)
        except asyncio.TimeoutError:
            raise Refusal(
                504, "timeout", "The inputs took too long to prepare.", "Send fewer, or smaller ones."
            ) from None
        outputs = await service.batcher.predict(rows)
        try:
            return [service.ensemble.verdict(each) for each in outputs]
        except ValueError as error:
            raise Refusal(500, "model_failed", f"There is no answer: {error}.") from None


async def _rows(preprocessing: Preprocessing, inputs: Sequence[object], places: Sequence[str]) -> list[Any]:
    return [await _row(preprocessing, value, place) for value, place in zip(inputs, places, strict=True)]


async def _row(preprocessing: Preprocessing, value: object, place: str) -> Any:
    try:
        if isinstance(preprocessing, Image):
            return preprocessing.encode([await _pixels(preprocessing, value)])[0]
        if isinstance(value, str) and len(value) > _LONG_TEXT:
            return await asyncio.to_thread(preprocessing.row, value)
        return preprocessing.row(value)
    except BadInput as error:
        raise Refusal(422, "bad_input", f"{place}{error.message}", error.hint) from None


async def _pixels(preprocessing: Image, value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value
    # A large picture takes a while to decode; the others need not wait for it.
    if isinstance(value, bytes):
        return await asyncio.to_thread(preprocessing.pixels_of_png, value)
    return await asyncio.to_thread(preprocessing.pixels, value)


def _inputs(body: bytes, most: int) -> list[object]:
    try:
        said = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "bad_json", f"The body is no JSON: {str(error)[:100]}.", 'Send {"input": …}.') from None
    if not isinstance(said, dict) or len(said) != 1 or next(iter(said)) not in ("input", "inputs"):
        raise Refusal(422, "bad_input", 'The body has to be {"input": …} or {"inputs": […, …]}.', "See /docs.")
    if "input" in said:
        return [said["input"]]
    inputs = said["inputs"]
    if not isinstance(inputs, list) or not 1 <= len(inputs) <= most:
        raise Refusal(422, "bad_input", f'"inputs" has to be a list of 1 to {most} inputs.')
    return inputs


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _given(form: Mapping[str, bytes], typed: str, preprocessing: Preprocessing) -> Any:
    """What a form gives: an example, a text, a picture that was drawn or uploaded, or JSON."""
    if "example" in form:
        place = form["example"].decode("utf-8", "replace")
        if place not in map(str, range(len(preprocessing.examples))):
            raise Refusal(422, "bad_input", "There is no such example.")
        return preprocessing.examples[int(place)]
    if isinstance(preprocessing, Image):
        given = form.get("file") or form.get("drawn", b"").decode("utf-8", "replace")
    else:
        given = typed.strip()
    if not given:
        raise Refusal(422, "empty", "There is nothing to look at.")
    if isinstance(preprocessing, (Text, Image)):
        return given
    try:
        return json.loads(typed, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refusal(400, "bad_json", "This is no JSON.", "A list of numbers, such as [1, 2, 3].") from None


def _is_loopback(host: str) -> bool:
    said = _HOST.fullmatch(host)
    if said is None:
        return False
    name = (said[1] or said[2]).lower()
    try:
        return name == "localhost" or name.endswith(".localhost") or ip_address(name).is_loopback
    except ValueError:
        return False


def _language(request: Request) -> str:
    asked = request.query.get("lang") or request.cookies.get(_LANGUAGE_COOKIE, "")
    return asked if asked in LANGUAGES else language_of(request.headers.get("accept-language", ""))


def _language_cookie(request: Request) -> tuple[tuple[str, str], ...]:
    if request.query.get("lang") not in LANGUAGES:
        return ()
    return (("Set-Cookie", f"{_LANGUAGE_COOKIE}={request.query['lang']}; Path=/; SameSite=Strict; Max-Age=31536000"),)


def _not_found() -> Refusal:
    return Refusal(404, "not_found", "There is nothing here.", "See / and /docs.")


def _page(text: str, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(status, text.encode("utf-8", "replace"), _HTML, (("Vary", "Accept-Language, Cookie"), *headers))


def _json(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Response(status, text.encode("utf-8", "replace"), "application/json", headers)
