"""A served model as objects, and how far a change of it has come."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pumasi.errors import UsageError
from pumasi.pools.kubernetes.manifests import Owner
from pumasi.pools.kubernetes.serving import objects
from pumasi.pools.kubernetes.serving.deploying import Asked, files_of, gather
from pumasi.pools.kubernetes.serving.objects import Files, Wish
from pumasi.pools.kubernetes.serving.rollout import since, standing, still_answers
from pumasi.pools.kubernetes.volumes import Volume
from tests.unit.test_kube_manifests import assert_restricted

WISH = Wish("film", "image:1")
OWNER = Owner("Service", "film", "uid-1")
FILES = Files("/volume/serve/film/abc/final.keras", digest="abc", size=10**6)
SHARED, SINGLE = Volume("film", is_shared=True), Volume("film", is_shared=False)


def deployment(wish: Wish = WISH, files: Files = FILES, volume: Volume = SHARED) -> dict[str, Any]:
    return objects.deployment(wish, files, volume, objects.package(wish, OWNER), OWNER)


def pod_spec(thing: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = thing["spec"]["template"]["spec"]
    return spec


# ---- objects


def test_all_objects_are_labelled_and_belong_to_the_service() -> None:
    package = objects.package(WISH, OWNER)
    things = [objects.service(WISH), objects.secret(WISH, OWNER, "t"), package, deployment()]
    for thing in things:
        assert thing["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "pumasi"
        assert objects.is_ours(thing, "film")
        assert not objects.is_ours(thing, "other")
    assert [thing["metadata"].get("ownerReferences") for thing in things] == [None, *[[OWNER.reference]] * 3]


def test_the_pods_are_restricted_and_have_no_token_of_the_cluster() -> None:
    spec = pod_spec(deployment())
    assert spec["automountServiceAccountToken"] is False
    assert_restricted(spec)
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [{"name": "volume", "mountPath": "/volume", "readOnly": True}]


def test_the_token_stands_nowhere_but_in_the_secret() -> None:
    assert objects.secret(WISH, OWNER, "geheim")["stringData"] == {"token": "geheim"}
    env = {each["name"]: each for each in pod_spec(deployment())["containers"][0]["env"]}
    assert env["PUMASI_SERVE_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "film-token", "key": "token"}}
    open_to_all = pod_spec(deployment(WISH._replace(has_token=False)))["containers"][0]["env"]
    assert "PUMASI_SERVE_TOKEN" not in {each["name"] for each in open_to_all}


def test_the_new_pod_comes_before_the_old_one_goes() -> None:
    spec = deployment()["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert "replicas" not in spec
    container = pod_spec(deployment())["containers"][0]
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}


def test_pods_share_the_node_of_a_volume_that_only_one_can_mount() -> None:
    (term,) = pod_spec(deployment(volume=SINGLE))["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert (
        term["labelSelector"]["matchLabels"].items() <= deployment()["spec"]["template"]["metadata"]["labels"].items()
    )
    assert "affinity" not in pod_spec(deployment())


def test_the_same_wish_is_the_same_revision_and_another_one_is_not() -> None:
    assert objects.revision_of(deployment()) == objects.revision_of(deployment())
    others = [deployment(WISH._replace(image="image:2")), deployment(files=FILES._replace(model="/volume/other.keras"))]
    assert len({objects.revision_of(each) for each in (deployment(), *others)}) == 3


def test_a_deployment_can_be_applied_again_as_it_was() -> None:
    thing = deployment()
    read = {**thing, "status": {"replicas": 1}, "spec": {**thing["spec"], "replicas": 3}}
    read["metadata"] = {**thing["metadata"], "resourceVersion": "7", "managedFields": [], "uid": "uid-2"}
    assert objects.as_before(read) == thing


def test_the_server_that_travels_needs_numpy_and_nothing_else(tmp_path: Path) -> None:
    pieces = objects.package(WISH, OWNER)["data"]
    packed = base64.b64decode("".join(pieces[key] for key in sorted(pieces)))
    zipfile.ZipFile(io.BytesIO(packed)).extractall(tmp_path)
    assert (tmp_path / "pumasi" / "serve" / "static" / "app.js").exists()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "import pumasi.serve.inside, pumasi.serve.running;"
        f"assert pumasi.serve.__file__.startswith({str(tmp_path)!r});"
        "print(sorted({'rich', 'yaml', 'keras', 'jax'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[]\n")


def test_an_image_without_numpy_is_told(tmp_path: Path) -> None:
    (container,) = pod_spec(deployment())["containers"]
    *_, code, asked = container["command"]
    assert json.loads(asked)["model"] == FILES.model
    pieces = objects.package(WISH, OWNER)["data"]
    env = {f"PUMASI_BOOT_{key}": text for key, text in pieces.items()}
    code = code.replace("/tmp/pumasi", str(tmp_path))
    command = [sys.executable, "-I", "-S", "-c", code, asked]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("The image has no numpy.\n")


# ---- files


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "votes").mkdir()
    for name in ("final.keras", "votes/1.keras", "votes/2.keras", "votes/notes.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "votes" / "final.keras").hardlink_to(tmp_path / "final.keras")
    (tmp_path / "final.keras.preprocessing.json").write_text("{}")
    return tmp_path


def asked(folder: Path, **more: str) -> Asked:
    return Asked(str(folder / "final.keras"), **more)


def test_a_model_travels_with_its_preprocessing_and_those_that_vote(models: Path) -> None:
    wish = asked(models, votes=str(models / "votes"))
    local = gather(wish)
    assert sorted(local.files) == ["final.keras", "final.keras.preprocessing.json", "vote/1.keras", "vote/2.keras"]
    files = files_of(wish, local, "film")
    folder = f"/volume/serve/film/{local.digest}"
    assert files[:3] == (f"{folder}/final.keras", f"{folder}/vote", "")


def test_the_folder_is_named_after_the_content(models: Path) -> None:
    first = gather(asked(models)).digest
    assert gather(asked(models)).digest == first
    (models / "final.keras.preprocessing.json").write_text("[]")
    assert gather(asked(models)).digest != first


def test_what_is_on_the_volume_is_not_sent(models: Path) -> None:
    wish = Asked("/volume/final.keras", "/volume/votes", str(models / "final.keras.preprocessing.json"))
    local = gather(wish)
    assert list(local.files) == ["preprocessing.json"]
    files = files_of(wish, local, "film")
    assert files[:3] == (
        "/volume/final.keras",
        "/volume/votes",
        f"/volume/serve/film/{local.digest}/preprocessing.json",
    )
    assert gather(Asked("/volume/final.keras")) == ({}, "", 0)


@pytest.mark.parametrize(("name", "said"), [("missing.keras", "There is no file"), ("votes", "is a folder")])
def test_what_can_not_be_served_is_told_before_anything_is_made(models: Path, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gather(Asked(str(models / name)))


# ---- how far it has come


def rolled(updated: int, available: int, replicas: int, *, seen: int = 2) -> dict[str, Any]:
    status = {"observedGeneration": seen, "updatedReplicas": updated, "availableReplicas": available}
    return {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {**status, "replicas": replicas}}


def pod(state: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    container = {"name": "server", "state": state or {}, "lastState": last or {}}
    spec = {"nodeName": "node-0", "containers": [{"name": "server", "image": "image:1"}]}
    return {"metadata": {"labels": {}}, "spec": spec, "status": {"containerStatuses": [container], **status}}


ROLLING, ROLLED = rolled(1, 0, 2), rolled(1, 1, 1)


def test_it_is_done_when_only_new_pods_are_left() -> None:
    assert standing(ROLLED, [pod()], [], []).done
    assert not standing(ROLLED, [pod()], [pod()], []).done
    assert not standing(rolled(1, 1, 1, seen=1), [pod()], [], []).done
    assert not standing(ROLLING, [pod()], [pod()], []).done


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], "the cluster makes a pod"),
        ([pod({"running": {}})], "the model is being loaded"),
        ([pod({"waiting": {"reason": "ContainerCreating"}})], "on node-0"),
    ],
)
def test_what_is_waited_for_is_told(pods: list[dict[str, Any]], said: str) -> None:
    assert said in standing(ROLLING, pods, [], []).waiting


def test_a_pod_without_a_place_is_waited_for() -> None:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no memory."}
    found = standing(ROLLING, [pod(conditions=[why])], [], [])
    assert "0/3 nodes: no memory" in found.waiting
    assert found.broken is None


@pytest.mark.parametrize("place", ["state", "last"])
def test_a_pod_that_crashed_is_broken_with_its_last_words(place: str) -> None:
    ended = {"terminated": {"exitCode": 2, "message": "loading …\nfinal.keras is damaged.\n"}}
    crashed = pod(ended) if place == "state" else pod({"waiting": {"reason": "CrashLoopBackOff"}}, ended)
    found = standing(ROLLING, [crashed], [pod()], [])
    assert found.code == 2
    assert found.broken
    assert found.broken.reason == "The new pod failed:\nloading …\nfinal.keras is damaged."


def test_a_pod_that_needs_too_much_memory_is_told_so() -> None:
    found = standing(ROLLING, [pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})], [], [])
    assert found.broken
    assert "ran out of memory" in found.broken.reason


def test_an_image_that_is_not_there_is_the_end() -> None:
    waiting = {"reason": "ErrImagePull", "message": "image:1: not found"}
    found = standing(ROLLING, [pod({"waiting": waiting})], [], [])
    assert found.broken
    assert "The image image:1 can't be pulled" in found.broken.reason


def test_pods_that_the_cluster_does_not_take_are_the_end() -> None:
    said = "exceeded quota: few, requested: pods=2, used: pods=0, limited: pods=1"
    found = standing(ROLLING, [], [], [{"message": said}])
    assert found.broken
    assert "The quota few" in found.broken.reason


def test_room_that_others_may_give_back_is_waited_for() -> None:
    said = "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    found = standing(ROLLING, [], [], [{"message": said}])
    assert (found.broken, found.waiting.startswith("The quota few does not allow it")) == (None, True)


def test_only_what_was_told_since_the_change_counts_and_of_that_the_newest() -> None:
    events: list[dict[str, Any]] = [
        {"message": "new", "lastTimestamp": "2026-11-16T12:00:05Z"},
        {"message": "newest", "lastTimestamp": "2026-11-16T12:00:09Z"},
        {"message": "old", "lastTimestamp": "2026-11-16T11:59:00Z"},
        {"message": "of a newer kind", "lastTimestamp": None, "eventTime": "2026-11-16T12:00:06.123456Z"},
    ]
    counted = since(events, "2026-11-16T12:00:05Z")
    assert [event["message"] for event in counted] == ["new", "newest", "of a newer kind"]
    found = standing(ROLLING, [], [], counted)
    assert found.broken
    assert "newest" in found.broken.reason


@pytest.mark.parametrize(
    ("metadata", "phase", "answers"),
    [
        ({}, "Running", True),
        ({}, "Failed", False),
        ({"deletionTimestamp": "2026-11-16T12:00:10Z"}, "Running", True),
        ({"deletionTimestamp": "2026-11-16T11:00:00Z"}, "Running", False),
    ],
)
def test_a_pod_that_has_ended_or_should_have_keeps_no_change_waiting(
    metadata: dict[str, str], phase: str, answers: bool
) -> None:
    pod = {"metadata": metadata, "status": {"phase": phase}}
    assert still_answers(pod, "2026-11-16T12:00:00Z") is answers
