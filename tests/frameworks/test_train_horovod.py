"""Horovod, without ssh and without MPI, beside horovodrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks import reference
from tests.frameworks.comparison import SCRIPTS, SLOTS, UNEQUAL, assert_same_model, train
from tests.harness import Workplace

SCRIPT = SCRIPTS / "horovod_tf2.py"


@pytest.mark.big
def test_a_horovod_script_trains_as_under_horovodrun(
    workplace: Workplace, horovod_python: Path, ours: Path, theirs: Path
) -> None:
    reference.horovodrun(horovod_python, SCRIPT, theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--python", horovod_python, SCRIPT)
    assert_same_model(ours, theirs)
