"""The objects of a run: who owns them, what the cluster's rules say to them, and how code gets into a pod."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from pumasi.agent.files import agent_files, agent_text
from pumasi.catalogue import parse_spec
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.spec import LONGEST_NAME, MOST_SLOTS, Spec
from pumasi.pools.kubernetes import manifests
from pumasi.pools.kubernetes.manifests import (
    ATTEMPT,
    BOOT,
    FOLDER,
    INDEX,
    KIND,
    LOST_AFTER,
    RUN,
    TASK,
    WORK,
    CodeObjects,
    GangSpec,
    Object,
    Owner,
)
from pumasi.program.workdir import LARGEST

RUN_ID = "train-abcde"
OWNER = Owner("ConfigMap", RUN_ID, "uid-1")
SMALL = CodeObjects(f"{RUN_ID}-code", 1, ())
GANG = GangSpec(RUN_ID, "main", 2, OWNER, "10.0.0.7", True, "", "none", SMALL)
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LARGEST_VARIABLE = 131_072
LARGEST_MAP = 1 << 20


def spec_of(**fields: Any) -> Spec:
    return parse_spec({"command": ["train.py"], "on": "k8s", **fields})


def pod(gang: GangSpec = GANG, index: int = 0, slots: int = 1, **fields: Any) -> Object:
    return manifests.pod(spec_of(**fields), gang, index, f"node-{index}", {"slots": slots, "word": "value"})


def container(made: Object) -> Object:
    (only,) = made["spec"]["containers"]
    found: Object = only
    return found


def env_of(made: Object) -> dict[str, Object]:
    return {entry["name"]: entry for entry in container(made)["env"]}


def unsqueezed(text: str) -> str:
    return zlib.decompress(base64.b64decode(text)).decode()


# ---- who owns what


def test_all_is_owned_by_the_record_and_the_record_by_the_anchor() -> None:
    anchor = manifests.anchor(RUN_ID, 600, 0)
    assert "ownerReferences" not in anchor["metadata"]
    record = manifests.record(RUN_ID, Owner("Job", RUN_ID, "uid-0"), {}, {})
    assert record["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": RUN_ID, "uid": "uid-0", "controller": True}
    ]
    owned = [
        manifests.secret(RUN_ID, OWNER, "s"),
        manifests.service(GANG),
        pod(),
        *manifests.code(RUN_ID, OWNER, "agent", b"code" * 1_000_000),
    ]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": RUN_ID, "uid": "uid-1", "controller": True}
    assert all(thing["metadata"]["ownerReferences"] == [reference] for thing in owned)


def test_all_of_a_run_is_found_by_its_label() -> None:
    things = [
        manifests.anchor(RUN_ID, 600, 0),
        manifests.record(RUN_ID, OWNER, {}, {}),
        manifests.secret(RUN_ID, OWNER, "s"),
        manifests.service(GANG),
        pod(),
        *manifests.code(RUN_ID, OWNER, "agent", b""),
    ]
    assert {thing["metadata"]["labels"][RUN] for thing in things} == {RUN_ID}
    kinds = [thing["metadata"]["labels"][KIND] for thing in things]
    assert kinds == ["anchor", "record", "star", "star", "rank", "code"]
    assert manifests.of_run(RUN_ID) == f"{RUN}={RUN_ID}"


def test_the_pods_of_an_attempt_are_chosen_by_its_selector_and_the_chief_by_its_service() -> None:
    labels = pod(index=3)["metadata"]["labels"]
    wanted = dict(term.split("=") for term in manifests.of_attempt(RUN_ID, "main", 2).split(","))
    assert wanted.items() <= labels.items()
    assert (labels[TASK], labels[ATTEMPT], labels[INDEX]) == ("main", "2", "3")
    selector = manifests.service(GANG)["spec"]["selector"]
    assert selector.items() <= pod(index=0)["metadata"]["labels"].items()
    assert not selector.items() <= labels.items()
    assert not selector.items() <= pod(GANG._replace(star=1))["metadata"]["labels"].items()


def test_the_anchor_starts_no_pod_and_can_be_completed_later() -> None:
    spec = manifests.anchor(RUN_ID, 615, 3600)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 1, 0)
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (615, 3600)
    assert_restricted(spec["template"]["spec"])


# ---- a pod


def assert_restricted(spec: Object) -> None:
    """The fields that the Pod Security level `restricted` looks at."""
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] != 0
    assert context["seccompProfile"]["type"] == "RuntimeDefault"
    for each in spec["containers"]:
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert "add" not in each["securityContext"]["capabilities"]
        assert "privileged" not in each["securityContext"]
        assert all("hostPort" not in port for port in each.get("ports", ()))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for volume in spec.get("volumes", ()):
        assert set(volume) - {"name"} <= {"emptyDir", "projected", "persistentVolumeClaim", "secret"}


def test_a_pod_passes_the_level_restricted_with_all_that_one_can_ask_for() -> None:
    large = GANG._replace(framework="torch", code=CodeObjects("c", 0, ("c-0", "c-1")))
    assert_restricted(pod(large, mounts=["data:/data"], gpu="required", env_from_secret=["hub"])["spec"])


@pytest.mark.parametrize(("pieces", "chunks"), [(1, []), (0, ["c-0"])])
def test_a_run_of_an_older_pumasi_is_started_again_with_its_config_maps(pieces: int, chunks: list[str]) -> None:
    """They hold the code under the same names as Secrets do; its record does not say which they are."""
    old = manifests.read_code({"boot": "c", "pieces": pieces, "chunks": chunks})
    new = manifests.read_code({**old._asdict(), "kind": "secret"})
    made, expected = json.dumps(pod(GANG._replace(code=old))), json.dumps(pod(GANG._replace(code=new)))
    assert '"configMapKeyRef": {"name": "c", "key": "agent"}' in made
    assert made.count("configMap") == 2
    assert made.replace("configMap", "secret") == expected
    assert manifests.read_code(json.loads(json.dumps(manifests.code_objects(RUN_ID, b"")._asdict()))).kind == "secret"


def test_as_the_images_user_it_has_no_security_context_of_ours() -> None:
    made = pod(as_image_user=True, mounts=["data:/data"])
    assert "securityContext" not in made["spec"]
    assert "securityContext" not in container(made)
    assert "HOME" not in env_of(made)
    assert {"HOME", "USER", "LOGNAME"} <= env_of(pod()).keys()


def test_a_pod_has_no_token_and_is_not_restarted_by_its_node() -> None:
    spec = pod(grace=15)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 27


def test_a_pod_is_pinned_to_its_node_by_name_unless_the_scheduler_chooses() -> None:
    (term,) = pod(index=4)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-4"]}]}
    assert "nodeName" not in pod()["spec"]
    assert "affinity" not in pod(GANG._replace(pinned=False))["spec"]


def test_the_scheduler_is_told_which_nodes_were_lost() -> None:
    spec = pod(GANG._replace(pinned=False, single="files", avoid=("a", "b")))["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in ("a", "b")]
    assert term == {"matchFields": fields}
    assert "podAffinity" in spec["affinity"]


def test_a_pod_leaves_a_lost_node_soon_whatever_else_it_tolerates() -> None:
    tolerations = pod(tolerations=["all", "gpu=only:NoSchedule"])["spec"]["tolerations"]
    assert tolerations[:2] == [
        {"operator": "Exists"},
        {"key": "gpu", "operator": "Equal", "value": "only", "effect": "NoSchedule"},
    ]
    assert {(each["key"], each["effect"], each["tolerationSeconds"]) for each in tolerations[2:]} == {
        ("node.kubernetes.io/not-ready", "NoExecute", LOST_AFTER),
        ("node.kubernetes.io/unreachable", "NoExecute", LOST_AFTER),
    }
    assert LOST_AFTER == 30


def test_a_pod_asks_for_as_much_as_all_its_slots_need() -> None:
    resources = container(pod(slots=5, cpus="500m", memory="8Gi", gpu="required"))["resources"]
    assert resources == {
        "requests": {"cpu": "2500m", "memory": "40Gi"},
        "limits": {"nvidia.com/gpu": "5", "memory": "40Gi"},
    }


@pytest.mark.parametrize(
    ("fields", "resources"),
    [
        ({}, {"requests": {"cpu": "3"}}),
        ({"gpu": "required"}, {"limits": {"nvidia.com/gpu": "3"}}),
        ({"gpu": "required", "gpu_resource": "amd.com/gpu"}, {"limits": {"amd.com/gpu": "3"}}),
        ({"gpu": "none", "cpus": "2"}, {"requests": {"cpu": "6"}}),
        ({"gpu": "required", "cpus": "0.1"}, {"requests": {"cpu": "300m"}, "limits": {"nvidia.com/gpu": "3"}}),
    ],
)
def test_what_a_pod_asks_for_by_default(fields: dict[str, Any], resources: Object) -> None:
    assert container(pod(slots=3, **fields))["resources"] == resources


def test_what_the_planner_counts_is_what_a_pod_asks_for() -> None:
    assert manifests.needs_of(spec_of(cpus="2", memory="1Gi", gpu="required")) == {
        "cpu": 2.0,
        "memory": float(1 << 30),
        "nvidia.com/gpu": 1.0,
    }
    assert manifests.needs_of(spec_of()) == {"cpu": 1.0}
    assert manifests.needs_of(spec_of(gpu="required")) == {"nvidia.com/gpu": 1.0}


def test_volumes_are_mounted_where_they_were_asked_for() -> None:
    made = pod(mounts=["data:/data:ro", "out:/out"])
    assert made["spec"]["volumes"] == [
        {"name": "mount0", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {"name": "mount1", "persistentVolumeClaim": {"claimName": "out"}},
    ]
    assert container(made)["volumeMounts"] == [
        {"name": "mount0", "mountPath": "/data", "readOnly": True},
        {"name": "mount1", "mountPath": "/out"},
    ]
    assert made["spec"]["securityContext"]["fsGroup"] == made["spec"]["securityContext"]["runAsUser"]
    assert "fsGroup" not in pod()["spec"]["securityContext"]
    assert "volumes" not in pod()["spec"]


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax", "horovod", "mpi"])
def test_frameworks_that_share_memory_have_as_much_of_it_as_they_want(framework: str) -> None:
    made = pod(GANG._replace(framework=framework))
    assert made["spec"]["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    assert container(made)["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]


def test_checkpoints_go_to_the_first_volume_that_can_be_written_to() -> None:
    assert manifests.folder_of(spec_of(), RUN_ID) == FOLDER
    assert manifests.folder_of(spec_of(mounts=["data:/data:ro"]), RUN_ID) == FOLDER
    some = spec_of(mounts=["data:/data:ro", "out:/out", "more:/more"])
    assert manifests.folder_of(some, RUN_ID) == f"/out/pumasi/{RUN_ID}"


def test_secrets_are_references_only() -> None:
    made = pod(env_from_secret=["hub", "TOKEN=other/key"])
    assert container(made)["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert env_of(made)["TOKEN"] == {
        "name": "TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "other", "key": "key"}},
    }
    assert env_of(made)["PUMASI_BOOT_SECRET"] == {
        "name": "PUMASI_BOOT_SECRET",
        "valueFrom": {"secretKeyRef": {"name": f"{RUN_ID}-star", "key": "secret"}},
    }
    star = manifests.secret(RUN_ID, OWNER, "hidden")
    assert (star["metadata"]["name"], star["stringData"]) == (f"{RUN_ID}-star", {"secret": "hidden"})
    assert "hidden" not in json.dumps(made)


def test_a_gang_of_one_pod_has_no_star() -> None:
    assert "PUMASI_BOOT_SECRET" not in env_of(pod(GANG._replace(hub="")))


def test_what_is_set_comes_last() -> None:
    patches = [
        "spec.containers[0].image=other:1",
        "spec.dnsPolicy=Default",
        "spec.securityContext=null",
        'spec.tolerations[+]={"operator": "Exists"}',
        'metadata.labels["example.com/run"]=mine',
    ]
    made = pod(image="first:1", patches=patches)
    assert container(made)["image"] == "other:1"
    assert made["spec"]["dnsPolicy"] == "Default"
    assert "securityContext" not in made["spec"]
    assert made["spec"]["tolerations"][-1] == {"operator": "Exists"}
    assert made["metadata"]["labels"]["example.com/run"] == "mine"


def test_labels_of_the_user_are_there_and_do_not_override_ours() -> None:
    labels = {"team": "vision", "app.kubernetes.io/managed-by": "me"}
    made = pod(labels=labels, annotations={"example.com/owner": "kim"})["metadata"]
    assert made["labels"]["team"] == "vision"
    assert made["labels"]["app.kubernetes.io/managed-by"] == "pumasi"
    assert made["annotations"] == {"example.com/owner": "kim"}
    assert "annotations" not in pod()["metadata"]


def test_the_pods_say_who_has_started_the_run_where_that_is_known() -> None:
    """For those who wait for what they hold, and may see no more of it."""
    made = pod(GANG._replace(user="kim"))["metadata"]
    assert made["annotations"] == {manifests.USER_NOTE: "kim"}


def test_where_and_how_important_it_is_can_be_told() -> None:
    spec = pod(node_selector={"disk": "ssd"}, priority_class="high")["spec"]
    assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "ssd"}, "high")
    assert not {"nodeSelector", "priorityClassName"} & pod()["spec"].keys()


def test_a_pod_runs_the_python_that_was_asked_for() -> None:
    assert container(pod())["command"] == ["python3", "-I", "-S", "-c", BOOT]
    assert container(pod(python="/opt/bin/python"))["command"][0] == "/opt/bin/python"


# ---- code


def test_small_code_travels_in_the_environment() -> None:
    packed = os.urandom(300_000)
    names = manifests.code_objects(RUN_ID, packed)
    (thing,) = manifests.code(RUN_ID, OWNER, "the agent", packed)
    assert thing["kind"] == "Secret"
    made = pod(GANG._replace(code=names))
    pieces = sorted(name for name in env_of(made) if name.startswith("PUMASI_BOOT_CODE_"))
    assert len(pieces) == names.pieces == 4
    sources = [env_of(made)[name]["valueFrom"]["secretKeyRef"] for name in pieces]
    assert {source["name"] for source in sources} == {thing["metadata"]["name"]}
    assert base64.b64decode("".join(thing["stringData"][source["key"]] for source in sources)) == packed
    assert unsqueezed(thing["stringData"]["agent"]) == "the agent"
    assert "volumes" not in made["spec"]


def test_no_code_is_no_piece() -> None:
    assert manifests.code_objects(RUN_ID, b"") == CodeObjects(f"{RUN_ID}-code", 0, ())


def test_large_code_travels_as_files_in_order() -> None:
    packed = os.urandom(LARGEST)
    names = manifests.code_objects(RUN_ID, packed)
    assert names.pieces == 0
    first, *chunks = manifests.code(RUN_ID, OWNER, "the agent", packed)
    assert set(first["stringData"]) == {"agent"}
    assert {thing["kind"] for thing in (first, *chunks)} == {"Secret"}
    made = pod(GANG._replace(code=names))
    (volume,) = made["spec"]["volumes"]
    sources = [source["secret"] for source in volume["projected"]["sources"]]
    assert [source["name"] for source in sources] == [chunk["metadata"]["name"] for chunk in chunks]
    paths = [source["items"][0]["path"] for source in sources]
    assert paths == sorted(paths)
    assert len(set(paths)) == len(paths)
    assert b"".join(base64.b64decode(chunk["data"]["code"]) for chunk in chunks) == packed
    (mount,) = container(made)["volumeMounts"]
    assert mount == {"name": "code", "mountPath": "/pumasi/code", "readOnly": True}
    assert not any(name.startswith("PUMASI_BOOT_CODE_") for name in env_of(made))


def content_size(thing: Object) -> int:
    """As the API server counts it."""
    texts = sum(len(text.encode()) for text in thing.get("stringData", {}).values())
    return texts + sum(len(base64.b64decode(text)) for text in thing.get("data", {}).values())


LARGEST_IN_PIECES = manifests.PIECE * manifests.MOST_PIECES * 3 // 4


@pytest.mark.parametrize("size", [0, 1, LARGEST_IN_PIECES, LARGEST_IN_PIECES + 1, LARGEST])
def test_all_of_it_fits_what_the_api_and_linux_take(size: int) -> None:
    things = manifests.code(RUN_ID, OWNER, agent_text(), b"\xff" * size)
    names = manifests.code_objects(RUN_ID, b"\xff" * size)
    assert all(content_size(thing) < LARGEST_MAP for thing in things)
    for key, text in things[0]["stringData"].items():
        assert len(f"PUMASI_BOOT_CODE_{key}={text}") < LARGEST_VARIABLE
    assert len(things) == 1 + len(names.chunks)
    assert bool(names.chunks) == (size > LARGEST_IN_PIECES)


# ---- names


def test_names_are_valid_for_the_longest_run_id() -> None:
    longest = "9" * LONGEST_NAME + "-abcde"
    gang = GANG._replace(run=longest, attempt=9999)
    things = [
        manifests.anchor(longest, 1, 1),
        manifests.record(longest, OWNER, {}, {}),
        manifests.secret(longest, OWNER, "s"),
        manifests.service(gang),
        manifests.pod(spec_of(), gang, MOST_SLOTS - 1, "node", {"slots": 1}),
        *manifests.code(longest, OWNER, "agent", b"x" * LARGEST),
    ]
    for thing in things:
        assert DNS_LABEL.fullmatch(thing["metadata"]["name"]), thing["metadata"]["name"]
        assert all(len(value) <= 63 for value in thing["metadata"]["labels"].values())
    assert manifests.service(gang)["metadata"]["name"][0].isalpha()


# ---- what the agents are told


def configs() -> list[dict[str, Any]]:
    spec = spec_of(slots=6)
    program = Program(("python3", "train.py"), "none", "", {})
    attempt = Attempt(RUN_ID, 0, {"node-0": 1, "node-1": 5}, {}, "", "0", FOLDER, ["", ""])
    return agent_configs(spec, program, attempt, gang_of(spec, program, attempt))


def test_the_chief_listens_and_the_others_call_it_by_its_service() -> None:
    chief, member = (manifests.agent_config(config, GANG, index) for index, config in enumerate(configs()))
    assert chief["hub"] == ["", manifests.HUB_PORT]
    assert member["hub"] == ["10.0.0.7", manifests.HUB_PORT]
    assert manifests.service(GANG)["spec"]["ports"] == [{"port": manifests.HUB_PORT}]


def test_each_agent_works_in_the_pods_own_folder_and_leaves_a_testament() -> None:
    for index, config in enumerate(configs()):
        told = manifests.agent_config(config, GANG, index)
        assert (told["secret"], told["address"]) == ("", "")
        assert (told["cwd"], told["dir"]) == (WORK, f"{FOLDER}/agent")
        assert told["testament"] == "/dev/termination-log"
        assert told["ranks"] == config["ranks"]
        assert told["slots"] == config["slots"]


def test_an_agent_finds_what_it_is_told_its_address_and_its_node() -> None:
    env = env_of(pod(slots=2))
    assert json.loads(unsqueezed(env["PUMASI_BOOT_CONFIG"]["value"])) == {"slots": 2, "word": "value"}
    assert env["PUMASI_BOOT_ADDRESS"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["PUMASI_BOOT_NODE"]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    assert env["PUMASI_BOOT_AGENT"]["valueFrom"]["secretKeyRef"] == {"name": f"{RUN_ID}-code", "key": "agent"}


# ---- booting


def boot(folder: Path, agent: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", BOOT.replace(FOLDER, str(folder))]
    given = {"PUMASI_BOOT_AGENT": manifests.squeezed(agent), "PATH": os.environ["PATH"], **env}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False)


def small_agent(text: str) -> str:
    needed = ("pumasi/__init__.py", "pumasi/agent/__init__.py", "pumasi/agent/carried.py")
    return json.dumps({**{name: agent_files()[name] for name in needed}, "pumasi/agent/starting.py": text})


def test_what_a_pod_runs_fetches_the_agent_and_is_it(tmp_path: Path) -> None:
    agent = "import os, sys\ndef main(_):\n  print(sys.argv, 'PUMASI_BOOT_AGENT' in os.environ)\n  return 7\n"
    folder = tmp_path / "pumasi"
    result = boot(folder, small_agent(agent))
    path = folder / "package" / "pumasi" / "agent" / "__main__.py"
    assert (result.returncode, result.stderr) == (7, "")
    assert result.stdout == f"{[str(path), 'pod']} False\n"


def test_the_agent_of_an_older_pumasi_was_one_program(tmp_path: Path) -> None:
    result = boot(tmp_path, "import sys\nif __name__ == '__main__':\n  sys.exit(len(sys.argv))\n")
    assert (result.returncode, result.stderr) == (2, "")


def test_an_agent_that_was_handed_over_is_written_down_for_programs_that_others_start(tmp_path: Path) -> None:
    agent = "from pumasi.agent.carried import write_down\ndef main(_):\n  write_down()\n"
    folder = tmp_path / "pumasi"
    result = boot(folder, small_agent(agent))
    assert (result.returncode, result.stderr) == (0, "")
    assert (folder / "package" / "pumasi" / "agent" / "starting.py").read_text() == agent


def test_a_mistake_of_the_agents_is_told_with_its_line(tmp_path: Path) -> None:
    result = boot(tmp_path, small_agent("\n\nraise SystemError('so')\n"))
    assert result.returncode == 1
    assert f'{tmp_path}/package/pumasi/agent/starting.py", line 3' in result.stderr


def test_the_real_agent_boots(tmp_path: Path) -> None:
    """One pod, one rank, no code; what it may not write it does without."""
    spec = spec_of(grace=1)
    hello = "import os; print('hello from', os.environ['PUMASI_NODE'], 'PUMASI_BOOT_NODE' in os.environ)"
    program = Program((sys.executable, "-c", hello), "none", "", {})
    attempt = Attempt(RUN_ID, 0, {"pod-0": 1}, {}, "", "0", str(tmp_path), [""])
    (config,) = agent_configs(spec, program, attempt, gang_of(spec, program, attempt))
    told = manifests.agent_config(config, GANG._replace(hub=""), 0)
    told |= {"cwd": str(tmp_path / "work"), "dir": str(tmp_path / "agent"), "testament": str(tmp_path / "testament")}
    env = {"PUMASI_BOOT_CONFIG": manifests.squeezed(json.dumps(told)), "HOME": str(tmp_path / "home")}
    result = boot(tmp_path, agent_text(), PUMASI_BOOT_ADDRESS="127.0.0.1", PUMASI_BOOT_NODE="gpu-7", **env)
    assert result.returncode == 0, result.stderr
    assert "|hello from gpu-7 False\n" in result.stdout
    assert json.loads((tmp_path / "testament").read_text())["cause"] == "done"
