"""A cluster's API as it is on bad days: busy, gone, forgetful, silent. What it says and does is scripted here; that a
real one does the same is told in tests/cluster/test_api.py."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

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
from pumasi.kube import api as api_module
from pumasi.kube.api import Api, Clock
from pumasi.kube.config import Connection
from tests.serving import (
    Handler,
    Request,
    Server,
    Step,
    answer,
    asynchronous,
    chunked,
    in_turn,
    refusal,
    serve,
    silence,
    told,
    until,
)
from tests.watching import Watcher

PODS = "/api/v1/namespaces/ns/pods"


@asynccontextmanager
async def cluster(*steps: Step, patience: float = 10.0, **who: Any) -> AsyncIterator[tuple[Api, Server]]:
    async with serve(in_turn(*steps)) as server, Api(connection(server, **who), patience=patience) as api:
        yield api, server


def connection(server: Server, **who: Any) -> Connection:
    return Connection(context="c", server=server.url, namespace="ns", **who)


def pod(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid or name, "resourceVersion": str(version)}}


def listed(version: int, *items: dict[str, Any], follow: str = "") -> bytes:
    metadata = {"resourceVersion": str(version)} | ({"continue": follow} if follow else {})
    return told({"kind": "PodList", "metadata": metadata, "items": items})


def event(kind: str, thing: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


GONE = event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})


def watching(*events: bytes, then: Callable[[Request], Any] | None = None) -> Handler:
    """A watch that tells these and ends cleanly, or as `then` says."""

    async def handler(request: Request) -> bytes | None:
        assert request.query["watch"] == "true"
        await request.send(chunked(events, end=False))
        if then is None:
            return b"0\r\n\r\n"
        await then(request)
        return None

    return handler


async def cut(request: Request) -> None:
    request.reset()


# ---- asking


@asynchronous
async def test_objects_are_read_made_changed_and_deleted_as_the_api_wants_it() -> None:
    steps: list[Step] = [told({"kind": "Pod"}), told({"kind": "Made"}, 201), told({}), told({}), told({}), told({})]
    async with cluster(*steps, token="t") as (api, server):
        assert await api.get(f"{PODS}/a", resourceVersion="0") == {"kind": "Pod"}
        assert await api.create(PODS, {"kind": "Pod"}) == {"kind": "Made"}
        await api.patch(f"{PODS}/a", {"metadata": {"labels": {"x": None}}})
        await api.delete(f"{PODS}/a", grace=3)
        await api.delete(f"{PODS}/a", background=False)
        await api.delete_all(PODS, grace=0, labelSelector="run=a b,c!=d")
        asked = server.requests
        assert api.calls == len(asked) == len(steps)
    assert [each.method for each in asked] == ["GET", "POST", "PATCH", "DELETE", "DELETE", "DELETE"]
    assert {each.headers["authorization"] for each in asked} == {"Bearer t"}
    assert asked[0].query == {"resourceVersion": "0"}
    assert asked[2].headers["content-type"] == "application/merge-patch+json"
    assert json.loads(asked[2].body) == {"metadata": {"labels": {"x": None}}}
    options = [json.loads(each.body) for each in asked[3:]]
    assert [each.get("gracePeriodSeconds") for each in options] == [3, None, 0]
    assert [each["propagationPolicy"] for each in options] == ["Background", "Foreground", "Background"]
    assert asked[5].query == {"labelSelector": "run=a b,c!=d"}


@asynchronous
async def test_a_long_list_comes_in_pages_and_can_be_of_metadata_alone() -> None:
    first, second = listed(1, pod("a", 1), follow="more/?"), listed(1, pod("b", 1))
    async with cluster(first, second) as (api, server):
        found = await api.list(PODS, metadata_only=True, labelSelector="x")
        assert [each["metadata"]["name"] for each in found] == ["a", "b"]
        assert [each.query.get("continue") for each in server.requests] == [None, "more/?"]
        assert {each.query["labelSelector"] for each in server.requests} == {"x"}
        assert "as=PartialObjectMetadataList" in server.requests[1].headers["accept"]


@asynchronous
async def test_a_list_whose_pages_expired_is_read_in_one_piece() -> None:
    first, expired = listed(1, pod("a", 1), follow="more"), refusal(410, "The provided continue parameter is too old")
    async with cluster(first, expired, listed(2, pod("b", 2), pod("c", 2))) as (api, server):
        found = await api.list(PODS)
        assert [each["metadata"]["name"] for each in found] == ["b", "c"]
        assert server.requests[2].query == {}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Rejected),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotThere),
        (409, Conflict),
        (410, Expired),
        (413, Rejected),
        (418, ClusterTrouble),
        (422, Rejected),
        (429, Unreachable),
        (500, Unreachable),
        (503, Unreachable),
    ],
)
@asynchronous
async def test_each_refusal_has_a_kind_and_the_clusters_own_words(status: int, kind: type[ClusterTrouble]) -> None:
    async with cluster(refusal(status, "because of that."), patience=0) as (api, _):
        with pytest.raises(ClusterTrouble, match="because of that") as caught:
            await api.get(PODS)
        assert type(caught.value) is kind
        assert caught.value.said == "because of that"
        assert caught.value.exit_code == 7


@asynchronous
async def test_the_cluster_tells_who_one_is_and_one_that_does_not_keeps_nobody_from_anything() -> None:
    review = told({"status": {"userInfo": {"username": "kim", "groups": ["team"]}}}, 201)
    async with cluster(review, refusal(404, "not found"), refusal(403, "no")) as (api, server):
        assert [await api.user(), await api.user(), await api.user()] == ["kim", "", ""]
        asked = server.requests[0]
    assert (asked.method, asked.path) == ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews")
    assert json.loads(asked.body)["kind"] == "SelfSubjectReview"


@asynchronous
async def test_what_is_no_kubernetes_is_told_so() -> None:
    page = answer(b"<html>Welcome</html>")
    async with cluster(page, answer(b"<html>", 502), patience=0) as (api, _):
        with pytest.raises(ClusterTrouble, match="is no Kubernetes"):
            await api.get(PODS)
        with pytest.raises(Unreachable, match="status 502 Because"):
            await api.get(PODS)


@asynchronous
async def test_deleting_what_is_gone_is_fine_and_known() -> None:
    async with cluster(refusal(404, 'pods "a" not found'), told({"kind": "Status"})) as (api, _):
        assert await api.delete(f"{PODS}/a") is False
        assert await api.delete(f"{PODS}/a") is True


@asynchronous
async def test_a_cluster_that_has_moved_or_has_a_bad_certificate_is_told_at_once() -> None:
    nowhere = Connection(context="c", server="http://127.0.0.1:1", namespace="ns")
    async with Api(nowhere, patience=0) as api:
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 can't be reached: nothing listens there"):
            await api.get(PODS)
    with pytest.raises(ClusterTrouble, match="certificate in the kubeconfig is of no use"):
        await Api(nowhere._replace(server="https://127.0.0.1:1", authority="rubbish")).__aenter__()
    with pytest.raises(ClusterTrouble, match="can't be reached: the address nonsense"):
        await Api(nowhere._replace(server="nonsense")).__aenter__()


@asynchronous
async def test_the_kubeconfigs_proxy_is_used() -> None:
    async with serve(in_turn(told({"kind": "Pod"}))) as proxy:
        where = Connection(context="c", server="http://cluster.invalid", namespace="ns", proxy=proxy.url)
        async with Api(where) as api:
            await api.get("/api")
        assert proxy.requests[0].target == "http://cluster.invalid/api"


# ---- trying again


@asynchronous
async def test_trouble_that_may_pass_is_waited_out() -> None:
    busy, fine = refusal(503, "starting"), told({"kind": "Pod"})
    async with cluster(None, busy, refusal(429, "slowly"), fine) as (api, _):
        assert await api.get(PODS) == {"kind": "Pod"}
        assert api.calls == 4


@asynchronous
async def test_who_is_asked_to_come_later_comes_later() -> None:
    async with cluster(refusal(429, "slowly", Retry_After="1"), told({})) as (api, _):
        began = time.monotonic()
        await api.patch(PODS, {})
        assert time.monotonic() - began >= 1


@asynchronous
async def test_an_api_server_that_does_not_know_anybodys_rights_yet_is_asked_again() -> None:
    said = 'pods is forbidden: RBAC: [clusterrole.rbac.authorization.k8s.io "system:basic-user" not found]'
    async with cluster(refusal(403, said), told({"kind": "Pod"})) as (api, _):
        assert await api.get(PODS) == {"kind": "Pod"}
        assert api.calls == 2


@asynchronous
async def test_who_is_asked_to_come_too_late_gives_up_at_once() -> None:
    async with cluster(refusal(429, "slowly", Retry_After="3600")) as (api, _):
        with pytest.raises(Unreachable, match="slowly") as caught:
            await api.get(PODS)
        assert caught.value.after == 3600


@asynchronous
async def test_what_does_not_pass_is_told_after_a_while() -> None:
    async def broken(request: Request) -> None:
        return None

    async with serve(broken) as server, Api(connection(server), patience=3.0) as api:
        with pytest.raises(Unreachable, match="closed before an answer"):
            await api.list(PODS)
        assert 2 <= api.calls <= 5


@asynchronous
async def test_a_creation_whose_answer_was_lost_ends_in_a_conflict() -> None:
    async with cluster(cut_without_answer, refusal(409, 'pods "a" already exists')) as (api, server):
        with pytest.raises(Conflict):
            await api.create(PODS, pod("a", 0))
        assert [each.method for each in server.requests] == ["POST", "POST"]


async def cut_without_answer(request: Request) -> None:
    request.reset()


@asynchronous
async def test_a_deletion_whose_answer_was_lost_is_done() -> None:
    async with cluster(cut_without_answer, refusal(404, "not found")) as (api, _):
        await api.delete(f"{PODS}/a")


@asynchronous
async def test_no_more_than_a_few_requests_are_made_at_once() -> None:
    now = most = 0
    enough = asyncio.Event()

    async def count(request: Request) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await enough.wait()
        now -= 1
        return told({})

    async with serve(count) as server, Api(connection(server)) as api:
        asked = asyncio.gather(*(api.get(PODS) for _ in range(200)))
        await until(lambda: now > 16 and now == server.connections == api.calls)
        enough.set()
        await asked
        assert 16 < most <= 32
        assert server.connections == most


# ---- who we are


def only(token: str, then: bytes) -> Handler:
    async def handler(request: Request) -> bytes:
        right = request.headers.get("authorization") == f"Bearer {token}"
        return then if right else refusal(401, "Unauthorized")

    return handler


@asynchronous
async def test_a_token_that_is_not_taken_any_more_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    async with cluster(*[only("old", told({}))] * 1, *[only("new", told({}))] * 2, token_file=file) as (api, _):
        await api.get(PODS)
        file.write_text("new\n")
        await api.get(PODS)
        assert api.calls == 3


@asynchronous
async def test_a_watch_outlives_its_token_too(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("new")
    steps: list[Step] = [only("old", listed(1)), only("new", b""), watching(event("ADDED", pod("a", 2)), then=silence)]
    async with cluster(*steps, token="old", token_file=file) as (api, server), Watcher(api, PODS) as watcher:
        await watcher.sees_only(("SYNCED", ""), ("ADDED", "a"))
        assert server.requests[2].headers["authorization"] == "Bearer new"
        assert watcher.absences == []


@asynchronous
async def test_many_that_are_refused_together_ask_for_one_new_token(tmp_path: Path) -> None:
    script = tmp_path / "helper"
    script.write_text(f'#!/bin/sh\necho x >> {tmp_path}/asked\necho \'{{"status": {{"token": "new"}}}}\'\n')
    script.chmod(0o755)
    helper = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}
    async with serve(only("new", told({}))) as server, Api(connection(server, token="old", helper=helper)) as api:
        await asyncio.gather(*(api.get(PODS) for _ in range(20)))
    assert (tmp_path / "asked").read_text() == "x\n"


@asynchronous
async def test_a_fresh_token_that_is_not_taken_is_not_renewed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("bad")
    async with cluster(only("good", told({})), token_file=tmp_path / "token") as (api, _):
        with pytest.raises(Unauthorized, match="does not know who you are: Unauthorized") as caught:
            await api.get(PODS)
        assert "log in again" in caught.value.hint


@asynchronous
async def test_a_password_is_sent_as_one_and_a_missing_token_file_is_told(tmp_path: Path) -> None:
    async with cluster(told({}), password=("user", "secret")) as (api, server):
        await api.get(PODS)
        assert server.requests[0].headers["authorization"] == "Basic dXNlcjpzZWNyZXQ="
    async with cluster(token_file=tmp_path / "missing") as (api, _):
        with pytest.raises(ClusterTrouble, match="token file of the kubeconfig can't be read"):
            await api.get(PODS)


# ---- the cluster's clock


def test_clocks_that_may_be_the_same_are_and_others_differ_by_what_is_proven() -> None:
    clock = Clock()
    assert clock.offset == 0
    clock.learn("Thu, 01 Jan 1970 00:01:40 GMT", 100.2, 100.3)
    assert clock.offset == 0
    clock = Clock()
    clock.learn("Thu, 01 Jan 1970 00:01:40 GMT", 90.0, 90.1)
    assert clock.offset == pytest.approx(9.9)
    clock.learn("Thu, 01 Jan 1970 00:01:41 GMT", 90.5, 90.6)
    assert clock.offset == pytest.approx(10.4)
    clock.learn("Thu, 01 Jan 1970 00:01:41 GMT", 90.9, 91.9)
    assert clock.offset == pytest.approx(10.4)


def test_a_clock_that_was_set_is_believed_and_nonsense_is_not() -> None:
    clock = Clock()
    clock.learn("Thu, 01 Jan 1970 00:01:40 GMT", 90.0, 90.1)
    clock.learn("yesterday", 90.0, 90.1)
    assert clock.offset == pytest.approx(9.9)
    clock.learn("Thu, 01 Jan 1970 00:00:40 GMT", 91.0, 91.1)
    assert clock.offset == pytest.approx(-50)


@asynchronous
async def test_now_is_the_clusters() -> None:
    async with cluster(told({}, Date="Tue, 19 Jan 2038 03:14:07 GMT")) as (api, _):
        assert abs(api.now - time.time()) < 1
        await api.get(PODS)
        assert abs(api.now - 2**31) < 60


# ---- watching


@asynchronous
async def test_a_watch_tells_what_is_there_then_that_it_is_all_then_what_changes() -> None:
    changes = event("ADDED", pod("b", 2)), event("MODIFIED", pod("a", 3)), event("DELETED", pod("b", 4))
    steps: list[Step] = [listed(1, pod("a", 1)), watching(*changes, then=silence)]
    async with cluster(*steps) as (api, server), Watcher(api, PODS, labelSelector="run=x") as watcher:
        await watcher.sees_only(("ADDED", "a"), ("SYNCED", ""), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b"))
        query = server.requests[1].query
        assert query["resourceVersion"] == "1"
        assert query["allowWatchBookmarks"] == "true"
        assert {each.query["labelSelector"] for each in server.requests} == {"run=x"}
        assert float(query["timeoutSeconds"]) < api_module.WATCH_IDLE <= 45
        assert watcher.absences == []


@asynchronous
async def test_a_watch_goes_on_where_it_was_when_it_ends_or_breaks() -> None:
    bookmark = event("BOOKMARK", {"metadata": {"resourceVersion": "7"}})
    torn = event("ADDED", pod("d", 9))[:-20]
    steps: list[Step] = [
        listed(1),
        watching(event("ADDED", pod("a", 2))),
        watching(bookmark),
        watching(event("ADDED", pod("b", 8)), torn, then=cut),
        watching(event("ADDED", pod("d", 9)), then=silence),
    ]
    async with cluster(*steps) as (api, server), Watcher(api, PODS) as watcher:
        await watcher.sees_only(("SYNCED", ""), ("ADDED", "a"), ("ADDED", "b"), ("ADDED", "d"))
        assert [each.query.get("resourceVersion") for each in server.requests] == [None, "1", "2", "7", "8"]
        assert watcher.absences == []


@asynchronous
async def test_events_may_be_cut_anywhere() -> None:
    async def in_crumbs(request: Request) -> None:
        events = event("ADDED", pod("a", 2)) + b"\n" + event("ADDED", pod("b", 3))
        wire = chunked(events[place : place + 7] for place in range(0, len(events), 7))
        await request.send(*(wire[place : place + 5] for place in range(0, len(wire), 5)))
        await silence(request)

    async with cluster(listed(1), in_crumbs) as (api, _), Watcher(api, PODS) as watcher:
        await watcher.sees_only(("SYNCED", ""), ("ADDED", "a"), ("ADDED", "b"))


@pytest.mark.parametrize("gone", [watching(GONE), refusal(410, "too old resource version")], ids=["event", "status"])
@asynchronous
async def test_what_changed_while_the_cluster_forgot_us_is_found_by_comparing(gone: Step) -> None:
    before = [pod("same", 1), pod("changed", 2), pod("vanished", 3), pod("remade", 4, "first")]
    after = [pod("same", 1), pod("changed", 12), pod("remade", 14, "second"), pod("new", 15)]
    steps: list[Step] = [
        listed(5, *before),
        gone,
        listed(20, *after),
        watching(event("DELETED", pod("new", 21)), then=silence),
    ]
    async with cluster(*steps) as (api, server), Watcher(api, PODS) as watcher:
        known = [("ADDED", name) for name in ("same", "changed", "vanished", "remade")]
        found = [("MODIFIED", "changed"), ("ADDED", "remade"), ("ADDED", "new")]
        lost = [("DELETED", "vanished"), ("DELETED", "remade")]
        await watcher.sees_only(*known, ("SYNCED", ""), *lost, *found, ("DELETED", "new"))
        assert watcher.things[5] == pod("vanished", 3)
        assert watcher.things[6]["metadata"]["uid"] == "first"
        assert server.requests[3].query["resourceVersion"] == "20"
        assert watcher.absences == []


@asynchronous
async def test_what_events_have_told_counts_when_comparing() -> None:
    changes = event("ADDED", pod("b", 2)), event("DELETED", pod("a", 3)), GONE
    steps: list[Step] = [listed(1, pod("a", 1)), watching(*changes), listed(9), watching(then=silence)]
    async with cluster(*steps) as (api, _), Watcher(api, PODS) as watcher:
        told_of = [("ADDED", "a"), ("SYNCED", ""), ("ADDED", "b"), ("DELETED", "a"), ("DELETED", "b")]
        await watcher.sees_only(*told_of)


@asynchronous
async def test_an_absence_is_told_once_and_the_return_too() -> None:
    before: list[Step] = [listed(1, pod("a", 1)), watching(then=cut)]
    absent: list[Step] = [None, refusal(503, "starting"), refusal(500, "etcd is not there")]
    back = watching(event("ADDED", pod("b", 2)), then=silence)
    async with cluster(*before, *absent, back) as (api, _), Watcher(api, PODS) as watcher:
        await watcher.sees_only(("ADDED", "a"), ("SYNCED", ""), ("ADDED", "b"))
        away, returned = watcher.absences
        assert away.startswith("The cluster at http://127.0.0.1:")
        assert returned == ""


@asynchronous
async def test_a_link_that_was_cut_silently_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "WATCH_IDLE", 2.0)
    steps: list[Step] = [listed(1), watching(then=silence), watching(event("ADDED", pod("a", 2)), then=silence)]
    async with cluster(*steps) as (api, _), Watcher(api, PODS) as watcher:
        await watcher.sees_only(("SYNCED", ""), ("ADDED", "a"))
        assert watcher.absences[0].endswith("no answer within 2 seconds.")
        assert watcher.absences[1] == ""


@asynchronous
async def test_patience_has_an_end() -> None:
    async def forever_broken(request: Request) -> bytes | None:
        return listed(1) if "watch" not in request.query else None

    began = time.monotonic()
    async with serve(forever_broken) as server, Api(connection(server)) as api, Watcher(api, PODS, 3.0) as watcher:
        with pytest.raises(Unreachable, match="can't be reached"):
            await watcher.task
        assert time.monotonic() - began > 2.9
        assert len(watcher.absences) == 1
        assert api.calls < 10


@asynchronous
async def test_patience_ends_with_a_server_that_says_nothing_as_well() -> None:
    async with serve(silence) as server, Api(connection(server)) as api, Watcher(api, PODS, 1.0) as watcher:
        with pytest.raises(Unreachable, match="no answer within"):
            await watcher.task


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (403, Forbidden), (404, NotThere), (400, Rejected)])
@asynchronous
async def test_a_refusal_ends_a_watch_at_once(status: int, kind: type[ClusterTrouble]) -> None:
    async with cluster(listed(1), refusal(status, "no")) as (api, _), Watcher(api, PODS) as watcher:
        with pytest.raises(kind):
            await watcher.task
        assert watcher.absences == []


@asynchronous
async def test_a_server_that_ends_every_watch_at_once_is_not_flooded() -> None:
    async def ending(request: Request) -> bytes:
        return chunked([]) if "watch" in request.query else listed(1)

    async with serve(ending) as server, Api(connection(server)) as api, Watcher(api, PODS):
        await asyncio.sleep(1)
        assert api.calls < 10


@asynchronous
async def test_who_stops_listening_leaves_no_connection_open() -> None:
    async with cluster(listed(1), watching(then=silence)) as (api, server):
        async with Watcher(api, PODS) as watcher:
            await watcher.sees_only(("SYNCED", ""))
            await until(lambda: len(server.requests) == 2)
        await until(lambda: not api._client._wires)


# ---- logs


async def heard(stream: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for data in stream:
        into += [data]


@asynchronous
async def test_a_log_is_asked_for_since_a_time_and_comes_as_it_is() -> None:
    async with cluster(chunked([b"T1 one\nT2 t", b"wo\n"]), answer(b"end")) as (api, server):
        got: list[bytes] = []
        await heard(api.log("ns", "a", container="main", since="2026-11-16T10:00:00+09:00", idle=5), got)
        assert b"".join(got) == b"T1 one\nT2 two\n"
        await heard(api.log("ns", "a", follow=False, idle=5), got)
        first, second = server.requests
        assert first.path == second.path == f"{PODS}/a/log"
        assert first.query == {
            "timestamps": "true",
            "follow": "true",
            "sinceTime": "2026-11-16T10:00:00+09:00",
            "container": "main",
        }
        assert second.query == {"timestamps": "true", "follow": "false"}


@asynchronous
async def test_a_log_that_breaks_or_falls_silent_says_so() -> None:
    async def fall_silent(request: Request) -> None:
        await request.send(chunked([b"2"], end=False))
        await silence(request)

    async def break_off(request: Request) -> None:
        await request.send(chunked([b"1"], end=False))

    async with cluster(break_off, fall_silent, silence) as (api, _):
        got: list[bytes] = []
        with pytest.raises(Unreachable) as broken:
            await heard(api.log("ns", "a", idle=5), got)
        assert not broken.value.silent
        for _ in range(2):
            with pytest.raises(Unreachable) as still:
                await heard(api.log("ns", "a", idle=1), got)
            assert still.value.silent
        assert got == [b"1", b"2"]
        assert api.calls == 3


def test_all_of_it_runs_on_a_python_that_has_nothing_else() -> None:
    """A manager inside the cluster has no more than that."""
    source = Path(api_module.__file__).parents[2]
    words = f"import sys; sys.path.append({str(source)!r}); import pumasi.kube.api, pumasi.kube.logs"
    subprocess.run([sys.executable, "-I", "-S", "-c", words], check=True)
