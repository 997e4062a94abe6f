"""What --set does to a pod, and what it says when it can't."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.errors import SpecError
from pumasi.pools.kubernetes.patching import apply, parse_patch

POD: dict[str, Any] = {
    "metadata": {"name": "train", "labels": {"team": "vision"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "a"}, {"name": "side", "image": "b"}],
        "tolerations": [{"operator": "Exists"}],
    },
}


def patched(*texts: str) -> dict[str, Any]:
    return apply([parse_patch(text) for text in texts], POD)


def complaint(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        patched(text)
    return "; ".join(part for part in (caught.value.message, caught.value.hint) if part)


def test_a_field_is_set_whether_it_was_there_or_not() -> None:
    made = patched("spec.restartPolicy=Always", "spec.dnsPolicy=None", "spec.securityContext.runAsUser=0")
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["dnsPolicy"] == "None"
    assert made["spec"]["securityContext"] == {"runAsUser": 0}


def test_what_is_changed_is_a_copy() -> None:
    before = copy.deepcopy(POD)
    assert patched("spec.containers[0].image=c", "spec.tolerations[+]={}", "metadata.name=null") != POD
    assert before == POD


def test_two_pods_do_not_share_what_was_set() -> None:
    patch = parse_patch('spec.volumes=[{"name": "x"}]')
    first, second = apply([patch], POD), apply([patch], POD)
    first["spec"]["volumes"][0]["name"] = "y"
    assert second["spec"]["volumes"] == [{"name": "x"}]


def test_an_item_of_a_list_is_picked_by_its_place_or_by_its_name() -> None:
    made = patched("spec.containers[1].image=c", "spec.containers[name=main].securityContext.privileged=true")
    assert made["spec"]["containers"] == [
        {"name": "main", "image": "a", "securityContext": {"privileged": True}},
        {"name": "side", "image": "c"},
    ]


def test_an_item_is_appended_and_later_changes_see_it() -> None:
    made = patched("spec.volumes[+].name=scratch", "spec.volumes[name=scratch].emptyDir={}", "spec.tolerations[+]={}")
    assert made["spec"]["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert made["spec"]["tolerations"] == [{"operator": "Exists"}, {}]


@pytest.mark.parametrize(
    "path", ['annotations["a.b/c"]', "annotations['a.b/c']", 'annotations."a.b/c"', "annotations[a.b/c]"]
)
def test_a_name_with_dots_stands_in_quotes_or_brackets(path: str) -> None:
    assert patched(f"metadata.{path}=x")["metadata"]["annotations"] == {"a.b/c": "x"}


def test_a_name_in_quotes_may_hold_anything() -> None:
    assert patched(r'spec["a\"=]b"]=1')["spec"]['a"=]b'] == 1


def test_null_removes() -> None:
    made = patched("spec.restartPolicy=null", "spec.containers[0]=null", "metadata.labels.team=null")
    assert made["metadata"]["labels"] == {}
    assert made["spec"] == {"containers": [{"name": "side", "image": "b"}], "tolerations": [{"operator": "Exists"}]}


def test_to_remove_what_is_not_there_changes_nothing() -> None:
    assert patched("spec.a.b=null", "spec.containers[9]=null", "spec.containers[name=x].image=null") == POD


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("1", 1),
        ("-1.5", -1.5),
        ("1e3", 1000.0),
        ("007", "007"),
        ("True", "True"),
        ("None", "None"),
        ("yes", "yes"),
        ("8Gi", "8Gi"),
        ("", ""),
        ("a=b c", "a=b c"),
        ('"1"', "1"),
        ('"null"', "null"),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("[]", []),
        ("9" * 500, "9" * 500),
    ],
)
def test_a_value_is_what_it_looks_like(text: str, value: object) -> None:
    assert patched(f"spec.x={text}")["spec"]["x"] == value


@pytest.mark.parametrize(
    "path",
    ["metadata.labels.x", "metadata.annotations.x", "spec.nodeSelector.x", "spec.containers[0].env[+].value"],
)
def test_where_kubernetes_takes_text_only_a_number_is_text(path: str) -> None:
    assert parse_patch(f"{path}=1").value == "1"
    assert parse_patch(f"{path}=true").value == "true"
    assert parse_patch(f'{path}=[{{"a": 1}}]').value == '[{"a": 1}]'
    assert parse_patch(f'{path}="1"').value == "1"
    assert parse_patch(f"{path}=null").value is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("spec.dnsPolicy", '"spec.dnsPolicy" has no "=" after its path; give PATH=VALUE'),
        ("", '"" has no path; give PATH=VALUE'),
        ("=1", '"=1" has no path; give PATH=VALUE'),
        ("dnsPolicy=None", '"dnsPolicy=None" names no field of a pod; start the path with spec or metadata, and go on'),
        ("spec=1", '"spec=1" names no field of a pod; start the path with spec or metadata, and go on'),
        ("spec.x={a: 1}", '"{a: 1}" is not JSON; close what is open, and put names and texts in "double quotes"'),
        ("spec.x[+]=null", '"spec.x[+]=null" would remove what is not there yet; say which item: [0] or [name=main]'),
        (
            "spec.containers.image=x",
            "--set spec.containers.image=x: spec.containers is a list; say which item: [0], [name=main] or [+]",
        ),
        ("spec.restartPolicy.x=1", "--set spec.restartPolicy.x=1: spec.restartPolicy is no group of names"),
        ("metadata[0]=1", "--set metadata[0]=1: metadata is no list, so [0] leads nowhere"),
        (
            "spec.containers[2].image=x",
            "--set spec.containers[2].image=x: spec.containers has 2 items, but no [2]; [+] appends one.",
        ),
        (
            "spec.tolerations[key=a].value=x",
            "--set spec.tolerations[key=a].value=x: spec.tolerations has 1 item, but no [key=a]; [+] appends one.",
        ),
        (
            "spec.volumes[0].name=x",
            "--set spec.volumes[0].name=x: spec.volumes has 0 items, but no [0]; [+] appends one.",
        ),
    ],
)
def test_every_mistake_is_a_sentence(text: str, sentence: str) -> None:
    assert complaint(text) == sentence


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("spec..x=1", 'at ".x=1"'),
        ("spec.x.=1", 'at "=1"'),
        ("spec.x[=1", 'at "[=1"'),
        ("spec.x[]=1", 'at "[]=1"'),
        ('spec.x["a=1', 'at "["a=1"'),
        ("spec.x[0]y=1", 'at "y=1"'),
        ("spec.x]=1", 'at "]=1"'),
        ("spec.[0]=1", 'at "[0]=1"'),
        ("spec x=1", 'at " x=1"'),
        (".spec=1", 'at ".spec=1"'),
        ("spec.", "at its end"),
    ],
)
def test_a_path_that_can_not_be_read_is_told_with_the_place(text: str, where: str) -> None:
    assert f"can't be read {where}; give names with dots between them" in complaint(text)


@given(st.lists(st.sampled_from(["spec", ".", "[", "]", "0", "+", "=", '"', "name", "containers", "null", "{"])))
def test_whatever_is_asked_for_ends_in_a_pod_or_in_a_sentence(parts: list[str]) -> None:
    with contextlib.suppress(SpecError):
        assert patched("spec." + "".join(parts))["metadata"] == POD["metadata"]
