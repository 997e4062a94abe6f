"""How the agents of a gang meet, and what they know each other by.

The chief's agent calls the others: the manager, which sees the addresses of all pods, tells it those, in one request
through the cluster's proxy. A Service would take longer, since kube-proxy programs a new address at most once a second.
It is how agents meet where the manager may not use the proxy, or does not know the secret of a run that it has taken
over; and where the API server can't reach pods, which is found out too late to tell their agents. So members that
nobody calls turn to the name of the Service by themselves.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from pumasi.agent.links import proof, proves
from pumasi.errors import ClusterTrouble, Conflict, Forbidden, PumasiError
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.manifests import DOOR_PORT, GangSpec, Owner

T = TypeVar("T")
ANSWER_SECONDS = 2.0
"""For one request to the chief's agent."""


class _Service(NamedTuple):
    """A Service, by the attempt that made it."""

    attempt: int
    address: str


class Stars:
    """Of one run. `owner` is that of what is made here."""

    def __init__(self, api: Api, namespace: str, run: str, owner: Callable[[], Owner]) -> None:
        self._api = api
        self._namespace = namespace
        self._run = run
        self._owner = owner
        self._reaches: asyncio.Future[bool] | None = None
        self._secret: asyncio.Future[str] | None = None
        self._services: dict[tuple[str, int], _Service] = {}
        self._dialled: set[tuple[str, int]] = set()
        self._spare: dict[str, _Service] = {}

    def look_ahead(self) -> None:
        """Ask early for what a gang of several pods will need."""
        self._reaches = self._reaches or _begun(self._api.may(self._namespace, "create", "pods", "proxy"))

    def make_ahead(self) -> None:
        self._secret = self._secret or _begun(self._make_secret())

    async def arrange(self, gang: GangSpec) -> GangSpec:
        """How the agents of this gang meet, with what it takes. Raises what the cluster has against it; what was made
        before that is left to the next."""
        self.look_ahead()
        self.make_ahead()
        assert self._reaches is not None
        if not await asyncio.shield(self._reaches):
            service, secret = await asyncio.gather(self._find_service(gang), self.secret(), return_exceptions=True)
            for answer in (secret, service):
                if isinstance(answer, BaseException):
                    raise answer
        elif await self.secret():
            self._dialled.add((gang.task, gang.attempt))
            gang = gang._replace(star=gang.attempt, dialled=True)
            return gang._replace(hub=manifests.hub_name(gang))
        else:
            await self._find_service(gang)
        made = self._services[gang.task, gang.attempt]
        return gang._replace(star=made.attempt, hub=made.address)

    async def secret(self) -> str:
        """Empty where a manager before us has made it, and we may not read it."""
        self.make_ahead()
        assert self._secret is not None
        try:
            return await asyncio.shield(self._secret)
        except PumasiError:
            self._secret = None  # The next one tries again.
            raise

    async def _make_secret(self) -> str:
        value = secrets.token_hex(32)
        try:
            await self._api.create(self._path("secrets"), manifests.secret(self._run, self._owner(), value))
        except Conflict:
            return await self._read_secret()
        return value

    async def _read_secret(self) -> str:
        """Made by a manager before us; or by us, when the answer to a first try was lost."""
        with contextlib.suppress(Forbidden):
            found = await self._api.get(f"{self._path('secrets')}/{manifests.secret_name(self._run)}")
            return base64.b64decode(found.get("data", {}).get("secret", "")).decode()
        return ""

    async def _find_service(self, gang: GangSpec) -> None:
        """A new one; or that of an attempt which got no place, and of which nothing is left."""
        service = self._spare.pop(gang.task, None)
        if service is None:
            made = await self._api.create(self._path("services"), manifests.service(gang._replace(star=gang.attempt)))
            service = _Service(gang.attempt, made["spec"]["clusterIP"])
        self._services[gang.task, gang.attempt] = service

    def spare(self, task: str, attempt: int) -> None:
        """Nothing is left of that attempt: the next one may have its Service."""
        if service := self._services.get((task, attempt)):
            self._spare[task] = service

    def forget(self, task: str, attempt: int) -> None:
        """It is over."""
        self._services.pop((task, attempt), None)
        self._dialled.discard((task, attempt))

    def is_dialled(self, task: str, attempt: int) -> bool:
        return (task, attempt) in self._dialled

    async def tell(self, chief: str, mark: str, members: Mapping[int, str]) -> None:
        """Tell the agent in the pod `chief` where its members are. Raises Forbidden where that will never work."""
        secret = await self.secret()
        if not secret:
            raise Forbidden("The secret of the run can't be read.")
        text = json.dumps({node: [address, DOOR_PORT] for node, address in members.items()})
        nonce = secrets.token_hex(16)
        words = {"nonce": nonce, "members": text, "proof": proof(secret, "members", mark, nonce, text)}
        path = f"{self._path('pods')}/{chief}:{DOOR_PORT}/proxy/members"
        answer = await self._api.send(path, {}, {}, json.dumps(words).encode(), seconds=ANSWER_SECONDS, once=True)
        if not proves(answer.get("proof"), secret, "told", mark, nonce):
            raise ClusterTrouble("What answers for the first pod of the gang does not know the secret of the run.")

    async def open(self, gang: GangSpec) -> None:
        """The Service whose name members turn to that nobody calls."""
        with contextlib.suppress(Conflict):
            await self._api.create(self._path("services"), manifests.service(gang))

    def _path(self, kind: str) -> str:
        return f"/api/v1/namespaces/{self._namespace}/{kind}"

    async def let_go(self) -> None:
        for asked in (self._reaches, self._secret):
            if asked is not None:
                asked.cancel()


class Introduction:
    """Of the members of one gang to its chief's agent."""

    def __init__(self, stars: Stars, gang: GangSpec, mark: str) -> None:
        self._stars = stars
        self._gang = gang
        self._mark = mark

    async def tell(self, chief: str, members: Mapping[int, str]) -> None:
        await self._stars.tell(chief, self._mark, members)

    async def open(self) -> None:
        await self._stars.open(self._gang)


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """What it fails of is told to who asks for it, and to nobody else."""
    future = asyncio.ensure_future(work)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
