"""Files onto a volume: what is sent, what is sent again, and what goes when it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pumasi.agent.loader import Loader
from pumasi.errors import ClusterTrouble, Forbidden, PumasiError, Unreachable, UsageError
from pumasi.pools.kubernetes import uploading
from pumasi.pools.kubernetes.manifests import Owner
from pumasi.pools.kubernetes.uploading import Where, check_path, job, put
from pumasi.pools.kubernetes.volumes import Volume
from tests.fake_cluster import NAMESPACE, Cluster, FakeApi
from tests.serving import asynchronous
from tests.unit.test_kube_manifests import assert_restricted

WHERE = Where(NAMESPACE, Volume("data", is_shared=True), "python:3.12-slim")
CONTENT = b"0123456789" * 1000


class Volumes:
    """A cluster whose loaders start at once, and write to a folder. `lose`: whether to lose this answer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uploading, "PIECE", 1000)
        folder.mkdir()
        self.folder = folder
        self.cluster = Cluster()
        self.api = FakeApi(self.cluster)
        self.said: list[str] = []
        self.pieces = 0
        self.lose: Callable[[int], bool] = lambda number: False
        self.pods: list[dict[str, Any]] = []
        self._loader = Loader(str(folder))
        self.cluster.admit = self._start
        self.cluster.answer = self._answer

    def _start(self, thing: dict[str, Any]) -> None:
        if thing["kind"] == "Job":
            template = thing["spec"]["template"]
            metadata = {"name": f"{thing['metadata']['name']}-abcde", **template["metadata"]}
            pod = {"kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            self.cluster.create("pods", NAMESPACE, pod)
            self.cluster.change("pods", metadata["name"], {"status": {"phase": "Running"}})
            self.pods.append(pod)

    def _answer(self, path: str, query: Mapping[str, str], data: bytes) -> dict[str, Any]:
        action = path.rpartition("/")[2]
        answer = self._loader.answer(f"/{action}", {name: [value] for name, value in query.items()}, data)
        if action == "piece":
            self.pieces += 1
            if self.lose(self.pieces):
                raise Unreachable("The cluster can't be reached: the connection broke.")
        return answer

    async def put(self, files: Mapping[str, Path], where: Where = WHERE, **options: Any) -> None:
        await put(self.api, where, files, self.said.append, **options)

    def left(self) -> list[str]:
        return [*self.cluster.names("jobs"), *self.cluster.names("secrets")]


@pytest.fixture
def volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Volumes:
    return Volumes(tmp_path / "volume", monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.keras"
    path.write_bytes(CONTENT)
    return path


@asynchronous
async def test_a_file_gets_there_and_nothing_else_stays(volumes: Volumes, model: Path) -> None:
    await volumes.put({"serve/model.keras": model})
    assert (volumes.folder / "serve" / "model.keras").read_bytes() == CONTENT
    assert volumes.pieces == 10
    assert volumes.said == ["model.keras is on the volume (10.0 kB)."]
    assert volumes.left() == []


@asynchronous
async def test_what_is_there_already_is_not_sent(volumes: Volumes, model: Path) -> None:
    await volumes.put({"model.keras": model})
    await volumes.put({"model.keras": model})
    assert volumes.pieces == 10
    assert volumes.said[-1] == "model.keras is on the volume already."


@asynchronous
async def test_pieces_whose_answer_was_lost_are_sent_again(volumes: Volumes, model: Path) -> None:
    volumes.lose = lambda number: number in (2, 3, 7)
    await volumes.put({"model.keras": model})
    assert (volumes.folder / "model.keras").read_bytes() == CONTENT
    assert volumes.pieces == 13


@asynchronous
async def test_a_cluster_that_stays_away_is_told_and_the_pod_goes(volumes: Volumes, model: Path) -> None:
    volumes.lose = lambda number: number > 4
    with pytest.raises(Unreachable, match="can't be sent"):
        await volumes.put({"model.keras": model})
    assert not (volumes.folder / "model.keras").exists()
    assert volumes.left() == []


@asynchronous
async def test_who_lacks_the_right_is_told_which(volumes: Volumes, model: Path) -> None:
    volumes.api.forbidden.add(("create", "pods/proxy"))
    with pytest.raises(Forbidden) as caught:
        await volumes.put({"model.keras": model})
    assert "create pods/proxy" in caught.value.hint
    assert volumes.left() == []


@asynchronous
async def test_a_file_that_changes_while_it_is_sent_is_refused(volumes: Volumes, model: Path) -> None:
    def change(number: int) -> bool:
        model.write_bytes(CONTENT[::-1])
        return False

    volumes.lose = change
    with pytest.raises(ClusterTrouble, match="damaged, or was changed"):
        await volumes.put({"model.keras": model})
    assert list(volumes.folder.iterdir()) == []


@asynchronous
async def test_a_file_that_is_not_here_needs_no_pod(volumes: Volumes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        await volumes.put({"a": tmp_path / "missing"})
    assert volumes.pods == []


@pytest.mark.parametrize("path", ["", ".", "/etc/passwd", "../a", "a/../../b", "a\nb"])
def test_a_path_that_leaves_the_volume_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        check_path(path)


@asynchronous
async def test_a_volume_that_one_node_has_is_reached_from_there(volumes: Volumes, model: Path) -> None:
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    user = {"kind": "Pod", "metadata": {"name": "user"}, "spec": {"volumes": [claim], "nodeName": "node-7"}}
    volumes.cluster.create("pods", NAMESPACE, user)
    await volumes.put({"a": model}, WHERE._replace(volume=Volume("data", is_shared=False)))
    await volumes.put({"b": model})
    assert "node-7" in str(volumes.pods[0]["spec"]["affinity"])
    assert "affinity" not in volumes.pods[1]["spec"]


@asynchronous
async def test_a_pod_that_gets_no_place_is_waited_for_and_then_told(
    volumes: Volumes, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "START_SECONDS", 0.1)
    monkeypatch.setattr(uploading, "_FIRST_WORD", 0.0)
    volumes.cluster.admit = lambda thing: None if thing["kind"] != "Job" else _pending(volumes.cluster, thing)
    with pytest.raises(ClusterTrouble, match=r"did not start within .*no place for it: 0/3 nodes are available"):
        await volumes.put({"a": model})
    assert volumes.left() == []


def _pending(cluster: Cluster, thing: dict[str, Any]) -> None:
    template = thing["spec"]["template"]
    metadata = {"name": "upload-pod", **template["metadata"]}
    cluster.create("pods", NAMESPACE, {"kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}
    cluster.change("pods", "upload-pod", {"status": {"conditions": [why]}})


@asynchronous
async def test_a_quota_that_allows_no_pod_is_told(volumes: Volumes, model: Path) -> None:
    said = "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0"

    def refuse(thing: dict[str, Any]) -> None:
        if thing["kind"] == "Job":
            name = thing["metadata"]["name"]
            event = {"kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"name": name}, "type": "Warning"}
            volumes.cluster.create("events", NAMESPACE, {**event, "message": said})

    volumes.cluster.admit = refuse
    with pytest.raises(ClusterTrouble, match="The quota few does not allow it"):
        await volumes.put({"a": model})
    assert volumes.left() == []


@pytest.mark.parametrize(
    ("word", "sentence"),
    [("full", "does not fit onto the volume data"), ("refused", "can't be written"), ("outside", "not on the volume")],
)
@asynchronous
async def test_what_the_volume_does_not_take_is_told(volumes: Volumes, model: Path, word: str, sentence: str) -> None:
    volumes.cluster.answer = lambda path, query, data: {"error": word, "details": "3 bytes are free"}
    with pytest.raises(PumasiError, match=sentence):
        await volumes.put({"a": model})
    assert volumes.left() == []


def test_the_pod_has_few_rights_and_an_end() -> None:
    owner = Owner("Job", "train-abcde", "uid-1")
    thing = job("upload-1", WHERE._replace(owner=owner), "", 700)
    spec = thing["spec"]["template"]["spec"]
    assert (thing["spec"]["activeDeadlineSeconds"], thing["spec"]["ttlSecondsAfterFinished"]) == (700, 0)
    assert thing["metadata"]["ownerReferences"] == [owner.reference]
    assert spec["automountServiceAccountToken"] is False
    assert_restricted(spec)
    (container,) = spec["containers"]
    assert container["env"][0]["valueFrom"] == {"secretKeyRef": {"name": "upload-1", "key": "token"}}


# ---- folders


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    (folder / "a.npz").write_text("a")
    (folder / "more" / "b.npz").write_text("b")
    return folder


def test_a_folder_is_sent_file_by_file_and_a_link_in_it_as_what_it_points_to(data: Path, tmp_path: Path) -> None:
    (data / "c.npz").symlink_to("more/b.npz")
    (data / "again").symlink_to("more")
    (data / "nowhere").symlink_to("nothing")
    (tmp_path / "named").symlink_to(data)
    found = uploading.files_of("d", tmp_path / "named")
    assert {path: file.read_text() for path, file in found.items()} == {
        "d/a.npz": "a",
        "d/c.npz": "b",
        "d/more/b.npz": "b",
    }
    assert uploading.files_of("d", data / "c.npz") == {"d": data / "c.npz"}


@pytest.mark.parametrize("target", ["key", "."])
def test_a_link_that_leads_out_of_a_folder_is_refused(data: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "key").write_text("secret")
    (data / "more" / "link").symlink_to(tmp_path / target)
    with pytest.raises(UsageError) as caught:
        uploading.files_of("d", data)
    assert caught.value.message == f"{data} has links that lead out of it: more/link."
    assert caught.value.hint.endswith("cp -rL data data-copy")
