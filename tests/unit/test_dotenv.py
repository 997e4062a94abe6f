"""Files of variables: what is understood, and what is told with its line."""

from __future__ import annotations

import pytest

from pumasi.core.dotenv import parse


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("A=1\nB=2", {"A": "1", "B": "2"}),
        ("# a comment\n\n  \n#A=1\nA=2\n", {"A": "2"}),
        ("export A=1\n  export\tB = 2 \n", {"A": "1", "B": "2"}),
        ("A=\nB= # none\nC=x#y\nD=x # y", {"A": "", "B": "", "C": "x#y", "D": "x"}),
        ("A='$b \\n #' # c", {"A": "$b \\n #"}),
        ('A="x\\ny\\t\\"z\\" \\$d \\q"', {"A": 'x\ny\t"z" $d \\q'}),
        ('KEY="-----BEGIN\nabc\n-----END"\nB=1', {"KEY": "-----BEGIN\nabc\n-----END", "B": "1"}),
        ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
        ("A=1\nA=2", {"A": "2"}),
        ("A=b=c d", {"A": "b=c d"}),
        ("FROM_HERE\n", {"FROM_HERE": "here"}),
        ("한=1", {}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_dotenv_and_docker_read_it(text: str, values: dict[str, str]) -> None:
    found, mistakes = parse(text, {"FROM_HERE": "here"})
    assert found == values
    assert len(mistakes) == text.count("한")


def test_blanks_and_mistakes_by_the_thousand_take_no_time() -> None:
    _, mistakes = parse("A" + " " * 200_000 + "!\n" + "no variable\n" * 5_000, {})
    assert len(mistakes) == 5_001
    assert mistakes[-1].startswith("line 5001:")


def test_every_mistake_is_told_with_its_line_and_without_the_value() -> None:
    wrong = ["1x=secret", "no variable", 'B="secret', "C='q' secret", "UNSET", 'D= "secret', "E=sec\0ret"]
    _, mistakes = parse("\n".join(["A=1", *wrong]), {})
    assert [mistake.partition(":")[0] for mistake in mistakes] == [f"line {number}" for number in range(2, 9)]
    assert "sec" not in "".join(mistakes)
