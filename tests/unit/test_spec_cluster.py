"""What a user may ask of a cluster, on the command line, in files and in variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pumasi.catalogue import catalogue_for, json_schema, parse_spec
from pumasi.core.options import declared
from pumasi.core.spec import Spec
from pumasi.errors import SpecError
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.runs.config import build_spec

RUN: Mapping[str, object] = {"command": ["train.py"]}
K8S: Mapping[str, object] = {**RUN, "on": "k8s"}
OPTIONS = catalogue_for({}).options
OF_CLUSTERS = [*declared(KubernetesOptions)]
GROUPS = [name for name, option in OPTIONS.items() if option.is_group]
PLACES = {name: option.flag for name, option in OPTIONS.items()}


def spec_of(**fields: object) -> Spec:
    return parse_spec({**K8S, **fields})


def complaint(**fields: object) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec({**K8S, **fields}, PLACES)
    return caught.value.message


def build(folder: Path, text: str = "", flags: Mapping[str, object] = K8S, **environ: str) -> Spec:
    (folder / "pumasi.yaml").write_text(text)
    return build_spec(flags, folder, environ)


def complaint_about(folder: Path, text: str = "", flags: Mapping[str, object] = K8S, **environ: str) -> str:
    with pytest.raises(SpecError) as caught:
        build(folder, text, flags, **environ)
    return caught.value.message


@pytest.mark.parametrize(
    ("on", "pool", "context"),
    [
        ("local", "local", ""),
        ("k8s", "k8s", ""),
        ("k8s:lab", "k8s", "lab"),
        ("k8s:arn:aws:eks:eu:1:cluster/a", "k8s", "arn:aws:eks:eu:1:cluster/a"),
    ],
)
def test_a_pool_is_this_machine_or_a_cluster_of_the_kubeconfig(on: str, pool: str, context: str) -> None:
    spec = parse_spec({**RUN, "on": on})
    assert (spec.pool, spec.context) == (pool, context)


@pytest.mark.parametrize(
    ("on", "meant"), [("kubernetes", "k8s"), ("Kube", "k8s"), ("k8", "k8s"), ("K8S", "k8s"), ("lokal", "local")]
)
def test_a_pool_that_is_nearly_right_is_recognised(on: str, meant: str) -> None:
    told = f'--on: "{on}" is not known; did you mean {meant}? It can be local, k8s or k8s:CONTEXT'
    assert complaint(on=on) == told


@pytest.mark.parametrize("on", ["moon", "", "k8s:", "local:x", ":"])
def test_a_pool_like_no_other_gets_the_list(on: str) -> None:
    assert complaint(on=on).endswith("local, k8s or k8s:CONTEXT")


def test_a_cluster_needs_nothing_but_its_name() -> None:
    spec = spec_of()
    asked = spec[KubernetesOptions]
    assert (asked.namespace, asked.image, asked.gpu_resource) == (None, "python:3.12-slim", "nvidia.com/gpu")
    assert (asked.cpus, asked.memory, asked.max_per_node, asked.priority_class) == (None, None, None, None)
    assert (asked.node_selector, asked.labels, asked.annotations) == ({}, {}, {})
    lists = [name for name in OF_CLUSTERS if OPTIONS[name].kind.several == "items"]
    assert all(spec.value(name) == () for name in lists)
    assert (asked.as_image_user, asked.keep) == (False, 7 * 86400.0)


def test_amounts_are_numbers_once_they_are_read() -> None:
    spec = spec_of(cpus="500m", memory="8Gi", max_per_node="4", keep="2h")
    asked = spec[KubernetesOptions]
    assert (asked.cpus, asked.memory, asked.max_per_node, asked.keep) == (0.5, 8 * 2**30, 4, 7200.0)


def test_none_takes_back_what_a_file_has_set(tmp_path: Path) -> None:
    file = "cpus: 2\nmemory: 8Gi\nmax-per-node: 4\n"
    spec = build(tmp_path, file, {**K8S, "cpus": "none", "memory": "none", "max-per-node": "none"})
    asked = spec[KubernetesOptions]
    assert (asked.cpus, asked.memory, asked.max_per_node) == (None, None, None)


def test_a_spec_for_a_cluster_survives_being_stored_as_json() -> None:
    spec = spec_of(**{field: OPTIONS[field].example for field in OF_CLUSTERS})
    assert parse_spec(json.loads(json.dumps(spec.dump()))) == spec


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"namespace": "Team A"},
            '--namespace: "Team A" can\'t name a namespace; give at most 63 lower-case letters, digits and dashes, '
            "as in --namespace team-a",
        ),
        (
            {"image": "Team/Train"},
            '--image: "Team/Train" can\'t name an image; give [registry/]name[:tag], the name in lower case, '
            "as in --image ghcr.io/team/train:1.4",
        ),
        (
            {"cpus": "many"},
            '--cpus: "many" is no number of CPUs; give CPUs or thousandths of one, as in --cpus 2',
        ),
        (
            {"memory": 8},
            "--memory: 8 is no amount of memory that a slot can live with; give from 1Mi to 1Pi, as in --memory 8Gi",
        ),
        (
            {"gpu_resource": "gpu"},
            '--gpu-resource: "gpu" has no domain; give what the cluster calls a GPU, as in --gpu-resource amd.com/gpu',
        ),
        ({"max_per_node": 0}, "--max-per-node: 0 is too small; give 1 or more, as in --max-per-node 4"),
        (
            {"tolerations": ["a:Never"]},
            '--toleration: "a:Never" has an effect that Kubernetes does not know; '
            "give NoSchedule, PreferNoSchedule or NoExecute, as in --toleration gpu=only:NoSchedule",
        ),
        (
            {"env_from_secret": "A=b"},
            '--env-from-secret: "A=b" names no variable of a Secret; '
            "give SECRET for all its keys, or NAME=SECRET/KEY for one, as in --env-from-secret TOKEN=hub/token",
        ),
        (
            {"mounts": ["a:/x", "b:/x/"]},
            '--mount: "/x" is given twice; keep one, as in --mount data:/data',
        ),
        (
            {"priority_class": "Very High"},
            '--priority-class: "Very High" can\'t name an object of a cluster; '
            "give lower-case letters, digits, dashes and dots, as in --priority-class high",
        ),
        (
            {"labels": {"pumasi.dev/run": "x"}},
            '--label: "pumasi.dev/run" is in the domain that Pumasi keeps for itself; '
            "give a key of another domain, as in --label team=vision",
        ),
        (
            {"annotations": {"a b": "x"}},
            '--annotation: "a b" is no key that Kubernetes takes; give NAME or domain.example/NAME, '
            "of at most 63 letters, digits, dashes, dots and underscores, as in --annotation example.com/owner=kim",
        ),
        (
            {"node_selector": {"disk": "very fast"}},
            '--node-selector: "very fast" is no value that a label can have; '
            "give at most 63 letters, digits, dashes, dots and underscores, as in --node-selector disk=ssd",
        ),
        (
            {"patches": ["dnsPolicy=None"]},
            '--set: "dnsPolicy=None" names no field of a pod; start the path with spec or metadata, and go on, '
            "as in --set spec.dnsPolicy=Default",
        ),
        (
            {"topology": "rack,rack"},
            '--topology: "rack" is given twice; keep one, as in --topology topology.kubernetes.io/zone',
        ),
        ({"keep": "long"}, '--keep: "long" is not a length of time; give seconds, or a text such as 90s, 15m, 2h30m'),
        ({"mounts": {"a": "/b"}}, "--mount: a group of names and values is not a list; give a list"),
        (
            {"nodes": "5,1"},
            "--nodes: it pretends nodes on this machine, but --on is k8s; leave one of the two out",
        ),
    ],
)
def test_what_no_cluster_can_give_is_explained(fields: dict[str, object], sentence: str) -> None:
    assert complaint(**fields).startswith(sentence)


def test_an_annotation_may_say_anything() -> None:
    assert spec_of(annotations={"note": "in words: ä, 1 / 2"})[KubernetesOptions].annotations == {
        "note": "in words: ä, 1 / 2"
    }


@pytest.mark.parametrize(
    "topology", ["rack,example.com/zone", ["rack", "example.com/zone"], ["rack, example.com/zone"]]
)
def test_topology_may_be_repeated_or_separated_by_commas(topology: object) -> None:
    assert spec_of(topology=topology)[KubernetesOptions].topology == ("rack", "example.com/zone")


def test_a_file_may_hold_all_of_it(tmp_path: Path) -> None:
    spec = build(
        tmp_path,
        """
on: k8s:lab
namespace: team-a
image: ghcr.io/team/train:1.4
cpus: 0.5
memory: 500M
gpu-resource: amd.com/gpu
max-per-node: 4
node-selector: {disk: ssd}
tolerations: [all]
env-from-secret: hub
mounts: [data:/data, "cache:/cache:ro"]
priority-class: high
labels: [team=vision]
annotations: {example.com/owner: 007}
set:
  - spec.dnsPolicy=None
  - metadata.annotations["a.b/c"]=x
topology: [rack, zone]
as-image-user: yes
keep: 1d
""",
        RUN,
    )
    asked = spec[KubernetesOptions]
    assert (spec.pool, spec.context, asked.namespace, asked.image) == ("k8s", "lab", "team-a", "ghcr.io/team/train:1.4")
    assert (asked.cpus, asked.memory, asked.gpu_resource, asked.max_per_node) == (0.5, 500_000_000, "amd.com/gpu", 4)
    assert (asked.node_selector, asked.tolerations, asked.env_from_secret) == ({"disk": "ssd"}, ("all",), ("hub",))
    assert (asked.mounts, asked.priority_class) == (("data:/data", "cache:/cache:ro"), "high")
    assert (asked.labels, asked.annotations) == ({"team": "vision"}, {"example.com/owner": "007"})
    assert asked.patches == ("spec.dnsPolicy=None", 'metadata.annotations["a.b/c"]=x')
    assert (asked.topology, asked.as_image_user, asked.keep) == (("rack", "zone"), True, 86400.0)


@pytest.mark.parametrize("field", GROUPS)
def test_names_of_all_layers_come_together_and_flags_win(tmp_path: Path, field: str) -> None:
    file = f"{field}: {{a: file, b: file}}\n"
    spec = build(tmp_path, file, {**K8S, PLACES[field][2:]: ["b=flag", "c=flag"]})
    assert spec.value(field) == {"a": "file", "b": "flag", "c": "flag"}


def test_lists_of_a_later_layer_replace_those_of_an_earlier_one(tmp_path: Path) -> None:
    file = "mounts: [a:/a, b:/b]\nset: spec.a=1\n"
    spec = build(tmp_path, file, {**K8S, "mount": ["c:/c"], "set": ["spec.b=1"]})
    asked = spec[KubernetesOptions]
    assert (asked.mounts, asked.patches) == (("c:/c",), ("spec.b=1",))


def test_from_python_a_field_may_be_called_by_its_own_name(tmp_path: Path) -> None:
    spec = build(tmp_path, "", {**K8S, "mounts": ["c:/c"], "labels": {"a": "b"}, "set": "spec.b=1"})
    asked = spec[KubernetesOptions]
    assert (asked.mounts, asked.labels, asked.patches) == (("c:/c",), {"a": "b"}, ("spec.b=1",))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mount: a:/b\n", "pumasi.yaml, line 1: mount is not known; did you mean mounts?"),
        ("patches: spec.a=1\n", "pumasi.yaml, line 1: patches is not known; did you mean set?"),
        ("sets: spec.a=1\n", "pumasi.yaml, line 1: sets is not known; did you mean set?"),
        (
            "labels:\n  a: 1\n  b: x y\n",
            'pumasi.yaml, line 3: labels.b: "x y" is no value that a label can have; '
            "give at most 63 letters, digits, dashes, dots and underscores, as in labels: {team: vision}",
        ),
        (
            "labels: [team]\n",
            'pumasi.yaml, line 1: labels: "team" has no "="; give KEY=VALUE, as in team=vision',
        ),
        (
            "set: [spec]\n",
            'pumasi.yaml, line 1: set: "spec" has no "=" after its path; give PATH=VALUE, '
            "as in set: spec.dnsPolicy=Default",
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_as_it_is_written_there(tmp_path: Path, text: str, sentence: str) -> None:
    assert complaint_about(tmp_path, text) == sentence


def test_variables_set_what_has_one_value(tmp_path: Path) -> None:
    spec = build(
        tmp_path, "", RUN, PUMASI_ON="k8s:lab", PUMASI_MEMORY="8Gi", PUMASI_TOPOLOGY="rack,zone", PUMASI_KEEP="1h"
    )
    asked = spec[KubernetesOptions]
    assert (spec.context, asked.memory, asked.topology, asked.keep) == ("lab", 8 * 2**30, ("rack", "zone"), 3600.0)


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("PUMASI_LABELS", "labels can't be set by a variable; give --label KEY=VALUE, or labels: in pumasi.yaml"),
        ("PUMASI_SET", "set can't be set by a variable; give --set PATH=VALUE, or set: in pumasi.yaml"),
    ],
)
def test_variables_have_no_room_for_several_values(tmp_path: Path, variable: str, sentence: str) -> None:
    assert complaint_about(tmp_path, "", K8S, **{variable: "x"}) == f"{variable}: {sentence}"


def test_a_flag_for_clusters_is_a_mistake_without_one(tmp_path: Path) -> None:
    told = "--image: it is for clusters, but --on is local; add --on k8s"
    assert complaint_about(tmp_path, "", {**RUN, "image": "x"}) == told
    told = "--mount: it is for clusters, but pumasi.yaml, line 1: on is local; add --on k8s"
    assert complaint_about(tmp_path, "on: local\n", {**RUN, "mount": ["a:/b"]}) == told
    told = "--keep: it is for clusters, but --on is local; leave one of the two out"
    assert complaint_about(tmp_path, "on: k8s\n", {**RUN, "on": "local", "keep": "1d"}) == told


@pytest.mark.parametrize("field", OF_CLUSTERS)
def test_each_field_for_clusters_has_a_flag_that_is_told_so(tmp_path: Path, field: str) -> None:
    example = OPTIONS[field].example
    assert complaint_about(tmp_path, "", {**RUN, field: example}).startswith(f"{PLACES[field]}: it is for clusters")


def test_settings_for_clusters_in_files_and_variables_do_no_harm_on_this_machine(tmp_path: Path) -> None:
    spec = build(tmp_path, "image: x\nmounts: a:/b\n", {**RUN, "on": "local"}, PUMASI_NAMESPACE="team-a")
    asked = spec[KubernetesOptions]
    assert (spec.pool, asked.image, asked.namespace) == ("local", "x", "team-a")


def test_on_a_cluster_the_interpreter_is_one_of_the_image(tmp_path: Path) -> None:
    file = "python: .venv/bin/python\nworkdir: .\n"
    spec = build(tmp_path, file, HOME=str(tmp_path))
    assert (spec.python, spec.workdir) == (".venv/bin/python", str(tmp_path))
    assert build(tmp_path, "", {**K8S, "python": Path("~/python")}, HOME=str(tmp_path)).python == "~/python"
    assert build(tmp_path, file, RUN).python == str(tmp_path / ".venv/bin/python")


def test_the_schema_describes_what_people_write_for_a_cluster() -> None:
    schema: Any = json_schema()
    fields = schema["properties"]
    assert "set" in fields
    assert "patches" not in fields
    assert all(fields[name]["type"] == ["array", "string"] for name in ("mounts", "tolerations", "set", "topology"))
    assert all(fields[name]["type"] == ["object", "array"] for name in GROUPS)
    assert fields["memory"]["type"] == ["number", "string", "null"]
    assert fields["on"] == {
        "description": fields["on"]["description"],
        "default": "local",
        "examples": ["k8s"],
        "type": "string",
        "pattern": "^(local|k8s(:.+)?)$",
    }
    assert schema["patternProperties"]["^node-selector$"] == {"$ref": "#/properties/node_selector"}
