"""Real frameworks in unequal pods of a real cluster: five ranks on one node and one on another train one model."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.place import Place
from tests.cluster.subject import Namespace
from tests.frameworks import reference
from tests.frameworks.comparison import SCRIPTS, assert_same_model, load
from tests.frameworks.conftest import big_python, horovod_python, ours, small_python, theirs
from tests.harness import Workplace

__all__ = ["big_python", "horovod_python", "ours", "small_python", "theirs"]

pytestmark = [pytest.mark.big, pytest.mark.own]

SLOTS = 6
MARK = "WEIGHTS "
# What a rank ended with leaves the pod with its output.
HAND_OVER = f"""
import base64, os
with open(f"rank{{os.environ['PUMASI_RANK']}}.npz", "rb") as file:
    print("{MARK}" + base64.b64encode(file.read()).decode(), flush=True)
"""


@pytest.fixture
def train(workplace: Workplace, namespace: Namespace, ours: Path) -> Callable[[str, Path], str]:
    place = Place(workplace, namespace)

    def run(script: str, interpreter: Path) -> str:
        place.script((SCRIPTS / script).read_text() + HAND_OVER)
        quiet = [word for name, value in reference.QUIET.items() for word in ("--env", f"{name}={value}")]
        done = place.train("--gpus", str(SLOTS), "--python", str(interpreter), *quiet, "train.py")
        assert "6 slots: 5 on node-0, 1 on node-1; the chief on node-1" in done.stderr
        for line in done.stdout.splitlines():
            rank, _, said = line.partition(" ")
            if said.startswith(MARK):
                (ours / f"rank{rank.strip('[]')}.npz").write_bytes(base64.b64decode(said.removeprefix(MARK)))
        return done.stderr

    return run


Train = Callable[[str, Path], str]


def test_torch_trains_as_under_torchrun(train: Train, big_python: Path, ours: Path, theirs: Path) -> None:
    reference.torchrun(big_python, SCRIPTS / "torch_ddp.py", theirs, SLOTS)
    train("torch_ddp.py", big_python)
    assert_same_model(ours, theirs, SLOTS)


def test_mpi_trains_as_under_mpirun(train: Train, big_python: Path, ours: Path, theirs: Path) -> None:
    reference.mpirun(big_python.parent / "mpirun", [big_python, SCRIPTS / "mpi_sgd.py"], theirs, SLOTS)
    train("mpi_sgd.py", big_python)
    assert_same_model(ours, theirs, SLOTS)


def test_jax_trains_as_by_hand(train: Train, small_python: Path, ours: Path, theirs: Path) -> None:
    reference.jax_by_hand(small_python, SCRIPTS / "jax_data_parallel.py", theirs, SLOTS)
    train("jax_data_parallel.py", small_python)
    assert_same_model(ours, theirs, SLOTS)


def test_tensorflow_trains_as_with_tf_config_set_by_hand(
    train: Train, big_python: Path, ours: Path, theirs: Path
) -> None:
    reference.tf_config(big_python, SCRIPTS / "tf_custom_loop.py", theirs, {"worker": SLOTS})
    train("tf_custom_loop.py", big_python)
    assert_same_model(ours, theirs, SLOTS)


def test_keras_fit_trains_one_model_though_keras_alone_can_not(train: Train, big_python: Path, ours: Path) -> None:
    train("keras_fit.py", big_python)
    load(ours, SLOTS)


def test_horovod_trains_as_under_horovodrun(train: Train, horovod_python: Path, ours: Path, theirs: Path) -> None:
    reference.horovodrun(horovod_python, SCRIPTS / "horovod_tf2.py", theirs, SLOTS)
    train("horovod_tf2.py", horovod_python)
    assert_same_model(ours, theirs, SLOTS)
