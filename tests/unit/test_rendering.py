"""pumasi render: what stands in the file, and that kubectl needs nothing else."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pumasi.catalogue import parse_spec
from pumasi.core.launch import Program
from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.pools.kubernetes import rendering
from pumasi.pools.kubernetes.rendering import equal_shares, needs_server_side, open_secrets, remarks, render

PROGRAM = Program(("python3", "train.py"), "none", "", {})
Objects = list[dict[str, Any]]


def spec_of(**fields: Any) -> Spec:
    return parse_spec({"command": ["train.py"], "on": "k8s", **fields})


def rendered(pods: int | None = None, program: Program = PROGRAM, packed: bytes = b"code", **fields: Any) -> Objects:
    return render(spec_of(**fields), program, "the agent", packed, pods)


def one(objects: Objects, kind: str) -> dict[str, Any]:
    (found,) = (thing for thing in objects if thing["kind"] == kind)
    return found


def job_of(objects: Objects) -> dict[str, Any]:
    job: dict[str, Any] = one(objects, "Job")["spec"]
    return job


def pod_of(objects: Objects) -> dict[str, Any]:
    pod: dict[str, Any] = job_of(objects)["template"]["spec"]
    return pod


def env_of(objects: Objects) -> dict[str, Any]:
    return {entry["name"]: entry for entry in pod_of(objects)["containers"][0]["env"]}


def configs(objects: Objects) -> list[dict[str, Any]]:
    """As the agent of each pod finds its own."""
    text = next(thing["stringData"]["config"] for thing in objects if "config" in thing.get("stringData", {}))
    shared = json.loads(zlib.decompress(base64.b64decode(text)))
    return [{**shared, **own} for own in shared.pop("each")]


def test_the_service_comes_first_and_the_job_last_so_that_pods_find_what_they_need() -> None:
    assert [thing["kind"] for thing in rendered(slots=2)] == ["Service", "Secret", "Job"]


def test_one_pod_needs_no_service_and_no_secret() -> None:
    objects = rendered(slots=2, pods=1)
    assert [thing["kind"] for thing in objects] == ["Secret", "Job"]
    assert "PUMASI_BOOT_SECRET" not in env_of(objects)


def test_the_same_input_gives_the_same_objects_under_stable_names() -> None:
    objects = rendered(slots=2)
    assert objects == rendered(slots=2)
    assert [thing["metadata"]["name"] for thing in objects] == ["hub-train", "train-code", "train"]
    named = rendered(slots=2, name="nightly")
    assert [thing["metadata"]["name"] for thing in named] == ["hub-nightly", "nightly-code", "nightly"]


def test_nothing_names_an_owner_a_node_or_a_namespace_that_was_not_asked_for() -> None:
    objects = rendered(slots=2)
    text = json.dumps(objects)
    assert "ownerReferences" not in text
    assert "namespace" not in text
    assert "affinity" not in pod_of(objects)
    assert all(thing["metadata"]["namespace"] == "team-a" for thing in rendered(slots=2, namespace="team-a"))


def test_the_secret_of_the_star_is_the_jobs_uid_and_stands_nowhere_in_the_file() -> None:
    objects = rendered(slots=2)
    source = env_of(objects)["PUMASI_BOOT_SECRET"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert source == "metadata.labels['batch.kubernetes.io/controller-uid']"
    assert {config["secret"] for config in configs(objects)} == {""}


def test_each_pod_has_a_configuration_and_all_but_the_first_call_the_service() -> None:
    objects = rendered(slots=6, pods=3)
    job = job_of(objects)
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 3, 3)
    found = configs(objects)
    assert [config["node"] for config in found] == [0, 1, 2]
    assert [config["hub"] for config in found] == [["", 7700], ["hub-train", 7700], ["hub-train", 7700]]
    assert [[rank["rank"] for rank in config["ranks"]] for config in found] == [[0, 1], [2, 3], [4, 5]]
    assert found[2]["ranks"][0]["env"]["PUMASI_NODE"] == "pod-2"
    selector = one(objects, "Service")["spec"]["selector"]
    assert selector == {
        "batch.kubernetes.io/job-name": "train",
        "batch.kubernetes.io/job-completion-index": "0",
    }


def test_pods_are_numbered_as_their_names_say_also_beyond_nine() -> None:
    assert [config["ranks"][0]["env"]["PUMASI_NODE"] for config in configs(rendered(slots=12))] == [
        f"pod-{number}" for number in range(12)
    ]


def test_a_job_that_fails_once_has_failed_unless_restarts_are_asked_for() -> None:
    assert job_of(rendered(slots=3))["backoffLimit"] == 0
    job = job_of(rendered(slots=3, restarts=2))
    assert (job["backoffLimitPerIndex"], job["maxFailedIndexes"]) == (2, 0)
    assert "backoffLimit" not in job
    assert pod_of(rendered(slots=3, restarts=2))["restartPolicy"] == "Never"


def test_times_are_the_jobs_own() -> None:
    assert job_of(rendered())["ttlSecondsAfterFinished"] == 7 * 86400
    assert "activeDeadlineSeconds" not in job_of(rendered())
    job = job_of(rendered(timeout="2h", keep="1d"))
    assert (job["activeDeadlineSeconds"], job["ttlSecondsAfterFinished"]) == (7200, 86400)


def test_gpus_and_memory_are_asked_for_by_the_share_of_a_pod() -> None:
    objects = rendered(slots=8, pods=2, gpu="required", memory="1Gi")
    resources = pod_of(objects)["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "4", "memory": "4Gi"}


@pytest.mark.parametrize(
    ("slots", "pods", "most", "shares"),
    [(1, None, None, [1]), (3, None, None, [1, 1, 1]), (8, None, 4, [4, 4]), (6, 2, None, [3, 3]), (4, 1, None, [4])],
)
def test_slots_are_shared_equally(slots: int, pods: int | None, most: int | None, shares: list[int]) -> None:
    assert list(equal_shares(spec_of(slots=slots, max_per_node=most), pods).values()) == shares


@pytest.mark.parametrize(
    ("slots", "pods", "most", "sentence"),
    [
        (6, 4, None, "6 slots do not make equal pods with --pods 4"),
        (2, 4, None, "2 slots do not make equal pods"),
        (7, None, 4, "7 slots do not make equal pods with --max-per-node 4"),
        (8, 2, 3, "4 a pod, but --max-per-node is 3"),
    ],
)
def test_slots_that_can_not_be_shared_equally_are_told(
    slots: int, pods: int | None, most: int | None, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence) as error:
        equal_shares(spec_of(slots=slots, max_per_node=most), pods)
    assert error.value.hint


def test_what_the_user_sets_comes_last_and_reaches_the_pods() -> None:
    objects = rendered(
        slots=2,
        patches=["spec.dnsPolicy=Default", "metadata.labels.a=b", "spec.containers[0].tty=true"],
        labels={"team": "vision"},
        annotations={"example.com/owner": "kim"},
    )
    template = job_of(objects)["template"]
    assert (template["spec"]["dnsPolicy"], template["spec"]["containers"][0]["tty"]) == ("Default", True)
    assert template["metadata"]["labels"].items() >= {"a": "b", "team": "vision"}.items()
    assert template["metadata"]["annotations"] == {"example.com/owner": "kim"}


def test_secrets_are_references() -> None:
    objects = rendered(env_from_secret=["hub", "TOKEN=vault/token"])
    assert pod_of(objects)["containers"][0]["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert env_of(objects)["TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "vault", "key": "token"}}


def test_a_gang_too_large_for_one_variable_is_told() -> None:
    program = PROGRAM._replace(files={"shim": base64.b64encode(os.urandom(200_000)).decode()})
    with pytest.raises(UsageError, match="too many for one file"):
        rendered(slots=2, program=program)


def test_large_code_goes_into_files_and_asks_for_a_server_side_apply() -> None:
    small, large = rendered(slots=1), rendered(slots=1, packed=os.urandom(1_500_000))
    assert not needs_server_side(small)
    assert needs_server_side(large)
    assert [thing["metadata"]["name"] for thing in large] == ["train-code", "train-code-0", "train-code-1", "train"]
    assert pod_of(large)["volumes"][0]["name"] == "code"
    assert any("apply --server-side" in line for line in remarks(spec_of(), large, "1"))


def test_who_finds_the_file_is_told_what_to_expect() -> None:
    def text(**fields: Any) -> str:
        return "\n".join(remarks(spec_of(**fields), rendered(**fields), "1.2"))

    assert text(slots=2).startswith(f"{rendering.MARK} 1.2.")
    assert "When one process fails, all pods end" in text(slots=2)
    assert "Started again up to 3 times, as a whole" in text(slots=2, restarts=3)
    assert "removed 7 days after its end" in text()
    assert "kubectl -n team-a apply -f" in text(namespace="team-a")


def test_variables_that_look_like_secrets_are_noticed_and_others_are_not() -> None:
    secret = ["HF_TOKEN", "WANDB_API_KEY", "apikey", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY", "CLIENT_SECRET_2"]
    plain = ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEYBOARD", "LR", "SECRETARY"]
    assert open_secrets(dict.fromkeys([*secret, *plain], "x")) == secret


# ---- the command


def pumasi(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PUMASI_HOME": str(folder / ".home"), "KUBECONFIG": str(folder / "none")}
    command = [sys.executable, "-m", "pumasi", "render", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder, env=environ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "train.py").write_text("print('hello')\n")
    return place


def files_in(documents: Sequence[Any]) -> list[str]:
    data = next(each["stringData"] for each in documents if each["kind"] == "Secret")
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(data["code0"]))) as archive:
        return archive.getnames()


def test_the_command_needs_no_cluster_and_leaves_the_scripts_options_to_the_script(folder: Path) -> None:
    told = pumasi(folder, "--slots", "2", "train.py", "--lr", "1e-5", "--pods", "7")
    assert (told.returncode, told.stderr) == (0, "")
    documents = list(yaml.safe_load_all(told.stdout))
    command = configs(documents)[0]["ranks"][0]["command"]
    assert command == ["python3", "train.py", "--lr", "1e-5", "--pods", "7"]


def test_a_script_of_the_image_does_not_have_to_be_here(folder: Path) -> None:
    told = pumasi(folder, "/opt/there/only.py")
    assert (told.returncode, told.stderr) == (0, "")
    assert configs(list(yaml.safe_load_all(told.stdout)))[0]["ranks"][0]["command"] == ["python3", "/opt/there/only.py"]


def test_a_file_that_is_written_again_is_the_same_file(folder: Path) -> None:
    words = ("--slots", "2", "-o", "train.yaml", "train.py")
    assert pumasi(folder, *words).returncode == 0
    first = (folder / "train.yaml").read_bytes()
    assert pumasi(folder, "-o", "other.yaml", "train.py").returncode == 0
    assert pumasi(folder, *words).returncode == 0
    assert (folder / "train.yaml").read_bytes() == first
    assert files_in(list(yaml.safe_load_all(first))) == ["train.py"]


def test_credentials_are_not_in_the_file_and_it_says_so(folder: Path) -> None:
    (folder / ".env").write_text("TOKEN=abc")
    (folder / "users").symlink_to("/etc/passwd")
    told = pumasi(folder, "train.py")
    assert files_in(list(yaml.safe_load_all(told.stdout))) == ["train.py"]
    credentials, links = told.stderr.splitlines()
    assert credentials.startswith("pumasi: Left out, because they look like credentials: .env. ")
    assert links.startswith("pumasi: Left out, because they are links that lead out of the folder: users. ")


def test_json_is_one_list(folder: Path) -> None:
    told = pumasi(folder, "--json", "train.py")
    found = json.loads(told.stdout)
    assert (found["kind"], [each["kind"] for each in found["items"]]) == ("List", ["Secret", "Job"])


def test_a_value_that_looks_like_a_secret_is_mentioned_but_never_shown(folder: Path) -> None:
    told = pumasi(folder, "--env", "HF_TOKEN=abc123", "--env", "LR=1", "train.py")
    assert told.returncode == 0
    assert "HF_TOKEN" in told.stderr
    assert "--env-from-secret HF_TOKEN=" in told.stderr
    assert "LR" not in told.stderr
    assert "abc123" not in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--slots", "3", "--pods", "2", "train.py"], "do not make equal pods"),
        (["--pods", "0", "train.py"], "no number of pods"),
        (["--pods", "some", "train.py"], "no number of pods"),
        (["missing.py"], "There is no missing.py"),
        (["-o", "no/such/folder.yaml", "train.py"], "can't be written"),
        (["--on", "k8s", "train.py"], "no option --on"),
        ([], "nothing to run"),
    ],
)
def test_what_makes_no_sense_is_told(folder: Path, words: list[str], sentence: str) -> None:
    told = pumasi(folder, *words)
    assert (told.returncode, told.stdout) == (2, "")
    assert sentence in told.stderr
