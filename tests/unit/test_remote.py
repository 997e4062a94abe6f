"""Runs that live in a cluster, seen from here: what is copied of them, and what is told when they are not there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pumasi.catalogue import parse_spec
from pumasi.cli.main import main
from pumasi.core.events import Event, Gap, kind_of, unpack
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.errors import Forbidden, NotFound, Unreachable, UsageError
from pumasi.kube.config import Connection
from pumasi.pools.kubernetes import copying, manager_job, manifests
from pumasi.pools.kubernetes import runs as remote
from pumasi.pools.kubernetes.kept_output import Archive
from pumasi.pools.kubernetes.manifests import CodeObjects, GangSpec, Owner
from pumasi.pools.kubernetes.record import STALE, Record
from pumasi.pools.kubernetes.runs import Place, place_of
from pumasi.store import RunRecord, Store
from pumasi.store.person import this_person
from tests.fake_cluster import NAMESPACE, FakeApi

RUN = "train-abcde"
SPEC = {"command": ["train.py"], "on": "k8s:theirs", "slots": 2}
HERE = Place("fake", NAMESPACE)
STARTED = (1001.0, "started", {"attempt": 0})
FINISHED = (1005.0, "finished", {"verdict": "done", "reason": "Done.", "hint": ""})
ENDED = {"state": "done", "ended": 1005.0, "exit_code": 0, "outcome": FINISHED[2]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path)
    yield store
    store.close()


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """The cluster that all contexts lead to."""
    api = FakeApi()

    @asynccontextmanager
    async def reach(place: Place, patience: float = 10.0) -> AsyncIterator[tuple[FakeApi, str]]:
        yield api, place.namespace or NAMESPACE

    monkeypatch.setattr(remote, "reach", reach)
    monkeypatch.setattr(remote, "connect", lambda context, environ: Connection("fake", "https://fake", NAMESPACE))
    monkeypatch.setattr(copying, "POLL", 0.01)
    monkeypatch.setattr("pumasi.kube.watching._FIRST_PAUSE", 0.01)
    return api


def make(api: FakeApi, run: str = RUN, namespace: str = NAMESPACE, created: float = 1000.0) -> Record:
    """A run that somebody has started."""
    record = Record(api, namespace, run, "there/1")
    fields = {"state": "queued", "created": created, "framework": "torch", "slots": 2, "command": "train.py"}
    asyncio.run(record.create({"spec": SPEC, "program": {}, "code": {}}, fields, 600))
    return record


def write(record: Record, *events: tuple[float, str, dict[str, Any]], **fields: Any) -> None:
    for event in events:
        record.event(*plain(event)[0])
    record.update(fields)
    asyncio.run(record._write())


def add_pod(api: FakeApi, index: int, attempt: int = 0) -> str:
    """One that runs."""
    spec = parse_spec(SPEC)
    program = Program(("python3", "train.py"), "none", "", {})
    wiring = Attempt(RUN, attempt, {"node-0": 1, "node-1": 1}, {}, "", "0", "/tmp", ["", ""])
    config = agent_configs(spec, program, wiring, gang_of(spec, program, wiring))[index]
    owner = Owner("ConfigMap", RUN, api.cluster.find("configmaps", RUN)["metadata"]["uid"])
    gang = GangSpec(RUN, "main", attempt, owner, "", True, "", "none", CodeObjects(f"{RUN}-code", 0, ()))
    pod = manifests.pod(spec, gang, index, f"node-{index}", config)
    api.cluster.create("pods", NAMESPACE, pod)
    name: str = pod["metadata"]["name"]
    api.cluster.start(name)
    return name


def frame(rank: int, seq: int) -> bytes:
    return b"%d.%d 1763240000123|line %d" % (rank, seq, seq)


def lines(*frames: bytes) -> bytes:
    return b"".join(each + b"\n" for each in frames)


def log_of(store: Store, attempt: int = 0) -> bytes:
    path = store.log_path(RUN, attempt)
    return path.read_bytes() if path.exists() else b""


def told(store: Store) -> list[tuple[float, Event]]:
    return [(row.at, row.event) for row in store.events(RUN)]


def plain(*events: tuple[float, str, dict[str, Any]]) -> list[tuple[float, Event]]:
    return [(at, unpack(kind, data)) for at, kind, data in events]


def found(store: Store) -> RunRecord:
    return remote.find(store, HERE, RUN)


# ---- finding


def test_the_runs_of_a_namespace_or_of_all_are_listed_with_the_clusters_time(api: FakeApi) -> None:
    make(api, "a-aaaaa", created=1.0)
    make(api, "b-bbbbb", namespace="others", created=2.0)
    api.cluster.ahead = 500.0
    rows, now = remote.rows(HERE)
    assert [row.run for row in rows] == ["a-aaaaa"]
    assert now > time.time() + 400
    everywhere, _ = remote.rows(HERE, everywhere=True)
    assert [(row.run, row.namespace) for row in everywhere] == [("b-bbbbb", "others"), ("a-aaaaa", NAMESPACE)]


def test_a_run_that_nobody_attends_is_shown_as_such(api: FakeApi) -> None:
    make(api)
    (row,), now = remote.rows(HERE)
    assert row.is_attended(now)
    api.cluster.ahead = STALE + 5
    (row,), now = remote.rows(HERE)
    assert not row.is_attended(now)


def test_a_run_that_is_found_is_copied_with_its_place(api: FakeApi, store: Store) -> None:
    write(make(api), STARTED, state="running", started=1001.0, placement={"node-0": 2}, attempt=1)
    record = remote.find(store, HERE, "train")
    assert (record.id, record.state, record.created, record.attempt) == (RUN, "running", 1000.0, 1)
    assert (record.framework, record.placement, record.detached) == ("torch", {"node-0": 2}, True)
    assert record.spec["command"] == ["train.py"]
    assert record.is_remote
    assert place_of(record) == HERE
    assert told(store) == plain(STARTED)


def test_the_newest_of_the_own_is_meant_where_none_is_named_and_the_namespace_is_its_own(
    api: FakeApi, store: Store
) -> None:
    make(api, "old-aaaaa", created=1.0)
    make(api, "new-bbbbb", namespace="others", created=2.0)
    make(api, "somebodys-ccccc", created=3.0)
    for own in ("old-aaaaa", "new-bbbbb"):
        start_from(store, own)
    record = remote.find(store, Place(), None, everywhere=True)
    assert record.id == "new-bbbbb"
    assert place_of(record) == Place("fake", "others")


def start_from(store: Store, run: str) -> None:
    store.import_run(run, {**SPEC, "on": "k8s:fake", "namespace": "others"}, 1.0)
    store.update_run(run, started_here=True)


def test_a_run_of_somebody_else_has_to_be_named(api: FakeApi, store: Store) -> None:
    record = make(api)
    write(record, user="lee as admin", host="desk")
    with pytest.raises(NotFound, match=f"None of the runs there was started from here; the last one is {RUN}"):
        remote.find(store, HERE, None)
    assert store.runs() == []
    seen = remote.find(store, HERE, RUN)
    assert (seen.user, seen.host, seen.started_here) == ("lee as admin", "desk", False)
    with pytest.raises(NotFound, match="started from here"):
        store.find(None)  # to have looked at it makes it nobody's own
    assert remote.rows(HERE)[0][0].note("user") == "lee as admin"


def test_a_beginning_that_several_have_means_the_only_one_that_goes_on(api: FakeApi, store: Store) -> None:
    make(api, "train-aaaaa")
    write(make(api, "train-bbbbb"), ended=5.0)
    start_from(store, "train-aaaaa")
    assert remote.find(store, HERE, "train", running_first=True).id == "train-aaaaa"
    with pytest.raises(UsageError, match="may mean"):
        remote.find(store, HERE, "train")


def test_a_beginning_that_several_have_never_means_the_run_of_somebody_else(api: FakeApi, store: Store) -> None:
    make(api, "train-colleague")
    write(make(api, "train-mine"), ended=5.0)
    start_from(store, "train-mine")
    with pytest.raises(UsageError, match="may mean"):
        remote.find(store, HERE, "train", running_first=True)


def test_a_run_that_is_not_there_is_not_found_and_one_that_is_not_clear_is_asked_for(
    api: FakeApi, store: Store
) -> None:
    make(api, "train-aaaaa")
    make(api, "train-bbbbb")
    with pytest.raises(NotFound):
        remote.find(store, HERE, "other")
    with pytest.raises(UsageError):
        remote.find(store, HERE, "train")
    assert store.runs() == []


def test_to_find_it_again_adds_only_what_is_new(api: FakeApi, store: Store) -> None:
    there = make(api)
    write(there, STARTED, state="running")
    found(store)
    found(store)
    assert told(store) == plain(STARTED)
    write(there, FINISHED, **ENDED)
    record = found(store)
    assert (record.state, record.ended, record.exit_code) == ("done", 1005.0, 0)
    assert told(store) == plain(STARTED, FINISHED)


def test_events_of_a_manager_whose_clock_is_late_are_not_lost(api: FakeApi, store: Store) -> None:
    """One of the laptop's, whose clock is ahead, and then one in the cluster."""
    there = make(api)
    write(there, (2000.0, "started", {"attempt": 0}))
    found(store)
    write(there, (1990.0, "restarting", {"spent": 1}), (1990.0, "started", {"attempt": 1}))
    found(store)
    found(store)
    assert [(at, kind_of(event)) for at, event in told(store)] == [
        (2000.0, "started"),
        (1990.0, "restarting"),
        (1990.0, "started"),
    ]


def test_a_hint_where_a_run_is_not_found_leads_to_the_same_place(api: FakeApi, store: Store) -> None:
    def hint(place: Place, *, everywhere: bool = False) -> str:
        with pytest.raises(NotFound) as caught:
            remote.find(store, place, "zzz", everywhere=everywhere)
        return caught.value.hint

    assert hint(Place("", "empty")) == "Start one: pumasi run --on k8s --namespace empty train.py"
    make(api)
    assert hint(Place()) == "`pumasi ps --on k8s` lists the runs that there are."
    assert hint(HERE) == f"`pumasi ps --on k8s:fake --namespace {NAMESPACE}` lists the runs that there are."
    assert hint(Place(), everywhere=True) == "`pumasi ps --on k8s -A` lists the runs that there are."


@pytest.mark.parametrize(
    ("everywhere", "begins"), [(True, "Leave out -A: --namespace NAME"), (False, "--namespace NAME")]
)
def test_who_may_not_list_runs_is_told_where_to_look_instead(api: FakeApi, everywhere: bool, begins: str) -> None:
    api.forbidden.add(("list", "configmaps"))
    with pytest.raises(Forbidden) as caught:
        remote.rows(HERE, everywhere=everywhere)
    assert caught.value.hint.startswith(begins)
    assert "administrator" in caught.value.hint


# ---- why it has no manager

BAD_IMAGE = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
WHY = f"{RUN} has no manager: The image nosuch/image can't be pulled: not found."


def detach(api: FakeApi, state: Mapping[str, Any] | None = None, manager: str = "") -> None:
    """A run whose manager should be in a pod."""
    record = Record(api, NAMESPACE, RUN, manager)
    fields = {"state": "queued", "created": 1000.0, "framework": "torch", "slots": 2, "detached": True}
    asyncio.run(record.create({"spec": SPEC, "program": {}, "code": {}}, fields, 600))
    package = manager_job.package_map(RUN, record.owner)
    job = manager_job.manager_job(RUN, record.owner, "nosuch/image", package, [])
    if state is not None:
        pod = {
            "metadata": {"name": "m", **job["spec"]["template"]["metadata"]},
            "spec": job["spec"]["template"]["spec"],
        }
        api.cluster.create("pods", NAMESPACE, pod)
        status = {"phase": "Pending", "containerStatuses": [{"name": "manager", "state": state}]}
        api.cluster.change("pods", "m", {"status": status})


@pytest.mark.parametrize(
    "words",
    [("ps", "--on", "k8s"), ("ps",), ("show", RUN), ("show", RUN, "--on", "k8s"), ("wait", RUN, "--timeout", "0")],
)
@pytest.mark.parametrize("silent", [False, True])
def test_why_a_detached_run_has_no_manager_is_told(
    api: FakeApi,
    store: Store,
    words: tuple[str, ...],
    silent: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PUMASI_HOME", str(store.home))
    monkeypatch.setattr("pumasi.runs.session.start_background", lambda *_: None)
    detach(api, BAD_IMAGE)
    found(store)
    api.cluster.ahead = STALE + 5 if silent else 0.0
    main(words)
    told = "".join(capfd.readouterr())
    assert told.count(WHY) == 1
    assert "Check --image" in told


@pytest.mark.parametrize(
    ("state", "manager"),
    [(BAD_IMAGE, "there/1"), ({"running": {}}, ""), ({"waiting": {"reason": "ContainerCreating"}}, "")],
)
def test_a_manager_that_is_there_or_may_still_come_is_not_missed(
    api: FakeApi, store: Store, state: Mapping[str, Any], manager: str
) -> None:
    detach(api, state, manager)
    assert remote.why_unattended(store, found(store)) is None
    assert remote.whys_unattended(HERE, *remote.rows(HERE)) == {}


def test_managers_are_looked_for_only_where_they_should_be_and_are_not(api: FakeApi, store: Store) -> None:
    write(make(api), state="running")
    record = found(store)
    rows, now = remote.rows(HERE)
    calls = api.calls
    assert remote.why_unattended(store, record) is None
    assert remote.whys_unattended(HERE, rows, now) == {}
    assert api.calls == calls


def test_a_cluster_that_does_not_tell_why_keeps_nobody_from_seeing_the_runs(api: FakeApi, store: Store) -> None:
    detach(api, BAD_IMAGE)
    record = found(store)
    rows, now = remote.rows(HERE)
    api.forbidden.add(("list", "pods"))
    assert remote.why_unattended(store, record) is None
    assert remote.whys_unattended(HERE, rows, now) == {}


def test_a_job_that_can_make_no_pod_for_its_manager_says_why(api: FakeApi, store: Store) -> None:
    detach(api)
    said = 'pods "m" is forbidden: error looking up service account: serviceaccount "pumasi-manager" not found'
    about = {"involvedObject": {"name": f"{RUN}-manager"}, "type": "Warning", "message": said}
    api.cluster.create("events", NAMESPACE, {"metadata": {"name": "e"}, **about})
    why = remote.why_unattended(store, found(store))
    assert why is not None
    assert said in why.reason
    assert why.hint.startswith(f"`pumasi setup --on k8s:fake --namespace {NAMESPACE}` gives managers the rights")


# ---- how it stands


def test_a_copy_is_brought_up_to_date(api: FakeApi, store: Store) -> None:
    there = make(api)
    record = found(store)
    write(there, STARTED, state="running", started=1001.0)
    remote.refresh(store, record)
    assert store.run(RUN).state == "running"
    assert told(store) == plain(STARTED)


def test_a_result_on_a_volume_is_fetched_by_the_context_that_is_known_here(api: FakeApi, store: Store) -> None:
    """A manager in the cluster knows of none."""
    result = {"kind": "model", "path": "/volume/final.keras", "context": "", "namespace": NAMESPACE}
    data = {**FINISHED[2], "result": result}
    write(make(api), (FINISHED[0], FINISHED[1], data), **{**ENDED, "outcome": data})
    record = found(store)
    here = {**data, "result": {**result, "context": HERE.context}}
    assert record.outcome == here
    remote.refresh(store, record)
    assert told(store) == plain((FINISHED[0], FINISHED[1], here))


def test_a_copy_of_an_earlier_version_gets_no_event_twice(api: FakeApi, store: Store) -> None:
    there = make(api)
    record = found(store)
    data: dict[str, Any] = {**FINISHED[2], "result": {"kind": "model", "context": ""}}
    store.add_event(RUN, FINISHED[0], unpack(FINISHED[1], data))
    write(there, (FINISHED[0], FINISHED[1], data))
    remote.refresh(store, record)
    assert told(store) == plain((FINISHED[0], FINISHED[1], data))


def test_an_unattended_run_is_shown_as_such_until_somebody_attends_it(api: FakeApi, store: Store) -> None:
    there = make(api)
    write(there, state="running")
    record = found(store)
    api.cluster.ahead = STALE + 5
    remote.refresh(store, record)
    assert store.run(RUN).state == "unattended"
    assert store.run(RUN).ended is None
    assert not remote.is_attended(record)
    write(there)
    remote.refresh(store, record)
    assert store.run(RUN).state == "running"
    assert remote.is_attended(record)


def test_a_run_that_has_ended_needs_nobody(api: FakeApi, store: Store) -> None:
    write(make(api), FINISHED, **ENDED)
    record = found(store)
    api.cluster.ahead = 10 * STALE
    remote.refresh(store, record)
    assert store.run(RUN).state == "done"


def test_a_run_that_was_deleted_there_is_closed_here(api: FakeApi, store: Store) -> None:
    there = make(api)
    write(there, state="running")
    record = found(store)
    asyncio.run(there.remove())
    remote.refresh(store, record)
    closed = store.run(RUN)
    assert (closed.state, closed.exit_code) == ("lost", 3)
    assert closed.ended is not None
    assert closed.outcome == {"verdict": "lost", "reason": "It is no longer in the cluster.", "hint": ""}
    assert kind_of(told(store)[-1][1]) == "finished"


def test_a_cluster_that_is_away_leaves_the_copy_as_it_is(api: FakeApi, store: Store) -> None:
    write(make(api), state="running")
    record = found(store)
    api.unreachable = True
    remote.refresh(store, record)
    assert store.run(RUN) == record
    with pytest.raises(Unreachable):
        remote.is_attended(record)


# ---- its output


def test_the_output_of_all_pods_is_copied_once(api: FakeApi, store: Store) -> None:
    there = make(api)
    write(there, state="running")
    record = found(store)
    names = [add_pod(api, 0), add_pod(api, 1)]
    api.cluster.say(names[0], b'@{"event": "running"}', frame(0, 1), frame(0, 2))
    api.cluster.say(names[1], frame(1, 1))
    copying.copy_logs(store, record)
    assert sorted(log_of(store).splitlines()) == [frame(0, 1), frame(0, 2), frame(1, 1)]
    api.cluster.say(names[0], frame(0, 3))
    copying.copy_logs(store, record)
    copying.copy_logs(store, record)
    assert sorted(log_of(store).splitlines()) == [frame(0, 1), frame(0, 2), frame(0, 3), frame(1, 1)]
    assert not store.is_complete(RUN)


def test_metrics_are_found_in_what_is_copied(api: FakeApi, store: Store) -> None:
    make(api)
    record = found(store)
    api.cluster.say(add_pod(api, 0), b"0.1 1763240000123|step 3 loss: 0.25")
    copying.copy_logs(store, record)
    assert [(row.rank, row.name, row.value) for row in store.metrics(RUN)] == [(0, "loss", 0.25)]


def test_each_attempt_has_a_log_of_its_own(api: FakeApi, store: Store) -> None:
    make(api)
    record = found(store)
    for attempt in (0, 1):
        api.cluster.say(add_pod(api, 0, attempt), frame(0, 1), frame(0, attempt + 2))
    copying.copy_logs(store, record)
    assert log_of(store, 0) == lines(frame(0, 1), frame(0, 2))
    assert log_of(store, 1) == lines(frame(0, 1), frame(0, 3))


def test_pods_that_have_not_started_have_nothing_to_copy(api: FakeApi, store: Store) -> None:
    make(api)
    record = found(store)
    name = add_pod(api, 0)
    api.cluster.set_state(name, "Pending", {"waiting": {"reason": "ContainerCreating"}})
    copying.copy_logs(store, record)
    assert log_of(store) == b""


def test_a_run_that_has_ended_is_copied_as_a_whole_and_never_asked_for_again(api: FakeApi, store: Store) -> None:
    there = make(api)
    name = add_pod(api, 0)
    api.cluster.say(name, frame(0, 1))
    api.cluster.finish(name, 0)
    write(there, FINISHED, **ENDED)
    record = found(store)
    copying.copy_logs(store, record)
    assert store.is_complete(RUN)
    assert log_of(store) == lines(frame(0, 1))
    calls = api.calls
    copying.copy_logs(store, record)
    assert api.calls == calls


def test_what_the_pods_have_lost_comes_from_the_archive(api: FakeApi, store: Store) -> None:
    there = make(api)
    kept = Archive(api, NAMESPACE, RUN, there.owner)
    kept.add(0, lines(frame(0, 1), frame(0, 2), frame(1, 1)))
    asyncio.run(kept.flush())
    api.cluster.say(add_pod(api, 0), frame(0, 2), frame(0, 3))
    record = found(store)
    for _ in range(2):
        copying.copy_logs(store, record)
    assert log_of(store) == lines(frame(0, 1), frame(0, 2), frame(1, 1), frame(0, 3))
    assert told(store) == plain()


def test_what_nobody_has_any_more_is_told_as_a_gap_and_hides_no_other_event(api: FakeApi, store: Store) -> None:
    there = make(api)
    record = found(store)
    name = add_pod(api, 0)
    api.cluster.say(name, frame(0, 1), frame(0, 5))
    copying.copy_logs(store, record)
    (gap,) = told(store)
    assert gap[1] == Gap(attempt=0, rank=0, lines=3)
    write(there, STARTED, FINISHED, **ENDED)
    api.cluster.say(name, frame(0, 9))
    api.cluster.finish(name, 0)
    copying.copy_logs(store, record)
    assert [kind_of(event) for _, event in told(store)] == ["gap", "gap", "started", "finished"]


def test_a_run_that_is_no_longer_there_has_nothing_to_copy(api: FakeApi, store: Store) -> None:
    there = make(api)
    record = found(store)
    asyncio.run(there.remove())
    copying.copy_logs(store, record)
    assert log_of(store) == b""


def test_output_that_can_not_be_read_is_no_complete_copy(api: FakeApi, store: Store) -> None:
    there = make(api)
    name = add_pod(api, 0)
    api.cluster.finish(name, 0)
    write(there, FINISHED, **ENDED)
    record = found(store)
    real = api.before

    def cut(verb: str, path: str) -> None:
        if path == name:
            raise Unreachable("The node does not answer.")

    api.before = cut
    with pytest.raises(Unreachable):
        copying.copy_logs(store, record)
    assert not store.is_complete(RUN)
    api.before = real
    copying.copy_logs(store, record)
    assert store.is_complete(RUN)


def test_a_copy_follows_the_run_to_its_end(api: FakeApi, store: Store) -> None:
    there = make(api)
    write(there, state="running")
    record = found(store)
    name = add_pod(api, 0)
    with copying.copied(store, record):
        api.cluster.say(name, frame(0, 1))
        wait(lambda: log_of(store) == lines(frame(0, 1)))
        with copying.copied(store, record):  # a second one just reads
            api.cluster.say(name, frame(0, 2))
            wait(lambda: log_of(store) == lines(frame(0, 1), frame(0, 2)))
        api.cluster.finish(name, 0)
        write(there, FINISHED, **ENDED)
        wait(lambda: store.is_complete(RUN))
    assert store.run(RUN).state == "done"
    assert told(store) == plain(FINISHED)


def test_a_run_that_is_deleted_while_it_is_followed_is_closed(api: FakeApi, store: Store) -> None:
    there = make(api)
    write(there, state="running")
    record = found(store)
    with copying.copied(store, record):
        asyncio.run(there.remove())
        wait(lambda: store.run(RUN).ended)
    assert store.run(RUN).state == "lost"


def test_trouble_while_a_run_is_followed_comes_out_where_it_is_read(api: FakeApi, store: Store) -> None:
    make(api)
    record = found(store)
    api.unreachable = True
    with copying.copied(store, record) as check, pytest.raises(Unreachable):
        wait(check)


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- steering


@pytest.mark.parametrize(("force", "word"), [(False, "soon"), (True, "now")])
def test_a_wish_to_stop_is_left_where_its_manager_looks(api: FakeApi, store: Store, force: bool, word: str) -> None:
    make(api)
    remote.ask_to_stop(found(store), force=force)
    annotations = api.cluster.find("configmaps", RUN)["metadata"]["annotations"]
    assert annotations[manifests.DOMAIN + "stop"] == word
    assert annotations[manifests.DOMAIN + "stopped-by"] == f"{this_person().known_as('kim')}"
    assert annotations[manifests.DOMAIN + "manager"] == "there/1"


def test_to_remove_a_run_removes_all_of_it_and_nothing_else(api: FakeApi, store: Store) -> None:
    make(api)
    make(api, "other-aaaaa")
    add_pod(api, 0)
    remote.remove(found(store))
    assert api.cluster.names("pods") == []
    assert api.cluster.names("jobs") == ["other-aaaaa"]
    assert api.cluster.names("configmaps") == ["other-aaaaa"]


def test_a_run_that_is_attended_elsewhere_gets_no_manager_here(api: FakeApi, store: Store) -> None:
    make(api)
    assert copying.attend(store, found(store)) is False


def test_a_run_that_nobody_attends_is_adopted_with_its_output(
    api: FakeApi, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(api)
    record = found(store)
    api.cluster.say(add_pod(api, 0), frame(0, 1))
    api.cluster.ahead = STALE + 5
    started: list[tuple[str, str, bytes]] = []

    def start(store: Store, record: RunRecord, how: str) -> None:
        started.append((record.id, how, log_of(store)))

    monkeypatch.setattr("pumasi.runs.session.start_background", start)
    assert copying.attend(store, record) is True
    assert started == [(RUN, "adopt", lines(frame(0, 1)))]


def test_the_content_of_a_record_is_plain_json(api: FakeApi) -> None:
    make(api)
    data = api.cluster.find("configmaps", RUN)["data"]
    assert json.loads(data["spec.json"])["spec"] == SPEC
