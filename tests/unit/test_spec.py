"""What a user may ask for, and what they are told when they ask for something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumasi.catalogue import catalogue_for, json_schema, parse_spec
from pumasi.core.command import program_of, script_of
from pumasi.core.fields import parse_duration
from pumasi.core.flows.average.options import AverageOptions
from pumasi.core.options import declared
from pumasi.core.spec import Spec, run_name
from pumasi.errors import SpecError
from pumasi.pools.local.options import LocalOptions

OPTIONS = catalogue_for({}).options
FLAGS = {name: option.flag for name, option in OPTIONS.items()}


def complaint(data: Mapping[str, object], places: Mapping[str, str] = FLAGS) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec({"command": ["train.py"], **data}, places)
    return caught.value.message


def spec_of(*command: str) -> Spec:
    return parse_spec({"command": command})


def test_a_command_is_all_that_is_needed() -> None:
    spec = parse_spec({"command": ["train.py", "--epochs", "3"]})
    assert spec.command == ("train.py", "--epochs", "3")
    assert (spec.slots, spec.framework, spec.timeout, spec.silence, spec.wait) == (1, "auto", None, 30.0, True)


def test_a_spec_survives_being_stored_as_json() -> None:
    spec = parse_spec({"command": "train.py", "slots": 3, "nodes": "2,1", "timeout": "1h", "env": {"LR": "0.1"}})
    assert parse_spec(json.loads(json.dumps(spec.dump()))) == spec


def test_a_spec_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        spec_of("train.py").slots = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (0, "--slots: 0 is too small; give 1 or more, as in --slots 4"),
        ("-1", "--slots: -1 is too small; give 1 or more, as in --slots 4"),
        (10**9, "--slots: 1000000000 is too large; give 4096 at the most, as in --slots 4"),
        ("two", '--slots: "two" is not a whole number; give 1 or more, as in --slots 4'),
        (1.5, "--slots: 1.5 is not a whole number; give 1 or more, as in --slots 4"),
        ("1.5", "--slots: 1.5 is not a whole number; give 1 or more, as in --slots 4"),
        (True, "--slots: true is not a whole number; give 1 or more, as in --slots 4"),
        (None, "--slots: an empty value is not a whole number; give 1 or more, as in --slots 4"),
        ([4], "--slots: a list is not a whole number; give 1 or more, as in --slots 4"),
        pytest.param(10**5000, "--slots: this number is too large; give 4096 at the most, as in --slots 4", id="huge"),
        (float("nan"), "--slots: this number is not a whole number; give 1 or more, as in --slots 4"),
    ],
)
def test_slots_that_make_no_sense_are_explained(value: object, sentence: str) -> None:
    assert complaint({"slots": value}) == sentence


def test_a_number_with_too_many_digits_is_cut_in_the_sentence() -> None:
    sentence = complaint({"restarts": "9" * 5000})
    assert sentence.endswith("9… is too large; give 1000 at the most, as in --restarts 3")
    assert len(sentence) < 160


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("PUMASI_SLOTS", "PUMASI_SLOTS: 0 is too small; give 1 or more, as in PUMASI_SLOTS=4"),
        ("pumasi.yaml, line 3: slots", "pumasi.yaml, line 3: slots: 0 is too small; give 1 or more, as in slots: 4"),
    ],
)
def test_what_would_be_right_is_written_as_in_the_place_of_the_mistake(place: str, sentence: str) -> None:
    assert complaint({"slots": 0}, {"slots": place}) == sentence


def test_every_mistake_is_told_at_once_one_a_line_contradictions_too() -> None:
    lines = complaint({"slots": "two", "timeout": "x", "ps": 1, "framework": "jax"}).split("\n")
    assert lines[0] == "3 mistakes:"
    assert [line.split(":")[0] for line in lines[1:]] == ["--slots", "--timeout", "--ps"]


def test_mistakes_found_by_the_reader_of_a_file_are_told_together_with_the_others() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"command": ["a"], "slots": 0}, FLAGS, ["pumasi.yaml: it can't be read"])
    assert caught.value.message.split("\n")[:2] == ["2 mistakes:", "pumasi.yaml: it can't be read"]
    assert "--help" in caught.value.hint


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("15m", 900), ("2h30m", 9000), ("1d", 86400), ("1D 2h", 93600)],
)
def test_a_length_of_time_may_be_written_in_several_ways(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds
    assert parse_spec({"command": ["a"], "timeout": value}).timeout == seconds


@pytest.mark.parametrize("value", ["", " ", "x", "2h30", "30m2h", "5 parsecs", "-5", -5, True, None, [1], "1e3", "٣s"])
def test_what_is_no_length_of_time_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="is not a length of time; give seconds, or a text such as 90s, 15m"):
        parse_duration(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), pytest.param(10**5000, id="huge")])
def test_a_number_that_no_clock_can_reach_is_no_length_of_time(value: float) -> None:
    with pytest.raises(SpecError, match="this number is not a length of time"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"timeout": 0}, "--timeout: 0 is too small; give more than 0, as in --timeout 2h30m"),
        ({"timeout": "400d"}, '--timeout: "400d" is too large; give 365d at the most, as in --timeout 2h30m'),
        ({"silence": "0.1s"}, '--silence: "0.1s" is too small; give 1s or more, as in --silence 30s'),
    ],
)
def test_lengths_of_time_have_bounds(data: Mapping[str, object], sentence: str) -> None:
    assert complaint(data) == sentence


def test_a_timeout_of_none_means_no_timeout() -> None:
    assert parse_spec({"command": ["a"], "timeout": "none"}).timeout is None


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("My Run!", "my-run"), ("-a-", "a"), ("Größe_2", "groe-2"), ("훈련", "train"), ("a" * 41, "a" * 40)],
)
def test_a_name_that_is_no_dns_label_is_refused_with_one_that_is(name: str, suggestion: str) -> None:
    sentence = complaint({"name": name})
    assert "can't name a run; give at most 40 lower-case letters, digits and dashes" in sentence
    assert sentence.endswith(f"as in --name {suggestion}")
    assert parse_spec({"command": ["a"], "name": suggestion}).name == suggestion


@pytest.mark.parametrize(
    ("field", "value", "meant"),
    [
        ("framework", "pytorch", "torch"),
        ("framework", "tf", "tensorflow"),
        ("framework", "Torch", "torch"),
        ("framework", "tensorfow", "tensorflow"),
        ("gpu", True, "required"),
        ("gpu", "requird", "required"),
        ("see_gpus", "al", "all"),
    ],
)
def test_a_choice_that_is_nearly_right_is_recognised(field: str, value: object, meant: str) -> None:
    assert f"is not known; did you mean {meant}?" in complaint({field: value})


def test_a_choice_that_is_like_nothing_gets_the_list() -> None:
    assert complaint({"gpu": "7"}) == "--gpu: 7 is not known; give auto, required or none"


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("no", False), ("true", True), ("0", False), ("1", True)])
def test_a_switch_may_be_written_as_text(text: str, value: bool) -> None:
    assert parse_spec({"command": ["a"], "shim": text}).shim is value


def test_a_switch_that_is_neither_on_nor_off_is_refused() -> None:
    sentence = '--shim: "maybe" is neither yes nor no; give true or false, as in --shim false'
    assert complaint({"shim": "maybe"}) == sentence


def test_each_bad_variable_is_named() -> None:
    lines = complaint({"env": {"A=B": "1", "": "2", "C\0": "3", "D": 4, "E": "\0"}}).split("\n")
    assert lines[1] == '--env: "A=B" can\'t name a variable; give a name without "=", and a value, as in --env LR=0.1'
    assert lines[2].startswith('--env: "" can\'t name a variable')
    assert lines[3].startswith('--env: "C\\x00" holds a NUL')
    assert lines[4].startswith("--env: 4 is not text")
    assert lines[5].startswith('--env: "\\x00" holds a NUL')


def test_variables_that_are_no_group_are_refused_with_an_example() -> None:
    assert complaint({"env": "LR"}, {}) == (
        'env: "LR" is not a group of names and values; give each name with its value, as in env: {LR: 0.1}'
    )


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            {"ps": 2, "framework": "torch"},
            "--ps: parameter servers are TensorFlow's, but --framework is torch; leave one of the two out",
        ),
        (
            {"evaluator": True, "framework": "jax"},
            "--evaluator: an evaluator is TensorFlow's, but --framework is jax; leave one of the two out",
        ),
        (
            {"ps": 1, "per_node": True},
            "--ps: it takes one process a slot, but --per-node is on; leave one of the two out",
        ),
        (
            {"slot_as_node": True, "per_node": True},
            "--slot-as-node: it takes one process a slot, but --per-node is on; leave one of the two out",
        ),
        (
            {"see_gpus": "all", "gpu": "none"},
            "--see-gpus: it takes GPUs, but --gpu is none; leave one of the two out",
        ),
        (
            {"split": "a.npz"},
            "--split: it is for those that train apart, but --strategy is together; add --strategy average",
        ),
        (
            {"strategy": "average", "split": "a.npz", "copy": "b.npz"},
            "--split: a trainer has a part of the data or all of it, but --copy is b.npz; leave one of the two out",
        ),
        (
            {"strategy": "average", "ps": 1},
            "--ps: it is for those that train one model, but --strategy is average; leave one of the two out",
        ),
        (
            {"strategy": "average", "slots": 2, "min_models": 3},
            "--min-models: there are not so many, but --slots is 2; ask for fewer",
        ),
        (
            {"nodes": "2,1", "slots": 4},
            "--nodes: the nodes have 3 slots in all, but --slots is 4; give nodes with 4 in all, or fewer slots",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_named_both(data: Mapping[str, object], sentence: str) -> None:
    assert complaint(data) == sentence


@pytest.mark.parametrize(("value", "nodes"), [("5,1", (5, 1)), ([5, 1], (5, 1)), (["5", " 1"], (5, 1)), (3, (3,))])
def test_nodes_may_be_written_in_several_ways(value: object, nodes: tuple[int, ...]) -> None:
    assert parse_spec({"command": ["a"], "nodes": value})[LocalOptions].nodes == nodes


@pytest.mark.parametrize(("value", "wrong"), [("0,2", "0 is too small"), ("-1", "-1 is too small"), ("", '"" is not')])
def test_a_node_without_slots_is_refused(value: str, wrong: str) -> None:
    assert complaint({"nodes": value}).startswith(f"--nodes: {wrong}")


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("--slotss", "--slotss is not known; did you mean --slots?"),
        ("pumasi.yaml, line 3: slotss", "pumasi.yaml, line 3: slotss is not known; did you mean slots?"),
        ("PUMASI_SLOTSS", "PUMASI_SLOTSS is not known; did you mean PUMASI_SLOTS?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_that_was_meant(place: str, sentence: str) -> None:
    assert complaint({"slotss": 3}, {"slotss": place}) == sentence


def test_an_unknown_name_like_no_other_is_to_be_left_out() -> None:
    assert complaint({"qqqqq": 3}) == "qqqqq is not known; leave it out"


@pytest.mark.parametrize("data", [{}, {"command": []}, {"command": ""}, {"command": [""]}])
def test_a_run_of_nothing_is_refused(data: Mapping[str, object]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    assert caught.value.message == (
        "command: there is nothing to run; give a script or a program, as in pumasi run train.py"
    )


def test_a_command_may_be_one_line_which_no_shell_sees() -> None:
    assert spec_of("train.py", "a b", "$HOME").command == parse_spec({"command": 'train.py "a b" $HOME'}).command


def test_a_command_may_hold_paths() -> None:
    assert parse_spec({"command": [Path("a/train.py"), "x"]}).command == ("a/train.py", "x")


def test_a_quote_that_is_not_closed_is_named() -> None:
    assert '"train.py \'x" has a quote that is not closed; close it' in complaint({"command": "train.py 'x"})


def test_an_argument_that_can_not_be_printed_is_refused_in_a_sentence_that_can() -> None:
    complaint({"command": ["train.py", "caf\udce9"]}).encode()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(list(OPTIONS)) | st.text(), anything, max_size=4))
def test_whatever_is_asked_for_ends_in_a_spec_or_in_sentences(data: dict[str, Any]) -> None:
    try:
        parse_spec(data, FLAGS)
    except SpecError as error:
        lines = error.message.split("\n")
        assert len(lines) == 1 or lines[0] == f"{len(lines) - 1} mistakes:"


def test_the_schema_describes_every_field_and_names_no_invented_host() -> None:
    schema: Any = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:")
    assert set(schema["properties"]) == {*OPTIONS, "gpus", "env_file", "set"} - {"patches"}
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["additionalProperties"] is False


def test_the_schema_suits_what_people_write_in_a_file() -> None:
    schema: Any = json_schema()
    fields = schema["properties"]
    assert "required" not in schema
    assert fields["slots"]["maximum"] == 4096
    assert fields["grace"]["type"] == ["number", "string"]
    assert fields["timeout"]["type"] == ["number", "string", "null"]
    assert fields["command"]["type"] == ["string", "array"]
    assert "default" not in fields["command"]
    assert schema["patternProperties"]["^start-timeout$"] == {"$ref": "#/properties/start_timeout"}
    json.dumps(schema)


def test_every_field_has_an_example_that_is_right() -> None:
    for name, field in OPTIONS.items():
        strategy = {"strategy": "average"} if name in declared(AverageOptions) else {}
        parse_spec({"command": ["train.py"], "slots": 4, **strategy, name: field.example})


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("train.py --epochs 3", "train.py"),
        ("./deep/train.py", "./deep/train.py"),
        ("python train.py", "train.py"),
        ("/usr/bin/python3.11 -u -W ignore -Xdev train.py x.py", "train.py"),
        ("python -uW ignore -X utf8 train.py", "train.py"),
        ("python -m pkg.train other.py", None),
        ("python -um pkg.train", None),
        ("python -c pass x.py", None),
        ("python - x.py", None),
        ("python folder", None),
        ("python", None),
        ("torchrun --nproc-per-node 2 train.py --lr 1", "train.py"),
        ("torchrun -m pkg.train conf.py", None),
        ("accelerate launch --cpu train.py", "train.py"),
        ("accelerate config conf.py", None),
        ("deepspeed train.py", "train.py"),
        ("horovodrun -np 2 python train.py", "train.py"),
        ("mpirun -n 2 python -u train.py", "train.py"),
        ("mpiexec -n 2 ./solver", None),
        ("./anything train.py", None),
    ],
)
def test_the_script_is_found_in_the_command(command: str, script: str | None) -> None:
    assert script_of(parse_spec({"command": command}).command) == script


def test_the_program_is_named_without_its_folder() -> None:
    assert program_of(["/usr/bin/python3", "train.py"]) == "python3"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("train.py", "train"),
        ("code/My_Model v2.py", "my-model-v2"),
        ("python -m pkg.fit", "fit"),
        ("torchrun train.py", "train"),
        ("./run.sh", "run"),
        ("훈련.py", "run"),
        (f"{'long' * 20}.py", "long" * 10),
    ],
)
def test_a_run_is_named_after_what_it_runs(command: str, name: str) -> None:
    words = [command] if command.endswith(".py") and not command.startswith("torchrun") else command.split()
    assert run_name(spec_of(*words)) == name


def test_a_given_name_comes_first() -> None:
    assert run_name(parse_spec({"command": ["train.py"], "name": "imdb"})) == "imdb"
