"""A disk that is full or read-only under the store."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Workplace

pytestmark = pytest.mark.root


@pytest.fixture
def small_disk(workplace: Workplace) -> Iterator[Path]:
    workplace.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", workplace.home], check=True)
    try:
        yield workplace.home
    finally:
        workplace.assert_nothing_left()
        subprocess.run(["umount", workplace.home], check=True)


def test_a_disk_that_fills_up_costs_the_record_but_not_the_training(workplace: Workplace, small_disk: Path) -> None:
    workplace.script("""
        for i in range(100_000):
            print("step", i, "x" * 80)
        print("trained")
    """)
    done = workplace.run("run", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("trained\n")
    assert len(done.stdout.splitlines()) == 100_001
    assert "full" in done.stderr


def test_a_disk_that_is_full_before_the_start_is_told(workplace: Workplace, small_disk: Path) -> None:
    workplace.script("print(1)")
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"x" * 4096)
    done = workplace.run("run", "train.py")
    assert done.returncode == 7
    assert "full" in done.stderr
    (small_disk / "ballast").unlink()
    assert workplace.run("run", "train.py").returncode == 0


def test_a_read_only_home_is_told(workplace: Workplace) -> None:
    workplace.script("print(1)")
    workplace.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", workplace.home], check=True)
    try:
        done = workplace.run("run", "train.py")
    finally:
        subprocess.run(["umount", workplace.home], check=True)
    assert done.returncode == 7
    assert "PUMASI_HOME" in done.stderr
