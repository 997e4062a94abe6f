"""What a user may ask for, and every mistake in it as a sentence.

Flags, environment variables and files all end here, so each sentence names the place where the user wrote the thing
(`places`), what was wrong, and what would be right, written the way that place wants it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

from pumasi.core import kubewords
from pumasi.core.command import target_of
from pumasi.core.fields import (
    ITS_OWN,
    Kind,
    Mistake,
    Wrong,
    amount,
    choice,
    closest,
    distinct,
    group,
    limit,
    many,
    optional,
    printable,
    read,
    seconds,
    show,
    switch,
    text,
    whole,
    words,
)
from pumasi.core.patching import parse_patch
from pumasi.errors import SpecError
from pumasi.registry import FLOWS

MOST_SLOTS = 4096
LONGEST_NAME = 40
SHORTHANDS = {
    "gpus": {"type": "integer", "minimum": 0, "maximum": MOST_SLOTS, "description": "So many slots, each with a GPU."},
    "env_file": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Files of variables, NAME=VALUE on each line; env wins.",
    },
}
"""Names that stand for other fields. Each layer of the configuration spells them out for itself: see `config`."""
GROUPS = ("env", "node_selector", "labels", "annotations")
"""Fields of names and values. The layers of the configuration are merged name by name in them."""
LISTS = ("tolerations", "env_from_secret", "mounts", "patches", "topology")
WRITTEN = {"patches": "set"}
"""Fields that users know by another name."""
FLAGS = {
    **WRITTEN,
    "tolerations": "toleration",
    "mounts": "mount",
    "labels": "label",
    "annotations": "annotation",
}
"""Flags with another name than the field: given several times, each has one of its values."""
CLUSTER_FIELDS = (
    *("namespace", "image", "cpus", "memory", "gpu_resource", "max_per_node", "node_selector", "tolerations"),
    *(
        "env_from_secret",
        "mounts",
        "volume",
        "priority_class",
        "labels",
        "annotations",
        "patches",
        "topology",
        "as_image_user",
    ),
    "keep",
)
"""What means nothing on this machine."""
AVERAGE_FIELDS = ("split", "copy", "rounds", "init", "evaluate", "min_models", "best", "save")
"""What means nothing to processes that train one model together."""

_DAY = 86400.0
_YEAR = 365 * _DAY
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_FRAMEWORKS = ("auto", "none", "tensorflow", "torch", "jax", "horovod", "mpi")
_OTHER_FRAMEWORKS = {"pytorch": "torch", "lightning": "torch", "tf": "tensorflow", "flax": "jax", "openmpi": "mpi"}
_OTHER_STRATEGIES = {"averaging": "average", "fedavg": "average", "localsgd": "average", "single": "together"}
_OTHER_POOLS = {"kubernetes": "k8s", "kube": "k8s", "cluster": "k8s", "localhost": "local", "here": "local"}
_OTHER_GPU = {"yes": "required", "true": "required", "no": "none", "false": "none"}
_NONE = "none"
"""Takes back what a file has set."""


def _check_name(name: str) -> None:
    if len(name) > LONGEST_NAME or not _LABEL.fullmatch(name):
        right = f"give at most {LONGEST_NAME} lower-case letters, digits and dashes"
        raise Wrong(Mistake(f"{show(name)} can't name a run", right, _label(name) or "train"))


_OF_EACH_RANK = frozenset(f"PUMASI_{name}" for name in ("RUN", "RANK", "WORLD_SIZE", "ATTEMPT", "NODE", "GANG"))


def check_variable(name: str) -> None:
    if not name or "=" in name:
        raise SpecError(f"{show(name)} can't name a variable", 'give a name without "=", and a value')
    if name in _OF_EACH_RANK:
        raise SpecError(f"{name} is what Pumasi tells each process", "give the variable another name")


def _check_file(name: str) -> None:
    if not name.strip():
        raise SpecError(f"{show(name)} can't name a file", "give its name")


def _is_context(pool: str) -> bool:
    return pool.startswith("k8s:") and pool != "k8s:"


def _to_labels(value: object) -> object:
    """Each text may hold several labels, with commas between them."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        return value
    return [label.strip() for each in value for label in each.split(",")]


def _to_nodes(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, (int, float)) else value


class About(NamedTuple):
    """What is known of a field. The example serves the editors and the sentences about mistakes."""

    kind: Kind
    description: str
    example: object


def _field(kind: Kind, description: str, example: object, default: Any = MISSING) -> Any:
    about = {"about": About(kind, description, example)}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=about)
    return dataclasses.field(default=default, metadata=about)


_POOL = choice("local", "k8s", "k8s:CONTEXT", synonyms=_OTHER_POOLS, also=_is_context)
_SHARE = whole(1, MOST_SLOTS)
_KEY = text(kubewords.qualified)
_OWN_KEY = text(kubewords.own_key)
_LABEL_VALUE = text(kubewords.label_value)


@dataclass(frozen=True)
class Spec:
    """What Pumasi should run, and how."""

    command: tuple[str, ...] = _field(words(), "The program with its arguments.", "train.py --epochs 3")
    name: str | None = _field(
        optional(text(_check_name)), "What the run's id starts with; by default the script's name.", "imdb", None
    )
    workdir: str = _field(text(), "The folder to run in, seen from the file that names it.", "experiments", ".")
    python: str | None = _field(optional(text()), "The interpreter that runs a .py script.", ".venv/bin/python", None)
    requirements: str | None = _field(
        optional(text(_check_file), _NONE),
        "The packages to install first: a requirements.txt, pyproject.toml or uv.lock, seen from the folder to run in.",
        "requirements.txt",
        None,
    )
    setup: tuple[tuple[str, ...], ...] = _field(
        many(words()),
        "Commands to run on each node before the program starts, after the packages are installed.",
        "prepare.py",
        (),
    )
    on: str = _field(
        _POOL,
        "Where to run: local, k8s, or k8s:CONTEXT with a context of your kubeconfig.",
        "k8s",
        "local",
    )
    slots: int = _field(_SHARE, "How many processes train one model together.", 4, 1)
    gpu: str = _field(
        choice("auto", "required", "none", synonyms=_OTHER_GPU),
        "A GPU a slot: if there is one, always, never.",
        "none",
        "auto",
    )
    per_node: bool = _field(
        switch(), "One process a node, for launchers that start their own, as torchrun does.", True, False
    )
    framework: str = _field(
        choice(*_FRAMEWORKS, synonyms=_OTHER_FRAMEWORKS),
        "What the ranks are wired for; auto looks at the script's imports, or at the libraries of a program.",
        "torch",
        "auto",
    )
    ps: int = _field(whole(0, MOST_SLOTS), "TensorFlow's parameter servers, in addition to the slots.", 2, 0)
    evaluator: bool = _field(switch(), "One TensorFlow evaluator, in addition to the slots.", True, False)
    strategy: str = _field(
        choice("together", "average", synonyms=_OTHER_STRATEGIES),
        "How the slots train: one model together, or copies apart that are averaged.",
        "average",
        "together",
    )
    split: str | None = _field(
        optional(text()), "The data, of which every trainer gets an equal part: {shard}.", "reviews.npz", None
    )
    copy: str | None = _field(
        optional(text()), "The data, of which every trainer gets a copy: {shard}.", "reviews.npz", None
    )
    rounds: int = _field(whole(1, 1000), "How often the models are averaged, and trained on from there.", 4, 1)
    init: str | None = _field(optional(text()), "The model to begin with: {init} in the first round.", "start.h5", None)
    evaluate: tuple[str, ...] | None = _field(
        optional(words()), "What measures a model: {model}.", "evaluate.py --modelpath {model}", None
    )
    min_models: int | None = _field(
        optional(_SHARE, _NONE), "The fewest models to average; by default half of them.", 3, None
    )
    best: bool = _field(switch(), "Keep the best of the models, not the last average.", True, False)
    save: str | None = _field(optional(text()), "Where the final model goes.", "final.h5", None)
    see_gpus: str = _field(choice("auto", "own", "all"), "Show a rank its own GPU or all of its node.", "own", "auto")
    slot_as_node: bool = _field(switch(), "Show each slot as a node of its own, for Lightning.", True, False)
    shim: bool = _field(switch(), "Mend at start-up what no variable can mend (JAX, Keras 3, mpi4py).", False, True)
    restarts: int = _field(whole(0, 1000), "How often the gang is started again when it fails.", 3, 0)
    timeout: float | None = _field(
        optional(limit(_YEAR), _NONE), "The longest that the run may take: 90, 90s, 15m, 2h30m or 1d.", "2h30m", None
    )
    start_timeout: float = _field(seconds(1.0, _YEAR), "How long the gang may take to gather.", "10m", 600.0)
    silence: float = _field(seconds(1.0, _YEAR), "A member silent for that long is lost.", "30s", 30.0)
    grace: float = _field(seconds(0.0, _YEAR), "The time from asking to end to ending by force.", "15s", 15.0)
    wait: bool = _field(switch(), "Queue while what is needed is busy; if not, fail at once.", False, True)
    env: dict[str, str] = _field(
        group(text(check_variable), text()), "Environment variables for the program.", {"LR": "0.1"}, {}
    )
    nodes: tuple[int, ...] | None = _field(
        optional(many(_SHARE, _to_nodes)),
        "For tests: pretend nodes on this machine, with so many slots each.",
        "5,1",
        None,
    )
    namespace: str | None = _field(
        optional(text(kubewords.namespace)),
        "The namespace to run in; by default that of the kubeconfig.",
        "team-a",
        None,
    )
    image: str = _field(
        text(kubewords.image),
        "The container image, which has the Python and the packages that the script needs.",
        "ghcr.io/team/train:1.4",
        "python:3.12-slim",
    )
    cpus: float | None = _field(optional(amount(kubewords.cores), _NONE), "CPUs a slot: 2, 0.5 or 500m.", "2", None)
    memory: int | None = _field(
        optional(amount(kubewords.size), _NONE), "Memory a slot: 8Gi, 500M or 16G.", "8Gi", None
    )
    gpu_resource: str = _field(
        text(kubewords.resource), "What the cluster calls a GPU.", "amd.com/gpu", "nvidia.com/gpu"
    )
    max_per_node: int | None = _field(optional(_SHARE, _NONE), "At most so many slots on one node.", 4, None)
    node_selector: dict[str, str] = _field(
        group(_KEY, _LABEL_VALUE), "Labels that a node must have.", {"disk": "ssd"}, {}
    )
    tolerations: tuple[str, ...] = _field(
        many(text(kubewords.toleration)),
        "Taints to put up with: KEY, KEY=VALUE or KEY=VALUE:EFFECT; all of them: all.",
        "gpu=only:NoSchedule",
        (),
    )
    env_from_secret: tuple[str, ...] = _field(
        many(text(kubewords.secret_use)),
        "Variables from Secrets: SECRET for all its keys, NAME=SECRET/KEY for one.",
        "TOKEN=hub/token",
        (),
    )
    mounts: tuple[str, ...] = _field(
        distinct(many(text(kubewords.mount)), lambda mount: kubewords.mount(mount).path),
        "Volumes to mount: CLAIM:/path, or CLAIM:/path:ro to read only.",
        "data:/data",
        (),
    )
    volume: str | None = _field(
        optional(text(kubewords.volume)),
        "A volume for the files of a run, given by its claim; made where it is not there: NAME or NAME:SIZE.",
        "imdb:20Gi",
        None,
    )
    priority_class: str | None = _field(
        optional(text(kubewords.dns_name)), "The priority class of the pods.", "high", None
    )
    labels: dict[str, str] = _field(group(_OWN_KEY, _LABEL_VALUE), "Labels for the pods.", {"team": "vision"}, {})
    annotations: dict[str, str] = _field(
        group(_OWN_KEY, text()), "Annotations for the pods.", {"example.com/owner": "kim"}, {}
    )
    patches: tuple[str, ...] = _field(
        many(text(parse_patch)), "Changes to any field of the pods: PATH=VALUE.", "spec.dnsPolicy=Default", ()
    )
    topology: tuple[str, ...] = _field(
        distinct(many(_KEY, _to_labels)),
        "Labels of nodes that say what is near to what, from narrow to wide.",
        "topology.kubernetes.io/zone",
        (),
    )
    as_image_user: bool = _field(switch(), "Run as the image's own user instead of an ordinary one.", True, False)
    keep: float = _field(seconds(0.0, _YEAR), "How long a finished run stays in the cluster.", "7d", 7 * _DAY)

    @property
    def pool(self) -> str:
        """local or k8s"""
        return self.on.partition(":")[0]

    @property
    def context(self) -> str:
        """Of the kubeconfig; empty where its current one is meant."""
        return self.on.partition(":")[2]

    @property
    def at_once(self) -> int:
        """How many slots there have to be at the same time."""
        return int(FLOWS.get(self.strategy).at_once(self))

    def dump(self) -> dict[str, Any]:
        """As JSON has it; `parse_spec` reads it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


FIELDS: Mapping[str, About] = {field.name: field.metadata["about"] for field in dataclasses.fields(Spec)}
DEFAULTS: Mapping[str, Any] = {**Spec(command=()).dump(), "command": None}


def _contradictions(spec: Spec) -> Iterator[tuple[str, str, str, str]]:
    """A field, what it takes, the other field that does not go with that, and what to do."""
    right = "leave one of the two out"
    for field, why in (("ps", "parameter servers are TensorFlow's"), ("evaluator", "an evaluator is TensorFlow's")):
        if getattr(spec, field) and spec.framework not in ("auto", "tensorflow"):
            yield field, why, "framework", right
    for field in ("ps", "evaluator", "slot_as_node"):
        if getattr(spec, field) and spec.per_node:
            yield field, "it takes one process a slot", "per_node", right
    if spec.see_gpus != "auto" and spec.gpu == "none":
        yield "see_gpus", "it takes GPUs", "gpu", right
    yield from _contradictions_of_strategy(spec)
    if spec.nodes is not None and spec.pool != "local":
        yield "nodes", "it pretends nodes on this machine", "on", right
    if spec.nodes is not None and sum(spec.nodes) < spec.slots:
        right = f"give nodes with {spec.slots} in all, or fewer slots"
        yield "nodes", f"the nodes have {sum(spec.nodes)} slots in all", "slots", right


def _contradictions_of_strategy(spec: Spec) -> Iterator[tuple[str, str, str, str]]:
    flow = FLOWS.get(spec.strategy)
    if flow.is_single:
        for field in AVERAGE_FIELDS:
            if getattr(spec, field) != DEFAULTS[field]:
                yield field, "it is for those that train apart", "strategy", "add --strategy average"
        return
    yield from flow.contradictions(spec)


def parse_spec(data: Mapping[str, object], places: Mapping[str, str] = {}, found: Sequence[str] = ()) -> Spec:
    """The spec in `data`, or a SpecError with every mistake, one a line. `places` maps a field (or `env.NAME`) to where
    the user wrote it; `found` are the mistakes that the reader of a file has met already, told together with these."""
    values: dict[str, Any] = {}
    mistakes = [*found]
    given = {"command": (), **data}
    for name in (name for name in FIELDS if name in given):
        value = read(FIELDS[name].kind, given[name])
        if isinstance(value, Wrong):
            mistakes += [_sentence(name, mistake, places) for mistake in value.mistakes]
        else:
            values[name] = value
    mistakes += [_unknown(name, places.get(name, name)) for name in given if name not in FIELDS]
    mistakes += _contradictory(values, places)
    if not mistakes:
        return Spec(**values)
    summary = [f"{len(mistakes)} mistakes:"] if len(mistakes) > 1 else []
    raise SpecError("\n".join(map(printable, summary + mistakes)), hint="`pumasi run --help` lists what can be given.")


def _contradictory(values: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[str]:
    """Also among the fields that are right while others are not: nobody likes to be told in instalments."""
    spec = Spec(**{"command": (), **values})
    for field, why, other, right in _contradictions(spec):
        said = "on" if getattr(spec, other) is True else getattr(spec, other)
        yield f"{places.get(field, field)}: {why}, but {places.get(other, other)} is {said}; {right}"


def _unknown(name: str, place: str) -> str:
    meant = closest(name, known_names())
    return f"{place} is not known; " + (f"did you mean {_written(meant, place)}?" if meant else "leave it out")


def _sentence(field: str, mistake: Mistake, places: Mapping[str, str]) -> str:
    place = _place((field, *mistake.path), places)
    told = f"{place}: {mistake.wrong}; {mistake.right}"
    example = FIELDS[field].example if mistake.example is ITS_OWN else mistake.example
    return told if example is None else f"{told}, as in {_example(example, place)}"


def _place(path: Sequence[str], places: Mapping[str, str]) -> str:
    """The narrowest place that is known: of this variable, else of all of `env`, else the field's name."""
    known = (".".join(path[:length]) for length in range(len(path), 0, -1))
    return next((places[each] for each in known if each in places), path[0])


def _example(value: object, place: str) -> str:
    """A right value, written as one would write it in that place."""
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    if place.startswith("--"):
        return f"{place} {text.strip('{}').replace(': ', '=')}"
    if place.startswith("PUMASI_"):
        return f"{place}={text}"
    return f"{place.rpartition(': ')[2].partition('.')[0]}: {text}"


def _written(name: str, place: str) -> str:
    if place.startswith("--"):
        return flag_of(name)
    return f"PUMASI_{name.upper()}" if place.startswith("PUMASI_") else name


def flag_of(field: str) -> str:
    return "--" + FLAGS.get(field, field).replace("_", "-")


def known_names() -> list[str]:
    """Fields and shorthands, as they are written in a file."""
    return [*(WRITTEN.get(field, field) for field in FIELDS), *SHORTHANDS]


def json_schema() -> dict[str, object]:
    """For editors, of pumasi.yaml: `command` may be missing there, and names may be written with dashes."""
    fields = {WRITTEN.get(name, name): _described(name, about) for name, about in FIELDS.items()}
    dashed = {f"^{name.replace('_', '-')}$": {"$ref": f"#/properties/{name}"} for name in fields if "_" in name}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:pumasi:spec",
        "title": "pumasi.yaml",
        "description": Spec.__doc__,
        "type": "object",
        "properties": {**fields, **SHORTHANDS},
        "patternProperties": dashed,
        "additionalProperties": False,
    }


def _described(name: str, about: About) -> dict[str, object]:
    known = {"description": about.description, "examples": [about.example], **_SCHEMAS.get(name, about.kind.schema)}
    return known if name == "command" else {**known, "default": DEFAULTS[name]}


_SCHEMAS: dict[str, dict[str, object]] = {
    "name": {"type": ["string", "null"], "pattern": f"^{_LABEL.pattern}$", "maxLength": LONGEST_NAME},
    "on": {"type": "string", "pattern": "^(local|k8s(:.+)?)$"},
    "nodes": {"type": ["array", "string", "integer", "null"], "items": {"type": "integer", "minimum": 1}},
}


def run_name(spec: Spec) -> str:
    """What the run's id starts with: the given name, else that of the script, the module or the program."""
    return spec.name or _label(PurePath(target_of(spec.command) or spec.command[0]).stem) or "run"


def _label(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].rstrip("-")
