"""The agent and the user's code on their way into a cluster, beside whatever else has to be done before pods start."""

from __future__ import annotations

import asyncio

from pumasi.agent.files import agent_text
from pumasi.errors import Conflict, Forbidden, PumasiError
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.record import Record


class CodeUpload:
    """Of one run, whose record owns it."""

    def __init__(self, api: Api, record: Record) -> None:
        self._api = api
        self._record = record
        self._sent: list[tuple[manifests.Object, asyncio.Future[None]]] = []

    def begin(self, packed: bytes) -> None:
        things = manifests.code(self._record.run, self._record.owner, agent_text(), packed)
        self._sent = [(thing, self._send(thing)) for thing in things]

    def _send(self, thing: manifests.Object) -> asyncio.Future[None]:
        """Whether it got there is asked later, or never, if the run ends before."""
        sending = asyncio.ensure_future(self._upload(thing))
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return sending

    async def _upload(self, thing: manifests.Object) -> None:
        try:
            await self._api.create(f"/api/v1/namespaces/{self._record.namespace}/secrets", thing)
        except Conflict:
            pass  # The answer to a first try was lost.
        except Forbidden as error:
            raise needs_edit(error, self._record.namespace) from None

    async def finish(self) -> None:
        """Return when all of it is there. What did not get there is sent again the next time."""
        try:
            await asyncio.gather(*(sending for _, sending in self._sent))
        except PumasiError:
            await asyncio.wait([sending for _, sending in self._sent])
            failed = [thing for thing, sending in self._sent if sending.exception()]
            self._sent = [(thing, self._send(thing)) for thing in failed]
            raise


def needs_edit(error: Forbidden, namespace: str) -> Forbidden:
    hint = f"Runs need the right `edit` in the namespace {namespace}; --namespace names another one."
    return Forbidden(error.message, hint, said=error.said)
