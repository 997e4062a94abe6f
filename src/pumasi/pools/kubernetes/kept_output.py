"""The output of a run that nobody here follows, kept in the cluster: its pods may go, with their nodes and their logs.

Compressed frames in ConfigMaps, as many as the bound allows; of a run that writes more the oldest go first, and the
frames' own numbers tell how much that was.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping
from typing import Any

from pumasi.errors import Conflict
from pumasi.kube.api import Api
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.manifests import ATTEMPT, DOMAIN, Owner

RAW = 4 << 20
"""Bytes of output that make a chunk. Text shrinks to a tenth; what does not is cut into more of them."""
LARGEST = 1_000_000
MOST = 24
NUMBER = DOMAIN + "number"


def pieces(frames: bytes) -> list[tuple[int, bytes]]:
    """Cut between lines: how many bytes of `frames` each has, and these compressed."""
    packed = gzip.compress(frames, 6, mtime=0)
    if len(packed) <= LARGEST:
        return [(len(frames), packed)]
    middle = frames.rfind(b"\n", 0, len(frames) // 2) + 1
    return pieces(frames[:middle]) + pieces(frames[middle:])


def chunk(run: str, owner: Owner, attempt: int, number: int, packed: bytes) -> dict[str, Any]:
    metadata = {
        "name": f"{run}-log-{number}",
        "labels": {**manifests.labels(run, "log"), ATTEMPT: str(attempt), NUMBER: str(number)},
        "ownerReferences": [owner.reference],
    }
    data = {"frames": base64.b64encode(packed).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}


async def read(api: Api, namespace: str, run: str) -> list[tuple[int, bytes]]:
    """Attempts and their output, in order."""
    selector = f"{manifests.of_run(run)},{manifests.KIND}=log"
    things = await api.list(f"/api/v1/namespaces/{namespace}/configmaps", labelSelector=selector)
    ordered = sorted(things, key=lambda thing: int(thing["metadata"]["labels"][NUMBER]))
    return [(int(each["metadata"]["labels"][ATTEMPT]), _frames(each)) for each in ordered]


def _frames(thing: Mapping[str, Any]) -> bytes:
    return gzip.decompress(base64.b64decode(thing["binaryData"]["frames"]))


class Archive:
    """What a manager in the cluster adds to. `add` never waits."""

    def __init__(self, api: Api, namespace: str, run: str, owner: Owner) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._run = run
        self._owner = owner
        self._held: dict[int, list[bytes]] = {}
        self._size = 0
        self._next = 0

    async def open(self) -> None:
        """After what a manager before us has left."""
        selector = f"{manifests.of_run(self._run)},{manifests.KIND}=log"
        things = await self._api.list(self._folder, metadata_only=True, labelSelector=selector)
        self._next = max((int(each["metadata"]["labels"][NUMBER]) + 1 for each in things), default=0)

    def add(self, attempt: int, frames: bytes) -> None:
        self._held.setdefault(attempt, []).append(frames)
        self._size += len(frames)

    @property
    def is_full(self) -> bool:
        return self._size >= RAW

    async def flush(self) -> None:
        """What fails to be written is held for the next time."""
        for attempt in sorted(self._held):
            frames = b"".join(self._held.pop(attempt))
            try:
                for size, packed in pieces(frames):
                    await self._put(attempt, packed)
                    frames = frames[size:]
                    self._size -= size
                    await self._drop(self._next - 1 - MOST)
            finally:
                if frames:
                    self._held[attempt] = [frames, *self._held.get(attempt, ())]

    async def _put(self, attempt: int, packed: bytes) -> None:
        """Under the next number that is free: a manager before us may have written until now. What is there already is
        ours: the answer to a first try was lost."""
        while True:
            thing = chunk(self._run, self._owner, attempt, self._next, packed)
            try:
                await self._api.create(self._folder, thing)
            except Conflict:
                there = await self._api.get(f"{self._folder}/{thing['metadata']['name']}")
                if there["binaryData"] != thing["binaryData"]:
                    self._next += 1
                    continue
            self._next += 1
            return

    async def _drop(self, number: int) -> None:
        if number >= 0:
            await self._api.delete(f"{self._folder}/{self._run}-log-{number}")
