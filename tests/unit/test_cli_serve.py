"""What `pumasi serve` is asked for, and what it refuses before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pumasi.cli import main


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
        (("missing.keras", *ON, "--dry-run"), "There is no file missing.keras"),
    ],
)
def test_what_makes_no_sense_is_told(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(*words) == 2
    assert said in capsys.readouterr().err


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
