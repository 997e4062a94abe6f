"""A pool of an installed package: a few lines, and every verb works on its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import Workplace, wait_for

POOL = """
from contextlib import asynccontextmanager

from pumasi.pools.local.runner import LocalRunner
from pumasi.pools.pool import Pool


class Toy(Pool):
    name = "toy"

    @asynccontextmanager
    async def open(self, request, *, adopt):
        yield LocalRunner(request.spec, request.home, ())


POOL = Toy()
"""
TRAIN = """
    import time
    print("loss: 0.5", flush=True)
    if __name__ == "__main__" and "long" in __import__("sys").argv:
        time.sleep(600)
"""


@pytest.fixture
def place(workplace: Workplace, tmp_path: Path) -> Workplace:
    packages = tmp_path / "packages"
    facts = packages / "toy_pool-1.0.dist-info"
    facts.mkdir(parents=True)
    (packages / "toy_pool.py").write_text(POOL)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-pool\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[pumasi.pools]\ntoy = toy_pool:POOL\n")
    workplace.environ["PYTHONPATH"] = str(packages)
    workplace.script(TRAIN)
    return workplace


def test_a_run_of_an_installed_pool_can_be_followed_and_is_told_of(place: Workplace) -> None:
    done = place.run("run", "--on", "toy", "--slots", "2", "train.py")
    assert (done.returncode, done.stdout.count("loss: 0.5")) == (0, 2), done.stderr
    run = place.last()["id"]
    assert place.run("ps", "--on", "toy", "-q").stdout.split() == [run]
    assert "toy" in place.run("show", run).stdout
    assert place.run("logs", "-f", "--rank", "1", run).stdout == "loss: 0.5\n"
    assert json.loads(place.run("metrics", "--json", run).stdout)["0"] == {"loss": 0.5}
    assert place.run("wait", run, "--on", "toy").returncode == 0
    assert place.run("attach", run).returncode == 0
    assert place.run("delete", run).returncode == 0
    assert place.runs() == []


def test_a_run_of_an_installed_pool_goes_on_in_the_background_and_is_stopped(place: Workplace) -> None:
    run = place.run("run", "-d", "--on", "toy", "train.py", "long").stdout.strip()
    wait_for(lambda: "loss" in place.run("logs", run).stdout, "its first line")
    assert place.run("ps", "-q", "--on", "toy", "--state", "running").stdout.split() == [run]
    assert place.run("stop", "--all", "-y", "--on", "toy").returncode == 0
    assert place.last()["state"] == "stopped"


def test_what_an_installed_pool_would_start_is_shown(place: Workplace) -> None:
    shown = json.loads(place.run("run", "--on", "toy", "--dry-run", "--json", "train.py").stdout)
    assert [rank["rank"] for rank in shown["ranks"]] == [0]
    assert place.runs() == []


def test_a_pool_that_does_not_show_nodes_says_so(place: Workplace) -> None:
    for words in (("nodes", "--on", "toy"), ("plan", "--slots", "1", "--on", "toy")):
        told = place.run(*words)
        assert (told.returncode, "'toy' is no cluster that has nodes." in told.stderr) == (2, True)


def test_runs_of_a_pool_that_is_gone_hide_no_others(place: Workplace) -> None:
    place.run("run", "--on", "toy", "train.py")
    del place.environ["PYTHONPATH"]
    place.run("run", "train.py")
    assert [run["spec"]["on"] for run in place.runs()] == ["local", "toy"]
    told = place.run("delete", place.runs()[1]["id"])
    assert "There is no pool toy." in told.stderr
