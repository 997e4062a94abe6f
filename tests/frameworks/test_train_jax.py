"""JAX, and Keras 3 on JAX: small enough for the quick suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.frameworks import reference
from tests.frameworks.comparison import (
    SCRIPTS,
    SLOTS,
    UNEQUAL,
    assert_rank_1_fails_first,
    assert_same_model,
    attempt,
    load,
    outcome,
    train,
)
from tests.harness import Workplace

DATA_PARALLEL = SCRIPTS / "jax_data_parallel.py"
KERAS = SCRIPTS / "keras_jax.py"


def test_an_argument_free_jax_script_trains_as_with_arguments_given_by_hand(
    workplace: Workplace, small_python: Path, ours: Path, theirs: Path
) -> None:
    reference.jax_by_hand(small_python, DATA_PARALLEL, theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--python", small_python, DATA_PARALLEL)
    assert_same_model(ours, theirs)


def test_one_process_and_two_train_the_same_model(
    workplace: Workplace, small_python: Path, ours: Path, theirs: Path
) -> None:
    train(workplace, theirs, "--slots", "1", "--python", small_python, DATA_PARALLEL)
    train(workplace, ours, "--slots", "2", "--python", small_python, DATA_PARALLEL)
    together, alone = load(ours, 2), load(theirs, 1)
    for name, value in alone.items():
        np.testing.assert_allclose(together[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_keras_on_jax_trains_as_with_its_variables_set_by_hand(
    workplace: Workplace, small_python: Path, ours: Path, theirs: Path
) -> None:
    reference.keras_by_hand(small_python, KERAS, theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--python", small_python, KERAS)
    assert_same_model(ours, theirs)


def test_a_jax_rank_that_raises_ends_the_run_though_jax_would_wait_five_minutes(
    workplace: Workplace, small_python: Path, ours: Path
) -> None:
    assert_rank_1_fails_first(workplace, ours, "--python", small_python, DATA_PARALLEL, "--fail", "raise")


def test_a_jax_rank_that_leaves_with_a_code_ends_the_run_with_that_code_kept(
    workplace: Workplace, small_python: Path, ours: Path
) -> None:
    done = attempt(workplace, ours, *UNEQUAL, "--python", small_python, DATA_PARALLEL, "--fail", "exit")
    assert done.returncode == 1
    assert (outcome(workplace)["rank"], outcome(workplace)["code"]) == (1, 9)


def test_without_the_shim_the_trap_is_told_before_training_starts(
    workplace: Workplace, small_python: Path, ours: Path
) -> None:
    done = attempt(workplace, ours, "--no-shim", "--slots", "2", "--python", small_python, DATA_PARALLEL)
    assert done.returncode == 1
    trap, _, rest = done.stderr.partition("leave out --no-shim")
    assert "does not find the number of processes" in trap
    assert "Number of processes must be defined" in rest
