"""Copies that train apart in pods of a real cluster, with their files on a volume, and are averaged there."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster import breaking
from tests.cluster.objects import claim, pod, python, volume_of
from tests.cluster.place import Done, Place, kubeconfig_of, make_volume
from tests.cluster.subject import Kubernetes, Namespace
from tests.harness import Workplace, wait_for

TRAIN = """
    import argparse, os, time
    import numpy as np
    parser = argparse.ArgumentParser()
    for name in ("data", "savemodel", "init", "round"):
        parser.add_argument("--" + name, default="")
    given = parser.parse_args()
    print("begun", flush=True)
    x = np.load(given.data)["x"]
    w = np.load(given.init)["w"] if given.init else np.zeros(2)
    while given.round == os.environ.get("SLOW") and not os.path.exists("/volume/go"):
        time.sleep(0.1)
    os.makedirs(os.path.dirname(given.savemodel), exist_ok=True)
    np.savez(given.savemodel, w=w + [x.sum(), len(x)])
    print("trained on", len(x), "rows at", os.environ["PUMASI_NODE"])
"""
EVALUATE = """
    import glob, os, sys
    import numpy as np
    path = sys.argv[1]
    paths = sorted(glob.glob(path + "/*.npz")) if os.path.isdir(path) else [path]
    print(f"accuracy: {np.mean([np.load(each)['w'][0] for each in paths]) / 1000:.4f}")
"""
TRAINER = ("train.py", "--data", "{shard}", "--savemodel", "{model}.npz", "--init", "{init}", "--round", "{round}")
ROUNDS = (
    "--strategy",
    "average",
    "--slots",
    "3",
    "--rounds",
    "2",
    "--split",
    "reviews.npz",
    "--python",
    sys.executable,
)
JUDGE = ("--evaluate", "evaluate.py {model}")
A_NODE_EACH = ("--cpus", "1.2")
SLOW = ("--env", "SLOW=2")
FINAL = pytest.approx([(4 * 6 + 3 * 15 + 3 * 24) / 10 * 2, (4 * 4 + 3 * 3 + 3 * 3) / 10 * 2])
"""Parts of 4, 3 and 3 rows: 0+1+2+3, 4+5+6, 7+8+9; twice."""

pytestmark = pytest.mark.own


@pytest.fixture
def place(workplace: Workplace, namespace: Namespace) -> Place:
    workplace.script(TRAIN)
    workplace.script(EVALUATE, "evaluate.py")
    np.savez(workplace.folder / "reviews.npz", x=np.arange(10.0), y=np.arange(10) % 2)
    return Place(workplace, namespace)


def weights(path: Path) -> list[float]:
    return [float(each) for each in np.load(path)["w"]]


def task_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"]["pumasi.dev/task"])


def nodes_of(place: Place, tasks: str) -> set[str]:
    return {each["spec"]["nodeName"] for each in place.pods() if task_of(each).startswith(tasks)}


def running(place: Place, tasks: str) -> list[dict[str, Any]]:
    return [each for each in place.pods() if task_of(each).startswith(tasks) and each["status"]["phase"] == "Running"]


def wait_for_second_round(place: Place) -> None:
    wait_for(lambda: len(running(place, "train-2")) == 3, "the second round", 120)


def finish(process: Any, seconds: float = 200) -> Done:
    out, err = process.communicate(timeout=seconds)
    done = Done(process.args, process.returncode, out, err)
    assert done.returncode == 0, done.stderr
    return done


def test_the_whole_of_it_over_three_nodes_one_of_which_dies(place: Place, kubernetes: Kubernetes) -> None:
    make_volume(place.namespace, "files")
    volume = place.namespace.volume_folder("files")
    options = ("--volume", "files", "--save", "final.npz", *A_NODE_EACH, *SLOW, *JUDGE)
    process = place.start(*ROUNDS, *options, *TRAINER)
    wait_for_second_round(place)
    assert nodes_of(place, "train-2") == set(kubernetes.open_nodes())
    lost = running(place, "train-2-1")[0]["spec"]["nodeName"]
    with breaking.powered_off(kubernetes, lost):
        wait_for(lambda: kubernetes.condition(lost, "Ready") != "True", f"the cluster to miss {lost}", 120)
        (volume / "go").touch()
        done = finish(process)
    assert f"train-2-1: starting again (attempt 1): The pod on {lost} was lost" in done.stderr
    assert weights(volume / "final.npz") == FINAL
    assert "The final model: /volume/final.npz" in done.stderr
    table = done.stderr.partition("The final model")[2]
    assert table.count("the average") == table.count("the ensemble") == 2
    assert table.count("best") == 1
    assert "Left out" not in done.stderr


def test_a_volume_is_made_and_where_one_node_can_mount_it_all_go_there(place: Place) -> None:
    """As the image's user, who is root: folders of this cluster's volumes belong to it."""
    done = place.train(*ROUNDS, "--volume", "fresh:64Mi", "--as-image-user", "--save", "final.npz", *TRAINER)
    assert "All of it goes to node-" in done.stderr
    made = place.namespace.get("pvc", "fresh")["spec"]
    assert (made["accessModes"], made["resources"]["requests"]["storage"]) == (["ReadWriteOnce"], "64Mi")
    assert len(nodes_of(place, "")) == 1
    assert place.pumasi("delete", place.last()["id"]).returncode == 0
    assert weights(place.namespace.volume_folder("fresh") / "final.npz") == FINAL


def hold(namespace: Namespace, name: str, node: str) -> None:
    """A pod of somebody else that has the volume mounted there."""
    sleeper = python("import time; time.sleep(600)", volumeMounts=[{"name": "data", "mountPath": "/data"}])
    namespace.create(pod("holder", sleeper, nodeName=node, **volume_of(name)))
    namespace.wait_for_phase("holder", "Running")


def test_trainers_go_where_somebody_else_has_mounted_their_volume(place: Place, kubernetes: Kubernetes) -> None:
    where = kubernetes.open_nodes()[-1]
    place.namespace.create(claim("files", "ReadWriteOnce"))
    hold(place.namespace, "files", where)
    place.train(*ROUNDS, "--volume", "files", "--as-image-user", *TRAINER)
    assert nodes_of(place, "") == {where}


def test_who_may_not_see_the_nodes_still_has_all_on_one(place: Place, tmp_path: Path) -> None:
    namespace = place.namespace
    namespace.kubectl("create", "serviceaccount", "editor")
    namespace.kubectl(
        "create", "rolebinding", "editor", "--clusterrole=edit", f"--serviceaccount={namespace.name}:editor"
    )
    place.environ["KUBECONFIG"] = str(kubeconfig_of(namespace, "editor", tmp_path))
    namespace.create(claim("files", "ReadWriteOnce"))
    process = place.start(*ROUNDS, "--volume", "files", "--as-image-user", *SLOW, *TRAINER)
    wait_for_second_round(place)
    assert len(nodes_of(place, "train-2")) == 1
    (namespace.volume_folder("files") / "go").touch()
    assert "its own scheduler places the slots" in finish(process).stderr


def test_when_its_manager_is_killed_the_same_command_goes_on(place: Place) -> None:
    make_volume(place.namespace, "files")
    volume = place.namespace.volume_folder("files")
    words = (*ROUNDS, "--volume", "files", "--save", "final.npz", *SLOW, *TRAINER)
    process = place.start(*words)
    wait_for_second_round(place)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    again = place.start(*words)
    wait_for(lambda: "goes on" in _said(place), "the new manager")
    (volume / "go").touch()
    done = finish(again)
    assert "goes on: 5 of its tasks are done already" in done.stderr
    assert weights(volume / "final.npz") == FINAL
    assert len(json.loads(place.pumasi("ps", "--json").stdout)) == 1
    assert place.pumasi("logs").stdout.count("begun") == 6
    tasks = [task_of(each) for each in place.pods()]
    assert sorted(tasks) == sorted(set(tasks))


def _said(place: Place) -> str:
    return place.pumasi("show", "--json").stdout


def test_in_the_background_of_the_cluster_it_outlives_its_manager(place: Place) -> None:
    make_volume(place.namespace, "files")
    volume = place.namespace.volume_folder("files")
    where = ("-n", place.namespace.name)
    assert place.pumasi("setup", "--on", "k8s", *where).returncode == 0
    try:
        run = place.train("-d", "-q", *ROUNDS, "--volume", "files", "--save", "final.npz", *SLOW, *JUDGE, *TRAINER)
        wait_for_second_round(place)
        for _ in range(2):
            lose_manager(place)
        (volume / "go").touch()
        assert place.pumasi("wait", run.stdout.strip()).returncode == 0
    finally:
        place.pumasi("setup", "--on", "k8s", *where, "--remove")
    assert weights(volume / "final.npz") == FINAL
    told = json.loads(place.pumasi("show", run.stdout.strip(), "--json").stdout)
    report = next(event for event in told["events"] if event["event"] == "report")
    assert [row["metrics"].get("accuracy") is not None for row in report["scores"]] == [True] * 10
    logs = place.pumasi("logs", run.stdout.strip()).stdout
    assert (logs.count("begun"), logs.count("trained on")) == (6, 6)


def test_who_loses_patience_while_the_data_is_sent_leaves_nothing_behind(place: Place) -> None:
    make_volume(place.namespace, "files")
    np.savez(place.folder / "reviews.npz", x=np.zeros((2**27, 2), np.uint8))
    process = place.start(*ROUNDS, "--volume", "files", *TRAINER)
    wait_for(lambda: sending(place), "the pod that takes the data", 60)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert (process.returncode, place.last()["state"]) == (5, "stopped")
    wait_for(lambda: place.names("jobs,pods,configmaps,secrets") == [], "all of it to be gone")
    assert not list(place.namespace.volume_folder("files").rglob("reviews.npz"))


def sending(place: Place) -> bool:
    pods = place.namespace.get("pods", "-l", "pumasi.dev/upload")["items"]
    return any(each["status"]["phase"] == "Running" for each in pods)


def lose_manager(place: Place) -> None:
    """Until the next one has begun."""
    former = managers(place)
    place.namespace.kubectl("delete", "pods", "-l", "pumasi.dev/kind=manager", "--grace-period=1")
    wait_for(lambda: has_begun(place, managers(place) - former), "the next manager", 90)


def managers(place: Place) -> set[str]:
    return set(place.namespace.kubectl("get", "pods", "-l", "pumasi.dev/kind=manager", "-o", "name").split())


def has_begun(place: Place, pods: set[str]) -> bool:
    return any("goes on" in place.namespace.kubectl("logs", pod, "--ignore-errors=true") for pod in pods)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "add --volume NAME"),
        (("--volume", "files"), "no place for a run's files: it is ReadOnlyMany"),
    ],
)
def test_without_a_place_for_their_files_nothing_starts(place: Place, words: tuple[str, ...], said: str) -> None:
    place.namespace.create(claim("files", "ReadOnlyMany"))
    done = place.run(*ROUNDS, *words, *TRAINER)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert place.names("all,configmaps") == []
