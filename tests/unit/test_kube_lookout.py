"""What a run sees of a cluster: listed once, then heard of; and what that costs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pumasi.errors import ClusterTrouble, Forbidden, NotThere, Rejected, Unreachable
from pumasi.pools.kubernetes import lookout
from pumasi.pools.kubernetes.lookout import Lookout
from pumasi.pools.kubernetes.manifests import WAITING
from pumasi.pools.kubernetes.record import BEAT_NOTE
from tests.fake_cluster import NAMESPACE, FakeApi, Object
from tests.serving import asynchronous, until

NODE = {"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def pod(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}], **spec}}


def anchor(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {WAITING: "yes"}, "annotations": {BEAT_NOTE: "1", "wish": "x"}}}


class Post:
    """Somebody who looks at a cluster with a node, and counts what it hears."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.cluster = self.api.cluster
        self.cluster.create("nodes", "", NODE)
        self.heard = 0
        self.lookout = Lookout(self.api, NAMESPACE, self._hear)

    def _hear(self) -> None:
        self.heard += 1

    async def names(self) -> tuple[list[str], ...]:
        return tuple(sorted(each["metadata"]["name"] for each in kind) for kind in await self.lookout.look())

    async def hears(self) -> None:
        """Waits for the next change, and that it was one."""
        before = self.heard
        await until(lambda: self.heard > before)
        assert self.heard == before + 1

    def lists(self) -> int:
        return sum(verb == "list" for verb, _ in self.api.requests)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "PATIENCE", 0.05)


@asynchronous
async def test_who_does_not_follow_lists_with_every_look() -> None:
    post = Post()
    assert await post.names() == (["n1"], [], [])
    post.cluster.create("pods", "other", pod("p", nodeName="n1"))
    post.cluster.create("jobs", "other", anchor("old"))
    assert await post.names() == (["n1"], ["p"], ["old"])
    assert post.lists() == 6


@asynchronous
async def test_who_follows_hears_what_changes_and_looks_without_a_request() -> None:
    post = Post()
    await post.names()
    post.cluster.create("pods", "other", pod("early", nodeName="n1"))
    post.lookout.follow()
    await post.hears()
    asked = post.api.calls
    post.cluster.create("pods", NAMESPACE, pod("p", nodeName="n1"))
    await post.hears()
    assert await post.names() == (["n1"], ["early", "p"], [])
    post.cluster.finish("p", 0)
    await post.hears()
    post.cluster.create("jobs", "other", anchor("old"))
    await post.hears()
    assert await post.names() == (["n1"], ["early"], ["old"])
    assert post.api.calls == asked
    await post.lookout.end()


@asynchronous
async def test_changes_that_come_together_are_heard_of_once() -> None:
    post = Post()
    await post.names()
    post.lookout.follow()
    for number in range(20):
        post.cluster.create("pods", NAMESPACE, pod(f"p{number}", nodeName="n1"))
    await post.hears()
    assert len((await post.names())[1]) == 20
    await post.lookout.end()


@asynchronous
async def test_who_thinks_long_is_left_alone_after_a_look_and_hears_at_once_later() -> None:
    post = Post()
    await post.names()
    post.lookout.follow()
    post.lookout.pause = 60.0
    post.cluster.create("pods", NAMESPACE, pod("p", nodeName="n1"))
    await asyncio.sleep(5 * lookout.COALESCE)
    assert post.heard == 0
    await post.lookout.end()
    await post.names()
    post.lookout.follow()
    post.lookout.looked -= 60.0
    post.cluster.create("pods", NAMESPACE, pod("q", nodeName="n1"))
    await post.hears()
    await post.lookout.end()


@asynchronous
async def test_what_matters_to_nobody_is_not_told() -> None:
    """Beats, readiness of containers, pods without a node: a cluster changes all the time."""
    post = Post()
    post.cluster.create("pods", NAMESPACE, pod("p", nodeName="n1"))
    post.cluster.create("jobs", NAMESPACE, anchor("old"))
    await post.names()
    post.lookout.follow()
    post.cluster.create("pods", NAMESPACE, pod("unbound"))
    post.cluster.set_state("p", "Running", {"running": {}})
    post.cluster.change("jobs", "old", {"metadata": {"annotations": {BEAT_NOTE: "2"}}})
    post.cluster.change("pods", "p", {"metadata": {"annotations": {"somebody": "was here"}}})
    await until(lambda: any(each["metadata"]["name"] == "unbound" for each in post.lookout._kinds[1].things.values()))
    assert post.heard == 0
    post.cluster.set_state("p", "Running", {"terminated": {"finishedAt": "2026-11-16T10:00:00Z"}})
    await post.hears()
    await post.lookout.end()


@asynchronous
async def test_who_may_not_see_other_namespaces_sees_the_own_one() -> None:
    post = Post()
    for namespace in (NAMESPACE, "other"):
        post.cluster.create("jobs", namespace, anchor(f"in-{namespace}"))

    def refuse(verb: str, path: str) -> None:
        if path == "/apis/batch/v1/jobs":
            raise Forbidden("no")

    post.api.before = refuse
    assert (await post.names())[2] == [f"in-{NAMESPACE}"]
    post.api.requests.clear()
    assert (await post.names())[2] == [f"in-{NAMESPACE}"]
    assert post.lists() == 3


@pytest.mark.parametrize("trouble", [Forbidden, ClusterTrouble, Rejected, NotThere])
@asynchronous
async def test_who_may_list_but_not_watch_lists(trouble: type[ClusterTrouble]) -> None:
    """However the watch is refused: 405 by a proxy, say."""
    post = Post()

    def refuse(verb: str, path: str) -> None:
        if (verb, path) == ("watch", "/api/v1/pods"):
            raise trouble("Method not allowed.")

    post.api.before = refuse
    await post.names()
    post.lookout.follow()
    await post.hears()
    post.cluster.create("pods", NAMESPACE, pod("p", nodeName="n1"))
    for _ in range(2):
        assert (await post.names())[1] == ["p"]
        post.lookout.follow()
        assert post.lookout._following is None
    assert (post.lists(), post.heard) == (9, 1)


@asynchronous
async def test_a_cluster_that_stays_away_is_noticed_and_one_that_is_back_is_listed() -> None:
    post = Post()
    await post.names()
    post.lookout.follow()
    post.api.unreachable = True
    await post.hears()
    with pytest.raises(Unreachable):
        await post.names()
    post.api.unreachable = False
    post.cluster.create("pods", NAMESPACE, pod("p", nodeName="n1"))
    assert (await post.names())[1] == ["p"]


@asynchronous
async def test_when_nobody_looks_any_more_the_watches_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "IDLE", 0.05)
    post = Post()
    await post.names()
    post.lookout.follow()
    following = post.lookout._following
    assert following is not None
    await until(following.done)
    post.cluster.create("pods", NAMESPACE, pod("p", nodeName="n1"))
    assert (await post.names())[1] == ["p"]
    assert (post.heard, post.lists()) == (0, 6)


@asynchronous
async def test_an_end_is_waited_for_though_a_cancellation_is_swallowed() -> None:
    """As `asyncio.wait_for` may do it, up to Python 3.11."""
    post = Post()
    waits = 0

    async def watch(path: str, **_: Any) -> AsyncIterator[tuple[str, Object]]:
        nonlocal waits
        yield "SYNCED", {}
        waits += 1
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    post.api.watch = watch  # type: ignore[method-assign,assignment]
    await post.names()
    post.lookout.follow()
    await until(lambda: waits == 3)
    following = post.lookout._following
    assert following is not None
    await asyncio.wait_for(post.lookout.end(), 5)
    assert following.done()
