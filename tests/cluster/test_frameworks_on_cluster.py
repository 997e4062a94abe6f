"""Real frameworks in unequal pods of a real cluster: five ranks on one node and one on another train one model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.place import Place, make_volume
from tests.cluster.subject import Namespace
from tests.frameworks import reference
from tests.frameworks.comparison import SCRIPTS, assert_same_model, load
from tests.frameworks.conftest import big_python, horovod_python, small_python, theirs
from tests.harness import Workplace

__all__ = ["big_python", "horovod_python", "small_python", "theirs"]

pytestmark = [pytest.mark.big, pytest.mark.own]

SLOTS = 6
Train = Callable[[str, Path], Path]


@pytest.fixture
def train(workplace: Workplace, namespace: Namespace) -> Train:
    """Answers with the folder of the volume that the ranks have left their weights on."""
    place = Place(workplace, namespace)

    def run(script: str, interpreter: Path) -> Path:
        make_volume(namespace, "weights")
        shutil.copy(SCRIPTS / script, place.folder)
        variables = {**reference.QUIET, "OUT": "/weights"}
        told = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        words = ("--gpus", str(SLOTS), "--python", str(interpreter), "--mount", "weights:/weights", *told, script)
        done = place.train(*words)
        assert "6 slots: 5 on node-0, 1 on node-1; the chief on node-1" in done.stderr
        return namespace.volume_folder("weights")

    return run


def test_torch_trains_as_under_torchrun(train: Train, big_python: Path, theirs: Path) -> None:
    reference.torchrun(big_python, SCRIPTS / "torch_ddp.py", theirs, SLOTS)
    assert_same_model(train("torch_ddp.py", big_python), theirs, SLOTS)


def test_mpi_trains_as_under_mpirun(train: Train, big_python: Path, theirs: Path) -> None:
    reference.mpirun(big_python.parent / "mpirun", [big_python, SCRIPTS / "mpi_sgd.py"], theirs, SLOTS)
    assert_same_model(train("mpi_sgd.py", big_python), theirs, SLOTS)


def test_jax_trains_as_by_hand(train: Train, small_python: Path, theirs: Path) -> None:
    reference.jax_by_hand(small_python, SCRIPTS / "jax_data_parallel.py", theirs, SLOTS)
    assert_same_model(train("jax_data_parallel.py", small_python), theirs, SLOTS)


def test_tensorflow_trains_as_with_tf_config_set_by_hand(train: Train, big_python: Path, theirs: Path) -> None:
    reference.tf_config(big_python, SCRIPTS / "tf_custom_loop.py", theirs, {"worker": SLOTS})
    assert_same_model(train("tf_custom_loop.py", big_python), theirs, SLOTS)


def test_keras_fit_trains_one_model_though_keras_alone_can_not(train: Train, big_python: Path) -> None:
    load(train("keras_fit.py", big_python), SLOTS)


def test_horovod_trains_as_under_horovodrun(train: Train, horovod_python: Path, theirs: Path) -> None:
    reference.horovodrun(horovod_python, SCRIPTS / "horovod_tf2.py", theirs, SLOTS)
    assert_same_model(train("horovod_tf2.py", horovod_python), theirs, SLOTS)
