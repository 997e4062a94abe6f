"""What a user asks for becomes a flow; and which files it takes where the run is elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pumasi.catalogue import parse_spec
from pumasi.cli.main import main
from pumasi.core.flows.average.checks import sent
from pumasi.core.flows.average.flow import Average
from pumasi.core.flows.average.plan import Plan
from pumasi.core.spec import Spec
from pumasi.errors import SpecError
from pumasi.registry import FLOWS

TRAINER = ["train.py", "--savemodel", "{model}"]
CLUSTER = {"on": "k8s", "volume": "files", "mounts": ["files:/volume"]}


def spec_of(**fields: Any) -> Spec:
    data = ["--data", "{shard}"] if "split" in fields or "copy" in fields else []
    init = ["--init", "{init}"] if "init" in fields else []
    return parse_spec({"command": [*TRAINER, *data, *init], "strategy": "average", "slots": 3, **fields})


def flow(**fields: Any) -> Plan:
    found = FLOWS.get("average").open(spec_of(**fields), "/volume/pumasi/train-abcde")
    assert isinstance(found, Average)
    return found.plan


def test_on_this_machine_files_are_where_they_are() -> None:
    asked = {"split": "data/reviews.npz", "init": "start.h5", "save": "final.h5"}
    assert sent(spec_of(**asked)) == {}
    made = flow(**asked)
    assert (made.data, made.init, made.final) == ("data/reviews.npz", "start.h5", "final.h5")


def test_elsewhere_they_go_onto_the_volume_and_are_looked_for_there() -> None:
    asked = {**CLUSTER, "copy": "data/reviews.npz", "init": "/home/me/start.h5", "save": "out/final.h5"}
    assert sent(spec_of(**asked)) == {
        "source/data/reviews.npz": "data/reviews.npz",
        "source/init/start.h5": "/home/me/start.h5",
    }
    made = flow(**asked)
    assert made.data == "/volume/pumasi/train-abcde/source/data/reviews.npz"
    assert made.init == "/volume/pumasi/train-abcde/source/init/start.h5"
    assert made.final == "/volume/out/final.h5"


def test_what_is_on_a_volume_already_stays_there() -> None:
    asked = {**CLUSTER, "split": "/volume/reviews.npz", "init": "/models/start.h5", "save": "/volume/final.h5"}
    asked["mounts"] = ["files:/volume", "models:/models:ro"]
    assert sent(spec_of(**asked)) == {}
    made = flow(**asked)
    assert (made.data, made.init, made.final) == ("/volume/reviews.npz", "/models/start.h5", "/volume/final.h5")


@pytest.mark.parametrize("path", ["/tmp/final.h5", "/volumes/final.h5", "../final.h5"])
def test_a_model_that_would_be_lost_with_its_pod_is_refused(path: str) -> None:
    with pytest.raises(SpecError, match="is on no volume: the model would be lost with its pod"):
        flow(**CLUSTER, save=path)


def test_without_a_volume_there_is_no_averaging_elsewhere() -> None:
    with pytest.raises(SpecError, match="add --volume NAME"):
        spec_of(on="k8s")
    assert spec_of(on="k8s", mounts=["files:/files"])


def test_a_dry_run_for_a_cluster_shows_where_everything_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "reviews.npz").touch()
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    config = {
        "current-context": "c",
        "contexts": [context],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    words = ["--on", "k8s", "--strategy", "average", "--slots", "2", "--volume", "files", "--split", "reviews.npz"]
    assert main(["run", "--dry-run", "--json", *words, *TRAINER, "--data", "{shard}"]) == 0
    tasks = {task["task"]: task["command"] for task in json.loads(capsys.readouterr().out)["tasks"]}
    assert "/volume/pumasi/train-xxxxx/source/data/reviews.npz" in tasks["data"]
    assert tasks["train-1-1"][-1] == "/volume/pumasi/train-xxxxx/data/1.npz"


def test_a_cluster_takes_as_many_tasks_as_this_machine() -> None:
    asked = {"slots": 100, "rounds": 200, "init": "start.h5"}
    assert flow(**asked).rounds == flow(**CLUSTER, **asked).rounds == 200
