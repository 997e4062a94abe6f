"""Which words of a command line are ours, and which belong to the user's program."""

from __future__ import annotations

import pytest

from pumasi.cli.grammar import SUMMARIES, load
from pumasi.cli.parsing import Arguments, closest, parse
from pumasi.errors import UsageError

RUN = load("run")
LOGS = load("logs")


def parse_run(line: str) -> Arguments:
    return parse(RUN, line.split())


@pytest.mark.parametrize(
    ("line", "ours", "rest"),
    [
        ("train.py", {}, "train.py"),
        ("train.py --slots 3", {}, "train.py --slots 3"),
        ("--slots 4 train.py --slots 3 -d", {"slots": ["4"]}, "train.py --slots 3 -d"),
        ("--slots=4 train.py --", {"slots": ["4"]}, "train.py --"),
        (
            "-d --slots 4 -- torchrun --nnodes 2 train.py",
            {"detach": [""], "slots": ["4"]},
            "torchrun --nnodes 2 train.py",
        ),
        ("-- --odd-program -d", {}, "--odd-program -d"),
        ("-dq train.py -dq", {"detach": [""], "quiet": [""]}, "train.py -dq"),
        ("--slots -1 train.py", {"slots": ["-1"]}, "train.py"),
        ("--slots two train.py", {"slots": ["two"]}, "train.py"),
        ("--slots 2 --slots 3 train.py", {"slots": ["2", "3"]}, "train.py"),
        ("--env A=1 --env B=-d train.py", {"env": ["A=1", "B=-d"]}, "train.py"),
        ("--name= train.py", {"name": [""]}, "train.py"),
        ("--timeout=2h=3 train.py", {"timeout": ["2h=3"]}, "train.py"),
        ("- --slots 3", {}, "- --slots 3"),
        ("train.py --help", {}, "train.py --help"),
        ("", {}, ""),
        ("--np 4 train.py", {"slots": ["4"]}, "train.py"),
        ("--np=4 train.py", {"slots": ["4"]}, "train.py"),
        ("-np 4 train.py --np 3", {"slots": ["4"]}, "train.py --np 3"),
        ("-np train.py", {"namespace": ["p"]}, "train.py"),
    ],
)
def test_what_stands_after_the_script_belongs_to_the_script(line: str, ours: dict[str, list[str]], rest: str) -> None:
    assert parse_run(line) == Arguments(ours, rest.split())


@pytest.mark.parametrize("word", ["", "a b", "--", "ü", "-"])
def test_words_are_passed_on_as_they_are(word: str) -> None:
    assert parse(RUN, ["train.py", word, "--slots"]).rest == ["train.py", word, "--slots"]


def test_the_last_value_of_an_option_counts() -> None:
    given = parse_run("--slots 2 --slots 3 train.py")
    assert given.last("slots") == "3"
    assert given.all("slots") == ["2", "3"]
    assert given.last("gpus") is None
    assert given.all("gpus") == []


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("-r5", {"rank": ["5"]}),
        ("-r 5", {"rank": ["5"]}),
        ("-r=5", {"rank": ["5"]}),
        ("-fr5", {"follow": [""], "rank": ["5"]}),
        ("-ftr 5", {"follow": [""], "timestamps": [""], "rank": ["5"]}),
        ("--tail=5 -f", {"tail": ["5"], "follow": [""]}),
    ],
)
def test_short_options_may_be_joined(line: str, values: dict[str, list[str]]) -> None:
    assert parse(LOGS, line.split()) == Arguments(values, [])


def test_options_may_stand_after_the_run_that_they_are_about() -> None:
    assert parse(LOGS, ["train-x7", "-f"]) == Arguments({"follow": [""]}, ["train-x7"])


@pytest.mark.parametrize(
    ("verb", "line", "message", "hint"),
    [
        ("run", "--slot 3 train.py", "has no option --slot.", "Did you mean --slots?"),
        ("run", "--frame-work jax train.py", "no option --frame-work.", "Did you mean --framework?"),
        ("run", "--epochs 3 train.py", "no option --epochs.", "stand after it: pumasi run train.py --epochs"),
        ("run", "--slo 3 train.py", "no option --slo.", "Did you mean --slots?"),
        ("run", "-x train.py", "no option -x.", "stand after it"),
        ("run", "--slots", "--slots needs a value.", "--slots N: so many processes"),
        ("run", "--framework --slots 3 train.py", "--framework needs a value.", "one of auto, none, horovod, jax"),
        ("run", "--name -- train.py", "--name needs a value.", ""),
        ("run", "--detach=yes train.py", "--detach takes no value, but was given 'yes'.", ""),
        ("logs", "--folow", "no option --folow.", "Did you mean --follow?"),
        ("logs", "--wat", "no option --wat.", "'pumasi logs --help' lists them."),
        ("logs", "-fx", "no option -x.", ""),
        ("logs", "a b", "takes only one RUN; 'b' is too much.", "Usage: pumasi logs"),
        ("ps", "a", "takes no arguments, but was given 'a'.", "Usage: pumasi ps"),
        ("completion", "", "needs SHELL.", "Usage: pumasi completion bash|zsh|fish"),
    ],
)
def test_a_wrong_word_is_named_with_what_was_meant(verb: str, line: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(load(verb), line.split())
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("verb", SUMMARIES)
def test_every_verb_knows_help(verb: str) -> None:
    assert parse(load(verb), ["--help"]).has("help")
    assert parse(load(verb), ["-h"]).has("help")


@pytest.mark.parametrize("verb", SUMMARIES)
def test_options_of_a_verb_have_different_names_and_say_what_they_do(verb: str) -> None:
    options = load(verb).options
    names = [name for option in options for name in option.names]
    assert len(names) == len(set(names))
    assert all(option.help and not option.help.endswith(".") for option in options)
    assert all(option.names[-1].startswith("--") for option in options)


def test_nothing_near_is_nothing() -> None:
    assert closest("zebra", ["run", "ps"]) == ""
