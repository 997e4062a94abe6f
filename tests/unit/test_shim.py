"""The shim in a Python of its own, beside stand-ins for the frameworks that it mends."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[2] / "src" / "pumasi" / "agent"

JAX = {
    "jax/__init__.py": "import jax._src.distributed",
    "jax/_src/__init__.py": "",
    "jax/_src/clusters/__init__.py": """
        class ClusterEnv:
            _cluster_types = []

            def __init_subclass__(cls):
                ClusterEnv._cluster_types.append(cls)


        class SlurmCluster(ClusterEnv):
            @classmethod
            def is_env_present(cls):
                return True
    """,
    "jax/_src/distributed.py": """
        import atexit
        from jax._src import clusters


        class State:
            client = None
            num_processes = 1

            def initialize(self, num_processes=None):
                env = next(env for env in clusters.ClusterEnv._cluster_types if env.is_env_present())
                self.where = env.get_coordinator_address(timeout_secs=3, override_coordinator_port=None)
                self.num_processes = num_processes or env.get_process_count()
                self.process_id = env.get_process_id()
                self.client = object()


        global_state = State()
        atexit.register(lambda: print("waited for the others"))
    """,
}
MPI = {
    "mpi4py/__init__.py": "",
    "mpi4py/MPI.py": """
        import os


        class COMM_WORLD:
            Get_size = staticmethod(lambda: int(os.environ["SIZE"]))

            @staticmethod
            def Abort(code):
                os.write(1, b"aborted")
                os._exit(code)


        Is_initialized = lambda: True
        Is_finalized = lambda: False
    """,
}
KERAS = {
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/version.py": '__version__ = "3.15.1"',
    "keras/src/backend/__init__.py": "",
    "keras/src/backend/tensorflow/__init__.py": "",
    "keras/src/backend/tensorflow/trainer.py": """
        class tree:
            map_structure = staticmethod(lambda function, values: [function(value) for value in values])


        class Strategy:
            def __init__(self, workers):
                self.workers, self.extended = workers, self

            def _in_multi_worker_mode(self):
                return self.workers > 1

            def reduce(self, operation, value, axis):
                return "%s of %s along %s" % (operation, value, axis)

            def experimental_local_results(self, value):
                return ["local " + value]


        def _collective_all_reduce_multi_worker(strategy):
            return strategy._in_multi_worker_mode()


        def reduce_per_replica(values, strategy, reduction):
            return "as Keras does"


        class TensorFlowTrainer:
            def __init__(self, workers):
                self._distribute_strategy = self.distribute_strategy = Strategy(workers)

            def _maybe_symbolic_build(self, iterator=None, data_batch=None):
                print("built from", data_batch or "the iterator")

            def fit(self):
                self._maybe_symbolic_build(iterator=[(0, 1, iter([["x", "y"]]))])
                print(reduce_per_replica(["loss"], self.distribute_strategy, "auto"))
    """,
}
TORCH = {"torch/__init__.py": "", "torch/distributed/__init__.py": "", "torch/distributed/distributed_c10d.py": ""}
WORKING = """
    import hashlib, threading, torch.distributed.distributed_c10d
    begun = threading.Event()
    def work():
        begun.set()
        {work}
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
"""
"""A thread that Python does not wait for, as those of C++ are."""
GANG = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}
JOINED = "import jax\njax._src.distributed.global_state.initialize()\n"
FIT = "from keras.src.backend.tensorflow import trainer\nfor _ in range(2): trainer.TensorFlowTrainer({}).fit()"


class Rank:
    """A Python process with the shim first on its path, and modules beside its script."""

    def __init__(self, folder: Path) -> None:
        self.modules = folder / "modules"
        self.shim = folder / "shim"
        self.shim.mkdir()
        (self.shim / "sitecustomize.py").write_text((AGENT / "shim.py").read_text())
        (self.shim / "pumasi_mends.py").write_text((AGENT / "mends.py").read_text())

    def add(self, modules: dict[str, str]) -> None:
        for name, text in modules.items():
            (self.modules / name).parent.mkdir(parents=True, exist_ok=True)
            (self.modules / name).write_text(textwrap.dedent(text))

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self._run(script, PYTHONPATH=f"{self.shim}{os.pathsep}{self.modules}", **env)

    def run_without_shim(self, script: str) -> subprocess.CompletedProcess[str]:
        return self._run(script, PYTHONPATH=str(self.modules))

    def _run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        self.add({"script.py": script})
        environ = {"PATH": os.environ["PATH"], **env}
        command = [sys.executable, str(self.modules / "script.py")]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.mark.parametrize("name", ["shim.py", "mends.py"])
def test_it_is_written_for_python_3_8_and_imports_nothing_that_may_be_missing(name: str) -> None:
    tree = ast.parse((AGENT / name).read_text(), feature_version=(3, 8))
    imported = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"atexit", "builtins", "os", "sys", "time"}


def test_a_program_that_uses_no_framework_loads_nothing_more(rank: Rank) -> None:
    script = "import sys; print(*sorted(set(sys.modules) - {'sitecustomize'}))"
    assert rank.run(script).stdout == rank.run_without_shim(script).stdout


def test_nothing_is_said_where_there_is_nothing_to_mend(rank: Rank) -> None:
    done = rank.run("print('trained')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_the_users_own_sitecustomize_runs_and_is_what_the_program_sees(rank: Rank) -> None:
    rank.add({"sitecustomize.py": "import sys; sys.path.append('/added'); mine = True"})
    done = rank.run("import sys, sitecustomize; print(sitecustomize.mine, sys.path[-1], len(sys.meta_path) > 3)")
    assert done.stdout == "True /added True\n"


def test_a_fault_in_the_users_own_sitecustomize_is_told_as_python_tells_it(rank: Rank) -> None:
    rank.add({"sitecustomize.py": "import missing_module"})
    with_shim, without = rank.run("print('trained')"), rank.run_without_shim("print('trained')")
    assert with_shim.stdout == without.stdout == "trained\n"
    assert "No module named 'missing_module'" in with_shim.stderr
    assert "No module named 'missing_module'" in without.stderr


def test_the_fallback_folder_comes_after_everything_that_is_installed(rank: Rank, tmp_path: Path) -> None:
    done = rank.run("import sys; print(sys.path[-1])", PUMASI_SHIM_FALLBACK=str(tmp_path / "fallback"))
    assert done.stdout == f"{tmp_path / 'fallback'}\n"


def test_jax_without_arguments_finds_its_gang_and_not_the_allocation_around_it(rank: Rank) -> None:
    rank.add(JAX)
    state = "jax._src.distributed.global_state"
    done = rank.run(f"{JOINED}print({state}.where, {state}.num_processes, {state}.process_id)", **GANG)
    assert done.stdout.startswith("10.0.0.1:1234 3 2\n")


def test_ranks_that_mpirun_has_started_are_not_told_apart_by_our_variables(rank: Rank) -> None:
    rank.add(JAX)
    script = "import jax; print(jax._src.clusters.ClusterEnv._cluster_types[0].is_env_present())"
    assert rank.run(script, **GANG).stdout.startswith("True")
    assert rank.run(script, OMPI_COMM_WORLD_RANK="1", **GANG).stdout.startswith("False")


def test_a_jax_rank_that_raises_ends_at_once_with_its_output_and_traceback(rank: Rank) -> None:
    rank.add(JAX)
    done = rank.run(JOINED + "print('last words', end='')\nraise ValueError('no data')", **GANG)
    assert (done.returncode, done.stdout) == (1, "last words")
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ValueError: no data\n")


def test_a_hook_that_the_program_has_put_over_ours_is_called_and_the_rank_still_ends(rank: Rank) -> None:
    rank.add(JAX)
    hook = "import sys\nsys.excepthook = lambda *error: print('my hook')\n"
    for script in (hook + JOINED, JOINED + hook):
        done = rank.run(script + "raise ValueError('no data')", **GANG)
        assert (done.returncode, done.stdout, done.stderr) == (1, "my hook\n", "")


@pytest.mark.parametrize(
    ("leave", "code", "said"),
    [("sys.exit(3)", 3, ""), ("exit(4)", 4, ""), ("sys.exit('no data')", 1, "no data\n")],
)
def test_a_jax_rank_that_leaves_with_a_code_ends_at_once_with_that_code(
    rank: Rank, leave: str, code: int, said: str
) -> None:
    rank.add(JAX)
    done = rank.run(f"import sys\n{JOINED}{leave}", **GANG)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


@pytest.mark.parametrize("leave", ["", "sys.exit(0)", "sys.exit()"])
def test_a_jax_rank_that_is_done_waits_for_the_others_as_ever(rank: Rank, leave: str) -> None:
    rank.add(JAX)
    done = rank.run(f"import sys\n{JOINED}{leave}", **GANG)
    assert (done.returncode, done.stdout, done.stderr) == (0, "waited for the others\n", "")


def test_an_exit_that_the_program_catches_is_no_end(rank: Rank) -> None:
    rank.add(JAX)
    script = """
        import pickle, sys
        try:
            sys.exit(3)
        except SystemExit as error:
            print(repr(error), error.code, pickle.loads(pickle.dumps(error)).code)
    """
    done = rank.run(JOINED + textwrap.dedent(script), **GANG)
    assert (done.returncode, done.stdout) == (0, "SystemExit(3) 3 3\nwaited for the others\n")


def test_a_jax_process_that_is_alone_fails_as_python_does(rank: Rank) -> None:
    rank.add(JAX)
    alone = {**GANG, "JAX_NUM_PROCESSES": "1"}
    assert rank.run(JOINED + "raise ValueError('no data')", **alone).stdout == "waited for the others\n"


def test_a_fork_of_a_rank_is_not_the_rank(rank: Rank) -> None:
    rank.add(JAX)
    script = "import os, sys\nif os.fork() == 0:\n    sys.exit(5)\nprint(os.wait()[1] >> 8, flush=True)"
    done = rank.run(JOINED + script, **GANG)
    assert done.stdout.splitlines() == ["waited for the others", "5", "waited for the others"]


def test_an_mpi4py_rank_that_raises_aborts_the_others(rank: Rank) -> None:
    rank.add(MPI)
    done = rank.run("import mpi4py.MPI\nraise ValueError('no data')", SIZE="3")
    assert (done.returncode, done.stdout) == (1, "aborted")
    assert "ValueError: no data" in done.stderr


@pytest.mark.parametrize(("script", "size"), [("raise ValueError", "1"), ("", "3")])
def test_an_mpi4py_process_that_is_alone_or_done_aborts_nobody(rank: Rank, script: str, size: str) -> None:
    rank.add(MPI)
    assert rank.run(f"import mpi4py.MPI\n{script}", SIZE=size).stdout == ""


def test_keras_3_is_mended_for_several_workers_and_says_so_once(rank: Rank) -> None:
    rank.add(KERAS)
    done = rank.run(FIT.format(3))
    assert done.stdout == "built from ['local x', 'local y']\n['MEAN of loss along None']\n" * 2
    assert done.stderr == "pumasi: mended Keras 3.15.1 for MultiWorkerMirroredStrategy, where its fit fails\n"


def test_only_one_rank_of_a_gang_says_that_keras_was_mended(rank: Rank) -> None:
    rank.add(KERAS)
    assert rank.run(FIT.format(3), PUMASI_RANK="0").stderr != ""
    assert rank.run(FIT.format(3), PUMASI_RANK="1").stderr == ""


def test_keras_3_with_one_worker_is_left_as_it_is(rank: Rank) -> None:
    rank.add(KERAS)
    done = rank.run(FIT.format(1))
    assert (done.stdout, done.stderr) == ("built from the iterator\nas Keras does\n" * 2, "")


@pytest.mark.parametrize("version", ["3.9.2", "3.16.0", "4.0.0"])
def test_a_keras_that_cannot_be_mended_is_left_as_it_is_and_the_way_out_is_told(rank: Rank, version: str) -> None:
    rank.add({**KERAS, "keras/src/version.py": f'__version__ = "{version}"'})
    done = rank.run(FIT.format(3))
    assert done.stdout == "built from the iterator\nas Keras does\n" * 2
    assert done.stderr.count("\n") == 1
    assert f"Keras {version}" in done.stderr
    assert "tf-keras with TF_USE_LEGACY_KERAS=1" in done.stderr


def test_a_framework_that_looks_different_inside_is_left_alone_without_a_word(rank: Rank) -> None:
    empty = ("jax/_src/distributed.py", "jax/_src/clusters/__init__.py", "keras/src/backend/tensorflow/trainer.py")
    rank.add({**JAX, **KERAS, **dict.fromkeys(empty, "loaded = True")})
    script = "import jax._src.distributed as d, jax._src.clusters as c, keras.src.backend.tensorflow.trainer as t"
    done = rank.run(f"{script}; print(d.loaded, c.loaded, t.loaded)")
    assert (done.stdout, done.stderr) == ("True True True\n", "")


def test_looking_for_a_module_without_importing_it_changes_nothing(rank: Rank) -> None:
    rank.add(MPI)
    script = "import importlib.util\nprint(importlib.util.find_spec('mpi4py').loader.__class__.__name__)\n"
    done = rank.run(script + "import mpi4py.MPI\nraise ValueError", SIZE="2")
    assert done.stdout == "SourceFileLoader\naborted"


def test_a_torch_rank_ends_when_its_threads_have_let_go_of_what_they_had(rank: Rank) -> None:
    rank.add(TORCH)
    short, long = (
        WORKING.format(work=f"hashlib.sha256(bytes({size})); print('let go')") for size in (8 << 20, 1 << 30)
    )
    assert rank.run(short).stdout == "let go\n"
    assert rank.run_without_shim(long).stdout == ""


@pytest.mark.parametrize("work", ["threading.Event().wait()", "while True: pass"])
def test_a_torch_rank_does_not_wait_for_ever_for_its_threads(rank: Rank, work: str) -> None:
    rank.add(TORCH)
    done = rank.run(WORKING.format(work=work))
    assert (done.returncode, done.stderr) == (0, "")
