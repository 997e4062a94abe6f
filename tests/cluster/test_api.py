"""The API client against a real API server and real kubelets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import pytest

from pumasi.errors import ClusterTrouble, Conflict, NotThere, Rejected
from pumasi.kube import api as api_module
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.kube.logs import Sieve, follow
from tests.cluster import breaking
from tests.cluster.objects import SLEEPER, pod, python
from tests.cluster.subject import Kubernetes, Namespace
from tests.serving import until, within
from tests.watching import Watcher

in_time = within(150)
# Frames as an agent writes them, fifty at a time.
TALKER = """
import time
print('@{{"event": "running"}}')
for number in range(1, 1001):
    print(f"0.{{number}} 1763240000123|line {{number}}")
    if number % 50 == 0:
        time.sleep({pause})
print("somebody else's words")
print('@{{"event": "over"}}')
"""
EVERYTHING = [f"0.{number} 1763240000123|line {number}" for number in range(1, 1001)]


def api_of(kubernetes: Kubernetes) -> Api:
    return Api(connect("", {"KUBECONFIG": str(kubernetes.kubeconfig)}))


def folder(namespace: Namespace, kind: str = "pods") -> str:
    return f"/api/v1/namespaces/{namespace.name}/{kind}"


def settings(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"k": "v"}}


@asynccontextmanager
async def aside(breaker: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Breaking and mending take their time: what is tested goes on meanwhile."""
    await asyncio.to_thread(breaker.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(breaker.__exit__, None, None, None)


def has_ended(seen: dict[str, Any]) -> bool:
    statuses = seen.get("status", {}).get("containerStatuses") or ()
    return any("terminated" in each["state"] for each in statuses)


def reading(api: Api, namespace: Namespace, name: str, ended: Callable[[], bool]) -> tuple[asyncio.Task[None], Reading]:
    got = Reading()
    over = (got.sieve, ended, got.deliver, got.others.append)
    return asyncio.ensure_future(follow(api, namespace.name, name, *over)), got


class Reading:
    def __init__(self) -> None:
        self.text = ""
        self.others: list[str] = []
        self.sieve = Sieve()

    def deliver(self, chunk: bytes) -> None:
        self.text += chunk.decode()

    def assert_complete(self) -> None:
        running, *lines, over = self.text.splitlines()
        assert lines == EVERYTHING
        assert (running, over) == ('@{"event": "running"}', '@{"event": "over"}')
        assert self.others == ["somebody else's words"]
        assert self.sieve.missing == {}


@in_time
async def test_a_pod_is_made_changed_watched_and_deleted(namespace: Namespace, kubernetes: Kubernetes) -> None:
    async with api_of(kubernetes) as api, Watcher(api, folder(namespace), labelSelector="run=x") as watcher:
        sleeper = pod("sleeper", python(SLEEPER))
        sleeper["metadata"]["labels"] = {"run": "x"}
        made = await api.create(folder(namespace), sleeper)
        await watcher.sees("ADDED", "sleeper")
        await until(lambda: watcher.last["status"].get("phase") == "Running")
        with pytest.raises(Conflict, match="already exists"):
            await api.create(folder(namespace), sleeper)
        stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "annotations": {"a": "b"}}}
        with pytest.raises(Conflict):
            await api.patch(f"{folder(namespace)}/sleeper", stale)
        changed = await api.patch(f"{folder(namespace)}/sleeper", {"metadata": {"annotations": {"a": "b"}}})
        assert changed["metadata"]["annotations"]["a"] == "b"
        await until(lambda: watcher.last["metadata"].get("annotations", {}).get("a") == "b")
        with pytest.raises(Rejected):
            await api.create(folder(namespace), pod("Not A Name", python(SLEEPER)))
        await api.delete(f"{folder(namespace)}/sleeper", grace=0)
        await watcher.sees("DELETED", "sleeper")
        await api.delete(f"{folder(namespace)}/sleeper")
        with pytest.raises(NotThere):
            await api.get(f"{folder(namespace)}/sleeper")
        assert watcher.absences == []


@in_time
async def test_many_objects_come_in_pages_and_go_by_selector(
    namespace: Namespace, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 7)
    path = folder(namespace, "configmaps")
    async with api_of(kubernetes) as api:
        made = [settings(f"c-{number:02}", odd=str(number % 2)) for number in range(20)]
        await asyncio.gather(*(api.create(path, each) for each in made))
        found = await api.list(path, labelSelector="odd")
        assert [each["metadata"]["name"] for each in found] == [each["metadata"]["name"] for each in made]
        bare = await api.list(path, metadata_only=True, labelSelector="odd=1")
        assert len(bare) == 10
        assert not any("data" in each for each in bare)
        await api.delete_all(path, labelSelector="odd=1")
        assert len(await api.list(path, labelSelector="odd")) == 10


@in_time
async def test_a_log_is_complete_over_every_break(namespace: Namespace, kubernetes: Kubernetes) -> None:
    path = folder(namespace)
    async with api_of(kubernetes) as api, Watcher(api, path, fieldSelector="metadata.name=talker") as watcher:
        await api.create(path, pod("talker", python(TALKER.format(pause=0.05))))
        task, got = reading(api, namespace, "talker", lambda: has_ended(watcher.last))
        for lines in (100, 350, 600, 900):
            await until(lambda lines=lines: got.text.count("\n") >= lines or task.done())  # type: ignore[misc]
            for wire in list(api._client._wires):
                wire.transport.abort()
        await task
        got.assert_complete()
        late, again = reading(api, namespace, "talker", lambda: True)
        await late
        again.assert_complete()


@pytest.mark.own
@in_time
async def test_a_restart_of_the_api_server_costs_neither_a_change_nor_a_line(
    namespace: Namespace, kubernetes: Kubernetes
) -> None:
    path = folder(namespace)
    async with (
        api_of(kubernetes) as api,
        Watcher(api, path) as watcher,
        Watcher(api, folder(namespace, "configmaps"), metadata_only=True) as other,
    ):
        await api.create(folder(namespace, "configmaps"), settings("before"))
        await api.create(path, pod("talker", python(TALKER.format(pause=0.5))))
        task, got = reading(api, namespace, "talker", lambda: has_ended(watcher.last))
        await until(lambda: got.text.count("\n") > 300)
        async with aside(breaking.killed(kubernetes, "control", "kube-apiserver")):
            await until(lambda: watcher.absences and other.absences)
            assert "over" not in got.text
        await api.create(folder(namespace, "configmaps"), settings("after"))
        await api.delete(f"{folder(namespace, 'configmaps')}/before")
        await other.sees("ADDED", "after")
        await other.sees("DELETED", "before")
        await task
        got.assert_complete()
        for each in (watcher, other):
            assert each.absences[0].startswith("The cluster at ")
            assert each.absences[-1] == ""
        assert other.seen.count(("ADDED", "before")) == other.seen.count(("DELETED", "before")) == 1


@pytest.mark.own
@in_time
async def test_a_frozen_api_server_is_noticed_though_its_connections_live(
    namespace: Namespace, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "WATCH_SECONDS", 3)
    monkeypatch.setattr(api_module, "WATCH_IDLE", 4.0)
    path = folder(namespace, "configmaps")
    async with api_of(kubernetes) as api, Watcher(api, path) as watcher:
        async with aside(breaking.frozen(kubernetes, "control", "kube-apiserver")):
            await until(lambda: watcher.absences)
            assert "no answer within" in watcher.absences[0]
        await api.create(path, settings("after"))
        await watcher.sees("ADDED", "after")
        assert watcher.absences[-1] == ""


@pytest.mark.own
@in_time
async def test_a_cluster_that_stays_away_ends_a_watch_in_time(namespace: Namespace, kubernetes: Kubernetes) -> None:
    async with api_of(kubernetes) as api, Watcher(api, folder(namespace), patience=3.0) as watcher:
        async with aside(breaking.killed(kubernetes, "control", "kube-apiserver")):
            with pytest.raises(ClusterTrouble, match="can't be reached"):
                await watcher.task
        assert len(watcher.absences) == 1
