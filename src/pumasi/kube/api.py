"""Talks to a cluster's API: plain objects over HTTPS. The only module that does.

Whatever goes wrong comes out as a `ClusterTrouble` with a sentence.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlencode

from pumasi.errors import (
    ClusterTrouble,
    Conflict,
    Expired,
    Forbidden,
    NotThere,
    Rejected,
    Unauthorized,
    Unreachable,
)
from pumasi.kube.config import Connection
from pumasi.kube.http import ANSWER_SECONDS, Answer, Client, HttpTrouble, proxy_from
from pumasi.kube.identity import Key, trust
from pumasi.kube.watching import Absence, Event, Known, Object, pauses

PAGE = 500
"""Objects an answer: the API server need not hold a large cluster in memory for us."""
WATCH_SECONDS = 30
"""The cluster ends a watch then, and is asked again: silence for much longer is a broken link."""
WATCH_IDLE = 40.0
_AT_ONCE = 32
_DELETE_SECONDS = 70.0
"""The cluster takes up to a minute to delete many objects at once."""
_JSON = "application/json"
_BYTES = "application/octet-stream"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_METADATA = "application/json;as=PartialObjectMetadata{};v=v1;g=meta.k8s.io,application/json"
_FINE = range(200, 300)
_UNAUTHORIZED, _FORBIDDEN, _GONE = 401, 403, 410
_NOT_YET = re.compile(r'clusterrole\S* "system:[^"]*" not found')
"""An API server that has just started does not know the rights yet that everybody has, and refuses everything."""
_BUSY = (429, 500, 502, 503, 504)
_TROUBLES: dict[int, type[ClusterTrouble]] = {
    400: Rejected,
    404: NotThere,
    409: Conflict,
    413: Rejected,
    422: Rejected,
}
_DATE = re.compile(r"\w{3}, (\d\d) (\w{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Objects = list[Object]


class Api:
    """One cluster, for as long as `async with` lasts. Paths are as in the API's reference, queries have its names.

    What fails for a reason that may pass is tried again for `patience` seconds. So is a creation: where the answer to
    the first try was lost, the second ends in a `Conflict`, and the caller knows best whether that is its own object.
    """

    def __init__(self, connection: Connection, *, patience: float = 10.0) -> None:
        self.connection = connection
        self.calls = 0
        self._patience = patience
        self._clock = Clock()
        self._key = Key(connection)
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Api:
        where = self.connection
        try:
            proxy = where.proxy or proxy_from(where.server, os.environ)
            trusted = trust(where) if where.server.startswith("https:") else None
            self._client = Client(where.server, trust=trusted, server_name=where.server_name, proxy=proxy)
        except HttpTrouble as error:
            raise self._unreachable(error) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def patient(self, seconds: float) -> Api:
        """The same connection, for who bears with failures for that long."""
        other = copy.copy(self)
        other._patience = seconds
        return other

    @property
    def now(self) -> float:
        """The cluster's clock, as far as its answers have told it."""
        return time.time() + self._clock.offset

    async def get(self, path: str, **query: str) -> Object:
        return await self._insist("GET", _target(path, query))

    async def list(self, path: str, *, metadata_only: bool = False, **query: str) -> Objects:
        """All objects of a kind, as one moment saw them: `/api/v1/nodes`. Metadata alone spares large contents."""
        items, _ = await self._pages(self._insist, path, query, metadata_only)
        return items

    async def create(self, path: str, thing: Mapping[str, Any]) -> Object:
        """Fields that the cluster does not know are refused, not dropped: --set may have misspelt one."""
        return await self._insist("POST", _target(path, {"fieldValidation": "Strict"}), thing)

    async def user(self) -> str:
        """The name that the cluster knows us by; empty where it does not tell, as before Kubernetes 1.28."""
        group = "authentication.k8s.io/v1"
        asked = {"apiVersion": group, "kind": "SelfSubjectReview"}
        try:
            answer = await self._insist("POST", f"/apis/{group}/selfsubjectreviews", asked)
        except (Forbidden, NotThere, Rejected):
            return ""
        return str(answer.get("status", {}).get("userInfo", {}).get("username", ""))

    async def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        """Fields that are None in `change` are removed, those that it does not name are left."""
        return await self._insist("PATCH", path, change, content=_MERGE)

    async def apply(self, path: str, thing: Mapping[str, Any]) -> Object:
        """Made, or changed to what it should be: what we asked for earlier and do not ask for now goes, what others
        have added stays."""
        query = {"fieldManager": "pumasi", "force": "true", "fieldValidation": "Strict"}
        return await self._insist("PATCH", _target(path, query), thing, content=_APPLY)

    async def send(
        self,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        data: bytes,
        *,
        seconds: float,
        once: bool = False,
    ) -> Object:
        """Bytes to a server in a pod, through the cluster's proxy. It has to answer with an object, and has to bear
        being asked twice, unless `once` is set: `/api/v1/namespaces/…/pods/NAME:PORT/proxy/…`."""
        ask = self._try if once else self._insist
        return await ask("POST", _target(path, query), data, content=_BYTES, extra=headers, seconds=seconds)

    async def may(self, namespace: str, verb: str, resource: str, subresource: str = "") -> bool:
        """Whether we may do that to the objects of a kind; False also where the cluster does not tell."""
        group = "authorization.k8s.io/v1"
        attributes = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": subresource}
        asked = {"apiVersion": group, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        try:
            answer = await self._insist("POST", f"/apis/{group}/selfsubjectaccessreviews", asked)
        except ClusterTrouble:
            return False
        return bool(answer.get("status", {}).get("allowed"))

    async def delete(self, path: str, *, grace: int | None = None, background: bool = True) -> bool:
        """What is gone already is fine: then False. In the background, what the object owns goes after it; else before
        it."""
        try:
            await self._insist("DELETE", path, _deletion(grace, "Background" if background else "Foreground"))
        except NotThere:
            return False
        return True

    async def delete_all(self, path: str, *, grace: int | None = None, **query: str) -> None:
        """Every object of a kind that the selectors in the query choose."""
        body = _deletion(grace, "Background")
        await self._insist("DELETE", _target(path, query), body, seconds=_DELETE_SECONDS)

    async def watch(
        self,
        path: str,
        *,
        patience: float,
        away: Callable[[str], None] = lambda sentence: None,
        metadata_only: bool = False,
        fresh: bool = False,
        **query: str,
    ) -> AsyncGenerator[Event, None]:
        """What is there as ADDED, then SYNCED once, then each change as ADDED, MODIFIED or DELETED with the object.

        `fresh` is for objects that are still to be made: the API server answers at once with what it remembers, where
        it would else see to it first that it remembers all, for up to 0.1 seconds. Nothing is missed that comes later.

        Goes on by itself after every break, with nothing left out but what came and went, or changed more than once,
        during a long one. `away` is called with a sentence when the cluster becomes unreachable, and with an empty one
        when it is back; after `patience` seconds of it the watch ends with the trouble.
        """
        known = Known()
        absence = Absence(patience, away)
        synced = False
        while True:
            ask = absence.bound(self._try)
            try:
                if not known.version:
                    start = {"resourceVersion": "0"} if fresh and not synced else {}
                    items, version = await self._pages(ask, path, {**query, **start}, metadata_only)
                    absence.over()
                    for event in known.compare(items, version):
                        yield event
                    if not synced:
                        synced = True
                        yield "SYNCED", {}
                async for event in self._events(path, query, known.version, absence, metadata_only):
                    if known.learn(event):
                        yield event
            except Expired:
                known.version = ""
                await asyncio.sleep(next(pauses()))
            except Unreachable as error:
                await absence.endure(error)

    async def log(
        self, namespace: str, pod: str, *, container: str = "", since: str = "", follow: bool = True, idle: float
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a container as the kubelet gives them, each behind its time. A break, and nothing for `idle`
        seconds, end it with Unreachable; an end without it may be a break as well. `since` is cut to whole seconds."""
        query = {"timestamps": "true", "follow": "true" if follow else "false"}
        query |= {"sinceTime": since} if since else {}
        query |= {"container": container} if container else {}
        target = _target(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", query)
        # A kubelet begins its answer with the first line that it has.
        answer = await self._open("GET", target, seconds=idle)
        async for data in self._stream(answer, idle):
            yield data

    async def _insist(self, method: str, target: str, *rest: Any, **options: Any) -> Object:
        """As `_try`, and again for as long as it may help."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        for pause in pauses():
            try:
                async with self._room:
                    return await self._try(method, target, *rest, **options)
            except Unreachable as error:
                wait = max(pause, error.after)
                if loop.time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("there is always one more pause")

    async def _try(self, method: str, target: str, body: Mapping[str, Any] | bytes = b"", **options: Any) -> Object:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self._open(method, target, text, **options)
        try:
            said = json.loads(await answer.read())
        except HttpTrouble as error:
            raise self._unreachable(error) from None
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise ClusterTrouble(f"What answers at {self.connection.server} is no Kubernetes: it sends no objects.")
        return said

    async def _open(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        content: str = _JSON,
        accept: str = _JSON,
        extra: Mapping[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """An answer that is no refusal. A token that is not taken any more is renewed once."""
        headers = {"User-Agent": "pumasi", "Accept": accept, **(extra or {})}
        if body:
            headers["Content-Type"] = content
        signature, renewed = await self._key.sign()
        answer = await self._ask(method, target, {**headers, **signature}, body, seconds)
        if answer.status == _UNAUTHORIZED and not renewed and self._key.renewable:
            answer.close()
            signature = await self._key.renew(signature)
            answer = await self._ask(method, target, {**headers, **signature}, body, seconds)
        if answer.status in _FINE:
            return answer
        raise await self._refusal(answer)

    async def _ask(self, method: str, target: str, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
        self.calls += 1
        asked = time.time()
        try:
            answer = await self._client.request(method, target, headers, body, seconds=seconds)
        except HttpTrouble as error:
            raise self._unreachable(error) from None
        self._clock.learn(answer.headers.get("date", ""), asked, time.time())
        return answer

    async def _pages(
        self, ask: Callable[..., Any], path: str, query: Mapping[str, str], metadata_only: bool
    ) -> tuple[Objects, str]:
        """All objects, and the version of the collection that they are from."""
        accept = _METADATA.format("List") if metadata_only else _JSON
        items: Objects = []
        page = {**query, "limit": str(PAGE)}
        while True:
            try:
                answer = await ask("GET", _target(path, page), accept=accept)
            except Expired:
                # Too slow for the cluster's memory of that moment: all at once, then.
                if "continue" not in page:
                    raise
                items, page = [], dict(query)
                continue
            items += answer.get("items") or ()
            metadata = answer.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            page["continue"] = metadata["continue"]

    async def _events(
        self, path: str, query: Mapping[str, str], version: str, absence: Absence, metadata_only: bool
    ) -> AsyncGenerator[Event, None]:
        words = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        target = _target(path, {**query, **words, "resourceVersion": version})
        accept = _METADATA.format("") if metadata_only else _JSON
        began = asyncio.get_running_loop().time()
        answer = await absence.bound(self._open)("GET", target, accept=accept)
        absence.over()
        async for line in _lines(self._stream(answer, WATCH_IDLE)):
            yield self._event(line)
        if asyncio.get_running_loop().time() - began < 1:
            # Nothing is wrong with an end, but they must not come in a flood.
            await asyncio.sleep(next(pauses()))

    def _event(self, line: bytes) -> Event:
        try:
            event = json.loads(line)
            kind, thing = str(event["type"]), event["object"]
        except (ValueError, KeyError, TypeError):
            raise self._answers("something that is no event") from None
        if kind == "ERROR":
            # Whatever it is about, the version that was watched from leads nowhere.
            raise Expired(f"The watch has ended: {thing.get('message')}.", said=str(thing.get("message", "")))
        return kind, thing

    async def _stream(self, answer: Answer, idle: float) -> AsyncGenerator[bytes, None]:
        try:
            async for data in answer.stream(idle):
                yield data
        except HttpTrouble as error:
            raise self._unreachable(error) from None
        finally:
            answer.close()

    def _unreachable(self, error: HttpTrouble) -> Unreachable:
        trouble = Unreachable(
            f"The cluster at {self.connection.server} can't be reached: {error}.",
            "Is the address in the kubeconfig right, and a VPN needed? `kubectl get namespaces` would tell the same.",
        )
        trouble.silent = error.silent
        return trouble

    async def _refusal(self, answer: Answer) -> ClusterTrouble:
        try:
            said = str(json.loads(await answer.read())["message"])
        except (HttpTrouble, ValueError, KeyError, TypeError):
            said = f"status {answer.status} {answer.reason}".rstrip()
        said = said.rstrip(".")
        if answer.status == _UNAUTHORIZED:
            return Unauthorized(
                f"The cluster at {self.connection.server} does not know who you are: {said}.",
                "The token or certificate in the kubeconfig has expired, or belongs to another cluster: log in again.",
                said=said,
            )
        if answer.status == _FORBIDDEN and _NOT_YET.search(said):
            return self._answers(said)
        if answer.status == _FORBIDDEN:
            return Forbidden(f"The cluster does not allow it: {said}.", said=said)
        if answer.status == _GONE:
            return Expired(f"The cluster has forgotten it: {said}.", said=said)
        if answer.status in _BUSY:
            return self._answers(said, _seconds(answer.headers.get("retry-after", "")))
        kind = _TROUBLES.get(answer.status, ClusterTrouble)
        return kind(f"The cluster at {self.connection.server} answers: {said}.", said=said)

    def _answers(self, said: str, after: float = 0.0) -> Unreachable:
        trouble = Unreachable(f"The cluster at {self.connection.server} answers: {said}.", said=said)
        trouble.after = after
        return trouble


class Clock:
    """How far the cluster's clock is ahead of ours, at the least: as long as they may well be the same, they are. Its
    answers carry whole seconds, so each of them gives bounds, and many of them narrow ones."""

    def __init__(self) -> None:
        self._low, self._high = -math.inf, math.inf

    @property
    def offset(self) -> float:
        return min(max(0.0, self._low), self._high)

    def learn(self, date: str, asked: float, answered: float) -> None:
        found = _DATE.fullmatch(date)
        if found is None or found[2] not in _MONTHS or answered < asked:
            return
        day, month, year, hour, minute, second = found.groups()
        parts = (int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), min(int(second), 59))
        told = datetime(*parts, tzinfo=timezone.utc).timestamp()
        low, high = told - answered, told + 1 - asked
        self._low, self._high = max(self._low, low), min(self._high, high)
        if self._low > self._high:
            # Somebody has set a clock.
            self._low, self._high = low, high


def _target(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query, quote_via=quote)}" if query else path


def _deletion(grace: int | None, propagation: str) -> Object:
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdecimal() else 0.0


async def _lines(stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Whole ones: what is torn at the end is told again by whoever is asked next."""
    rest = bytearray()
    async for data in stream:
        searched = len(rest)
        rest += data
        if rest.find(b"\n", searched) >= 0:
            *whole, torn = rest.split(b"\n")
            rest = torn
            for line in whole:
                if line:
                    yield bytes(line)
