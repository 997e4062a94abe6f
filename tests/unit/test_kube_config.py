from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pumasi.errors import ClusterTrouble, UsageError
from pumasi.kube.config import connect


def write(file: Path, **content: Any) -> Path:
    file.write_text(json.dumps(content))
    return file


def entries(name: str, server: str = "https://one:6443/", **user: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
        "current-context": name,
    }


def test_the_current_context_is_taken_unless_another_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "first", **entries("one", token="t1"))
    second = write(tmp_path / "second", **entries("two", "https://two", token="t2"))
    environ = {"KUBECONFIG": f"{first}:{tmp_path / 'missing'}:{second}"}
    here = connect("", environ)
    assert (here.context, here.server, here.namespace, here.token) == ("one", "https://one:6443", "ns-one", "t1")
    assert connect("two", environ).server == "https://two"


def test_a_line_for_kubectl_names_the_context_only_where_the_user_has(tmp_path: Path) -> None:
    environ = {"KUBECONFIG": str(write(tmp_path / "config", **entries("one")))}
    assert connect("", environ).kubectl("team") == "kubectl -n team"
    assert connect("one", environ).kubectl("team") == "kubectl --context one -n team"


def test_of_two_entries_of_one_name_the_first_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "first", **entries("one"))
    second = write(tmp_path / "second", **entries("one", "https://other"))
    assert connect("", {"KUBECONFIG": f"{first}:{second}"}).server == "https://one:6443"


def test_without_a_variable_it_is_the_file_in_the_home(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", **entries("home"))
    assert connect("", {"HOME": str(tmp_path)}).context == "home"


def test_files_are_found_beside_the_kubeconfig_and_data_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("AUTHORITY")
    content = entries("one", **{"client-certificate-data": base64.b64encode(b"CERT").decode(), "tokenFile": "token"})
    content["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    here = connect("", {"KUBECONFIG": str(write(tmp_path / "config", **content))})
    assert (here.authority, here.certificate, here.token_file) == ("AUTHORITY", "CERT", tmp_path / "token")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"users": [{"name": "one", "user": {"auth-provider": {"name": "gcp"}}}]}, "auth-provider"),
        ({"clusters": []}, "names the cluster 'one', which is not in it"),
        (
            {"users": [{"name": "one", "user": {"client-certificate": "/no/such"}}]},
            "'client-certificate' .* can't be read",
        ),
        ({"users": [{"name": "one", "user": {"client-key-data": "%%%"}}]}, "'client-key' .* can't be read"),
    ],
)
def test_what_is_wrong_in_a_kubeconfig_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    file = write(tmp_path / "config", **{**entries("one"), **change})
    with pytest.raises(ClusterTrouble, match=sentence):
        connect("", {"KUBECONFIG": str(file)})


def test_an_unknown_context_is_told_with_those_that_are_known(tmp_path: Path) -> None:
    file = write(tmp_path / "config", **entries("one"))
    with pytest.raises(UsageError, match=r"has no context 'two'\.\nIt has: one"):
        connect("two", {"KUBECONFIG": str(file)})


@pytest.mark.parametrize("text", ["a: [", "just words"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ClusterTrouble, match=str(tmp_path / "config")):
        connect("", {"KUBECONFIG": str(tmp_path / "config")})


def test_no_kubeconfig_at_all_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ClusterTrouble, match=f"{tmp_path}/.kube/config does not exist"):
        connect("", {"HOME": str(tmp_path)})
