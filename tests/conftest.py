from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.harness import Workplace

# How long an example may take is no question of right or wrong: others use the machine too.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """Where `pumasi` can be run for real. A test that leaves a process or a temporary file behind fails."""
    place = Workplace(tmp_path)
    try:
        yield place
        place.assert_nothing_left()
    finally:
        place.clean_up()
