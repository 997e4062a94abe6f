"""Flags, environment, pumasi.yaml and user configuration: who wins, and what is said about mistakes in them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumasi.core.frameworks.lightning import LightningOptions
from pumasi.core.frameworks.tensorflow import TensorFlowOptions
from pumasi.core.spec import Spec
from pumasi.errors import SpecError
from pumasi.pools.local.options import LocalOptions
from pumasi.runs.config import build_spec

RUN: Mapping[str, object] = {"command": ["train.py"]}


def write(folder: Path, text: str | bytes, name: str = "pumasi.yaml") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def build(folder: Path, flags: Mapping[str, object] = RUN, **environ: str) -> Spec:
    return build_spec(flags, folder, environ)


def complaint(folder: Path, flags: Mapping[str, object] = RUN, **environ: str) -> str:
    with pytest.raises(SpecError) as caught:
        build_spec(flags, folder, environ)
    return caught.value.message


def test_a_flag_wins_over_the_environment_over_the_file_over_the_users_own_over_the_default(tmp_path: Path) -> None:
    write(tmp_path, "slots: 3\nps: 3\nrestarts: 3\n")
    write(tmp_path, "slots: 2\nps: 2\nrestarts: 2\ngrace: 2\n", "home/.config/pumasi/config.yaml")
    home = str(tmp_path / "home")
    spec = build(tmp_path, {**RUN, "slots": 5}, PUMASI_SLOTS="4", PUMASI_PS="4", HOME=home)
    assert (spec.slots, spec[TensorFlowOptions].ps, spec.restarts, spec.grace, spec.silence) == (5, 4, 3, 2.0, 30.0)


def test_a_flag_that_is_none_was_not_given(tmp_path: Path) -> None:
    write(tmp_path, "slots: 3\ncommand: [fit.py]\n")
    spec = build(tmp_path, {"slots": None, "command": []})
    assert (spec.slots, spec.command) == (3, ("fit.py",))


def test_the_users_own_configuration_follows_xdg(tmp_path: Path) -> None:
    write(tmp_path, "slots: 2\n", "xdg/pumasi/config.yaml")
    assert build(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "xdg")).slots == 2
    assert build(tmp_path, XDG_CONFIG_HOME="xdg").slots == 1


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_a_file_may_be_empty(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert build(tmp_path).slots == 1


def test_names_in_a_file_may_have_dashes_or_underscores(tmp_path: Path) -> None:
    write(tmp_path, "start-timeout: 5m\nslot_as_node: yes\n")
    spec = build(tmp_path)
    assert (spec.start_timeout, spec[LightningOptions].slot_as_node) == (300.0, True)


def test_values_in_a_file_mean_what_they_look_like(tmp_path: Path) -> None:
    write(tmp_path, "on: local\nname: 2024-01-01\nshim: off\nenv: {V: 1.10, ID: 007, D: 2024-01-01, YES: yes}\n")
    spec = build(tmp_path)
    assert (spec.on, spec.name, spec.shim) == ("local", "2024-01-01", False)
    assert spec.env == {"V": "1.10", "ID": "007", "D": "2024-01-01", "YES": "yes"}


@pytest.mark.parametrize(
    "text", ["train.py --lr 0.10 'a b'", "[train.py, --lr, 0.10, a b]", "['train.py',--lr,'0.10',a b]"]
)
def test_a_command_in_a_file_may_be_a_line_or_a_list(tmp_path: Path, text: str) -> None:
    write(tmp_path, f"command: {text}\n")
    assert build(tmp_path, {}).command == ("train.py", "--lr", "0.10", "a b")


def test_variables_of_all_layers_come_together_and_flags_win(tmp_path: Path) -> None:
    write(tmp_path, "env: {A: file, B: file}\n")
    write(tmp_path, "env: {A: own, C: own}\n", "home/.config/pumasi/config.yaml")
    spec = build(tmp_path, {**RUN, "env": ["B=flag=x", "D="]}, HOME=str(tmp_path / "home"))
    assert spec.env == {"A": "file", "B": "flag=x", "C": "own", "D": ""}
    assert build(tmp_path, {**RUN, "env": {"B": "python"}}).env == {"A": "file", "B": "python"}


def test_a_variable_without_a_value_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, "slots: 2\nenv:\n  A: 1\n  B:\n")
    assert complaint(tmp_path).startswith("pumasi.yaml, line 4: env.B: an empty value is not text")
    write(tmp_path, "")
    assert complaint(tmp_path, {**RUN, "env": ["LR"]}) == '--env: "LR" has no "="; give NAME=VALUE, as in LR=0.1'


def test_the_environment_is_text_that_is_understood(tmp_path: Path) -> None:
    spec = build(tmp_path, PUMASI_SLOTS="2", PUMASI_SHIM="no", PUMASI_TIMEOUT="1h", PUMASI_NODES="2,1", PUMASI_PS="")
    assert (spec.slots, spec.shim, spec.timeout, spec[LocalOptions].nodes, spec[TensorFlowOptions].ps) == (
        2,
        False,
        3600.0,
        (2, 1),
        0,
    )


def test_what_pumasi_sets_for_ranks_configures_no_run_inside_a_run(tmp_path: Path) -> None:
    own = {f"PUMASI_{name}": "x" for name in ("HOME", "RUN", "ATTEMPT", "GANG", "RANK", "CHECKPOINT_DIR", "NODE")}
    assert build_spec(RUN, tmp_path, own) == build(tmp_path)


def test_a_variable_of_some_other_purpose_is_left_alone(tmp_path: Path) -> None:
    assert build(tmp_path, PUMASI_PORT="tcp://10.0.0.1:80", PUMASI_SERVICE_HOST="10.0.0.1").slots == 1


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("PUMASI_SLOTSS", "2", "PUMASI_SLOTSS is not known; did you mean PUMASI_SLOTS?"),
        ("PUMASI_SLOTS", "two", 'PUMASI_SLOTS: "two" is not a whole number; give 1 or more, as in PUMASI_SLOTS=4'),
        (
            "PUMASI_ENV",
            "A=1",
            "PUMASI_ENV: env can't be set by a variable; give --env NAME=VALUE, or env: in pumasi.yaml",
        ),
        (
            "PUMASI_COMMAND",
            "x",
            "PUMASI_COMMAND: command can't be set by a variable; "
            "give it after the options, or as command: in pumasi.yaml",
        ),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path: Path, variable: str, value: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_spec(RUN, tmp_path, {variable: value})
    assert caught.value.message == sentence


def test_gpus_are_slots_that_require_one(tmp_path: Path) -> None:
    spec = build(tmp_path, {**RUN, "gpus": 6})
    assert (spec.slots, spec.gpu) == (6, "required")


def test_no_gpus_leaves_the_slots_alone(tmp_path: Path) -> None:
    write(tmp_path, "gpus: 4\n")
    spec = build(tmp_path, {**RUN, "gpus": "0"})
    assert (spec.slots, spec.gpu) == (4, "none")


def test_slots_on_the_command_line_win_over_gpus_in_a_file(tmp_path: Path) -> None:
    write(tmp_path, "gpus: 4\n")
    spec = build(tmp_path, {**RUN, "slots": "2"})
    assert (spec.slots, spec.gpu) == (2, "required")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"gpus": "two"}, '--gpus: "two" is not a whole number; give 1 or more, as in --gpus 4'),
        ({"gpus": False}, "--gpus: false is not a whole number; give 1 or more, as in --gpus 4"),
        ({"gpus": 4, "slots": "2"}, "--gpus: 4 makes slots 4, but --slots is 2; keep one"),
    ],
)
def test_a_mistake_in_gpus_is_called_by_that_name(tmp_path: Path, flags: dict[str, object], sentence: str) -> None:
    assert complaint(tmp_path, {**RUN, **flags}) == sentence


def test_a_file_that_says_gpus_is_told_so(tmp_path: Path) -> None:
    write(tmp_path, "gpus: -1\n")
    assert complaint(tmp_path) == "pumasi.yaml, line 1: gpus: -1 is too small; give 1 or more, as in gpus: 4"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name: a\n\nslotss: 4\n", "pumasi.yaml, line 3: slotss is not known; did you mean slots?"),
        ("slots: two\n", 'pumasi.yaml, line 1: slots: "two" is not a whole number; give 1 or more, as in slots: 4'),
        ("slots: 1\nslots: 2\n", "pumasi.yaml, line 2: slots is given twice, first in line 1; keep one"),
        ("per-node: no\nper_node: no\n", "pumasi.yaml, line 2: per_node is given twice, first in line 1; keep one"),
        ("env:\n  A: 1\n  A: 2\n", "pumasi.yaml, line 3: A is given twice, first in line 2; keep one"),
        ("# mine\n- slots\n", "pumasi.yaml, line 2: names and values belong here, as in slots: 4"),
        ("slots\n", "pumasi.yaml, line 1: names and values belong here, as in slots: 4"),
        ("'': 4\n", "pumasi.yaml, line 1: a name is missing here; write name: value"),
        ("? [slots]\n: 4\n", "pumasi.yaml, line 1: a name is missing here; write name: value"),
        ('"a\\nb": 4\n', "pumasi.yaml, line 1: a\\nb is not known; leave it out"),
        ("env: {A: [1]}\n", "pumasi.yaml, line 1: a list or a group can't stand here; give plain text"),
        ("slots: !big 4\n", "pumasi.yaml, line 1: the tag !big is not known; leave it out"),
        (
            "slots: !!python/none 4\n",
            "pumasi.yaml, line 1: the tag tag:yaml.org,2002:python/none is not known; leave it out",
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    write(tmp_path, text)
    assert complaint(tmp_path) == sentence


@pytest.mark.parametrize(
    ("text", "line", "advice"),
    [
        ("slots: 4\n\tname: a\n", 2, "indent with spaces, not with tabs"),
        ("env:\n\tA: 1\n", 2, "indent with spaces, not with tabs"),
        ("slots: 4\nname: a: b\n", 2, 'put text that holds ": " in quotes, and give all names the same indentation'),
        ("slots: 4\nname 'a'\nps: 1\n", 2, "write name: value on each line"),
        ("slots: 4\nname: 'a\nps: 1\n", 2, "close the quote"),
        ("slots: 4\nnodes: [1, 2\nps: 1\n", 2, "close the bracket"),
        ("slots: 4\n---\nslots: 5\n", 1, "leave the line of --- out"),
        ("slots: 4\nname: \0\n", 2, "take it out"),
        ("slots: *four\n", 1, "write name: value on each line"),
        ("nodes: " + "[" * 5000, 1, "write name: value on each line"),
    ],
)
def test_what_is_no_yaml_is_one_mistake_with_its_line(tmp_path: Path, text: str, line: int, advice: str) -> None:
    write(tmp_path, text)
    message = complaint(tmp_path, {})
    assert message.startswith(f"pumasi.yaml, line {line}: this is not YAML: ")
    assert message.endswith(f"; {advice}")
    assert "\n" not in message


def test_a_file_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, b"slots: 4\nname: caf\xe9\n")
    assert complaint(tmp_path) == "pumasi.yaml, line 2: this is not UTF-8 text; save the file as UTF-8"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    write(tmp_path, b"\xef\xbb\xbfslots: 4\n")
    assert build(tmp_path).slots == 4


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "pumasi.yaml").mkdir()
    assert complaint(tmp_path).startswith("pumasi.yaml: this is a folder; rename it")


def test_a_file_that_can_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "pumasi.yaml").symlink_to("pumasi.yaml")
    assert complaint(tmp_path).startswith("pumasi.yaml: it can't be read (Too many levels of symbolic links)")


def test_a_huge_file_is_not_taken_for_settings(tmp_path: Path) -> None:
    write(tmp_path, "#" * (1 << 21))
    assert complaint(tmp_path) == "pumasi.yaml: it is larger than 1 MiB; it should hold a few settings only"


def test_the_users_own_file_is_called_by_its_path(tmp_path: Path) -> None:
    write(tmp_path, "slots: 0\n", ".config/pumasi/config.yaml")
    assert complaint(tmp_path, HOME=str(tmp_path)).startswith("~/.config/pumasi/config.yaml, line 1: slots: 0 is")


def test_mistakes_of_all_layers_are_told_at_once(tmp_path: Path) -> None:
    write(tmp_path, "slots: two\nslots: 3\ngrace: x\n")
    lines = complaint(tmp_path, {**RUN, "name": "X"}, PUMASI_PS="y").split("\n")
    assert lines[0] == "5 mistakes:"
    places = ["pumasi.yaml, line 2", "pumasi.yaml, line 1", "pumasi.yaml, line 3", "--name", "PUMASI_PS"]
    assert [line.split(":")[0] for line in lines[1:]] == places


def test_contradictions_between_layers_name_both_places(tmp_path: Path) -> None:
    write(tmp_path, "framework: torch\n")
    assert complaint(tmp_path, {**RUN, "ps": 1}) == (
        "--ps: parameter servers are TensorFlow's, but pumasi.yaml, line 1: framework is torch; "
        "leave one of the two out"
    )


def test_a_run_takes_place_in_the_current_folder(tmp_path: Path) -> None:
    assert build(tmp_path).workdir == str(tmp_path)


def test_paths_are_seen_from_the_file_that_names_them(tmp_path: Path) -> None:
    write(tmp_path, "workdir: deep\npython: .venv/bin/python\n")
    (tmp_path / "deep").mkdir()
    spec = build(tmp_path)
    assert (spec.workdir, spec.python) == (str(tmp_path / "deep"), str(tmp_path / ".venv/bin/python"))
    assert build(tmp_path, {**RUN, "python": "python3.11", "workdir": Path("/")}).python == "python3.11"


def test_paths_in_the_users_own_file_start_there_and_at_home(tmp_path: Path) -> None:
    write(tmp_path, "workdir: .\npython: ~/bin/python\n", ".config/pumasi/config.yaml")
    spec = build(tmp_path, HOME=str(tmp_path))
    assert (spec.workdir, spec.python) == (str(tmp_path / ".config/pumasi"), str(tmp_path / "bin/python"))


def test_a_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert build(Path()).workdir == str(tmp_path)


def test_a_folder_to_run_in_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, "", "file")
    write(tmp_path, "slots: 1\nworkdir: gone\n")
    assert complaint(tmp_path) == (
        f"pumasi.yaml, line 2: workdir: {tmp_path / 'gone'} does not exist; "
        "give the folder that the program should run in"
    )
    assert "is not a folder" in complaint(tmp_path, {**RUN, "workdir": "file"})
    assert "holds a NUL" in complaint(tmp_path, {**RUN, "workdir": "a\0b"})


def test_an_unknown_flag_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    assert complaint(tmp_path, {**RUN, "start-timeot": "1m"}) == (
        "--start-timeot is not known; did you mean --start-timeout?"
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text()
    | st.lists(st.sampled_from(["slots", "env", ":", " ", "\n", "[", "{", "]", "&a", "*a", "- ", "4", "'"])).map(
        "".join
    )
)
def test_whatever_a_file_holds_ends_in_a_spec_or_in_sentences(tmp_path: Path, text: str) -> None:
    write(tmp_path, text.encode("utf-8", "replace"))
    with contextlib.suppress(SpecError):
        build(tmp_path)


def test_variables_of_files_come_before_those_that_are_named_one_by_one(tmp_path: Path) -> None:
    write(tmp_path, "A=1\nB=1\nC=1\nD=1\n", "a.env")
    write(tmp_path, "B=2\n", "b.env")
    write(tmp_path, "env_file: [a.env, b.env]\nenv:\n  C: 3\n")
    assert build(tmp_path).env == {"A": "1", "B": "2", "C": "3", "D": "1"}
    write(tmp_path, "C=4\nD=4\n", "flag.env")
    spec = build(tmp_path, {**RUN, "env-file": ["flag.env"], "env": ["D=5"]})
    assert spec.env == {"A": "1", "B": "2", "C": "4", "D": "5"}
    assert build(tmp_path, {**RUN, "env_file": tmp_path / "flag.env"}).env["D"] == "4"
    hidden = build_spec({**RUN, "env-file": ["flag.env"], "env": ["D=5"]}, tmp_path, {}, without_values=True)
    assert hidden.env == {"A": "(from a.env)", "B": "(from b.env)", "C": "(from flag.env)", "D": "5"}


def test_files_may_be_paths_and_begin_at_home(tmp_path: Path) -> None:
    write(tmp_path, "A=1\n", "x.env")
    write(tmp_path, "env_file: ~/x.env\n")
    spec = build(tmp_path, {**RUN, "requirements": Path("requirements.txt")}, HOME=str(tmp_path))
    assert (spec.env, spec.requirements) == ({"A": "1"}, "requirements.txt")


def test_what_is_wrong_with_a_file_of_variables_is_named_with_its_place(tmp_path: Path) -> None:
    write(tmp_path, b"\xff", "odd.env")
    write(tmp_path, "slots: 1\nenv_file: [none.env, odd.env]\n")
    wrong = complaint(tmp_path)
    assert "pumasi.yaml, line 2: env_file none.env: it can't be read: No such file or directory" in wrong
    assert "pumasi.yaml, line 2: env_file odd.env: it is not UTF-8 text; save it as UTF-8" in wrong
    write(tmp_path, "A=1\nPUMASI_RANK=secret\n", "ours.env")
    wrong = complaint(tmp_path, {**RUN, "env-file": ["ours.env"]})
    assert "ours.env: PUMASI_RANK is what Pumasi tells each process; give the variable another name" in wrong
    assert "secret" not in wrong
    write(tmp_path, "env_file: {a: 1}\n")
    assert "give the name of a file, or a list of names" in complaint(tmp_path)
