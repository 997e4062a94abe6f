"""What the shim mends in a framework, at run time, because no environment variable can.

    jax         argument-free `jax.distributed.initialize()` finds its gang; a rank that fails ends at once
    mpi4py      a rank that fails aborts the others, as `python -m mpi4py` does
    keras 3     `model.fit` works under MultiWorkerMirroredStrategy
    torch       a rank that is done does not crash on its way out

It runs inside the user's program: standard library only, Python >= 3.8.
"""

import atexit
import builtins
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any, Callable, Optional, Tuple, Type

KERAS_KNOWN = ((3, 10), (3, 15))
"""The first and the last version seen to train with these mends. Up to 3.9 the metrics of several workers are wrong."""
_KERAS_TRAP = (
    "is none of those (3.10 to 3.15) that can be mended for MultiWorkerMirroredStrategy: if fit fails with "
    '"unsupported type PerReplica", take one of them, or tf-keras with TF_USE_LEGACY_KERAS=1'
)
THREADS_SECONDS = 1.0
"""How long the end of a process waits at most for threads that are still at work."""
_JAX_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def say(text: str) -> None:
    """Once a gang, not once a rank."""
    if os.environ.get("PUMASI_RANK", "0") == "0":
        sys.stderr.write(f"pumasi: {text}\n")


# JAX: who am I


def register_cluster(clusters: "Any") -> None:
    """First in JAX' list: a Slurm allocation around the run must not be taken for the gang."""
    base = clusters.ClusterEnv
    members = {
        "name": "pumasi",
        "is_env_present": classmethod(lambda cls: _is_jax_rank(os.environ)),
        "get_coordinator_address": classmethod(lambda cls, *args, **kwargs: os.environ[_JAX_VARIABLES[0]]),
        "get_process_count": classmethod(lambda cls: int(os.environ[_JAX_VARIABLES[1]])),
        "get_process_id": classmethod(lambda cls: int(os.environ[_JAX_VARIABLES[2]])),
        "get_local_process_id": classmethod(lambda cls: None),
    }
    cluster = type("PumasiCluster", (base,), members)
    base._cluster_types.remove(cluster)
    base._cluster_types.insert(0, cluster)


def _is_jax_rank(environ: "Any") -> bool:
    """Ranks that mpirun has started below a rank of ours are not told apart by our variables."""
    return all(environ.get(name) for name in _JAX_VARIABLES) and "OMPI_COMM_WORLD_RANK" not in environ


def watch_jax(distributed: "Any") -> None:
    initialize = distributed.State.initialize

    def initialize_and_watch(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        result = initialize(self, *args, **kwargs)
        watch_the_end()
        return result

    distributed.State.initialize = initialize_and_watch


# JAX and MPI: a rank that fails must not wait for the others, who wait for it


def watch_the_end(module: "Optional[ModuleType]" = None) -> None:
    """Three ways out are watched: an uncaught exception, the same past a hook that somebody has put over ours, and
    `sys.exit`. The last is put in place late, so that it comes before the frameworks' own handlers at exit."""
    atexit.register(_end_after_exception, os.getpid())
    if getattr(sys.excepthook, "is_pumasi", False):
        return
    sys.excepthook = _ending_hook(sys.excepthook)
    sys.exit = _visible(sys.exit)
    quitter = type(getattr(builtins, "exit", None))
    if quitter.__name__ == "Quitter":
        quitter.__call__ = _visible(quitter.__call__)  # type: ignore[method-assign]


def _ending_hook(shown_by: "Callable[..., Any]") -> "Callable[..., None]":
    owner = os.getpid()

    def excepthook(kind: "Type[BaseException]", error: BaseException, trace: "Optional[TracebackType]") -> None:
        shown_by(kind, error, trace)
        end_gang(130 if issubclass(kind, KeyboardInterrupt) else 1, owner)

    excepthook.is_pumasi = True  # type: ignore[attr-defined]
    return excepthook


def _end_after_exception(owner: int) -> None:
    """The interpreter notes an exception that nobody caught; a notebook notes others, whose frames have callers."""
    trace = getattr(sys, "last_traceback", None)
    if trace is not None and trace.tb_frame.f_back is None:
        end_gang(1, owner)


class VisibleExit(SystemExit):
    """Knows when it is the interpreter that asks for its code: nobody caught it, and the process is about to end."""

    owner = 0

    def __getattribute__(self, name: str) -> "Any":
        value = super().__getattribute__(name)
        if name == "code" and sys._getframe().f_back is None:
            self._end(value)
        return value

    def _end(self, code: object) -> None:
        if code is None or not gang_is_up():
            return
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        end_gang(code & 0xFF, self.owner)

    def __reduce__(self) -> "Tuple[Any, ...]":
        return SystemExit, self.args


VisibleExit.__name__ = VisibleExit.__qualname__ = "SystemExit"
VisibleExit.__module__ = "builtins"


def _visible(leave: "Callable[..., Any]") -> "Any":
    owner = os.getpid()

    def exit(*args: "Any", **kwargs: "Any") -> None:  # noqa: A001 - it stands for sys.exit
        try:
            leave(*args, **kwargs)
        except SystemExit as error:
            visible = VisibleExit(*error.args)
            visible.owner = owner
        raise visible from None

    return exit


def gang_is_up() -> bool:
    return _mpi_world() is not None or _jax_is_up()


def _jax_is_up() -> bool:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None and getattr(state, "num_processes", 1) > 1


def _mpi_world() -> "Any":
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() < 2:
        return None
    return mpi.COMM_WORLD


def end_gang(code: int, owner: int) -> None:
    """Ends this process now, and under MPI the others too. A fork of a rank is not the rank."""
    if code == 0 or os.getpid() != owner or not gang_is_up():
        return
    _flush(sys.stdout)
    _flush(sys.stderr)
    world = _mpi_world()
    if world is not None:
        world.Abort(code)
    os._exit(code)


def _flush(stream: "Any") -> None:
    try:
        stream.flush()
    except (AttributeError, OSError, ValueError):
        return


# Keras 3: fit under MultiWorkerMirroredStrategy


def mend_keras(trainer: "Any") -> None:
    version = _keras_version()
    if KERAS_KNOWN[0] <= _major_minor(version) <= KERAS_KNOWN[1]:
        _mend_known_keras(trainer, f"mended Keras {version} for MultiWorkerMirroredStrategy, where its fit fails")
    else:
        _warn_of_keras(trainer, version)


def _keras_version() -> str:
    from keras.src.version import __version__  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return str(__version__)


def _major_minor(version: str) -> "Tuple[int, ...]":
    return tuple(int(part) for part in version.split(".")[:2])


def _mend_known_keras(trainer: "Any", news: str) -> None:
    """Two faults: the first batch, from which the model is built, is averaged over the replicas, though one replica's
    part is enough and can't be reduced; and scalar results are reduced along an axis that they do not have."""
    model, in_use = trainer.TensorFlowTrainer, trainer._collective_all_reduce_multi_worker
    build, reduce_values, pending = model._maybe_symbolic_build, trainer.reduce_per_replica, [news]

    def maybe_symbolic_build(self: "Any", iterator: "Any" = None, data_batch: "Any" = None) -> "Any":
        if iterator is None or self._distribute_strategy is None or not in_use(self.distribute_strategy):
            return build(self, iterator=iterator, data_batch=data_batch)
        while pending:
            say(pending.pop())
        return build(self, data_batch=_first_local_batch(iterator, self.distribute_strategy, trainer.tree))

    def reduce_per_replica(values: "Any", strategy: "Any", reduction: str) -> "Any":
        operation = {"auto": "MEAN", "mean": "MEAN", "sum": "SUM"}.get(reduction)
        if operation is None or not in_use(strategy):
            return reduce_values(values, strategy, reduction)
        return trainer.tree.map_structure(lambda value: strategy.reduce(operation, value, axis=None), values)

    model._maybe_symbolic_build = maybe_symbolic_build
    trainer.reduce_per_replica = reduce_per_replica


def _first_local_batch(iterator: "Any", strategy: "Any", tree: "Any") -> "Any":
    batch = next(next(iter(iterator))[-1])
    return tree.map_structure(lambda value: strategy.experimental_local_results(value)[0], batch)


def _warn_of_keras(trainer: "Any", version: str) -> None:
    model = trainer.TensorFlowTrainer
    fit, pending = model.fit, ["fit"]

    def warned_fit(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        extended = getattr(self.distribute_strategy, "extended", None)
        in_use = getattr(extended, "_in_multi_worker_mode", None)
        if pending and in_use is not None and in_use():
            pending.clear()
            say(f"Keras {version} {_KERAS_TRAP}")
        return fit(self, *args, **kwargs)

    model.fit = warned_fit


# PyTorch: threads that let go of Python objects


def let_threads_finish(module: "ModuleType") -> None:
    """Gloo's threads drop what a collective has used after the program has gone on, which takes the interpreter's lock.
    One that asks for it when the interpreter has begun to end is ended by Python in the middle of C++, and takes the
    process along: "terminate called without an active exception" (pytorch/pytorch#190489)."""
    atexit.register(_wait_for_threads)


def _wait_for_threads() -> None:
    """Until all others have been asleep at two looks in a row. In between the lock is free, so that a thread that waits
    for it gets it."""
    deadline, quiet = time.monotonic() + THREADS_SECONDS, 0
    while quiet < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
        quiet = 0 if _others_work() else quiet + 1


def _others_work() -> bool:
    own = str(os.getpid())
    try:
        return any(_is_running(thread) for thread in os.listdir("/proc/self/task") if thread != own)
    except OSError:  # No Linux.
        return False


def _is_running(thread: str) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2].startswith(b"R")
    except OSError:
        return False
