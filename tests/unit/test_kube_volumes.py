"""The volume that a run's tasks share: found, or made with what the cluster's storage can do."""

from __future__ import annotations

from typing import Any

import pytest

from pumasi.errors import SpecError, UsageError
from pumasi.pools.kubernetes.notation import VOLUME_BYTES, volume
from pumasi.pools.kubernetes.volumes import SHARED, SINGLE, can_mount, claim, ensure, find, holders, mode_of, terms
from tests.fake_cluster import FakeApi
from tests.serving import asynchronous

NAMESPACE = "team"
FOLDER = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"


def storage(provisioner: str, *, default: bool = True) -> dict[str, Any]:
    notes = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {"metadata": {"name": provisioner, "annotations": notes}, "provisioner": provisioner}


@pytest.mark.parametrize(
    ("provisioner", "mode"),
    [
        ("nfs.csi.k8s.io", SHARED),
        ("efs.csi.aws.com", SHARED),
        ("filestore.csi.storage.gke.io", SHARED),
        ("file.csi.azure.com", SHARED),
        ("rook-ceph.cephfs.csi.ceph.com", SHARED),
        ("ebs.csi.aws.com", SINGLE),
        ("pd.csi.storage.gke.io", SINGLE),
        ("disk.csi.azure.com", SINGLE),
        ("kubernetes.io/host-path", SINGLE),
        ("rancher.io/local-path", SINGLE),
    ],
)
def test_storage_that_many_nodes_can_mount_is_known_by_its_name(provisioner: str, mode: str) -> None:
    assert mode_of("imdb", [storage("other", default=False), storage(provisioner)]) == mode


def test_who_may_not_see_the_storage_gets_what_all_storage_can_do() -> None:
    assert mode_of("imdb", None) == SINGLE


def test_without_default_storage_the_user_has_to_make_it() -> None:
    with pytest.raises(UsageError, match="no default storage class"):
        mode_of("imdb", [storage("nfs", default=False)])


def test_a_volume_is_wanted_by_name_and_perhaps_with_a_size() -> None:
    assert volume("imdb") == ("imdb", VOLUME_BYTES)
    assert volume("imdb:20Gi") == ("imdb", 20 * 2**30)
    for wrong in ("Im Db", "imdb:", "imdb:much"):
        with pytest.raises(SpecError):
            volume(wrong)


@asynchronous
async def test_a_volume_that_is_there_is_taken_as_it_is() -> None:
    api = FakeApi()
    await api.create(FOLDER, claim("imdb", 2**30, SHARED))
    assert await ensure(api, NAMESPACE, "imdb", 2**40) == ("imdb", True)
    assert (await api.get(f"{FOLDER}/imdb"))["spec"]["resources"]["requests"]["storage"] == "1Gi"


@asynchronous
async def test_a_volume_that_is_not_there_is_made() -> None:
    api = FakeApi()
    await api.create("/apis/storage.k8s.io/v1/storageclasses", storage("nfs.csi.k8s.io"))
    assert await ensure(api, NAMESPACE, "imdb", 2**31) == ("imdb", True)
    made = (await api.get(f"{FOLDER}/imdb"))["spec"]
    assert (made["accessModes"], made["resources"]["requests"]["storage"]) == ([SHARED], "2Gi")


@asynchronous
async def test_a_claim_that_no_run_can_write_to_is_refused() -> None:
    api = FakeApi()
    await api.create(FOLDER, claim("imdb", 2**30, "ReadOnlyMany"))
    with pytest.raises(UsageError, match=r"The volume imdb is no place for a run's files: it is ReadOnlyMany\."):
        await ensure(api, NAMESPACE, "imdb", 2**30)


@asynchronous
async def test_a_claim_that_is_only_named_has_to_be_there() -> None:
    with pytest.raises(UsageError, match="There is no volume claim imdb in the namespace team"):
        await find(FakeApi(), NAMESPACE, "imdb")


# ---- which nodes can mount it


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


def term(operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ([], "abc"),
        ([term("In", "x")], "a"),
        ([term("In", "x"), term("In", "y")], "ab"),
        ([term("NotIn", "x")], "bc"),
        ([term("Exists")], "ab"),
        ([term("DoesNotExist")], "c"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}], "b"),
        ([{**term("In", "x", "y"), "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}], "b"),
    ],
)
def test_a_volume_says_which_nodes_it_is_for(terms: list[dict[str, Any]], names: str) -> None:
    nodes = [node("a", zone="x"), node("b", zone="y"), node("c")]
    assert "".join(each["metadata"]["name"] for each in nodes if can_mount(each, terms)) == names


@asynchronous
async def test_what_a_volume_says_is_had_through_its_claim() -> None:
    api = FakeApi()
    assert await terms(api, NAMESPACE, "imdb") == ()
    thing = claim("imdb", 2**30, SINGLE)
    thing["spec"]["volumeName"] = "pv-1"
    await api.create(FOLDER, thing)
    assert await terms(api, NAMESPACE, "imdb") == ()
    required = {"nodeSelectorTerms": [term("In", "x")]}
    volume = {"metadata": {"name": "pv-1"}, "spec": {"nodeAffinity": {"required": required}}}
    await api.create("/api/v1/persistentvolumes", volume)
    assert await terms(api, NAMESPACE, "imdb") == [term("In", "x")]


def test_who_has_a_volume_mounted() -> None:
    def pod(where: str, claimed: str, namespace: str = NAMESPACE, phase: str = "Running") -> dict[str, Any]:
        volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": claimed}}]
        spec = {"volumes": volumes, **({"nodeName": where} if where else {})}
        return {"metadata": {"namespace": namespace}, "spec": spec, "status": {"phase": phase}}

    pods = [
        pod("n1", "imdb"),
        pod("n2", "other"),
        pod("n3", "imdb", "others"),
        pod("n4", "imdb", phase="Succeeded"),
        pod("", "imdb", phase="Pending"),
    ]
    assert holders(pods, NAMESPACE, "imdb") == {"n1"}
