"""What a run has left on a volume, and the commands that fetch it."""

from __future__ import annotations

import json
import shlex

import pytest

from pumasi.catalogue import make_spec
from pumasi.cli.view.sentences import end_details
from pumasi.core.events import Finished
from pumasi.kube.kubectl import kubectl
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.pools.kubernetes.results import result_on_volume

SPEC = make_spec(
    command=("train.py",), on="k8s:lab", namespace="team", image="img:1", mounts=("data:/data:ro", "imdb:/volume")
)
FOLDER = "/volume/pumasi/train-x7k2p"


def test_a_model_or_the_checkpoints_may_be_on_a_volume() -> None:
    model = result_on_volume(SPEC, FOLDER, "/volume/final.keras")
    assert model is not None
    assert (model["kind"], model["claim"], model["path"]) == ("model", "imdb", "/volume/final.keras")
    checkpoints = result_on_volume(SPEC, FOLDER, None)
    assert checkpoints is not None
    assert checkpoints["path"] == f"{FOLDER}/checkpoints"


def test_the_innermost_of_several_volumes_has_it() -> None:
    spec = SPEC.changed({"mounts": ("a:/data", "b:/data/ck"), "env": {"PUMASI_CHECKPOINT_DIR": "/data/ck"}})
    found = result_on_volume(spec, FOLDER, None)
    assert found is not None
    assert (found["claim"], found["path"]) == ("b", "/data/ck")


def test_what_is_not_on_a_volume_is_not_told_to_be() -> None:
    assert result_on_volume(SPEC, "/tmp/pumasi", None) is None
    assert result_on_volume(make_spec(command=("x",), mounts=SPEC[KubernetesOptions].mounts), FOLDER, None) is None
    assert result_on_volume(SPEC, FOLDER, "/volumes/final.keras") is None


@pytest.mark.parametrize(
    ("context", "namespace", "words"),
    [
        ("", "", "kubectl"),
        ("", "team", "kubectl -n team"),
        ("lab", "team", "kubectl --context lab -n team"),
        ("my lab", "", "kubectl --context 'my lab'"),
    ],
)
def test_a_line_for_kubectl_leads_to_the_cluster_and_the_namespace(context: str, namespace: str, words: str) -> None:
    assert kubectl(context, namespace) == words


def test_the_last_words_have_the_commands_that_fetch_it() -> None:
    done = Finished(verdict="done", result=result_on_volume(SPEC, FOLDER, "/volume/a b.keras"))
    *_, what, make, wait, copy, delete = end_details("train-x7k2p", done, None, has_metrics=False)
    assert what == "The final model is on the volume imdb: /volume/a b.keras. To fetch it:"
    for line in (make, wait, copy, delete):
        assert shlex.split(line)[:5] == ["kubectl", "--context", "lab", "-n", "team"]
    assert shlex.split(copy)[-2:] == ["train-x7k2p-files:/volume/a b.keras", "a b.keras"]
    pod = json.loads(shlex.split(make)[-1].removeprefix("--overrides="))["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "imdb"}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
