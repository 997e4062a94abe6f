"""A served model is deployed, changed, brought back and removed; what goes wrong is told."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from pumasi.cli.main import main
from pumasi.errors import ClusterTrouble, Conflict, NotFound, UsageError
from pumasi.pools.kubernetes.notation import Wanted
from pumasi.pools.kubernetes.serving import deploying, objects
from pumasi.pools.kubernetes.serving.deploying import Address, Asked, Cluster, deploy, remove
from pumasi.pools.kubernetes.serving.objects import REVISION, Wish
from pumasi.pools.kubernetes.serving.served import UNKNOWN, list_served, token_of
from pumasi.pools.kubernetes.volumes import SHARED, claim
from tests.fake_cluster import NAMESPACE, FakeApi, Key
from tests.fake_cluster import Cluster as Fake
from tests.serving import asynchronous

WISH = Wish("film", "image:1")
OURS = ("services", "secrets", "configmaps", "deployments")
VOLUME = Wanted("data", 2**30)
Object = dict[str, Any]


class Controllers:
    """What a cluster does by itself: a Deployment gets a pod of each revision, which becomes ready, unless `fate` says
    otherwise."""

    def __init__(self) -> None:
        self.cluster = Fake()
        self.api = FakeApi(self.cluster)
        self.said: list[str] = []
        self.fate: Callable[[Object], Object] = lambda pod: {"running": {}}
        self.cluster.applied = self._applied
        storage = {"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
        self.cluster.create("storageclasses", "", {"kind": "StorageClass", **storage, "provisioner": "nfs"})
        self.cluster.create("persistentvolumeclaims", NAMESPACE, claim(*VOLUME, SHARED))

    @property
    def place(self) -> Cluster:
        return Cluster(self.api, NAMESPACE, self.said.append)

    def _applied(self, thing: Object) -> None:
        if thing["kind"] == "Service":
            self._expose(thing)
        elif thing["kind"] == "Deployment":
            self._roll(thing)

    def _expose(self, thing: Object) -> None:
        thing["spec"]["ports"][0]["nodePort"] = 30123

    def _roll(self, thing: Object) -> None:
        template = thing["spec"]["template"]
        revision = template["metadata"]["labels"][REVISION]
        for name in self.cluster.names("pods"):
            self.cluster.delete(Key("pods", NAMESPACE, name), 0)
        metadata = {**template["metadata"], "name": f"film-{revision}", "ownerReferences": [{"uid": _uid(thing)}]}
        pod = self.cluster.create(
            "pods", NAMESPACE, {"kind": "Pod", "metadata": metadata, "spec": {**template["spec"], "nodeName": "node-0"}}
        )
        state = self.fate(pod)
        pod["status"] = {"hostIP": "10.0.0.7", "containerStatuses": [{"name": "server", "state": state}]}
        ready = int("running" in state)
        counts = {"updatedReplicas": 1, "availableReplicas": ready, "replicas": 1}
        thing["status"] = {"observedGeneration": thing["metadata"]["generation"], **counts}

    async def deploy(self, wish: Wish = WISH, model: str = "/volume/final.keras") -> Address:
        return await deploy(self.place, wish, Asked(model), VOLUME)

    def served(self) -> str:
        """The image that is served with."""
        thing = self.cluster.find("deployments", "film")
        return str(thing["spec"]["template"]["spec"]["containers"][0]["image"])

    def left(self) -> list[str]:
        return [name for kind in OURS for name in self.cluster.names(kind)]


def _uid(thing: Object) -> str:
    return str(thing["metadata"]["uid"])


@pytest.fixture
def controllers() -> Controllers:
    return Controllers()


def keep_secret(controllers: Controllers) -> str:
    """The API shows what is in a Secret only encoded."""
    thing = controllers.cluster.find("secrets", "film-token")
    token: str = thing["stringData"]["token"]
    thing["data"] = {"token": base64.b64encode(token.encode()).decode()}
    return token


@asynchronous
async def test_the_token_stays_the_same_over_all_changes(controllers: Controllers) -> None:
    first = await controllers.deploy()
    assert first.token == keep_secret(controllers)
    assert first.url == f"http://film.{NAMESPACE}.svc/?token={first.token}"
    again = await controllers.deploy(WISH._replace(image="image:2", expose="NodePort"))
    assert again.url == f"http://10.0.0.7:30123/?token={first.token}"
    assert controllers.served() == "image:2"


@asynchronous
async def test_what_is_served_can_be_listed_and_its_token_be_asked_for(controllers: Controllers) -> None:
    assert await list_served(controllers.place) == []
    with pytest.raises(NotFound, match="Nothing is served as film"):
        await token_of(controllers.place, "film")
    first = await controllers.deploy(model="/volume/final.keras")
    keep_secret(controllers)
    (row,) = await list_served(controllers.place)
    assert row[:5] == (NAMESPACE, "film", "/volume/final.keras", 1, 1)
    assert (row.expose, row.url) == ("ClusterIP", "")
    assert first.token not in str(row)
    assert await token_of(controllers.place, "film") == first.token
    await controllers.deploy(WISH._replace(expose="NodePort"))
    (row,) = await list_served(controllers.place)
    assert row.url == "http://10.0.0.7:30123/"


@pytest.mark.parametrize("command", [None, [], ["sleep", "9"], ["python3", "[]"], ["python3", '{"a": 1}']])
@asynchronous
async def test_one_that_somebody_has_changed_by_hand_is_listed_with_an_unknown_model(
    controllers: Controllers, command: list[str] | None
) -> None:
    await controllers.deploy()
    container = controllers.cluster.find("deployments", "film")["spec"]["template"]["spec"]["containers"][0]
    container["command"] = command
    (row,) = await list_served(controllers.place)
    assert row[:3] == (NAMESPACE, "film", UNKNOWN)


@pytest.mark.parametrize(
    ("service", "pods", "url"),
    [
        ({"spec": {"type": "ClusterIP"}}, [], ""),
        ({"spec": {"type": "NodePort", "ports": [{"nodePort": 1}]}}, [{}, {"status": {"hostIP": "::7"}}], "[::7]:1"),
        ({"spec": {"type": "NodePort", "ports": [{"nodePort": 1}]}}, [{"status": {}}], ""),
        ({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {}}}, [], ""),
        ({"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "::7"}]}}}, [], "[::7]"),
    ],
)
def test_an_address_is_that_of_the_load_balancer_or_of_a_node_with_a_pod(
    service: Object, pods: list[Object], url: str
) -> None:
    assert objects.url_of(service, pods) == (f"http://{url}/" if url else "")


@asynchronous
async def test_who_needs_no_token_has_none_to_show(controllers: Controllers) -> None:
    await controllers.deploy(WISH._replace(has_token=False))
    with pytest.raises(NotFound, match="film has no token"):
        await token_of(controllers.place, "film")


@asynchronous
async def test_a_load_balancer_without_an_address_is_waited_for_but_not_for_ever(
    controllers: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploying, "_ADDRESS_SECONDS", 0.05)
    wish = WISH._replace(expose="LoadBalancer", has_token=False)
    assert (await controllers.deploy(wish)).url == ""
    ingress = {"status": {"loadBalancer": {"ingress": [{"hostname": "film.example"}]}}}
    controllers.cluster.change("services", "film", ingress)
    assert (await controllers.deploy(wish)).url == "http://film.example/"


@asynchronous
async def test_what_fails_gives_way_to_what_was_there(controllers: Controllers) -> None:
    await controllers.deploy()
    keep_secret(controllers)
    broken = {"terminated": {"exitCode": 2, "message": "final.keras is damaged."}}
    controllers.fate = lambda pod: broken if "image:2" in str(pod) else {"running": {}}
    with pytest.raises(UsageError, match=r"final\.keras is damaged") as caught:
        await controllers.deploy(WISH._replace(image="image:2"))
    assert "What was served before goes on." in caught.value.hint
    assert controllers.served() == "image:1"


@asynchronous
async def test_of_a_first_one_that_fails_nothing_is_left(controllers: Controllers) -> None:
    controllers.fate = lambda pod: {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    with pytest.raises(ClusterTrouble, match="The image image:1 can't be pulled"):
        await controllers.deploy()
    assert controllers.left() == []
    assert controllers.cluster.names("persistentvolumeclaims") == ["data"]


@asynchronous
async def test_what_never_gets_ready_is_told_with_what_it_waits_for_and_said(
    controllers: Controllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "START_SECONDS", 0.05)

    def load_for_ever(pod: Object) -> Object:
        controllers.cluster.say(pod["metadata"]["name"], b"loading final.keras")
        return {"running": {}}

    controllers.fate = load_for_ever
    applied = controllers.cluster.applied

    def never_available(thing: Object) -> None:
        applied(thing)
        if thing["kind"] == "Deployment":
            thing["status"]["availableReplicas"] = 0

    controllers.cluster.applied = never_available
    with pytest.raises(ClusterTrouble) as caught:
        await controllers.deploy()
    assert "the model is being loaded. It said:\nloading final.keras" in caught.value.message


@asynchronous
async def test_who_changes_it_meanwhile_wins(controllers: Controllers) -> None:
    applied = controllers.cluster.applied

    def interfere(thing: Object) -> None:
        applied(thing)
        if thing["kind"] == "Deployment":
            thing["spec"]["template"]["metadata"]["labels"][REVISION] = "another"

    controllers.cluster.applied = interfere
    with pytest.raises(Conflict, match="Somebody else has changed film"):
        await controllers.deploy()
    assert "film" in controllers.cluster.names("deployments")


@asynchronous
async def test_who_does_not_want_to_wait_leaves_the_change_to_the_cluster(controllers: Controllers) -> None:
    controllers.fate = lambda pod: {"waiting": {"reason": "ContainerCreating"}}
    task = asyncio.ensure_future(controllers.deploy())
    while not any("the image is being fetched" in each for each in controllers.said):
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "goes on changing in the cluster" in controllers.said[-1]
    assert "film" in controllers.cluster.names("deployments")


@pytest.mark.parametrize(("kind", "name"), [("services", "film"), ("deployments", "film"), ("secrets", "film-token")])
@asynchronous
async def test_what_is_not_ours_is_not_touched(controllers: Controllers, kind: str, name: str) -> None:
    theirs = {"kind": "Thing", "metadata": {"name": name}, "spec": {}}
    controllers.cluster.create(kind, NAMESPACE, theirs)
    with pytest.raises(UsageError, match="was not made by `pumasi serve`"):
        await controllers.deploy()
    with pytest.raises(NotFound):
        await remove(controllers.place, "film")
    assert controllers.left() == [name]


@asynchronous
async def test_removed_it_leaves_the_volume_and_names_it(controllers: Controllers) -> None:
    await controllers.deploy()
    assert await remove(controllers.place, "film") == ["data"]
    assert controllers.left() == []
    assert controllers.cluster.names("pods") == []
    with pytest.raises(NotFound, match="Nothing is served as film"):
        await remove(controllers.place, "film")


@pytest.mark.parametrize(("named", "begin"), [("", "kubectl"), ("lab", "kubectl --context lab")])
def test_lines_for_kubectl_lead_to_the_cluster_that_was_asked(
    controllers: Controllers,
    named: str,
    begin: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    controllers.api.connection = controllers.api.connection._replace(named=named)
    monkeypatch.setattr("pumasi.cli.serving.cluster", lambda pool: nullcontext(controllers.api))
    monkeypatch.setattr("pumasi.cli.serving.columns", lambda: 200)
    on = ("serve", "--on", f"k8s:{named}" if named else "k8s", "-n", NAMESPACE)
    name = ("--name", "film")
    forward = f"{begin} -n {NAMESPACE} port-forward service/film 8000:80"
    assert main([*on, *name, "--volume", "data", "--image", "image:1", "/volume/final.keras"]) == 0
    assert f"From here: {forward} and then" in capsys.readouterr().err
    assert main([*on, "--list"]) == 0
    assert forward in capsys.readouterr().out
    keep_secret(controllers)
    assert main([*on, *name, "--token"]) == 0
    assert f"film: {forward} and then" in capsys.readouterr().err
    assert main([*on, *name, "--remove"]) == 0
    assert f"The volume data stays: {begin} -n {NAMESPACE} delete pvc data" in capsys.readouterr().err


@asynchronous
async def test_a_server_that_no_revision_uses_any_more_is_forgotten(controllers: Controllers) -> None:
    await controllers.deploy()
    keep_secret(controllers)
    old = {"name": "film-package-old", "labels": objects.labels("film", "package")}
    controllers.cluster.create("configmaps", NAMESPACE, {"kind": "ConfigMap", "metadata": old})
    await controllers.deploy(WISH._replace(image="image:2"))
    assert len(controllers.cluster.names("configmaps")) == 1
    assert "film-package-old" not in controllers.cluster.names("configmaps")


@asynchronous
async def test_a_model_on_a_volume_that_is_not_there_is_told_and_no_volume_is_made() -> None:
    controllers = Controllers()
    controllers.cluster.delete(Key("persistentvolumeclaims", NAMESPACE, VOLUME.name), 0)
    with pytest.raises(UsageError, match="There is no volume claim data in the namespace team"):
        await controllers.deploy()
    assert controllers.cluster.names("persistentvolumeclaims") == []
