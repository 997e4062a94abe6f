"""What a user may ask for, and every mistake in it as a sentence.

Flags, environment variables and files all end here, so each sentence names the place where the user wrote the thing
(`places`), what was wrong, and what would be right, written the way that place wants it.
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import ErrorDetails, PydanticCustomError

from pumasi.core import kubewords
from pumasi.core.command import target_of
from pumasi.core.patching import parse_patch
from pumasi.errors import SpecError

MOST_SLOTS = 4096
LONGEST_NAME = 40
SHORTHANDS = {
    "gpus": {"type": "integer", "minimum": 0, "maximum": MOST_SLOTS, "description": "So many slots, each with a GPU."}
}
"""Names that stand for several fields. Each layer of the configuration spells them out for itself: see `config`."""
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
    *("env_from_secret", "mounts", "priority_class", "labels", "annotations", "patches", "topology", "as_image_user"),
    "keep",
)
"""What means nothing on this machine."""

_LONGEST_SHOWN = 60
_DAY = 86400.0
_YEAR = 365 * _DAY
_FOREVER = 1e15
_UNITS = {"d": _DAY, "h": 3600.0, "m": 60.0, "s": 1.0}
_FACTORS = (1.0, *_UNITS.values())
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(rf"({_NUMBER})|" + r"\s*".join(rf"(?:({_NUMBER})\s*{unit})?" for unit in _UNITS), re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_POOLS = ("local", "k8s", "k8s:CONTEXT")
_OTHER_NAMES = {
    "on": {"kubernetes": "k8s", "kube": "k8s", "cluster": "k8s", "localhost": "local", "here": "local"},
    "framework": {"pytorch": "torch", "lightning": "torch", "tf": "tensorflow", "flax": "jax", "openmpi": "mpi"},
    "gpu": {"yes": "required", "true": "required", "no": "none", "false": "none"},
}


def _wrong(wrong: str, right: str, example: object = None) -> PydanticCustomError:
    return PydanticCustomError("pumasi", "{wrong}; {right}", {"wrong": wrong, "right": right, "example": example})


def _refuse_bool(value: object) -> object:
    """True counts as 1 in Python; nobody who writes `slots: true` means one slot."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "not a whole number")
    return value


def _check_text(text: str) -> str:
    if re.search("[\0\ud800-\udfff]", text):
        raise _wrong(f"{show(text)} holds a NUL or bytes that are not UTF-8", "leave those out")
    return text


def _check_name(name: str) -> str:
    if len(name) > LONGEST_NAME or not _LABEL.fullmatch(name):
        right = f"give at most {LONGEST_NAME} lower-case letters, digits and dashes"
        raise _wrong(f"{show(name)} can't name a run", right, _label(name) or "train")
    return name


def _check_pool(pool: str) -> str:
    name, colon, context = pool.partition(":")
    if pool == "local" or (name == "k8s" and bool(colon) == bool(context)):
        return pool
    raise PydanticCustomError("literal_error", "no pool")


def _in_words(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of `kubewords` or `patching`, for pydantic."""

    def checked(value: Any) -> Any:
        try:
            return check(value)
        except SpecError as error:
            raise _wrong(error.message, error.hint) from None

    return checked


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """The text stays as it is, if `check` finds it right."""
    check = _in_words(check)

    def checked(text: str) -> str:
        check(text)
        return text

    return AfterValidator(checked)


def _check_mounts(mounts: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_twice([kubewords.mount(text).path for text in mounts])
    return mounts


def _refuse_twice(texts: Sequence[str]) -> Sequence[str]:
    for position, text in enumerate(texts):
        if text in texts[:position]:
            raise _wrong(f"{show(text)} is given twice", "keep one")
    return texts


def _to_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _to_labels(value: object) -> object:
    """Each text may hold several labels, with commas between them."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        return value
    return [label.strip() for text in value for label in text.split(",")]


def _check_variable(name: str) -> str:
    if not name or "=" in name:
        raise _wrong(f"{show(name)} can't name a variable", 'give a name without "=", and a value')
    return name


def _to_seconds(value: object) -> float:
    try:
        return parse_duration(value)
    except SpecError as error:
        raise PydanticCustomError("duration", "{text}", {"text": error.message}) from None


def _to_command(value: object) -> object:
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError:
            raise _wrong(f"{show(value)} has a quote that is not closed", "close it") from None
    if isinstance(value, Sequence):
        value = [str(word) if isinstance(word, PurePath) else word for word in value]
        if not value or value[0] == "":
            raise PydanticCustomError("missing", "nothing to run")
    return value


def _to_nodes(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value] if isinstance(value, (int, float)) else value


def _field(description: str, example: object, default: Any = ..., **bounds: Any) -> Any:
    """Description and example serve both the editors (JSON Schema) and the sentences about mistakes."""
    return Field(default, description=description, examples=[example], **bounds)


_Count = Annotated[int, BeforeValidator(_refuse_bool)]
_Share = Annotated[_Count, Field(ge=1, le=MOST_SLOTS)]
_Seconds = Annotated[float, BeforeValidator(_to_seconds)]
_Limit = Annotated[_Seconds, Field(gt=0.0, le=_YEAR)]
# "none" takes back what a file has set.
_UNSET = BeforeValidator(lambda value: None if value == "none" else value)
_Timeout = Annotated[_Limit | None, _UNSET]
_Text = Annotated[str, AfterValidator(_check_text)]
_Command = Annotated[tuple[_Text, ...], BeforeValidator(_to_command)]
_Nodes = Annotated[tuple[_Share, ...] | None, BeforeValidator(_to_nodes)]
_Framework = Literal["auto", "none", "tensorflow", "torch", "jax", "horovod", "mpi"]
_Name = Annotated[_Text, AfterValidator(_check_name)]
_Variable = Annotated[_Text, AfterValidator(_check_variable)]
_Cores = Annotated[float, BeforeValidator(_in_words(kubewords.cores))]
_Bytes = Annotated[int, BeforeValidator(_in_words(kubewords.size))]
_Key = Annotated[_Text, _checked(kubewords.qualified)]
_OwnKey = Annotated[_Text, _checked(kubewords.own_key)]
_LabelValue = Annotated[_Text, _checked(kubewords.label_value)]
_ObjectName = Annotated[_Text, _checked(kubewords.dns_name)]
_LIST = BeforeValidator(_to_list)
_Tolerations = Annotated[tuple[Annotated[_Text, _checked(kubewords.toleration)], ...], _LIST]
_Secrets = Annotated[tuple[Annotated[_Text, _checked(kubewords.secret_use)], ...], _LIST]
_Mount = Annotated[_Text, _checked(kubewords.mount)]
_Mounts = Annotated[tuple[_Mount, ...], _LIST, AfterValidator(_check_mounts)]
_Patches = Annotated[tuple[Annotated[_Text, _checked(parse_patch)], ...], _LIST]
_Topology = Annotated[tuple[_Key, ...], BeforeValidator(_to_labels), AfterValidator(_refuse_twice)]


class Spec(BaseModel):
    """What Pumasi should run, and how."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", title="pumasi.yaml")

    command: _Command = Field(description="The program with its arguments.", examples=["train.py --epochs 3"])
    name: _Name | None = _field("What the run's id starts with; by default the script's name.", "imdb", None)
    workdir: _Text = _field("The folder to run in, seen from the file that names it.", "experiments", ".")
    python: _Text | None = _field("The interpreter that runs a .py script.", ".venv/bin/python", None)
    on: Annotated[_Text, AfterValidator(_check_pool)] = _field(
        "Where to run: local, k8s, or k8s:CONTEXT with a context of your kubeconfig.", "k8s", "local"
    )
    slots: _Count = _field("How many processes train one model together.", 4, 1, ge=1, le=MOST_SLOTS)
    gpu: Literal["auto", "required", "none"] = _field("A GPU a slot: if there is one, always, never.", "none", "auto")
    per_node: bool = _field("One process a node, for launchers that start their own, as torchrun does.", True, False)
    framework: _Framework = _field("What the ranks are wired for; auto looks at the script's imports.", "torch", "auto")
    ps: _Count = _field("TensorFlow's parameter servers, in addition to the slots.", 2, 0, ge=0, le=MOST_SLOTS)
    evaluator: bool = _field("One TensorFlow evaluator, in addition to the slots.", True, False)
    see_gpus: Literal["auto", "own", "all"] = _field("Show a rank its own GPU or all of its node.", "own", "auto")
    slot_as_node: bool = _field("Show each slot as a node of its own, for Lightning.", True, False)
    shim: bool = _field("Mend at start-up what no variable can mend (JAX, Keras 3, mpi4py).", False, True)
    restarts: _Count = _field("How often the gang is started again when it fails.", 3, 0, ge=0, le=1000)
    timeout: _Timeout = _field("The longest that the run may take: 90, 90s, 15m, 2h30m or 1d.", "2h30m", None)
    start_timeout: _Seconds = _field("How long the gang may take to gather.", "10m", 600.0, ge=1.0, le=_YEAR)
    silence: _Seconds = _field("A member silent for that long is lost.", "30s", 30.0, ge=1.0, le=_YEAR)
    grace: _Seconds = _field("The time from asking to end to ending by force.", "15s", 15.0, le=_YEAR)
    wait: bool = _field("Queue while what is needed is busy; if not, fail at once.", False, True)
    env: dict[_Variable, _Text] = _field("Environment variables for the program.", {"LR": "0.1"}, {})
    nodes: _Nodes = _field("For tests: pretend nodes on this machine, with so many slots each.", "5,1", None)
    namespace: Annotated[_Text, _checked(kubewords.namespace)] | None = _field(
        "The namespace to run in; by default that of the kubeconfig.", "team-a", None
    )
    image: Annotated[_Text, _checked(kubewords.image)] = _field(
        "The container image, which has the Python and the packages that the script needs.",
        "ghcr.io/team/train:1.4",
        "python:3.12-slim",
    )
    cpus: Annotated[_Cores | None, _UNSET] = _field("CPUs a slot: 2, 0.5 or 500m.", "2", None)
    memory: Annotated[_Bytes | None, _UNSET] = _field("Memory a slot: 8Gi, 500M or 16G.", "8Gi", None)
    gpu_resource: Annotated[_Text, _checked(kubewords.resource)] = _field(
        "What the cluster calls a GPU.", "amd.com/gpu", "nvidia.com/gpu"
    )
    max_per_node: Annotated[_Share | None, _UNSET] = _field("At most so many slots on one node.", 4, None)
    node_selector: dict[_Key, _LabelValue] = _field("Labels that a node must have.", {"disk": "ssd"}, {})
    tolerations: _Tolerations = _field(
        "Taints to put up with: KEY, KEY=VALUE or KEY=VALUE:EFFECT; all of them: all.", "gpu=only:NoSchedule", ()
    )
    env_from_secret: _Secrets = _field(
        "Variables from Secrets: SECRET for all its keys, NAME=SECRET/KEY for one.", "TOKEN=hub/token", ()
    )
    mounts: _Mounts = _field("Volumes to mount: CLAIM:/path, or CLAIM:/path:ro to read only.", "data:/data", ())
    priority_class: _ObjectName | None = _field("The priority class of the pods.", "high", None)
    labels: dict[_OwnKey, _LabelValue] = _field("Labels for the pods.", {"team": "vision"}, {})
    annotations: dict[_OwnKey, _Text] = _field("Annotations for the pods.", {"example.com/owner": "kim"}, {})
    patches: _Patches = _field("Changes to any field of the pods: PATH=VALUE.", "spec.dnsPolicy=Default", ())
    topology: _Topology = _field(
        "Labels of nodes that say what is near to what, from narrow to wide.", "topology.kubernetes.io/zone", ()
    )
    as_image_user: bool = _field("Run as the image's own user instead of an ordinary one.", True, False)
    keep: _Seconds = _field("How long a finished run stays in the cluster.", "7d", 7 * _DAY, le=_YEAR)

    @property
    def pool(self) -> str:
        """local or k8s"""
        return self.on.partition(":")[0]

    @property
    def context(self) -> str:
        """Of the kubeconfig; empty where its current one is meant."""
        return self.on.partition(":")[2]

    @pydantic.model_validator(mode="after")
    def _refuse_contradictions(self) -> Spec:
        found = list(_contradictions(self))
        if found:
            text = "; ".join(f"{field}: {why}, but {other} says otherwise" for field, why, other, _ in found)
            raise PydanticCustomError("contradiction", "{text}", {"text": text, "found": found, "spec": self})
        return self


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
    if spec.nodes is not None and spec.pool != "local":
        yield "nodes", "it pretends nodes on this machine", "on", right
    if spec.nodes is not None and sum(spec.nodes) < spec.slots:
        right = f"give nodes with {spec.slots} in all, or fewer slots"
        yield "nodes", f"the nodes have {sum(spec.nodes)} slots in all", "slots", right


def parse_spec(data: Mapping[str, object], places: Mapping[str, str] = {}, found: Sequence[str] = ()) -> Spec:
    """The spec in `data`, or a SpecError with every mistake, one a line. `places` maps a field (or `env.NAME`) to where
    the user wrote it; `found` are the mistakes that the reader of a file has met already, told together with these."""
    spec, errors = _validate(dict(data))
    mistakes = [*found, *(text for error in errors for text in _sentences(error, places))]
    if spec is not None and not mistakes:
        return spec
    summary = [f"{len(mistakes)} mistakes:"] if len(mistakes) > 1 else []
    raise SpecError("\n".join(map(_printable, summary + mistakes)), hint="`pumasi run --help` lists what can be given.")


def _validate(data: dict[str, object]) -> tuple[Spec | None, list[ErrorDetails]]:
    """Pydantic looks for contradictions only when each field is right by itself. Those among the good fields are sought
    once more without the bad ones: nobody likes to be told in instalments."""
    try:
        return Spec.model_validate(data), []
    except pydantic.ValidationError as error:
        errors = error.errors()
    bad = {one["loc"][0] for one in errors if one["loc"]}
    good = {field: value for field, value in data.items() if field not in bad}
    return None, errors + (_validate({**good, "command": ["true"]})[1] if bad else [])


def _sentences(error: ErrorDetails, places: Mapping[str, str]) -> Iterator[str]:
    if error["type"] == "contradiction":
        for field, why, other, right in error["ctx"]["found"]:
            value = getattr(error["ctx"]["spec"], other)
            said = "on" if value is True else value
            yield f"{places.get(field, field)}: {why}, but {places.get(other, other)} is {said}; {right}"
        return
    place = _place(error["loc"], places)
    if error["type"] == "extra_forbidden":
        meant = closest(str(error["loc"][0]), known_names())
        yield f"{place} is not known; " + (f"did you mean {_written(meant, place)}?" if meant else "leave it out")
    elif error["type"] == "missing":
        yield f"{place}: there is nothing to run; give a script or a program, as in pumasi run train.py"
    else:
        yield f"{place}: {_explain(error, place)}"


def _place(loc: Sequence[str | int], places: Mapping[str, str]) -> str:
    """The narrowest place that is known: of this variable, else of all of `env`, else the field's name."""
    parts = [str(part) for part in loc if part != "[key]"]
    paths = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((places[path] for path in paths if path in places), parts[0])


def _explain(error: ErrorDetails, place: str) -> str:
    """What is wrong and what would be right, by pydantic's name for the mistake."""
    kind, value, context = error["type"], show(error["input"]), error.get("ctx", {})
    field = str(error["loc"][0])
    example = context.get("example") or (Spec.model_fields[field].examples or [""])[0]
    sample = f"as in {_example(example, place)}"
    if kind == "pumasi":
        return f"{context['wrong']}; {context['right']}, {sample}"
    if kind in ("greater_than", "greater_than_equal"):
        least = f"{_amount(context['ge'])} or more" if "ge" in context else "more than 0"
        return f"{value} is too small; give {least}, {sample}"
    if kind in ("less_than_equal", "int_parsing_size"):
        return f"{value} is too large; give {_amount(context.get('le') or _bound(field, 'le'))} at the most, {sample}"
    if kind == "literal_error":
        return f"{value} is not known; {_choice(field, error['input'])}"
    wrong, right = _WORDS[kind.split("_")[0]]
    return f"{value} is {wrong}; give {right.format(least=_bound(field, 'ge'))}, {sample}"


_WORDS = {
    "int": ("not a whole number", "{least} or more"),
    "finite": ("not a whole number", "{least} or more"),
    "bool": ("neither yes nor no", "true or false"),
    "duration": ("not a length of time", "seconds, or a text such as 90s, 15m, 2h30m or 1d"),
    "string": ("not text", "text, in quotes if need be"),
    "tuple": ("not a list", "a list"),
    "dict": ("not a group of names and values", "each name with its value"),
}


def _bound(field: str, side: Literal["ge", "le"]) -> int:
    """The least or the most that a field of whole numbers takes; `nodes` has its bounds a level deeper."""
    bounds = (getattr(bound, side) for bound in Spec.model_fields[field].metadata if hasattr(bound, side))
    return next(bounds, 1 if side == "ge" else MOST_SLOTS)


def _amount(bound: float) -> str:
    """Only lengths of time have bounds that are floats."""
    if isinstance(bound, int):
        return str(bound)
    unit = next(unit for unit, seconds in _UNITS.items() if bound % seconds == 0)
    return f"{bound / _UNITS[unit]:g}{unit}"


def _choice(field: str, value: object) -> str:
    # A pool may have a context, so `on` alone is no Literal.
    options = get_args(Spec.model_fields[field].annotation) or _POOLS
    meant = _OTHER_NAMES.get(field, {}).get(str(value).lower()) or closest(str(value), options)
    listed = f"{', '.join(options[:-1])} or {options[-1]}"
    return f"did you mean {meant}? It can be {listed}" if meant else f"give {listed}"


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
    return [*(WRITTEN.get(field, field) for field in Spec.model_fields), *SHORTHANDS]


def closest(word: str, options: Sequence[str], likeness: float = 0.6) -> str | None:
    """What the user may have meant by `word`."""
    from difflib import get_close_matches

    others = [option for option in options if option != word]
    return next(iter(get_close_matches(word.lower(), others, 1, likeness)), None)


def show(value: object) -> str:
    """A value in a sentence: on one line and not too long."""
    if value is None:
        return "an empty value"
    if isinstance(value, str):
        text = _printable(value[:_LONGEST_SHOWN]) + "…" * (len(value) > _LONGEST_SHOWN)
        return text if re.fullmatch(r"[-+]?[0-9.]+…?", text) else f'"{text}"'
    if isinstance(value, (Mapping, list, tuple)):
        return "a group of names and values" if isinstance(value, Mapping) else "a list"
    if isinstance(value, (int, float)) and -_FOREVER < value < _FOREVER:
        return json.dumps(value)
    return "this number" if isinstance(value, (int, float)) else f"a {type(value).__name__}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def parse_duration(value: object) -> float:
    """Seconds from 90, "90", "90s", "15m", "2h30m" or "1d"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _FOREVER:
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match or not match[0]:
        raise SpecError("{} is {}; give {}".format(show(value), *_WORDS["duration"]))
    parts = zip(match.groups(), _FACTORS, strict=True)
    return min(sum(float(amount) * factor for amount, factor in parts if amount), _FOREVER)


def json_schema() -> dict[str, object]:
    """For editors, of pumasi.yaml: `command` may be missing there, and names may be written with dashes."""
    schema = Spec.model_json_schema()
    del schema["required"]
    fields = schema["properties"]
    for field, kind in _WRITTEN_AS.items():
        fields[field] = {key: fields[field][key] for key in _ABOUT if key in fields[field]} | kind
    fields = {WRITTEN.get(field, field): described for field, described in fields.items()}
    dashed = {f"^{field.replace('_', '-')}$": {"$ref": f"#/properties/{field}"} for field in fields if "_" in field}
    schema |= {"properties": fields | SHORTHANDS, "patternProperties": dashed}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:pumasi:spec", **schema}


_ABOUT = ("title", "description", "default", "examples")
_PLAIN = {"type": ["string", "number", "boolean"]}
_WRITTEN_AS: dict[str, dict[str, object]] = {
    "command": {"type": ["string", "array"], "items": _PLAIN, "minItems": 1},
    "name": {"type": ["string", "null"], "pattern": f"^{_LABEL.pattern}$", "maxLength": LONGEST_NAME},
    "on": {"type": "string", "pattern": "^(local|k8s(:.+)?)$"},
    "timeout": {"type": ["number", "string", "null"], "minimum": 0},
    **{key: {"type": ["number", "string"], "minimum": 0} for key in ("start_timeout", "silence", "grace", "keep")},
    **{key: {"type": ["number", "string", "null"]} for key in ("cpus", "memory")},
    **{
        key: {"type": ["object", "array"], "additionalProperties": _PLAIN, "items": {"type": "string"}}
        for key in GROUPS
    },
    **{key: {"type": ["array", "string"], "items": {"type": "string"}} for key in LISTS},
    "nodes": {"type": ["array", "string", "integer", "null"], "items": {"type": "integer", "minimum": 1}},
}


def run_name(spec: Spec) -> str:
    """What the run's id starts with: the given name, else that of the script, the module or the program."""
    return spec.name or _label(PurePath(target_of(spec.command) or spec.command[0]).stem) or "run"


def _label(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME].rstrip("-")
