"""{shard} and its like: found, checked and filled."""

from __future__ import annotations

import pytest

from pumasi.core.placeholders import check, fill, names_in
from pumasi.errors import SpecError

VALUES = {"index": "2", "epoch": "3", "model": "/m/2.h5"}


def test_names_are_filled_wherever_they_stand_and_all_else_stays() -> None:
    words = ["train.py", "--out={model}", "{index}{index}", "{other}", "{}", '{"a": 1}', "{ index }"]
    assert fill(words, VALUES) == ("train.py", "--out=/m/2.h5", "22", "{other}", "{}", '{"a": 1}', "{ index }")


def test_they_may_be_written_as_others_have_written_them() -> None:
    words = ["{{INCREMENTAL_NUMBER}}.npz", "--epoch={{EPOCH}}", "{{ EPOCH }}", "{{WORKER_NUMBER}}"]
    assert fill(words, VALUES) == ("2.npz", "--epoch=3", "3", "{{WORKER_NUMBER}}")
    assert names_in(words) == {"index", "epoch", "slots"}


def test_a_value_is_not_filled_once_more() -> None:
    assert fill(["{model}"], {"model": "{index}", "index": "1"}) == ("{index}",)


@pytest.mark.parametrize(
    ("word", "message", "hint"),
    [
        ("{modle}", "{modle} in the command stands for nothing.", "Did you mean {model}?"),
        ("{zzz}", "{zzz} in the command stands for nothing.", "There are {index}, {model}."),
        ("{{SOMETHING}}", "{{SOMETHING}} in the command stands for nothing.", "There are {index}, {model}."),
    ],
)
def test_one_that_stands_for_nothing_is_named_before_anything_starts(word: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        check(["train.py", word], ["model", "index"])
    assert (caught.value.message, caught.value.hint) == (message, hint)
