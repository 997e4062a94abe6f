"""What `pumasi serve` is asked for, and what it refuses before it begins."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

from pumasi.cli import main
from pumasi.serve import inside


def serve(*words: str) -> int:
    return main.main(["serve", *words])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "Final Model.v2.keras"
    path.write_text("no model, but nobody looks into it here")
    return path


ON = ("--on", "k8s", "--image", "image:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "needs FILE"),
        (("a.keras", "--expose", "NodePort"), "--expose is for clusters"),
        (("a.keras", "--remove"), "--remove is for clusters"),
        (("a.keras", *ON, "--port", "80"), "--port is for this machine"),
        (("a.keras", "--on", "k8s"), "needs an image"),
        (("a.keras", *ON, "--expose", "Everybody"), "--expose takes one of ClusterIP, NodePort, LoadBalancer"),
        (("a.keras", *ON, "--name", "1st"), "'1st' can't be the name of a Service"),
        (("1.keras", *ON), "'1' can't be the name of a Service"),
        (("a.keras", *ON, "--volume", "A:B"), "--volume: "),
        (("a.keras", *ON, "--node-selector", "gpu"), "--node-selector takes KEY=VALUE"),
        (("a.keras", *ON, "--toleration", "a:b"), "--toleration: "),
        (("/volume/a.keras", *ON), "is on a volume, but which one?"),
        (("--remove", *ON), "--remove needs the name"),
        (("--token", *ON), "--token needs the name"),
        (("--list",), "--list is for clusters"),
        (("a.keras", "--list", *ON), "takes no FILE"),
        (("missing.keras", *ON, "--dry-run"), "There is no file missing.keras"),
    ],
)
def test_what_makes_no_sense_is_told(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(*words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("folder", [".", "/", ".."])
@pytest.mark.parametrize("options", [("--port", "0"), ("--on", "k8s"), ON])
def test_a_folder_is_no_model(folder: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(folder, *options) == 2
    assert f"pumasi: {folder} is a folder." in capsys.readouterr().err


@pytest.mark.parametrize(("name", "kind"), [("junk.keras", "zip archive"), ("junk.h5", "HDF5 file")])
def test_a_file_that_only_has_the_name_of_a_model_is_told_as_such(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)))
    assert serve(str(tmp_path / name), "--port", "0") == 2
    said = capsys.readouterr().err
    assert f"{name} is no Keras model, or is damaged: it is no {kind}." in said
    assert "not found" not in said


def test_a_model_that_the_server_of_a_cluster_may_not_read_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    look = Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if path.name.startswith("final.keras"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(inside, "PORT", 0)
    asked = {"model": "/volume/final.keras", "votes": "", "preprocessing": "", "rate": 0}
    assert inside.main(json.dumps(asked)) == 2
    said = capsys.readouterr().err
    assert "/volume/final.keras can't be read: Permission denied." in said
    assert "The server runs as user" in said


def test_a_dry_run_shows_the_objects_and_needs_no_cluster(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (model.name, *ON, "--expose", "NodePort", "--node-selector", "disk=fast", "--toleration", "gpu")
    assert serve(*words, "--dry-run") == 0
    service, secret, package, deployment = yaml.safe_load_all(capsys.readouterr().out)
    assert [each["kind"] for each in (service, secret, package)] == ["Service", "Secret", "ConfigMap"]
    assert service["metadata"]["name"] == deployment["metadata"]["name"] == "final-model"
    assert service["spec"]["type"] == "NodePort"
    spec = deployment["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"disk": "fast"}
    assert spec["tolerations"][0] == {"key": "gpu", "operator": "Exists"}
    assert spec["volumes"][0]["persistentVolumeClaim"] == {"claimName": "final-model"}
