from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumasi.cli.main import main
from pumasi.cli.plan import parse_free

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMASI_HOME", str(tmp_path))


def test_the_planner_says_what_goes_where(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "5,3,2"]) == 0
    shares, head, *rows = capsys.readouterr().out.splitlines()
    assert shares == "[5, 1]"
    assert head.split() == ["node", "slots"]
    assert rows[0].split() == ["node-0", "5"]
    assert rows[1].split()[1:] == ["1", "chief"]


def test_and_why(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "5,3,2"]) == 0
    short = capsys.readouterr().out
    assert main(["plan", "--slots", "6", "--free", "5,3,2", "--explain"]) == 0
    long = capsys.readouterr().out
    assert long.startswith(short)
    assert len(long.splitlines()) > len(short.splitlines()) + 1


def test_programs_get_shares_placement_chief_mix_and_reasons(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "a=5,b=3,c=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["shares"] == [5, 1]
    assert sum(told["placement"].values()) == 6
    assert told["placement"]["a"] == 5
    assert told["placement"][told["chief"]] == 1
    assert told["mix"] == {"1": 0.5, "2": 0.15, "4": 0.15, "8": 0.2}
    assert all(isinstance(sentence, str) for sentence in told["explain"])


def test_nodes_can_have_a_limit(capsys: Captured) -> None:
    assert main(["plan", "--slots", "6", "--free", "5,3,2", "--max-per-node", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shares"] == [2, 2, 2]


def test_free_slots_are_listed_with_or_without_names() -> None:
    assert [(node.name, node.free) for node in parse_free("5, 3,0")] == [("node-0", 5), ("node-1", 3), ("node-2", 0)]
    assert [(node.name, node.free) for node in parse_free("gpu-a=8,b=2")] == [("gpu-a", 8), ("b", 2)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "'pumasi plan' needs --slots."),
        (["--slots", "6"], "'pumasi plan' needs --free."),
        (["--slots", "0", "--free", "5"], "--slots takes a whole number from 1 on; '0' is none."),
        (["--slots", "-1", "--free", "5"], "'-1' is none."),
        (["--slots", "9" * 5000, "--free", "5"], "--slots takes a whole number"),
        (["--slots", "6", "--free", "5,,2"], "'' is no number of slots."),
        (["--slots", "6", "--free", "5,x"], "'x' is no number of slots."),
        (["--slots", "6", "--free", "=5"], "'=5' is no number of slots."),
        (["--slots", "6", "--free", "a=5,a=3"], "names the node a twice."),
        (["--slots", "6", "--free", "5,3", "--max-per-node", "x"], "--max-per-node takes a whole number"),
        (["--slots", "60", "--free", "5,3,2"], "10"),
    ],
)
def test_what_can_not_be_planned_is_a_sentence_and_exit_code_2(
    words: list[str], message: str, capsys: Captured
) -> None:
    assert main(["plan", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
