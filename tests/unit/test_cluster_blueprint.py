"""What a test cluster is to be, before anything of it is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import blueprint as plans
from tools.cluster.__main__ import parser
from tools.cluster.blueprint import GPU, Addresses, Blueprint
from tools.cluster.cgroups import Group
from tools.cluster.cluster import Cluster, is_well
from tools.cluster.making import check_machine
from tools.common import ToolError, locked, until


def commands(blueprint: Blueprint) -> dict[str, list[str]]:
    addresses = Addresses(3)
    return {**plans.control_parts(blueprint, addresses), **plans.node_parts(blueprint, addresses, "node-0")}


def test_feature_gates_reach_every_part_that_has_some() -> None:
    gated = commands(Blueprint(feature_gates="GenericWorkload=true"))
    told = {program for program, words in gated.items() if "--feature-gates=GenericWorkload=true" in words}
    assert told == {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"}
    proxy = plans.kube_proxy_config("node-0", Blueprint(feature_gates="A=true,B=false"))
    assert proxy["featureGates"] == {"A": True, "B": False}
    assert not [words for words in commands(Blueprint()).values() if any("feature-gates" in word for word in words)]


def test_two_clusters_share_no_address_outside() -> None:
    first, second = Addresses(0), Addresses(1)
    assert {first.link, first.network, first.control, first.outside, first.node(0)}.isdisjoint(
        {second.link, second.network, second.control, second.outside, second.node(0)}
    )


def test_a_blueprint_survives_being_written_down() -> None:
    blueprint = Blueprint("wide", (8, 8), "A=true", 100)
    assert Blueprint.from_json(blueprint.as_json()) == blueprint


def test_every_kubelet_has_a_name_and_keys_of_its_own() -> None:
    users = plans.users(Blueprint(gpus=(1, 1)))
    assert users["system:node:node-0"] == users["system:node:node-1"] == "system:nodes"
    kubelet = plans.kubelet("node-1", "10.88.0.11", Blueprint(gpus=(1, 1)))
    assert f"--kubeconfig={plans.KEYS}/system-node-node-1.kubeconfig" in kubelet


def test_containers_see_shares_where_they_are_outside_and_cannot_write_them() -> None:
    spec = plans.runtime_spec({"mounts": [{"destination": "/proc"}]}, ["/usr", "/opt/python"])
    assert [mount["destination"] for mount in spec["mounts"]] == ["/proc", "/usr", "/opt/python"]
    assert all("ro" in mount["options"] for mount in spec["mounts"][1:])


def test_new_volumes_are_opened_for_all_users_and_those_that_a_test_has_closed_stay_closed(tmp_path: Path) -> None:
    for name, mode in (("new", 0o750), ("closed", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (hook,) = plans.runtime_spec({"mounts": []}, [])["hooks"]["createRuntime"]
    words = [word.replace(plans.VOLUMES, str(tmp_path)) for word in hook["args"]]
    subprocess.run(words, executable=hook["path"], check=True)
    modes = {path.name: path.stat().st_mode & 0o7777 for path in tmp_path.iterdir()}
    assert modes == {"new": 0o777, "closed": 0o755}


def test_simulated_nodes_have_eight_gpus_and_repel_ordinary_pods() -> None:
    node = plans.simulated_node(7)
    assert node["status"]["allocatable"][GPU] == "8"
    assert node["spec"]["taints"][0]["effect"] == "NoSchedule"
    json.dumps(node)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--gpus", "5,x"], "'x' is not a number from 0 to 1000"),
        (["--gpus", ""], "'' is not a number from 0 to 1000"),
        (["--nodes", "0"], "'0' is not a number from 1 to 200"),
        (["--simulated", "-1"], "'-1' is not a number from 0 to 10000"),
    ],
)
def test_a_wrong_option_is_named(words: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["up", *words])
    assert ended.value.code == 2
    assert wrong in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "Upper", "../up", "a" * 32, "1st"])
def test_a_name_that_can_not_be_a_clusters_is_refused(name: str) -> None:
    with pytest.raises(ToolError, match="can't be a cluster's name"):
        Cluster(name)


def test_a_node_is_well_only_when_nothing_ails_it() -> None:
    ready = {"type": "Ready", "status": "True"}
    ill = {"taints": [{"key": "node.kubernetes.io/unreachable"}]}
    cordoned = {"taints": [{"key": "node.kubernetes.io/unschedulable"}]}
    assert is_well({"spec": {}, "status": {"conditions": [ready]}})
    assert is_well({"spec": cordoned, "status": {"conditions": [ready]}})
    assert not is_well({"spec": ill, "status": {"conditions": [ready]}})
    assert not is_well({"spec": {}, "status": {"conditions": [ready, {"type": "DiskPressure", "status": "True"}]}})
    assert not is_well({"spec": {}, "status": {}})


def test_a_wait_ends_with_what_was_waited_for_or_with_a_sentence() -> None:
    assert until(lambda: 7, "seven", seconds=1) == 7
    with pytest.raises(ToolError, match="waited 0 s for godot, in vain"):
        until(lambda: False, "godot", seconds=0)


def test_a_lock_goes_with_its_holder_however_that_ends() -> None:
    code = (
        "import sys\nfrom tools.common import locked\n"
        "with locked('unit', 1): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout
    assert holder.stdout.readline() == "held\n"
    heard = []
    with pytest.raises(ToolError, match="the lock unit"), locked("unit", 0, lambda: heard.append("waiting")):
        pass
    assert heard == ["waiting"]
    holder.kill()
    holder.communicate()
    with locked("unit", 5):
        pass


def test_version_2_of_control_groups_hands_controllers_down_and_keeps_leaves_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On plain files: what is written where. The real thing is tried on machines that have it."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    monkeypatch.setattr("tools.cluster.cgroups.hierarchies", lambda: [tmp_path])
    Group("pumasi-x/system").make()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert not (tmp_path / "pumasi-x" / "system" / "cgroup.subtree_control").exists()


def test_a_cpuset_of_version_1_has_the_processors_of_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pumasi-x").mkdir()
    for folder, text in ((tmp_path, "0-1\n"), (tmp_path / "pumasi-x", "\n")):
        for name in ("cpuset.cpus", "cpuset.mems"):
            (folder / name).write_text(text)
    monkeypatch.setattr("tools.cluster.cgroups.hierarchies", lambda: [tmp_path])
    Group("pumasi-x").make()
    assert (tmp_path / "pumasi-x" / "cpuset.cpus").read_text() == "0-1\n"


@pytest.mark.parametrize(
    ("where", "value", "sentence"),
    [
        ("tools.cluster.making.sys.platform", "darwin", "needs Linux"),
        ("tools.cluster.making.os.geteuid", lambda: 1000, "needs root"),
    ],
)
def test_where_it_can_not_run_it_says_what_to_use_instead(
    where: str, value: object, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, value)
    with pytest.raises(ToolError, match=f"{sentence}.*PUMASI_TEST_KUBECONFIG"):
        check_machine()
