"""An option is declared once, and reaches everything: also one of an installed package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pumasi import catalogue
from pumasi.catalogue import catalogue_for, make_spec, parse_spec, recorded_spec
from pumasi.cli.help import verb_help
from pumasi.cli.parsing import parse
from pumasi.cli.verbs.run import VERB, flags_of
from pumasi.core import frameworks
from pumasi.core.fields import group, many, switch, text, whole
from pumasi.core.frameworks import Framework, Gang
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from pumasi.core.options import Contradiction, Options, PoolOptions, option
from pumasi.core.ranks import Rank
from pumasi.core.reading import json_schema
from pumasi.core.spec import Spec
from pumasi.errors import PumasiError, SpecError, UsageError
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.registry import Registry
from pumasi.runs.config import build_spec


@dataclass(frozen=True)
class QueueOptions(PoolOptions):
    partition: str = option(
        text(),
        "the partition of the queue",
        example="long",
        default="short",
        value="NAME",
        group="In a queue",
        default_text="short",
    )
    walltime: int = option(whole(1, 100), "so many hours", example=12, default=24, value="N", group="In a queue")
    requeue: bool = option(switch(), "go on after a pause", example=False, default=True, off="end at a pause")
    features: tuple[str, ...] = option(
        many(text()), "a feature that nodes have", example="ib", default=(), flag="feature", value="NAME"
    )
    remarks: dict[str, str] = option(
        group(text(), text()), "a remark", example={"who": "kim"}, default={}, flag="remark", value="KEY=VALUE"
    )

    def contradictions(self, spec: Spec) -> Iterator[Contradiction]:
        if self.walltime < 2 and spec.slots > 4:
            yield Contradiction("walltime", "it is too short for so many", "slots", "ask for fewer")


@dataclass(frozen=True)
class LoopOptions(Options):
    laps: int = option(whole(1, 9), "so many laps", example=3, default=1, value="N")


@dataclass(frozen=True)
class LedgerOptions(Options):
    scribes: int = option(whole(0, 9), "so many that write all down", example=2, default=0, value="N")


class Ledger(Framework):
    name = "ledger"
    options = LedgerOptions
    noise = "^the ledger is open$"

    def wires(self, gang: Gang) -> bool:
        return gang.processes > 1

    def extra_roles(self, spec: Spec) -> list[str]:
        return ["scribe"] * spec[LedgerOptions].scribes

    def decides(self, gang: Gang, rank: Rank) -> bool:
        return rank.role != "scribe"

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        return {"LEDGER_ROLE": rank.role}

    def hint(self, tail: object) -> str:
        return "Count again."


class Entry(NamedTuple):
    name: str
    options: type[Options] | None
    synonyms: tuple[str, ...] = ()
    argument: str = ""
    argument_help: str = ""
    kind: str = ""
    shares_files: bool = False

    def at_once(self, spec: Spec) -> int:
        return spec.slots


class Point(NamedTuple):
    """An entry point of an installed package."""

    name: str
    entry: Any
    value: str = "toy:ENTRY"

    def load(self) -> Any:
        if isinstance(self.entry, Exception):
            raise self.entry
        return self.entry


INSTALLED = {
    "pumasi.pools": [Point("queue", Entry("queue", QueueOptions, kind="queues")), Point("broken", ImportError("no"))],
    "pumasi.flows": [Point("loop", Entry("loop", LoopOptions))],
    "pumasi.frameworks": [Point("ledger", Ledger())],
}


def install(monkeypatch: pytest.MonkeyPatch, points: Mapping[str, list[Point]]) -> None:
    monkeypatch.setattr("pumasi.registry._are_any_installed", lambda: True)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points[group])


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(monkeypatch, INSTALLED)
    for remembered in (catalogue.everything_installed, frameworks.find_framework):
        remembered.cache_clear()
    yield
    for remembered in (catalogue.everything_installed, frameworks.find_framework):
        remembered.cache_clear()


def build(folder: Path, flags: Mapping[str, object], text: str = "", **environ: str) -> Spec:
    (folder / "pumasi.yaml").write_text(text)
    return build_spec({"command": ["train.py"], **flags}, folder, environ)


def complaint(folder: Path, flags: Mapping[str, object], text: str = "", **environ: str) -> str:
    with pytest.raises(SpecError) as caught:
        build(folder, flags, text, **environ)
    return caught.value.message


def ask(folder: Path, line: str) -> Spec:
    """As `pumasi run` does."""
    return build_spec(flags_of(parse(VERB, [*line.split(), "train.py"])), folder, {})


@pytest.mark.usefixtures("toys")
def test_an_option_of_an_installed_pool_is_a_flag(tmp_path: Path) -> None:
    spec = ask(tmp_path, "--on queue --partition long --feature ib --feature big --remark who=kim --no-requeue")
    assert spec[QueueOptions] == QueueOptions("long", 24, False, ("ib", "big"), {"who": "kim"})
    assert spec.pool == "queue"
    assert spec.place == spec[QueueOptions]


@pytest.mark.usefixtures("toys")
def test_it_may_stand_in_a_file_and_in_a_variable_and_flags_win(tmp_path: Path) -> None:
    file = "on: queue\npartition: long\nremarks: {a: file, b: file}\nrequeue: no\n"
    spec = build(tmp_path, {"remark": ["b=flag"]}, file, PUMASI_WALLTIME="7")
    assert spec[QueueOptions] == QueueOptions("long", 7, False, (), {"a": "file", "b": "flag"})
    assert build(tmp_path, {"walltime": 8}, file, PUMASI_WALLTIME="7")[QueueOptions].walltime == 8
    told = "PUMASI_FEATURES: features can't be set by a variable; give --feature NAME, or features: in pumasi.yaml"
    assert complaint(tmp_path, {}, file, PUMASI_FEATURES="ib") == told


@pytest.mark.usefixtures("toys")
def test_python_may_call_it_by_its_own_name(tmp_path: Path) -> None:
    spec = build(tmp_path, {"on": "queue", "features": ["ib"], "remarks": {"a": "b"}, "requeue": False})
    assert spec[QueueOptions] == QueueOptions(features=("ib",), remarks={"a": "b"}, requeue=False)


@pytest.mark.usefixtures("toys")
def test_the_help_has_it_and_the_reference_of_what_is_built_in_does_not() -> None:
    lines = [line.strip() for line in verb_help(VERB, 100).splitlines()]
    assert "In a queue:" in lines
    assert "--partition NAME        the partition of the queue (default: short)" in lines
    assert "--no-requeue            end at a pause" in lines
    assert "--feature NAME          a feature that nodes have *" in lines
    assert "--partition" not in [name for option in VERB.options for name in option.names]


@pytest.mark.usefixtures("toys")
def test_the_schema_describes_it() -> None:
    schema: Any = json_schema(catalogue_for({"on": "queue"}).owned)
    assert schema["properties"]["partition"] == {
        "description": "The partition of the queue.",
        "examples": ["long"],
        "type": "string",
        "default": "short",
    }
    assert "partition" not in json.dumps(catalogue.json_schema())


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"on": "queue", "walltime": "long"},
            '--walltime: "long" is not a whole number; give 1 or more, as in --walltime 12',
        ),
        (
            {"on": "queue", "walltime": 1, "slots": 8},
            "--walltime: it is too short for so many, but --slots is 8; ask for fewer",
        ),
        ({"partition": "long"}, "--partition: it is for queues, but --on is local; add --on queue"),
        (
            {"partition": "long", "on": "k8s"},
            "--partition: it is for queues, but --on is k8s; leave one of the two out",
        ),
        ({"image": "x", "on": "queue"}, "--image: it is for clusters, but --on is queue; leave one of the two out"),
        ({"laps": 2}, "--laps: it is for --strategy loop, but strategy is together; add --strategy loop"),
        ({"on": "queue", "partitio": "x"}, "--partitio is not known; did you mean --partition?"),
        ({"on": "quue"}, '--on: "quue" is not known; did you mean queue? It can be local, k8s, k8s:CONTEXT or queue'),
    ],
)
def test_mistakes_with_it_are_sentences_like_any_other(
    tmp_path: Path, flags: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {**INSTALLED, "pumasi.pools": INSTALLED["pumasi.pools"][:1]}
    install(monkeypatch, points)
    assert complaint(tmp_path, flags) == sentence


def test_an_unknown_option_is_unknown_also_after_a_look_at_what_is_installed(toys: None) -> None:
    with pytest.raises(UsageError, match="'pumasi run' has no option --partitionn"):
        parse(VERB, ["--partitionn", "x", "train.py"])


def test_what_is_built_in_is_known_without_a_look_at_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Registry) -> dict[str, Any]:
        raise AssertionError

    monkeypatch.setattr(Registry, "_installed", never)
    spec = ask(tmp_path, "--on k8s:lab --strategy average --volume v --framework torch --no-shim --set spec.a=1")
    assert spec[KubernetesOptions].patches == ("spec.a=1",)
    assert recorded_spec(spec.dump()) == spec


def test_a_record_of_another_version_is_read_as_far_as_it_is_known() -> None:
    spec = parse_spec({"command": ["train.py"], "on": "k8s", "image": "img:1", "slots": 3})
    kept = {name: value for name, value in spec.dump().items() if name not in ("grace", "keep")}
    assert recorded_spec({**kept, "of_a_later_version": [1]}) == spec
    with pytest.raises(SpecError, match="slots"):
        recorded_spec({**kept, "slots": "many"})


@pytest.mark.usefixtures("toys")
def test_a_record_has_the_options_of_what_is_in_use_flat() -> None:
    spec = make_spec(command=("train.py",), on="queue", walltime=3)
    assert spec.dump()["walltime"] == 3
    assert recorded_spec(json.loads(json.dumps(spec.dump()))) == spec
    assert "walltime" not in make_spec(command=("train.py",)).dump()


def test_a_copy_with_other_values_finds_their_sections_and_ignores_what_it_does_not_have() -> None:
    spec = parse_spec({"command": ["train.py"], "on": "k8s"})
    changed = spec.changed({"image": "x", "slots": 2, "rounds": 3, "partition": "long"})
    assert (changed[KubernetesOptions].image, changed.slots, changed.value("rounds")) == ("x", 2, 3)
    assert spec[KubernetesOptions].image != "x"
    assert changed[QueueOptions] == QueueOptions()


@dataclass(frozen=True)
class Rival(Options):
    rounds: int = option(whole(1, 9), "so many", example=1, default=1, value="N")


@dataclass(frozen=True)
class RivalOfAll(Options):
    volumes: int = option(whole(1, 9), "so many", example=1, default=1, flag="slots", value="N")


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        (
            Rival,
            "The option --rounds of the pool rival has a name that an option of the flow average has already.",
        ),
        (RivalOfAll, "The option --slots of the pool rival has a name that an option of every run has already."),
    ],
)
def test_an_option_with_the_name_of_another_is_refused_when_it_is_chosen(
    section: type[Options], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toys: None
) -> None:
    points = {**INSTALLED, "pumasi.pools": [Point("rival", Entry("rival", section))]}
    install(monkeypatch, points)
    with pytest.raises(PumasiError) as caught:
        build(tmp_path, {"on": "rival"})
    assert caught.value.message == sentence
    assert build(tmp_path, {"on": "local"}).pool == "local"
    assert "--rounds N" in verb_help(VERB, 100)


@pytest.mark.usefixtures("toys")
def test_a_framework_of_an_installed_package_adds_roles_variables_and_advice(tmp_path: Path) -> None:
    spec = build(tmp_path, {"framework": "ledger", "scribes": 2, "slots": 2})
    program = Program(("python", "train.py"), "ledger", "as told", {})
    attempt = Attempt("run-aaaaa", 0, {"here": 2}, {}, "secret", "nonce", "/runs", ["127.0.0.1"])
    gang = gang_of(spec, program, attempt)
    (config,) = agent_configs(spec, program, attempt, gang)
    assert [rank.role for rank in gang.table.ranks] == ["chief", "worker", "scribe", "scribe"]
    assert config["deciders"] == [0, 1]
    assert [rank["env"]["LEDGER_ROLE"] for rank in config["ranks"]] == ["chief", "worker", "scribe", "scribe"]
    assert frameworks.hint(["wrong"], "ledger") == "Count again."
    assert frameworks.without_noise(["the ledger is open", "wrong"], "ledger") == ("wrong",)
    assert frameworks.needs_shared_memory("ledger")


def test_a_run_that_chooses_nothing_that_was_installed_does_not_look_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read the metadata of all packages."""
    monkeypatch.setattr(Registry, "_installed", lambda _: pytest.fail("looked"))
    spec = parse_spec({"command": ["train.py"]})
    assert recorded_spec(spec.dump()) == spec
