"""The journal of a run of several tasks, kept in the cluster: numbered ConfigMaps that the run's record owns.

Entries are added to the last one until it is full, as many at a time as there are; so a run of 20,000 tasks writes some
hundred times, and no object comes near the limit of 1 MiB. Of the oldest, what is only for people (reasons, last lines)
is left out, and they are merged; how each task ended, and what it measured, stays.

Every write is based on the version that its writer knows. Who takes the run over writes to the last one and makes the
next: a manager that was replaced can do neither any more, and steps down.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumasi.core.flows.journal import Entry, summary
from pumasi.errors import Conflict, RunBusy
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.manifests import DOMAIN, KIND, Owner

RAW = 200_000
"""Bytes of entries, as text, that make one full. Even what can't be compressed stays far below the limit."""
DETAILED = 8
"""So many full ones keep all that they say."""
LARGEST = 600_000
"""Bytes of an object that several were merged into."""
NUMBER, LAST, WRITER = (DOMAIN + word for word in ("number", "last", "manager"))


@dataclass
class Chunk:
    """`last` is the number of the last one that was merged into it; `version` is empty until the cluster has it."""

    number: int
    last: int
    version: str = ""
    is_summary: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(map(len, self.lines)) + len(self.lines)


def encoded(lines: Iterable[str]) -> str:
    return base64.b64encode(gzip.compress("\n".join(lines).encode(), 6, mtime=0)).decode()


def read_chunk(thing: Mapping[str, Any]) -> Chunk:
    metadata = thing["metadata"]
    number, notes = int(metadata["labels"][NUMBER]), metadata.get("annotations", {})
    text = gzip.decompress(base64.b64decode(thing["binaryData"]["entries"])).decode()
    last = int(notes.get(LAST, number))
    return Chunk(number, last, metadata["resourceVersion"], last > number, text.splitlines())


def in_order(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Without those that were merged into another one and not yet deleted."""
    found: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda each: each.number):
        if not found or chunk.number > found[-1].last:
            found.append(chunk)
    return found


class Journal:
    """`add` never waits, `flush` writes. `owner` is asked for when the first object is made."""

    def __init__(self, api: Api, namespace: str, run: str, manager: str, owner: Callable[[], Owner]) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._run = run
        self._manager = manager
        self._owner = owner
        self._full: list[Chunk] = []
        """Without their lines."""
        self._open = Chunk(0, 0)
        self._new: list[str] = []

    async def read(self) -> list[Entry]:
        return [json.loads(line) for chunk in await self._chunks() for line in chunk.lines]

    async def take_over(self) -> list[Entry]:
        """What there is, once nobody else can add to it. Raises RunBusy where another manager takes it over too."""
        while True:
            chunks = await self._chunks()
            try:
                if chunks:
                    await self._put(chunks[-1])
                self._open = Chunk(chunks[-1].last + 1 if chunks else 0, chunks[-1].last + 1 if chunks else 0)
                await self._put(self._open)
            except Conflict:
                continue  # The one before has had a last word.
            lines = [line for chunk in chunks for line in chunk.lines]
            self._full = chunks
            for chunk in chunks:
                chunk.lines = []
            return [json.loads(line) for line in lines]

    async def _chunks(self) -> list[Chunk]:
        selector = f"{manifests.of_run(self._run)},{KIND}=journal"
        return in_order(map(read_chunk, await self._api.list(self._folder, labelSelector=selector)))

    def add(self, entry: Entry) -> None:
        self._new.append(json.dumps(entry))

    async def flush(self) -> None:
        """When it returns, all that was added is written. What fails to be written is held for the next time. Raises
        RunBusy where another manager writes now."""
        while self._new:
            taken = self._fitting()
            before = self._open.lines
            self._open.lines = [*before, *self._new[:taken]]
            try:
                await self._put_ours(self._open)
            except BaseException:
                self._open.lines = before
                raise
            del self._new[:taken]
            if self._open.size >= RAW:
                number = self._open.number + 1
                self._open.lines = []
                self._full.append(self._open)
                self._open = Chunk(number, number)

    def _fitting(self) -> int:
        """How many of the new ones go into the last object: at least one, so that it may be a little too full."""
        size = self._open.size
        for taken, line in enumerate(self._new, 1):
            size += len(line) + 1
            if size >= RAW:
                return taken
        return len(self._new)

    async def compact(self) -> None:
        """At most one object at a time. A failure in between leaves nothing that is missing or counted twice."""
        detailed = [chunk for chunk in self._full if not chunk.is_summary]
        if len(detailed) <= DETAILED:
            return
        oldest = detailed[0]
        there = read_chunk(await self._api.get(self._path(oldest)))
        there.lines = [json.dumps(summary(json.loads(line))) for line in there.lines]
        place = self._full.index(oldest)
        if place and await self._merge(self._full[place - 1], there):
            del self._full[place]
            await self._api.delete(self._path(oldest))
            return
        oldest.lines, oldest.is_summary = there.lines, True
        await self._put_ours(oldest)
        oldest.lines = []

    async def _merge(self, into: Chunk, chunk: Chunk) -> bool:
        """False: there is no room in it. It may be done already: the answer to a first try was lost."""
        before = read_chunk(await self._api.get(self._path(into)))
        if before.last >= chunk.number:
            into.version, into.last = before.version, before.last
            return True
        lines = [*before.lines, *chunk.lines]
        if len(encoded(lines)) > LARGEST:
            return False
        into.lines, into.last = lines, chunk.last
        try:
            await self._put_ours(into)
        finally:
            into.lines = []
        return True

    async def _put_ours(self, chunk: Chunk) -> None:
        """What is there already may be ours: the answer to a first try was lost."""
        try:
            await self._put(chunk)
        except Conflict:
            there = await self._api.get(self._path(chunk))
            if there["metadata"].get("annotations", {}).get(WRITER) != self._manager:
                raise RunBusy(
                    f"Another pumasi has taken over {self._run}.",
                    f"Watch it with `pumasi attach {self._run}`; this one leaves.",
                ) from None
            chunk.version = there["metadata"]["resourceVersion"]
            await self._put(chunk)

    async def _put(self, chunk: Chunk) -> None:
        thing = self._object(chunk)
        if chunk.version:
            change = {"metadata": thing["metadata"], "binaryData": thing["binaryData"]}
            change["metadata"]["resourceVersion"] = chunk.version
            made = await self._api.patch(self._path(chunk), change)
        else:
            made = await self._api.create(self._folder, thing)
        chunk.version = made["metadata"]["resourceVersion"]

    def _path(self, chunk: Chunk) -> str:
        return f"{self._folder}/{self._name(chunk)}"

    def _name(self, chunk: Chunk) -> str:
        return f"{self._run}-journal-{chunk.number}"

    def _object(self, chunk: Chunk) -> dict[str, Any]:
        metadata = {
            "name": self._name(chunk),
            "labels": {**manifests.labels(self._run, "journal"), NUMBER: str(chunk.number)},
            "annotations": {WRITER: self._manager, LAST: str(chunk.last)},
            "ownerReferences": [self._owner().reference],
        }
        data = {"entries": encoded(chunk.lines)}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}
