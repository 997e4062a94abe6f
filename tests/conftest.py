from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.harness import Workplace

# How long an example may take is no question of right or wrong: others use the machine too.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_configure() -> None:
    """What the tests start hears the signals that it would hear in a terminal, also where the shell that started the
    tests ignores them (`nohup … &`): what is handled here is not ignored there."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else lambda *_: None)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """What a test sets in the environment, or what it calls does (Keras' backend), is not there for the next one."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(autouse=True)
def _no_cluster_is_remembered() -> Iterator[None]:
    """What a test reached is not what the next one reaches by the same name."""
    yield
    if reach := sys.modules.get("pumasi.pools.kubernetes.reach"):
        reach.close()


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Workplace]:
    """Where `pumasi` can be run for real. A test that leaves a process or a temporary file behind fails."""
    place = Workplace(tmp_path)
    try:
        yield place
        place.assert_nothing_left()
    finally:
        place.clean_up()
