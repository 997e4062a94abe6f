"""PyTorch: DDP, FSDP, and what Hugging Face builds on them, beside torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks import reference
from tests.frameworks.comparison import SCRIPTS, SLOTS, UNEQUAL, assert_rank_1_fails_first, assert_same_model, train
from tests.harness import Workplace

pytestmark = pytest.mark.big

DDP = SCRIPTS / "torch_ddp.py"


@pytest.mark.parametrize("name", ["torch_ddp.py", "torch_fsdp.py", "hf_accelerate.py", "hf_trainer.py"])
def test_a_torch_script_trains_as_under_torchrun(
    workplace: Workplace, big_python: Path, ours: Path, theirs: Path, name: str
) -> None:
    reference.torchrun(big_python, SCRIPTS / name, theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--python", big_python, SCRIPTS / name)
    assert_same_model(ours, theirs)


def test_torchrun_itself_trains_the_same_across_unequal_nodes(
    workplace: Workplace, big_python: Path, ours: Path, theirs: Path
) -> None:
    reference.torchrun(big_python, DDP, theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--per-node", "--", big_python.parent / "torchrun", DDP)
    assert_same_model(ours, theirs)


def test_a_torch_rank_that_raises_is_named_as_the_first_to_fail(
    workplace: Workplace, big_python: Path, ours: Path
) -> None:
    assert_rank_1_fails_first(workplace, ours, "--python", big_python, DDP, "--fail")
