"""pumasi plan and pumasi nodes: what there is, and what would go where. The cluster is a list of objects here."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pumasi.cli.main import main
from pumasi.cli.verbs import nodes
from pumasi.cli.verbs.plan import parse_free
from pumasi.errors import ClusterTrouble, Forbidden
from pumasi.gpus import Gpu

Captured = pytest.CaptureFixture[str]
Object = dict[str, Any]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMASI_HOME", str(tmp_path))


def test_the_planner_says_what_goes_where(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "5,3,2"]) == 0
    shares, head, *rows = capsys.readouterr().out.splitlines()
    assert shares == "[5, 1]"
    assert head.split() == ["node", "slots"]
    assert rows[0].split() == ["node-0", "5"]
    assert rows[1].split()[1:] == ["1", "chief"]


def test_and_why(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "5,3,2"]) == 0
    short = capsys.readouterr().out
    assert main(["plan", "--slots", "6", "--free", "5,3,2", "--explain"]) == 0
    long = capsys.readouterr().out
    assert long.startswith(short)
    assert len(long.splitlines()) > len(short.splitlines()) + 1


def test_programs_get_shares_placement_chief_mix_and_reasons(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "a=5,b=3,c=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["shares"] == [5, 1]
    assert sum(told["placement"].values()) == 6
    assert told["placement"]["a"] == 5
    assert told["placement"][told["chief"]] == 1
    assert told["mix"] == {"1": 0.5, "2": 0.15, "4": 0.15, "8": 0.2}
    assert all(isinstance(sentence, str) for sentence in told["explain"])


def test_nodes_can_have_a_limit(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "5,3,2", "--max-per-node", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shares"] == [2, 2, 2]


def test_free_slots_are_listed_with_or_without_names() -> None:
    assert [(node.name, node.free) for node in parse_free("5, 3,0")] == [("node-0", 5), ("node-1", 3), ("node-2", 0)]
    assert [(node.name, node.free) for node in parse_free("gpu-a=8,b=2")] == [("gpu-a", 8), ("b", 2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "'pumasi plan' needs --slots."),
        (["--slots", "6"], "'pumasi plan' needs --free."),
        (["--slots", "0", "--free", "5"], "--slots takes a whole number from 1 on; '0' is none."),
        (["--slots", "-1", "--free", "5"], "'-1' is none."),
        (["--slots", "9" * 5000, "--free", "5"], "--slots takes a whole number"),
        (["--slots", "6", "--free", "5,,2"], "'' is no number of slots."),
        (["--slots", "6", "--free", "5,x"], "'x' is no number of slots."),
        (["--slots", "6", "--free", "=5"], "'=5' is no number of slots."),
        (["--slots", "6", "--free", "a=5,a=3"], "names the node a twice."),
        (["--slots", "6", "--free", "5,3", "--max-per-node", "x"], "--max-per-node takes a whole number"),
        (["--slots", "60", "--free", "5,3,2"], "10"),
    ],
)
def test_what_can_not_be_planned_is_a_sentence_and_exit_code_2(
    words: list[str], message: str, capsys: Captured
) -> None:
    assert main(["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def node(name: str, gpus: int, taint: str = "", **labels: str) -> Object:
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else []
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": str(gpus), "amd.com/gpu": "1"},
        },
    }


def holder(where: str, gpus: int) -> Object:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "metadata": {"namespace": "team", "name": "holder"},
        "spec": {"nodeName": where, "containers": [{"resources": resources}]},
        "status": {"phase": "Running"},
    }


class FakeCluster:
    """Each look at the nodes takes the next of `moments`: nodes and pods, or what went wrong. After the last of them
    the user has seen enough."""

    now = 0.0
    namespace = "team"
    context = "lab"

    @property
    def connection(self) -> FakeCluster:
        return self

    def patient(self, seconds: float) -> FakeCluster:
        return self

    def __init__(self, *moments: Sequence[Object] | Exception) -> None:
        self.moments = list(moments)
        self.contexts: list[str] = []
        self.pods: list[Object] = []

    def connect(self, context: str, _: object) -> FakeCluster:
        self.contexts.append(context)
        return self

    def api(self, connection: FakeCluster) -> FakeCluster:
        return connection

    async def __aenter__(self) -> FakeCluster:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def list(self, path: str, **query: str) -> Sequence[Object]:
        if path == "/api/v1/pods":
            assert query == {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
            return self.pods
        if not self.moments:
            raise KeyboardInterrupt
        moment = self.moments.pop(0)
        if isinstance(moment, Exception):
            raise moment
        return moment


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster([node("a", 5, rack="1"), node("b", 3, "busy", rack="2"), node("c", 2, rack="1")])
    monkeypatch.setattr("pumasi.pools.kubernetes.reach.connect", fake.connect)
    monkeypatch.setattr("pumasi.pools.kubernetes.reach.Api", fake.api)
    monkeypatch.setattr(nodes, "PAUSE", 0.0)
    return fake


def have_gpus(monkeypatch: pytest.MonkeyPatch, busy: Iterable[bool]) -> None:
    gpus = [Gpu("nvidia", str(index), f"GPU-{index}", "A100", 1, 0, taken) for index, taken in enumerate(busy)]
    monkeypatch.setattr("pumasi.gpus.list_gpus", lambda _: gpus)


def test_without_a_cluster_this_machine_is_the_only_node(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    have_gpus(monkeypatch, [False, True, False])
    assert main(["nodes"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == [platform.node(), "3", "1", "2"]
    assert "2 of 3 GPUs are free." in err
    assert main(["nodes", "--on", "local", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told == {"name": platform.node(), "total": 3, "used": 1, "free": 2, "out": "", "holders": []}


def test_a_machine_without_gpus_says_what_slots_run_on(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    have_gpus(monkeypatch, [])
    assert main(["nodes"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == [platform.node(), "0", "0", "0"]
    assert "Pumasi sees no GPU here; slots share the" in err


def test_the_nodes_of_a_cluster_are_listed_with_who_holds_what(cluster: FakeCluster, capsys: Captured) -> None:
    cluster.pods = [holder("a", 4)]
    assert main(["nodes", "--on", "k8s:lab"]) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["a", "5", "4", "1", "team/holder", "(4)"],
        ["b", "3", "0", "0", "taint", "busy:NoSchedule"],
        ["c", "2", "0", "2"],
    ]
    assert "3 of 10 nvidia.com/gpu are free." in err
    assert cluster.contexts == ["lab"]


def test_who_may_not_look_is_told_what_it_takes(cluster: FakeCluster, capsys: Captured) -> None:
    cluster.moments = [Forbidden("You may not list nodes.")]
    assert main(["nodes", "--on", "k8s"]) == 7
    assert "one must be allowed to list nodes, and the pods of all namespaces" in capsys.readouterr().err


def test_a_watch_prints_the_table_again_when_it_has_changed(cluster: FakeCluster, capsys: Captured) -> None:
    cluster.moments = [[node("a", 5)], [node("a", 5)], [node("a", 4)]]
    assert main(["nodes", "--on", "k8s", "--watch"]) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines() if line.startswith("a")] == [
        ["a", "5", "0", "5"],
        ["a", "4", "0", "4"],
    ]
    assert err.count("are free.") == 2
    assert len(cluster.contexts) == 1


def test_a_watch_for_programs_is_a_line_a_change(cluster: FakeCluster, capsys: Captured) -> None:
    cluster.moments = [[node("a", 5)], [node("a", 5)], [node("a", 4)]]
    assert main(["nodes", "--on", "k8s", "--watch", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[0]["free"] for line in lines] == [5, 4]


def test_a_watch_at_a_terminal_draws_in_place(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((80, 4)))
    monkeypatch.setattr(nodes, "columns", lambda: 80)
    cluster.moments = [[node("a", 5)], [node("a", 5)], [node(name, 4) for name in "abcdef"]]
    assert main(["nodes", "--on", "k8s", "--watch"]) == 0
    out, err = capsys.readouterr()
    screens = out.split("\x1b[2J\x1b[H")[1:]
    assert err == ""
    assert len(screens) == 3
    assert all(screen.count("\n") <= 3 for screen in screens)


def test_a_watch_outlives_a_cluster_that_is_away_for_a_while(cluster: FakeCluster, capsys: Captured) -> None:
    away = ClusterTrouble("The cluster can't be reached.")
    cluster.moments = [[node("a", 5)], away, away, [node("a", 5)]]
    assert main(["nodes", "--on", "k8s", "--watch"]) == 0
    out, err = capsys.readouterr()
    assert err.count("can't be reached") == 1
    assert out.count("\na ") == 2
    cluster.moments = [away]
    assert main(["nodes", "--on", "k8s", "--watch"]) == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nodes", "--on", "moon"], "'moon' is no cluster that has nodes."),
        (["nodes", "--gpu-resource", "amd.com/gpu"], "--gpu-resource is for clusters, but --on is local."),
        (["plan", "--slots", "6", "--free", "5", "--topology", "rack"], "--topology is for clusters"),
        (["plan", "--slots", "6", "--on", "k8s", "--free", "5"], "--free and --on both say what is free."),
        (["plan", "--slots", "6", "--on", "k8s", "--toleration", "a:b"], '--toleration: "a:b" has an effect'),
        (["plan", "--slots", "6", "--on", "k8s", "--node-selector", "a"], '--node-selector: "a" has no "="'),
        (["plan", "--slots", "6", "--on", "k8s", "--topology", "a,,b"], '--topology: "" is no key'),
    ],
)
def test_what_can_not_be_asked_of_a_cluster_is_a_sentence_and_exit_code_2(
    words: list[str], message: str, cluster: FakeCluster, capsys: Captured
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def planned(capsys: Captured, *words: str) -> dict[str, int]:
    assert main(["plan", "--on", "k8s", "--json", *words]) == 0
    return dict(json.loads(capsys.readouterr().out)["placement"])


def test_a_plan_takes_what_the_cluster_has_free(cluster: FakeCluster, capsys: Captured) -> None:
    assert planned(capsys, "--gpus", "6") == {"a": 5, "c": 1}


def test_a_plan_may_put_up_with_taints(cluster: FakeCluster, capsys: Captured) -> None:
    assert planned(capsys, "--gpus", "8", "--toleration", "busy") == {"a": 5, "b": 3}


def test_a_plan_may_be_for_some_nodes_only(cluster: FakeCluster, capsys: Captured) -> None:
    words = ("--gpus", "3", "--node-selector", "rack=2", "--toleration", "all:NoSchedule")
    assert planned(capsys, *words) == {"b": 3}


def test_a_plan_stays_within_one_domain_if_one_has_room(cluster: FakeCluster, capsys: Captured) -> None:
    words = ("--gpus", "7", "--toleration", "all", "--topology", "rack")
    assert planned(capsys, *words) == {"a": 5, "c": 2}


@pytest.mark.parametrize(
    ("held", "hint"),
    [(0, "Ask for at most 7."), (2, "Ask for at most 5, or wait until others have ended.")],
)
def test_nobody_is_waited_for_where_nothing_is_in_use(
    cluster: FakeCluster, capsys: Captured, held: int, hint: str
) -> None:
    cluster.pods = [holder("a", held)] if held else []
    assert main(["plan", "--gpus", "11", "--on", "k8s"]) == 2
    assert hint in " ".join(capsys.readouterr().err.split())
