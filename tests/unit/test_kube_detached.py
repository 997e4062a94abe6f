"""The manager that travels into the cluster: all that it needs, and nothing but the standard library."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pumasi.agent.files import step_files
from pumasi.core.flows.average import FLOW as AVERAGE
from pumasi.errors import Forbidden
from pumasi.pools.kubernetes import bundle, inside
from pumasi.pools.kubernetes.manager_job import TRIES, manager_job, package, package_map
from pumasi.pools.kubernetes.manifests import FOLDER, KIND, LOST_AFTER, PIECE, RUN, Owner
from pumasi.pools.kubernetes.rights import NAME

RUN_ID = "train-abcde"
OWNER = Owner("ConfigMap", RUN_ID, "uid-1")


def names() -> list[str]:
    return zipfile.ZipFile(io.BytesIO(package())).namelist()


def job() -> dict[str, Any]:
    return manager_job(RUN_ID, OWNER, "python:3.12-slim", package_map(RUN_ID, OWNER), [{"key": "gpu"}])


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = job()["spec"]["template"]["spec"]
    return spec


# ---- the package


def test_the_same_sources_are_the_same_bytes() -> None:
    assert package() == package()


def test_it_has_our_modules_and_nothing_else() -> None:
    assert all(name.startswith("pumasi/") and name.endswith(".py") for name in names())
    assert len(names()) == len(set(names()))
    assert {
        "pumasi/pools/kubernetes/inside.py",
        "pumasi/runs/manager.py",
        "pumasi/agent/member.py",
        "pumasi/agent/shim.py",
    } <= set(names())
    assert not any(name.startswith("pumasi/cli") for name in names())


def test_the_manager_can_be_imported_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    zipfile.ZipFile(io.BytesIO(package())).extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "import pumasi.pools.kubernetes.inside;"
        "from pumasi.agent.files import agent_text, shim_files;"
        "assert agent_text() and shim_files();"
        f"ours = [module for name, module in sys.modules.items() if name.partition('.')[0] == 'pumasi'];"
        f"assert all(each.__file__.startswith({str(tmp_path)!r}) for each in ours);"
        "tops = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names);"
        "print(sorted(tops - {'pumasi', '__main__'}))"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "[]\n")


def test_all_of_its_modules_need_no_more_than_that(tmp_path: Path) -> None:
    """Some are imported late, inside of functions. Those of steps only pass through: they run where numpy is."""
    zipfile.ZipFile(io.BytesIO(package())).extractall(tmp_path)
    modules = (AVERAGE.steps, *AVERAGE.step_modules)
    empty = {f"pumasi/{name}__init__.py" for name in ("", "core/", "core/flows/", "core/flows/average/")}
    steps = {name.removeprefix("steps/") for name in step_files(modules)} - {*empty, "pumasi/errors.py"}
    assert steps < set(names())
    own = [name for name in names() if name not in steps]
    imported = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in own]
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n" + "".join(f"import {name}\n" for name in imported)
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_it_fits_into_one_object_in_pieces_that_a_variable_takes() -> None:
    thing = package_map(RUN_ID, OWNER)
    pieces = thing["data"]
    assert all(len(f"PUMASI_BOOT_{key}={text}") < 131_072 and len(text) <= PIECE for key, text in pieces.items())
    assert sum(map(len, pieces.values())) < 1 << 20
    assert base64.b64decode("".join(pieces[key] for key in sorted(pieces))) == package()
    assert thing["metadata"]["name"] == "train-abcde-package"
    assert thing["metadata"]["ownerReferences"] == [OWNER.reference]
    assert (thing["metadata"]["labels"][RUN], thing["metadata"]["labels"][KIND]) == (RUN_ID, "package")


# ---- the Job


def test_the_job_is_the_runs_and_starts_its_pod_again_and_again() -> None:
    thing = job()
    assert (thing["apiVersion"], thing["kind"]) == ("batch/v1", "Job")
    assert thing["metadata"]["name"] == "train-abcde-manager"
    assert thing["metadata"]["ownerReferences"] == [OWNER.reference]
    assert thing["spec"]["backoffLimit"] == TRIES
    (rule,) = thing["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert pod_spec()["restartPolicy"] == "Never"


def test_its_pods_are_the_managers_and_no_ranks() -> None:
    labels = job()["spec"]["template"]["metadata"]["labels"]
    assert (labels[RUN], labels[KIND]) == (RUN_ID, "manager")


def test_its_pod_has_the_account_of_managers_and_passes_the_level_restricted() -> None:
    spec = pod_spec()
    assert spec["serviceAccountName"] == NAME
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["image"] == "python:3.12-slim"
    assert set(container["resources"]) == {"requests"}


def test_its_last_words_outlive_it_and_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(run: str) -> None:
        raise Forbidden("The cluster does not allow it.", "A hint for somebody at a terminal.")

    monkeypatch.setattr(inside, "_manage", fail)
    assert inside.main("train-abcde") == Forbidden.exit_code
    assert capsys.readouterr().err.splitlines()[-1] == "The cluster does not allow it."
    (container,) = pod_spec()["containers"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_its_pod_leaves_a_lost_node_soon_and_tolerates_what_the_ranks_do() -> None:
    tolerations = pod_spec()["tolerations"]
    assert tolerations[0] == {"key": "gpu"}
    assert [each["tolerationSeconds"] for each in tolerations[1:]] == [LOST_AFTER, LOST_AFTER]


def test_its_pod_finds_every_piece_of_the_package_in_order() -> None:
    pieces = package_map(RUN_ID, OWNER)["data"]
    env = {entry["name"]: entry for entry in pod_spec()["containers"][0]["env"]}
    boot = sorted(name for name in env if name.startswith("PUMASI_BOOT_"))
    keys = [env[name]["valueFrom"]["configMapKeyRef"]["key"] for name in boot]
    assert keys == sorted(pieces)
    assert {env[name]["valueFrom"]["configMapKeyRef"]["name"] for name in boot} == {"train-abcde-package"}


def test_the_command_unpacks_the_package_and_starts_the_manager_in_it(tmp_path: Path) -> None:
    """Here it finds no cluster, and says so."""
    pieces = package_map(RUN_ID, OWNER)["data"]
    *python, code, run = pod_spec()["containers"][0]["command"]
    assert (python, run) == (["python3", "-c"], RUN_ID)
    code = code.replace(FOLDER, str(tmp_path / "pumasi"))
    env = {f"PUMASI_BOOT_{key}": text for key, text in pieces.items()}
    env |= {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, run],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert result.returncode == 7, result.stderr
    assert result.stderr.startswith("There is no kubeconfig")
    assert (tmp_path / "pumasi" / "package" / "pumasi" / "errors.py").exists()


def test_a_python_that_is_too_old_is_told() -> None:
    code = pod_spec()["containers"][0]["command"][2].replace(str(bundle.OLDEST_PYTHON), "(99, 0)")
    result = subprocess.run([sys.executable, "-c", code, RUN_ID], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "The manager needs Python 3.10.\n"


def test_a_package_that_grows_is_cut_into_more_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "PIECE", 10_000)
    pieces = package_map(RUN_ID, OWNER)["data"]
    assert max(map(len, pieces.values())) == 10_000
    assert base64.b64decode("".join(pieces[key] for key in sorted(pieces))) == package()
