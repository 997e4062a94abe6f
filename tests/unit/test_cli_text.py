from __future__ import annotations

import pytest

from pumasi.cli.view import text
from pumasi.cli.view.output import paint_row


@pytest.mark.parametrize(
    ("string", "columns"), [("run", 3), ("품앗이", 6), ("é", 1), ("e\u0301", 1), ("a\u200db", 2), ("", 0)]
)
def test_a_text_is_as_wide_as_a_terminal_shows_it(string: str, columns: int) -> None:
    assert text.width(string) == columns


@pytest.mark.parametrize(
    ("string", "columns", "shown"),
    [("training", 8, "training"), ("training", 5, "trai…"), ("품앗이", 5, "품앗…"), ("품앗이", 4, "품…"), ("x", 0, "")],
)
def test_a_text_that_does_not_fit_is_cut_with_an_ellipsis(string: str, columns: int, shown: str) -> None:
    assert text.fit(string, columns) == shown
    assert text.width(shown) <= columns


def test_columns_of_a_table_stand_under_each_other_with_korean_names_too() -> None:
    lines = text.table(
        ("id", "state", "slots"), [("품앗이-x7k2p", "done", "4"), ("imdb", "running", "16")], 80, right=(2,)
    )
    assert lines == [
        "id            state    slots",
        "품앗이-x7k2p  done         4",
        "imdb          running     16",
    ]


def test_a_table_that_is_too_wide_gives_way_in_its_last_column() -> None:
    head, row = text.table(("id", "command"), [("train-x7k2p", "train.py --epochs 3 --lr 0.1")], 30)
    assert row == "train-x7k2p  train.py --epoch…"
    assert len(row) == 30
    assert head == "id           command"


def test_another_column_may_give_way_instead() -> None:
    assert text.table(("a", "b"), [("x" * 50, "12")], 20, flexible=0)[1] == "x" * 15 + "…  12"


def test_a_table_never_shrinks_a_column_to_nothing() -> None:
    row = text.table(("id", "command"), [("x" * 40, "train.py --epochs 3")], 20)[1]
    assert row.endswith("train.…")


def test_control_characters_can_not_steer_the_terminal_from_inside_a_table() -> None:
    assert text.table(("id",), [("a\x1b[31m\nb",)], 80)[1] == "a [31m b"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.0 s"),
        (-1, "0.0 s"),
        (3.25, "3.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (3785, "1 h 3 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations_are_said_in_the_two_units_that_matter(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0 s"), (59, "59 s"), (61, "1 min"), (7300, "2 h"), (90_000, "1 d")]
)
def test_ages_are_said_in_one_unit(seconds: float, said: str) -> None:
    assert text.age(seconds) == said


@pytest.mark.parametrize(("seconds", "shown"), [(7, "0:07"), (750, "12:30"), (3723, "1:02:03")])
def test_the_clock_of_the_live_view(seconds: float, shown: str) -> None:
    assert text.clock(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.31254, "0.3125"), (3.0, "3"), (1e-7, "1e-07"), (123456.0, "123456"), (1e300, "1e+300"), (float("nan"), "nan")],
)
def test_numbers_have_four_digits_that_matter(value: float, shown: str) -> None:
    assert text.number(value) == shown
    assert text.number(-value).lstrip("-") == shown


def test_the_loss_is_noted_before_whatever_else_was_measured() -> None:
    values = {"grad_norm": 2.0, "accuracy": 0.875, "lr": 0.001, "loss": 0.3125}
    assert text.notable(values) == "loss 0.3125 · accuracy 0.875 · grad_norm 2"
    assert text.notable(values, most=1) == "loss 0.3125"
    assert text.notable({}) == ""


def test_a_curve_falls_as_its_values_do() -> None:
    assert text.sparkline([4, 3, 2, 1], 10) == "█▆▃▁"
    assert text.sparkline([1, 1, 1], 10) == "▁▁▁"
    assert text.sparkline([float("nan"), 1, float("inf"), 2], 10) == "▁█"
    assert text.sparkline([float("nan")], 10) == ""


def test_a_long_curve_is_thinned_out() -> None:
    curve = text.sparkline([float(value) for value in range(1000)], 8)
    assert curve == "▁▂▃▄▅▆▇█"


def test_the_state_of_a_run_is_in_colour_and_not_the_same_word_in_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumasi.cli.view.output.is_colourful", lambda _: True)
    assert paint_row("done-x7k2p  done  5 s", "done") == "done-x7k2p  \x1b[32mdone\x1b[0m  5 s"
