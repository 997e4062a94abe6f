"""pumasi models, as a shell sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pumasi.cli.main import main


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", w=np.array([1.0, 2.0]), n=np.array(3))
    np.savez("b.npz", w=np.array([3.0, 5.0]), n=np.array(3))


@pytest.mark.usefixtures("two")
def test_an_average_is_written_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "average", "a.npz", "b.npz", "-o", "final.npz", "--weights", "3,1"]) == 0
    assert np.load("final.npz")["w"].tolist() == [1.5, 2.75]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "pumasi: final.npz is the average of 2 models: 1 mean · 1 kept\n"
    assert main(["models", "average", "a.npz", "b.npz", "-o", "final.npz", "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"] == ["a.npz", "b.npz"]
    assert told["rules"] == {"mean": 1, "kept": 1}


@pytest.mark.usefixtures("two")
def test_a_difference_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "diff", "a.npz", "a.npz"]) == 0
    assert capsys.readouterr() == ("", "pumasi: The models are equal.\n")
    assert main(["models", "diff", "a.npz", "b.npz"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["tensor", "w"]
    assert err == "pumasi: 1 of 2 tensors are equal.\n"
    assert main(["models", "diff", "--json", "a.npz", "b.npz"]) == 1
    (different,) = json.loads(capsys.readouterr().out)["different"]
    assert different["largest"] == 3


@pytest.mark.usefixtures("two")
def test_a_model_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("c.npz", w=np.array([np.nan, 2.0]), empty=np.zeros(0))
    assert main(["models", "show", "c.npz"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["w", "2", "float64", "16", "nan", "nan", "nan"]
    assert err == "pumasi: c.npz is npz: 2 tensors, 16 bytes.\n"
    assert main(["models", "show", "--json", "c.npz"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"][0]["least"] is None


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs what to do: average, diff or show"),
        (["melt", "a.npz"], "'pumasi models' can't melt."),
        (["average", "a.npz"], "needs --output"),
        (["average", "-o", "x.npz"], "There is nothing to average."),
        (["average", "*.h5", "-o", "x.h5"], "No file matches *.h5."),
        (["average", "a.npz", "b.npz", "-o", "x.npz", "--weights", "1,,"], "There are 3 weights for 2 files."),
        (["average", "a.npz", "b.npz", "-o", "x.npz", "--weights", "1,"], "'' is no weight."),
        (["diff", "a.npz"], "compares two files"),
        (["show", "a.npz", "b.npz"], "takes one file"),
        (["show", "a.npz", "--weights", "1"], "'pumasi models show' has no option --weights."),
        (["show", "a.txt"], "a.txt is no model that Pumasi can read."),
        (["show", "missing.npz"], "There is no file missing.npz."),
    ],
)
def test_what_makes_no_sense_is_a_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_other_verbs_do_not_wait_for_numpy() -> None:
    program = "import sys; from pumasi.cli.grammar import load; load('models'); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
