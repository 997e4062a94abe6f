"""pumasi setup: what a manager may do, and the objects that an administrator gets to see."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from pumasi.cli.main import main
from pumasi.kube.documents import to_yaml
from pumasi.pools.kubernetes.rights import CLUSTER_RIGHTS, RIGHTS, of_cluster, of_namespace, path_of
from tests.fake_cluster import FakeApi


@pytest.fixture(autouse=True)
def no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def test_every_right_stands_once_and_has_a_reason() -> None:
    for rights in (RIGHTS, CLUSTER_RIGHTS):
        assert len({right[:3] for right in rights}) == len(rights)
        assert all(right.why for right in rights)


def test_a_manager_can_neither_read_secrets_nor_change_rights_nor_enter_containers() -> None:
    assert [right.verb for right in RIGHTS if right.resource == "secrets"] == ["create"]
    assert {right.group for right in (*RIGHTS, *CLUSTER_RIGHTS)} == {"", "batch"}
    known = {"jobs", "configmaps", "secrets", "services", "persistentvolumeclaims", "pods", "pods/log", "events"}
    assert {right.resource for right in RIGHTS} == known
    seen = {str(right) for right in CLUSTER_RIGHTS} - {"get persistentvolumes"}
    assert seen == {f"{verb} {resource}" for verb in ("list", "watch") for resource in ("nodes", "pods", "jobs")}


def test_the_role_says_what_the_table_says() -> None:
    _, role, binding = of_namespace("team-a")
    said = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert said == {right[:3] for right in RIGHTS}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pumasi-manager", "namespace": "team-a"}]


def test_several_namespaces_share_the_cluster_role_and_have_a_binding_each() -> None:
    (role, binding), (same, other) = of_cluster("team-a"), of_cluster("team-b")
    assert role == same
    assert binding["metadata"]["name"] == "pumasi-manager-team-a"
    assert other["metadata"]["name"] == "pumasi-manager-team-b"


def test_paths_are_those_of_the_api() -> None:
    account, role, _ = of_namespace("team-a")
    _, binding = of_cluster("team-a")
    assert path_of(account) == "/api/v1/namespaces/team-a/serviceaccounts/pumasi-manager"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    assert path_of(role, collection=True) == f"{rbac}/namespaces/team-a/roles"
    assert path_of(binding) == f"{rbac}/clusterrolebindings/pumasi-manager-team-a"


def test_what_is_printed_needs_no_cluster_and_names_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "-n", "team-a", "--print"]) == 0
    text = capsys.readouterr().out
    assert list(yaml.safe_load_all(text)) == [*of_namespace("team-a"), *of_cluster("team-a")]
    assert all(right.why in text for right in (*RIGHTS, *CLUSTER_RIGHTS))


def test_what_reaches_beyond_the_namespace_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "-n", "team-a", "--print", "--no-cluster-role"]) == 0
    text = capsys.readouterr().out
    assert list(yaml.safe_load_all(text)) == of_namespace("team-a")
    assert "nodes" not in text


def test_json_is_one_object_that_kubectl_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "-n", "team-a", "--print", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["items"]) == ("List", [*of_namespace("team-a"), *of_cluster("team-a")])


def test_what_is_removed_is_told_apart_from_what_was_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi()
    monkeypatch.setattr("pumasi.pools.kubernetes.verbs.setup.cluster", lambda pool: api)
    assert main(["setup", "-n", "team-a", "--no-cluster-role"]) == 0
    capsys.readouterr()
    assert main(["setup", "-n", "team-a", "--remove"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "pumasi: ClusterRoleBinding pumasi-manager-team-a was not there.",
        "pumasi: ClusterRole pumasi-manager was not there.",
        "pumasi: RoleBinding pumasi-manager is removed.",
        "pumasi: Role pumasi-manager is removed.",
        "pumasi: ServiceAccount pumasi-manager is removed.",
    ]


def test_a_binding_goes_with_its_namespace_and_those_that_could_not_are_swept_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi()
    monkeypatch.setattr("pumasi.pools.kubernetes.verbs.setup.cluster", lambda pool: api)
    api.cluster.create("namespaces", "", {"metadata": {"name": "team-a"}})
    for name in ("gone", "team-a"):
        api.cluster.create("clusterrolebindings", "", of_cluster(name)[1])
    assert main(["setup", "-n", "team-a"]) == 0
    assert "pumasi: ClusterRoleBinding pumasi-manager-gone is removed." in capsys.readouterr().err.splitlines()
    assert api.cluster.names("clusterrolebindings") == ["pumasi-manager-team-a"]
    asyncio.run(api.delete("/api/v1/namespaces/team-a"))
    assert api.cluster.names("clusterrolebindings") == []


def test_a_namespace_that_is_made_meanwhile_keeps_its_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    monkeypatch.setattr("pumasi.pools.kubernetes.verbs.setup.cluster", lambda pool: api)
    api.cluster.create("namespaces", "", {"metadata": {"name": "team-a"}})
    lists: list[str] = []

    def make_another(verb: str, path: str) -> None:
        lists.extend([path] if verb == "list" else [])
        if verb == "list" and len(lists) == 2:
            api.cluster.create("namespaces", "", {"metadata": {"name": "new"}})
            api.cluster.create("clusterrolebindings", "", of_cluster("new")[1])

    api.before = make_another
    assert main(["setup", "-n", "team-a"]) == 0
    assert "pumasi-manager-new" in api.cluster.names("clusterrolebindings")


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--print", "--remove"], 2, "do not go together"),
        (["-n", "Team_A"], 2, "can't name a namespace"),
        (["--on", "local"], 2, "no cluster"),
        (["--print"], 7, "There is no kubeconfig"),
        ([], 7, "There is no kubeconfig"),
        (["more"], 2, "takes no arguments"),
    ],
)
def test_what_makes_no_sense_is_told(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["setup", *words]) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["1e5", "12e-3", "1.5E+3", "0o17", "y", "N", "no", "017", "1:30", "null", "~"])
def test_text_that_kubectl_would_take_for_something_else_stands_in_quotes(text: str) -> None:
    assert to_yaml([{"value": text}]) == f"value: '{text}'\n"


@pytest.mark.parametrize("text", ["node", "yes-man", "e5", "v1", "1e5x"])
def test_plain_text_stands_without(text: str) -> None:
    assert to_yaml([{"value": text}]) == f"value: {text}\n"


def test_documents_have_their_remarks_before_them_and_no_aliases() -> None:
    same = {"a": 1}
    assert to_yaml([{"a": same, "b": same}, {"z": 1}], ["first", ""]) == (
        "# first\n#\n---\na:\n  a: 1\nb:\n  a: 1\n---\nz: 1\n"
    )
