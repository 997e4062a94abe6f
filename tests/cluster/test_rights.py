"""A manager in the cluster does its duties with the rights that `pumasi setup` gives, and none is superfluous."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pumasi.errors import Forbidden
from pumasi.kube.api import Api
from pumasi.kube.config import connect
from pumasi.pools.kubernetes.kept_output import MOST, Archive
from pumasi.pools.kubernetes.manifests import Owner
from pumasi.pools.kubernetes.rights import CLUSTER_RIGHTS, NAME, RIGHTS, Right, of_cluster, of_namespace
from tests.cluster import breaking
from tests.cluster.subject import Kubernetes, Namespace
from tests.harness import Workplace, wait_for

HELLO = "print('hello')"
ENDLESS = "import time; print('begun', flush=True); time.sleep(600)"
FLAKY = "import os, sys; print('attempt', os.environ['PUMASI_ATTEMPT']); sys.exit(os.environ['PUMASI_ATTEMPT'] == '0')"
TWO_PODS = ("--slots", "2", "--max-per-node", "1", "--cpus", "0.1", "--grace", "2s")

BY_FORCE = ("pods", "delete")
TO_STOP = ("pods", "deletecollection")
TO_KEEP = (("configmaps", "create"), ("configmaps", "delete"))
TO_EXPLAIN = ("events", "list")
TO_MOUNT = ("persistentvolumeclaims", "get")
"""Rights that a run needs only when it does not just run to its end."""
EVERYWHERE = [right[:3] for right in CLUSTER_RIGHTS]
TO_SEE = [right for right in CLUSTER_RIGHTS if right.verb == "list" and right.resource in ("nodes", "pods")]
ALWAYS = [right for right in RIGHTS if right[1:3] not in (BY_FORCE, TO_STOP, TO_EXPLAIN, TO_MOUNT, *TO_KEEP)]


def right(resource: str, verb: str) -> Right:
    return next(each for each in RIGHTS if each[1:3] == (resource, verb))


@dataclass
class Place:
    """A namespace that was set up, with somebody who starts runs in it."""

    namespace: Namespace
    kubernetes: Kubernetes
    workplace: Workplace

    def pumasi(self, *words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.workplace.run(*words, env={"KUBECONFIG": str(kubeconfig or self.kubernetes.kubeconfig)})

    def start(self, script: str, *options: str) -> str:
        self.workplace.script(script)
        words = ("run", "-d", "-q", "--on", "k8s", "-n", self.namespace.name, *TWO_PODS, *options, "train.py")
        told = self.pumasi(*words)
        assert told.returncode == 0, told.stderr
        return told.stdout.strip()

    def managers_words(self, run: str) -> str:
        """Of all its pods: a manager that fails is started again. One that is about to start has no words yet."""
        pods = self.namespace.get("pods", "-l", f"pumasi.dev/run={run},pumasi.dev/kind=manager")["items"]
        words = []
        for pod in pods:
            with suppress(AssertionError):
                words.append(self.namespace.kubectl("logs", pod["metadata"]["name"]))
        return "".join(words)

    def expect_words(self, run: str, words: str) -> None:
        wait_for(lambda: words in self.managers_words(run), f"the manager of {run} to say: {words}", 90)

    def remove(self, run: str) -> None:
        self.namespace.kubectl("delete", "job", run, "--wait=false")

    @contextmanager
    def without(self, missing: Right) -> Iterator[None]:
        """Takes the right away, and gives it back. Who may do it everywhere may do it here: that goes too."""
        _, role, _ = of_namespace(self.namespace.name, [each for each in RIGHTS if each != missing])
        _, whole, _ = of_namespace(self.namespace.name)
        _, binding = of_cluster(self.namespace.name)
        try:
            self.replace(role)
            self.replace({**binding, "subjects": []} if missing[:3] in EVERYWHERE else binding)
            self.await_right(missing, "no")
            yield
        finally:
            self.replace(whole)
            self.replace(binding)
            self.await_right(missing, "yes")

    def replace(self, thing: dict[str, Any]) -> None:
        self.kubernetes.kubectl("replace", "-f", "-", feed=json.dumps(thing))

    def await_right(self, right: Right, answer: str) -> None:
        wait_for(lambda: self.may(right) == answer, f"the answer {answer} to whether a manager may {right}")

    def may(self, right: Right) -> str:
        """kubectl's answer ends with 1 where it is no."""
        account = f"--as=system:serviceaccount:{self.namespace.name}:{NAME}"
        resource, _, part = right.resource.partition("/")
        whole = f"{resource}.{right.group}" if right.group else resource
        asked = ("auth", "can-i", right.verb, whole, account, *([f"--subresource={part}"] if part else []))
        try:
            return self.namespace.kubectl(*asked).strip()
        except AssertionError:
            return "no"

    def kubeconfig_of(self, account: str) -> Path:
        token = self.namespace.kubectl("create", "token", account).strip()
        config = json.loads(self.kubernetes.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        config["contexts"][0]["context"]["namespace"] = self.namespace.name
        file = self.workplace.folder.parent / f"{account}.kubeconfig"
        file.write_text(json.dumps(config))
        return file


@pytest.fixture(scope="module")
def prepared(kubernetes: Kubernetes) -> Iterator[Namespace]:
    """One for all: to empty a namespace takes its time."""
    namespace = Namespace(f"test-{secrets.token_hex(4)}", kubernetes)
    objects = [*of_namespace(namespace.name), *of_cluster(namespace.name)]
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    try:
        namespace.open()
        kubernetes.kubectl("apply", "-f", "-", feed=everything)
        yield namespace
    finally:
        kubernetes.kubectl("delete", "--ignore-not-found", "-f", "-", feed=everything)
        namespace.close()


@pytest.fixture
def place(prepared: Namespace, kubernetes: Kubernetes, workplace: Workplace) -> Place:
    return Place(prepared, kubernetes, workplace)


# ---- enough


def test_a_manager_restarts_stops_and_finishes_runs_with_these_rights(place: Place) -> None:
    flaky, endless = place.start(FLAKY, "--restarts", "1"), place.start(ENDLESS, "--name", "endless")
    assert place.pumasi("wait", flaky).returncode == 0
    assert "attempt 1" in place.pumasi("logs", flaky).stdout
    place.expect_words(endless, " running ")
    assert place.pumasi("stop", endless).returncode == 0
    assert place.pumasi("wait", endless).returncode == 5
    for run in (flaky, endless):
        assert "cannot" not in place.managers_words(run)
        assert place.pumasi("delete", run).returncode == 0


def archive(place: Place, kubeconfig: Path, chunks: int) -> None:
    """Output that is longer than what is kept."""

    async def fill() -> None:
        async with Api(connect("", {"KUBECONFIG": str(kubeconfig)})) as api:
            thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"long-{secrets.token_hex(4)}"}}
            path = f"/api/v1/namespaces/{place.namespace.name}/configmaps"
            made = (await api.create(path, thing))["metadata"]
            output = Archive(api, place.namespace.name, made["name"], Owner("ConfigMap", made["name"], made["uid"]))
            await output.open()
            for number in range(chunks):
                output.add(0, b"0.%d 1763240000123|x\n" % number)
                await output.flush()

    asyncio.run(fill())


def test_a_manager_keeps_the_end_of_a_long_output(place: Place) -> None:
    archive(place, place.kubeconfig_of(NAME), MOST + 1)


# ---- and not more than enough


def test_every_right_is_put_to_the_test_here() -> None:
    others = (BY_FORCE, TO_STOP, TO_EXPLAIN, TO_MOUNT, *TO_KEEP)
    assert {*ALWAYS, *(right(*each) for each in others)} == set(RIGHTS)


@pytest.mark.parametrize("missing", ALWAYS, ids=str)
def test_without_it_no_run_comes_to_its_end(place: Place, missing: Right) -> None:
    with place.without(missing):
        run = place.start(HELLO)
        place.expect_words(run, f'cannot {missing.verb} resource "{missing.resource}"')
        place.remove(run)


def test_without_the_right_to_delete_many_a_stop_is_told_to_fail(place: Place) -> None:
    with place.without(right(*TO_STOP)):
        run = place.start(ENDLESS)
        place.expect_words(run, " running ")
        stopping = place.workplace.start("stop", run, env={"KUBECONFIG": str(place.kubernetes.kubeconfig)})
        place.expect_words(run, 'cannot deletecollection resource "pods"')
        place.remove(run)
        stopping.communicate(timeout=60)


STUCK = (
    *("--set", 'spec.volumes[+]={"name": "no", "configMap": {"name": "nothing"}}'),
    *("--set", 'spec.containers[0].volumeMounts[+]={"name": "no", "mountPath": "/no"}'),
    *("--start-timeout", "20s"),
)


def reason_for_being_late(place: Place) -> str:
    run = place.start(HELLO, *STUCK)
    reason = str(json.loads(place.pumasi("wait", run, "--json").stdout)["reason"])
    place.remove(run)
    return reason


def test_without_the_right_to_read_events_nobody_knows_why_a_pod_is_late(place: Place) -> None:
    assert 'configmap "nothing" not found' in reason_for_being_late(place)
    with place.without(right(*TO_EXPLAIN)):
        reason = reason_for_being_late(place)
    assert "did not start" in reason
    assert 'configmap "nothing" not found' not in reason


@pytest.mark.parametrize("missing", [right(*each) for each in TO_KEEP], ids=str)
def test_without_it_output_is_not_kept(place: Place, missing: Right) -> None:
    kubeconfig = place.kubeconfig_of(NAME)
    with place.without(missing), pytest.raises(Forbidden, match=f"cannot {missing.verb}"):
        archive(place, kubeconfig, MOST + 1)


@pytest.mark.own
def test_without_the_right_to_delete_one_a_dead_node_keeps_its_pod(place: Place) -> None:
    with place.without(right(*BY_FORCE)):
        run = place.start(ENDLESS, "--slots", "3", "--silence", "5s")
        place.expect_words(run, " running ")
        pods = place.namespace.get("pods", "-l", f"pumasi.dev/run={run},pumasi.dev/kind=manager")["items"]
        others = sorted(set(place.kubernetes.open_nodes()) - {pod["spec"]["nodeName"] for pod in pods})
        with breaking.frozen(place.kubernetes, others[0], "kubelet"):
            stopping = place.workplace.start("stop", run, env={"KUBECONFIG": str(place.kubernetes.kubeconfig)})
            place.expect_words(run, 'cannot delete resource "pods"')
            place.remove(run)
            stopping.communicate(timeout=60)


@contextmanager
def local_volume(place: Place, name: str, node: str) -> Iterator[None]:
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    modes, size = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}, {"storage": "10Mi"}
    whose = {"claimRef": {"namespace": place.namespace.name, "name": name}}
    terms = {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}
    volume = {**modes, **whose, **terms, "capacity": size, "hostPath": {"path": "/tmp"}}
    claim = {**modes, "resources": {"requests": size}, "volumeName": f"{name}-{place.namespace.name}"}
    place.namespace.create(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim["volumeName"]}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    )
    try:
        yield
    finally:
        place.namespace.kubectl("delete", "pvc", name, "--wait=false")
        place.namespace.kubectl("delete", "pods", "-l", "pumasi.dev/kind=rank", "--grace-period=1")
        place.kubernetes.kubectl("delete", "pv", str(claim["volumeName"]))


def test_without_the_right_to_look_at_a_volume_no_run_that_has_one_comes_to_its_end(place: Place) -> None:
    with place.without(right(*TO_MOUNT)):
        run = place.start(HELLO, "--slots", "1", "--volume", "files:10Mi")
        place.expect_words(run, 'cannot get resource "persistentvolumeclaims"')
        place.remove(run)
    run = place.start(HELLO, "--slots", "1", "--volume", "files:10Mi")
    assert place.pumasi("wait", run).returncode == 0


@pytest.mark.own
def test_without_the_right_to_read_volumes_a_run_does_not_know_which_node_has_its(place: Place) -> None:
    """A volume that is a folder of one node, as many small clusters make them."""
    role, _ = of_cluster(place.namespace.name)
    rules = [rule for rule in role["rules"] if rule["resources"] != ["persistentvolumes"]]
    home = place.kubernetes.open_nodes()[-1]
    options = ("--slots", "1", "--volume", "local")
    with local_volume(place, "local", home):
        try:
            place.replace({**role, "rules": rules})
            run = place.start(HELLO, *options)
            place.expect_words(run, "PersistentVolume's node affinity")
            place.remove(run)
        finally:
            place.replace(role)
        run = place.start(HELLO, *options)
        assert place.pumasi("wait", run).returncode == 0
        (pod,) = place.namespace.get("pods", "-l", f"pumasi.dev/run={run},pumasi.dev/kind=rank")["items"]
        assert pod["spec"]["nodeName"] == home


@pytest.mark.own
@pytest.mark.parametrize("missing", TO_SEE, ids=str)
def test_who_may_not_see_the_cluster_runs_blindly_and_says_so(place: Place, missing: Right) -> None:
    role, _ = of_cluster(place.namespace.name)
    rules = [rule for rule in role["rules"] if rule["resources"] != [missing.resource]]
    try:
        place.replace({**role, "rules": rules})
        run = place.start(HELLO)
        place.expect_words(run, "one a pod")
        assert place.pumasi("wait", run).returncode == 0
    finally:
        place.replace(role)


# ---- pumasi setup


def results(told: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert told.returncode == 0, told.stderr
    return {each["kind"]: each["result"] for each in json.loads(told.stdout)}


def grant(place: Place, account: str, role: str) -> Path:
    place.namespace.kubectl("create", "serviceaccount", account)
    whom = f"--serviceaccount={place.namespace.name}:{account}"
    place.namespace.kubectl("create", "rolebinding", account, f"--clusterrole={role}", whom)
    return place.kubeconfig_of(account)


def rules_there(place: Place) -> Sequence[Any]:
    rules: Sequence[Any] = place.namespace.get("role", NAME)["rules"]
    return rules


@pytest.mark.own
def test_setup_makes_mends_shares_and_removes(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    place = Place(namespace, kubernetes, workplace)
    setup = ("setup", "--json", "-n", namespace.name)
    first = results(place.pumasi(*setup))
    assert {first[kind] for kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRoleBinding")} == {"made"}
    expected = of_namespace(namespace.name)[1]["rules"]
    place.replace(of_namespace(namespace.name, RIGHTS[:1])[1])
    assert set(results(place.pumasi(*setup)).values()) == {"updated"}
    assert rules_there(place) == expected
    assert results(place.pumasi("setup", "--json", "-n", "default"))["ClusterRoleBinding"] == "made"
    assert results(place.pumasi(*setup, "--remove"))["ClusterRole"] == "kept"
    assert "removed" in results(place.pumasi("setup", "--json", "-n", "default", "--remove")).values()
    assert NAME not in namespace.kubectl("get", "serviceaccounts,roles,rolebindings", "-o", "name")


@pytest.mark.own
def test_nothing_of_setup_outlives_its_namespace(kubernetes: Kubernetes, workplace: Workplace) -> None:
    name = f"brief-{secrets.token_hex(4)}"
    kubernetes.kubectl("create", "namespace", name)
    setup = ("setup", "-n", name)
    try:
        assert workplace.run(*setup, env={"KUBECONFIG": str(kubernetes.kubeconfig)}).returncode == 0
        assert f"{NAME}-{name}" in kubernetes.kubectl("get", "clusterrolebindings", "-o", "name")
    finally:
        kubernetes.kubectl("delete", "namespace", name)
    wait_for(lambda: name not in kubernetes.kubectl("get", "clusterrolebindings", "-o", "name"), "its binding to go")
    workplace.run("setup", "-n", "default", "--remove", env={"KUBECONFIG": str(kubernetes.kubeconfig)})


def test_an_administrator_of_the_namespace_makes_what_is_in_it_and_is_told_the_rest(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    place = Place(namespace, kubernetes, workplace)
    kubeconfig = grant(place, "local-admin", "admin")
    told = place.pumasi("setup", kubeconfig=kubeconfig)
    assert told.returncode == 0
    assert "one a pod" in told.stderr
    assert f"pumasi setup -n {namespace.name} --print | kubectl apply -f -" in told.stderr
    assert rules_there(place) == of_namespace(namespace.name)[1]["rules"]
    told = place.pumasi("setup", "--remove", kubeconfig=kubeconfig)
    assert told.returncode == 0
    assert f"kubectl delete clusterrolebinding/{NAME}-{namespace.name}" in told.stderr


def test_who_may_not_give_rights_is_told_who_can(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    place = Place(namespace, kubernetes, workplace)
    told = place.pumasi("setup", kubeconfig=grant(place, "editor", "edit"))
    assert told.returncode == 7
    assert "pumasi setup" in told.stderr
    assert "--print | kubectl apply -f -" in told.stderr


def test_what_is_printed_is_taken_by_kubectl_and_is_what_would_be_made(
    namespace: Namespace, kubernetes: Kubernetes, workplace: Workplace
) -> None:
    place = Place(namespace, kubernetes, workplace)
    printed = place.pumasi("setup", "-n", namespace.name, "--print", "--no-cluster-role")
    namespace.kubectl("apply", "-f", "-", feed=printed.stdout)
    assert set(results(place.pumasi("setup", "-n", namespace.name, "--no-cluster-role", "--json")).values()) == {
        "updated"
    }
