from __future__ import annotations

import ast
import json
import math
import shutil
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumasi import report
from pumasi.core.metrics import MetricParser, Reading, parse_line

SOURCE = Path(report.__code__.co_filename)


class Tensor:
    """As TensorFlow's: a number through `float()` only."""

    shape = ()

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


class GradTensor(Tensor):
    """As PyTorch's: `item()` is the quiet way, `float()` warns about a tensor that needs a gradient."""

    def __float__(self) -> float:
        raise AssertionError("item() should have been used")

    def item(self) -> float:
        return self.value


def test_a_report_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report(step=3, epoch=1, loss=0.1, accuracy=0.75)
    assert capsys.readouterr().out == '{"step": 3, "epoch": 1, "loss": 0.1, "accuracy": 0.75}\n'


def test_metrics_may_come_in_a_dict_with_names_that_are_no_keywords(capsys: pytest.CaptureFixture[str]) -> None:
    report({"train/loss": 0.25, "step": 7}, epoch=2, metrics=0.5)
    assert parse_line(capsys.readouterr().out) == Reading({"train/loss": 0.25, "metrics": 0.5}, 7, 2)


def test_a_keyword_wins_over_the_dict(capsys: pytest.CaptureFixture[str]) -> None:
    report({"loss": 0.25, "step": 7, "epoch": 1}, loss=0.5, step=8, epoch=2)
    assert parse_line(capsys.readouterr().out) == Reading({"loss": 0.5}, 8, 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (True, 1.0),
        (1 / 3, 1 / 3),
        (Fraction(1, 4), 0.25),
        (Decimal("0.125"), 0.125),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(1 / 3), 1 / 3),
        (np.int64(7), 7.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (np.array([[0.25]]), 0.25),
        (Tensor(0.25), 0.25),
        (GradTensor(0.25), 0.25),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_number_is_accepted(value: object, expected: float, capsys: pytest.CaptureFixture[str]) -> None:
    report(loss=value)
    assert parse_line(capsys.readouterr().out) == Reading({"loss": expected})


def test_scalars_of_jax_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    import jax.numpy as jnp

    report(step=jnp.array([2]), loss=jnp.float32(0.1), half=jnp.bfloat16(0.5))
    assert parse_line(capsys.readouterr().out) == Reading({"loss": float(np.float32(0.1)), "half": 0.5}, 2)


def test_a_loss_that_is_nan_is_still_told(capsys: pytest.CaptureFixture[str]) -> None:
    report(step=np.int32(4), loss=math.nan)
    reading = parse_line(capsys.readouterr().out)
    assert reading is not None
    assert reading.step == 4
    assert math.isnan(reading.values["loss"])


@pytest.mark.parametrize(
    "value",
    ["0.5", b"0.5", None, [0.5], {"a": 0.5}, 1j, object(), 10**400, np.array([0.5, 0.25]), np.array([])],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_refused_by_name(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match=r"my_loss must be a single number, not .* \(\w+\)"):
        report(my_loss=value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, "3"])
@pytest.mark.parametrize("name", ["step", "epoch"])
def test_step_and_epoch_must_be_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a"):
        report({name: value, "loss": 0.5})


def test_what_is_no_dict_is_refused() -> None:
    wrong: Any = 0.5
    with pytest.raises(TypeError, match=r"takes a dict of metrics or keywords such as loss=0\.1, not 0\.5"):
        report(wrong)


def test_a_name_that_is_no_string_is_refused() -> None:
    wrong: Any = {1: 0.5}
    with pytest.raises(TypeError, match="name of a metric must be a string, not 1"):
        report(wrong)


def test_a_line_is_a_single_write_so_that_threads_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdout:
        calls: tuple[str, ...] = ()

        def write(self, text: str) -> None:
            self.calls = (*self.calls, text)

        def flush(self) -> None:
            self.calls = (*self.calls, "flush")

    stdout = Stdout()
    monkeypatch.setattr(sys, "stdout", stdout)
    report(step=1, loss=0.5)
    assert stdout.calls == ('{"step": 1, "loss": 0.5}\n', "flush")


def test_the_epoch_of_a_report_holds_for_the_lines_that_follow(capsys: pytest.CaptureFixture[str]) -> None:
    report(epoch=4, loss=0.5)
    parser = MetricParser()
    parser.feed(0, capsys.readouterr().out.encode())
    assert parser.feed(0, b"acc: 0.9") == Reading({"acc": 0.9}, None, 4)


names = st.text(min_size=1, max_size=20).filter(lambda name: name not in ("step", "epoch"))
indices = st.none() | st.integers(-(2**53) + 1, 2**53 - 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, st.floats() | st.integers(-(10**300), 10**300), min_size=1), indices, indices)
def test_the_parser_gives_back_exactly_what_was_reported(
    capsys: pytest.CaptureFixture[str], metrics: dict[str, float], step: int | None, epoch: int | None
) -> None:
    report(metrics, step=step, epoch=epoch)
    reading = parse_line(capsys.readouterr().out)
    expected = Reading({name: float(value) for name, value in metrics.items()}, step, epoch)
    assert repr(reading) == repr(expected)


def test_settings_may_be_reported_too(capsys: pytest.CaptureFixture[str]) -> None:
    report(batch_size=32, lr=0.1)
    assert parse_line(capsys.readouterr().out) == Reading({"batch_size": 32.0, "lr": 0.1})


def test_the_file_alone_serves_as_pumasi_where_pumasi_is_not_installed(tmp_path: Path) -> None:
    shutil.copy(SOURCE, tmp_path / "pumasi.py")
    script = tmp_path / "train.py"
    script.write_text(
        "import pumasi\nfrom pumasi import report\nreport(step=1, loss=0.5)\npumasi.report(step=2, loss=0.25)\n"
    )
    done = subprocess.run([sys.executable, "-S", str(script)], capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.25},
    ]


def test_the_file_is_written_in_the_python_of_old_images() -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 8))
