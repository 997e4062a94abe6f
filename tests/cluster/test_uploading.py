"""Files onto a volume of a real cluster, through its API server alone; and what is left when it goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pumasi.errors import ClusterTrouble, Forbidden
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.kubernetes import uploading
from pumasi.pools.kubernetes.uploading import Where, put
from pumasi.pools.kubernetes.volumes import ensure
from tests.cluster import breaking
from tests.cluster.place import kubeconfig_of, make_volume
from tests.cluster.subject import IMAGE, Namespace
from tests.harness import wait_for

pytestmark = pytest.mark.own

OURS = "jobs,pods,secrets"


class Uploader:
    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.said: list[str] = []

    def put(self, files: dict[str, Path], kubeconfig: Path | None = None, **more: dict[str, str]) -> None:
        asyncio.run(self._put(files, kubeconfig or self.namespace.cluster.kubeconfig, **more))

    async def _put(self, files: dict[str, Path], kubeconfig: Path, **more: dict[str, str]) -> None:
        async with Api(connect("", {"KUBECONFIG": str(kubeconfig)})) as api:
            volume = await ensure(api, self.namespace.name, "data", 2**30)
            await put(api, Where(self.namespace.name, volume, IMAGE, **more), files, self.said.append)  # type: ignore[arg-type]

    def left(self) -> list[str]:
        selector = ("-l", "app.kubernetes.io/managed-by=pumasi")
        return self.namespace.kubectl("get", OURS, *selector, "-o", "name").split()

    def wait_until_clean(self) -> None:
        wait_for(lambda: not self.left(), "the end of all that was made for the upload")

    @property
    def folder(self) -> Path:
        return self.namespace.volume_folder("data")


@pytest.fixture(scope="module")
def uploader(shared_namespace: Namespace) -> Uploader:
    make_volume(shared_namespace, "data", "ReadWriteOnce")
    return Uploader(shared_namespace)


@pytest.fixture
def clean(uploader: Uploader) -> Iterator[Uploader]:
    uploader.said.clear()
    yield uploader
    uploader.wait_until_clean()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 50_000)
    return path


def test_files_arrive_as_they_are_and_only_once(clean: Uploader, large: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    files = {"a/large": large, "a/b/empty": tmp_path / "empty"}
    clean.put(files)
    assert (clean.folder / "a" / "large").read_bytes() == large.read_bytes()
    assert (clean.folder / "a" / "b" / "empty").read_bytes() == b""
    clean.put(files)
    assert clean.said[-2:] == ["large is on the volume already.", "empty is on the volume already."]


def test_who_may_not_use_the_proxy_is_told_which_right_is_missing(clean: Uploader, large: Path, tmp_path: Path) -> None:
    """And what was made goes, all the same."""
    kubectl = clean.namespace.kubectl
    kubectl("create", "serviceaccount", "poor")
    account = f"--serviceaccount={clean.namespace.name}:poor"
    verbs = "--verb=get,list,watch,create,patch,delete"
    resources = "--resource=pods,secrets,events,persistentvolumeclaims,jobs.batch"
    kubectl("create", "role", "poor", verbs, resources)
    kubectl("create", "rolebinding", "poor", "--role=poor", account)
    with pytest.raises(Forbidden) as caught:
        clean.put({"large": large}, kubeconfig_of(clean.namespace, "poor", tmp_path))
    assert "pods/proxy" in caught.value.message
    assert "the right to create pods/proxy" in caught.value.hint


def test_a_pod_that_fits_on_no_node_is_told(clean: Uploader, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "START_SECONDS", 15)
    with pytest.raises(
        ClusterTrouble, match="The cluster's scheduler has no place for it: it may go to none of 3 nodes"
    ):
        clean.put({"large": large}, node_selector={"no": "where"})


def test_an_api_server_that_dies_in_the_middle_is_waited_for(
    clean: Uploader, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "PIECE", 2**20)
    breaker = breaking.killed(clean.namespace.cluster, "control", "kube-apiserver")
    mender = ThreadPoolExecutor(1)
    send, pieces, mended = Api.send, itertools.count(1), []

    async def break_once(self: Api, path: str, *rest: Any, **more: Any) -> dict[str, Any]:
        if path.endswith("/piece") and next(pieces) == 3:
            await asyncio.to_thread(breaker.__enter__)
            mended.append(mender.submit(breaker.__exit__, None, None, None))
        return await send(self, path, *rest, **more)

    monkeypatch.setattr(Api, "send", break_once)
    try:
        clean.put({"broken/large": large})
    finally:
        for each in mended:
            each.result(200)
    assert (clean.folder / "broken" / "large").read_bytes() == large.read_bytes()


KILLED = """
import asyncio, sys
from pathlib import Path
from pumasi.pools.kubernetes import uploading
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.kubernetes.volumes import Volume

uploading.SILENCE = 3
send = Api.send

async def slowly(self, path, query, headers, data, **more):
    answer = await send(self, path, query, headers, data, **more)
    if path.endswith("/piece"):
        print("a piece was sent", flush=True)
        await asyncio.sleep(600)
    return answer

Api.send = slowly

async def main():
    async with Api(connect("", {"KUBECONFIG": sys.argv[1]})) as api:
        where = uploading.Where(sys.argv[2], Volume("data", False), sys.argv[3])
        await uploading.put(api, where, {"killed/large": Path(sys.argv[4])}, print)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_in_the_middle_it_leaves_neither_a_pod_nor_half_a_file(
    clean: Uploader, large: Path, number: signal.Signals
) -> None:
    """Its pod waits for two minutes; here for three seconds."""
    words = (str(clean.namespace.cluster.kubeconfig), clean.namespace.name, IMAGE, str(large))
    process = subprocess.Popen([sys.executable, "-c", KILLED, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "a piece was sent\n":
            assert line, "it ended"
        assert [path.suffix for path in (clean.folder / "killed").iterdir()] == [".part"]
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    clean.wait_until_clean()
    assert list((clean.folder / "killed").iterdir()) == []
