"""TensorFlow: Keras 2 and 3 and custom loops under MultiWorkerMirroredStrategy, parameter servers, an evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frameworks import reference
from tests.frameworks.comparison import SCRIPTS, SLOTS, UNEQUAL, assert_same_model, attempt, load, train
from tests.harness import Workplace

pytestmark = pytest.mark.big

FIT = SCRIPTS / "keras_fit.py"
LOOP = SCRIPTS / "tf_custom_loop.py"
SERVERS = SCRIPTS / "tf_parameter_server.py"
EVALUATOR = SCRIPTS / "tf_evaluator.py"


@pytest.fixture(scope="module")
def keras_2_fit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keras-2")


def _train_keras_2(python: Path, out: Path) -> None:
    if not (out / "rank0.npz").exists():
        reference.tf_config(python, FIT, out, {"worker": SLOTS}, TF_USE_LEGACY_KERAS="1")


def test_tf_keras_fit_trains_as_with_tf_config_set_by_hand(
    workplace: Workplace, big_python: Path, ours: Path, keras_2_fit: Path
) -> None:
    _train_keras_2(big_python, keras_2_fit)
    train(workplace, ours, *UNEQUAL, "--python", big_python, FIT, TF_USE_LEGACY_KERAS="1")
    assert_same_model(ours, keras_2_fit)


def test_keras_3_fit_which_fails_by_itself_trains_as_keras_2_does_and_says_that_it_was_mended(
    workplace: Workplace, big_python: Path, ours: Path, keras_2_fit: Path
) -> None:
    _train_keras_2(big_python, keras_2_fit)
    said = train(workplace, ours, *UNEQUAL, "--python", big_python, FIT)
    assert said.count("mended Keras 3.") == 1
    assert_same_model(ours, keras_2_fit)


def test_without_the_shim_keras_3_fails_and_the_way_out_was_told_before(
    workplace: Workplace, big_python: Path, ours: Path
) -> None:
    done = attempt(workplace, ours, "--no-shim", "--slots", "2", "--python", big_python, FIT)
    assert done.returncode == 1
    trap, _, rest = done.stderr.partition("leave out --no-shim")
    assert "MultiWorkerMirroredStrategy" in trap
    assert "tf-keras" in rest
    assert "PerReplica" in rest


def test_a_custom_loop_trains_as_with_tf_config_set_by_hand(
    workplace: Workplace, big_python: Path, ours: Path, theirs: Path
) -> None:
    reference.tf_config(big_python, LOOP, theirs, {"worker": SLOTS})
    train(workplace, ours, *UNEQUAL, "--python", big_python, LOOP)
    assert_same_model(ours, theirs)


def test_parameter_servers_train_and_end_though_they_never_end_by_themselves(
    workplace: Workplace, big_python: Path, ours: Path, theirs: Path
) -> None:
    reference.tf_config(big_python, SERVERS, theirs, {"chief": 1, "worker": 2, "ps": 1})
    train(workplace, ours, *UNEQUAL, "--ps", "1", "--python", big_python, SERVERS)
    assert_same_model(ours, theirs, count=1)


def test_an_evaluator_scores_what_the_others_train(workplace: Workplace, big_python: Path, ours: Path) -> None:
    train(workplace, ours, "--slots", "2", "--nodes", "1,1", "--evaluator", "--python", big_python, EVALUATOR)
    weights = load(ours, count=2)
    np.testing.assert_array_equal(np.load(ours / "evaluator.npz")["weight"], weights["weight"])
