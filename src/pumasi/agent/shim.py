"""The `sitecustomize` of every rank: lets `mends.py` mend a framework when the program imports it, and not before.

The agent writes this file into a folder that stands first on PYTHONPATH, and `mends.py` beside it as `pumasi_mends.py`.
Two files, because every Python program that a script starts compiles and runs this one: it imports nothing that the
interpreter has not loaded already. Python >= 3.8, standard library only, and no word where a mend does not fit.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Dict

MENDS = {
    "jax._src.clusters": "register_cluster",
    "jax._src.distributed": "watch_jax",
    "mpi4py": "watch_the_end",
    "keras.src.backend.tensorflow.trainer": "mend_keras",
    "torch.distributed.distributed_c10d": "let_threads_finish",
}


class AfterImport:
    """A finder that lets the others find, and mends a module when it has been loaded."""

    def __init__(self, mends: "Dict[str, str]") -> None:
        self.mends = mends

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self.mends:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: "Any") -> None:
        load = getattr(loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module: "ModuleType") -> None:
            del loader.exec_module
            load(module)
            self._mend(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return

    def _mend(self, name: str, module: "ModuleType") -> None:
        mend = self.mends.pop(name, None)
        if not self.mends and self in sys.meta_path:
            sys.meta_path.remove(self)
        if mend is None:
            return
        try:
            getattr(load_mends(os.path.dirname(__file__)), mend)(module)
        except Exception:  # noqa: BLE001 - a mend that does not fit must not break the user's program
            return


def load_mends(folder: str) -> "Any":
    """By its place, not by its name: the program may have changed sys.path."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = "pumasi_mends"
    if name not in sys.modules:
        spec: "Any" = spec_from_file_location(name, os.path.join(folder, name + ".py"))
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def install() -> None:
    fallback = os.environ.get("PUMASI_SHIM_FALLBACK")
    if fallback and fallback not in sys.path:
        sys.path.append(fallback)
    sys.meta_path.insert(0, AfterImport(dict(MENDS)))


def chain(folder: str) -> None:
    """Runs the `sitecustomize` that would have run without this one, with its faults, if it has any, for all to see."""
    own = sys.modules.pop(__name__)
    place = sys.path.index(folder) if folder in sys.path else None
    if place is not None:
        del sys.path[place]
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own)
        if place is not None:
            sys.path.insert(place, folder)


if __name__ == "sitecustomize":
    install()
    chain(os.path.dirname(__file__))
