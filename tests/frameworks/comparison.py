"""Runs `pumasi run` as a user does, and compares what its ranks end with to what others end with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.frameworks import reference
from tests.harness import Workplace

SCRIPTS = Path(__file__).parent / "scripts"
SLOTS = 3
UNEQUAL = ("--slots", str(SLOTS), "--nodes", "2,1")
"""Three ranks on two nodes: what frameworks that want equal workers can't do by themselves."""

Weights = dict[str, "np.ndarray[Any, Any]"]


def attempt(workplace: Workplace, out: Path, *words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The ranks have a temporary folder of their own: torch leaves things there, and that is not Pumasi's doing."""
    temporary = out / "tmp"
    temporary.mkdir()
    environ = {**reference.QUIET, "OUT": str(out), **env}
    return workplace.run("run", "--env", f"TMPDIR={temporary}", *map(str, words), env=environ)


def train(workplace: Workplace, out: Path, *words: str | Path, **env: str) -> str:
    """Everything that the gang has said, and Pumasi itself."""
    done = attempt(workplace, out, *words, **env)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def outcome(workplace: Workplace) -> dict[str, Any]:
    """How the last run ended: who failed first, and with what."""
    shown: dict[str, Any] = json.loads(workplace.run("show", "--json").stdout)["outcome"]
    return shown


def assert_rank_1_fails_first(workplace: Workplace, out: Path, *words: str | Path) -> None:
    """With a script that raises there on purpose."""
    done = attempt(workplace, out, *UNEQUAL, *words)
    assert done.returncode == 1
    assert "RuntimeError: rank 1 fails on purpose" in done.stderr
    assert outcome(workplace)["rank"] == 1


def load(out: Path, count: int = SLOTS) -> Weights:
    """What the ranks ended with: equal on all of them, to the last bit, or they did not train one model."""
    first, *others = (dict(np.load(out / f"rank{rank}.npz")) for rank in range(count))
    for other in others:
        assert other.keys() == first.keys()
        for name, value in other.items():
            np.testing.assert_array_equal(value, first[name], err_msg=f"{name} differs between ranks")
    return first


def assert_same_model(ours: Path, theirs: Path, count: int = SLOTS) -> None:
    mine, reference_weights = load(ours, count), load(theirs, count)
    assert mine.keys() == reference_weights.keys()
    for name, value in mine.items():
        np.testing.assert_allclose(value, reference_weights[name], rtol=1e-5, atol=1e-6, err_msg=name)
