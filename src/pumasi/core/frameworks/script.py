"""What is known about a script without running it, and the questions that detection and traps ask about it.

Where the answer is uncertain it is the one that keeps a trap quiet: a false alarm annoys more than a missing one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN = object()
"""The value of an argument that is not a plain constant."""

_PLAIN_NAMES = """
torch torchvision torchaudio torchtext torchdata torchmetrics torchinfo torchsummary timm
tensorflow keras tf_keras tensorflow_datasets tensorflow_hub tensorflow_text tensorflow_probability
jax jaxlib flax optax orbax chex haiku equinox jaxopt clu grain
tensorboard tensorboardX absl ml_collections omegaconf yaml toml click fire tqdm rich icecream requests pumasi
numpy scipy pandas polars pyarrow h5py sklearn skimage einops matplotlib seaborn plotly PIL cv2 imageio albumentations
datasets tokenizers sentencepiece nltk spacy gym gymnasium
"""
_PLAIN = sys.stdlib_module_names | frozenset(_PLAIN_NAMES.split())
"""Modules that never start distributed training by themselves. Behind any other there may be somebody who does."""

_FIT_ARGUMENTS = frozenset(("epochs", "validation_data", "validation_split", "steps_per_epoch", "callbacks"))
_LAUNCHERS = frozenset(("torchrun", "mpirun", "mpiexec", "horovodrun", "accelerate", "deepspeed"))
_RANK_VARIABLE = re.compile(r".*(RANK|WORLD_SIZE|PROCID|NTASKS)")


class Import(NamedTuple):
    """`names` are what a `from module import …` takes out of it. A relative module starts with a dot."""

    module: str
    names: tuple[str, ...]
    file: str
    line: int

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


class Call(NamedTuple):
    """`name` is the full name of what is called, where it comes from an import: `torch.nn.Linear`, whatever the script
    calls it. `method` is the last word of it, `receiver` the one before. `is_open`: with *args or **kwargs."""

    name: str
    method: str
    receiver: str
    keywords: Mapping[str, object]
    positional: int
    is_open: bool
    is_conditional: bool
    file: str
    line: int


class Script(NamedTuple):
    """The main script and the local modules that it imports, taken together.

    `names` are full names of what comes from imports, `words` all identifiers, `strings` all strings of a single word
    and the words of commands that the script starts, `variables` those of them that look like environment variables,
    except the ones that the script only sets. Comments, docstrings and sentences are in none of them. `environ` is what
    the script will find there, with what it sets itself. `unread` are files in which this Python does not understand
    everything, and `trouble` is the syntax error that it sees in the main script. `libraries` are the shared libraries
    of a program that is no script.
    """

    main: str = ""
    command: tuple[str, ...] = ()
    environ: Mapping[str, str] = {}
    files: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    imports: tuple[Import, ...] = ()
    calls: tuple[Call, ...] = ()
    names: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    strings: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    trouble: str = ""
    libraries: tuple[str, ...] = ()

    def imports_any(self, *tops: str) -> bool:
        return any(found.top in tops for found in self.imports)

    def mentions_any(self, *words: str) -> bool:
        return not self.words.isdisjoint(words)

    def names_under(self, *prefixes: str) -> list[str]:
        """The full names that are one of `prefixes` or inside of it, sorted."""
        within = tuple(f"{prefix}." for prefix in prefixes)
        return sorted(name for name in self.names if name in prefixes or name.startswith(within))

    def reads(self, *variables: str) -> bool:
        return not self.variables.isdisjoint(variables)

    def reads_rank(self) -> bool:
        return any(_RANK_VARIABLE.fullmatch(variable) for variable in self.variables)

    def fits_keras(self) -> bool:
        """Whether there is a `fit` that is Keras', not scikit-learn's: by its arguments, or because a model is fitted
        where nothing else is imported that has models with a `fit`."""
        fits = [call for call in self.calls if call.method == "fit"]
        if any(_FIT_ARGUMENTS & call.keywords.keys() for call in fits):
            return True
        return any("model" in call.receiver.lower() for call in fits) and not self.imports_any("sklearn", "xgboost")

    def may_start_elsewhere(self, pattern: str) -> bool:
        """Whether distributed training may be started after all: `pattern` finds the ways in names, identifiers and
        strings of one word, a module that nobody has looked into may hide one, and a script that asks for its rank has
        thought of something itself."""
        if self.unread or self.reads_rank() or not self.strings.isdisjoint(_LAUNCHERS):
            return True
        if any(re.search(pattern, said) for said in self.names | self.words | self.strings):
            return True
        return not all(found.top in _PLAIN or self._has_read(found) for found in self.imports)

    def _has_read(self, found: Import) -> bool:
        inner = [f"{found.module}.{name}" for name in found.names]
        return self._is_local(found.module) or (bool(inner) and all(map(self._is_local, inner)))

    def _is_local(self, module: str) -> bool:
        path = module.lstrip(".").replace(".", "/")
        ends = (f"{path}.py", f"{path}/__init__.py")
        return any(file in ends or file.endswith(tuple(f"/{end}" for end in ends)) for file in self.files)

    def launcher(self, launchers: tuple[str, ...]) -> str:
        """Which of `launchers` the command starts with, as a program or as `python -m MODULE`; "" for none."""
        if not self.command:
            return ""
        program = self.command[0].rpartition("/")[2]
        words = [program, *self.command[1:]]
        if program.startswith("python") and self.command[1:2] == ("-m",):
            words = words[2:]
        return next((found for found in launchers if words[: len(found.split())] == found.split()), "")
