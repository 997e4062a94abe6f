"""How programs are found where the ranks of a run start them: on this machine, or in an image that the working folder
travels to."""

from __future__ import annotations

import os
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pumasi.core.command import script_of
from pumasi.core.frameworks import package_of
from pumasi.core.frameworks.detect import Detection, detect, may_be_newer
from pumasi.errors import UsageError
from pumasi.program.binaries import Mpirun, find_mpirun

if TYPE_CHECKING:
    from pumasi.core.spec import Spec


class Site(ABC):
    """`travels`: the working folder is packed and goes there; nothing else of this machine is there."""

    travels: bool

    @abstractmethod
    def python(self, spec: Spec, environ: Mapping[str, str]) -> str:
        """The interpreter that runs a script."""

    @abstractmethod
    def command(self, spec: Spec, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What to execute there: a script with its interpreter, or a program. UsageError where it is not there."""

    @abstractmethod
    def file(self, spec: Spec, command: Sequence[str]) -> str:
        """The file of this machine that `command` executes there; empty where there is none."""

    @abstractmethod
    def mpirun(self, program: str, libraries: Mapping[str, Path | None], environ: Mapping[str, str]) -> Mpirun:
        """The mpirun that fits the program."""

    @abstractmethod
    def detect(
        self,
        spec: Spec,
        sources: Mapping[str, str],
        environ: Mapping[str, str],
        python: str,
        libraries: Sequence[str],
    ) -> Detection:
        """The framework that the program trains with. UsageError for a syntax error in a script, unless the interpreter
        of the run may accept it."""

    def shares(self, spec: Spec) -> tuple[int, ...]:
        """How many slots each node is likely to have, as far as that is known before there is a plan."""
        return (spec.at_once,)

    def cache(self, spec: Spec) -> str:
        """A folder there that outlasts the run, for packages that were downloaded; empty: none."""
        return ""


class ThisMachine(Site):
    travels = False

    def python(self, spec: Spec, environ: Mapping[str, str]) -> str:
        return find_python(spec, environ)

    def command(self, spec: Spec, environ: Mapping[str, str]) -> tuple[str, ...]:
        return _command(spec, Path(spec.workdir), environ)

    def file(self, spec: Spec, command: Sequence[str]) -> str:
        return str(Path(spec.workdir, command[0]))

    def mpirun(self, program: str, libraries: Mapping[str, Path | None], environ: Mapping[str, str]) -> Mpirun:
        return find_mpirun(program, libraries, environ)

    def detect(
        self,
        spec: Spec,
        sources: Mapping[str, str],
        environ: Mapping[str, str],
        python: str,
        libraries: Sequence[str],
    ) -> Detection:
        same = Path(python).resolve() == Path(sys.executable).resolve()
        return detect(sources, environ, spec.command, may_pass=lambda _: not same, libraries=libraries)


class Image(Site):
    """Files are looked for in the folder that travels, programs in the image, which can't be looked at."""

    travels = True

    def python(self, spec: Spec, environ: Mapping[str, str]) -> str:
        return spec.python or "python3"

    def command(self, spec: Spec, environ: Mapping[str, str]) -> tuple[str, ...]:
        folder, (first, *rest) = Path(spec.workdir), spec.command
        if first.endswith(".py") or "/" in first:
            first = _travelled(folder, first)
        return (self.python(spec, environ), first, *rest) if first.endswith(".py") else (first, *rest)

    def file(self, spec: Spec, command: Sequence[str]) -> str:
        """What travels is written with "./", see `_travelled`."""
        return str(Path(spec.workdir, command[0])) if command[0].startswith("./") else ""

    def mpirun(self, program: str, libraries: Mapping[str, Path | None], environ: Mapping[str, str]) -> Mpirun:
        return Mpirun("mpirun")

    def detect(
        self,
        spec: Spec,
        sources: Mapping[str, str],
        environ: Mapping[str, str],
        python: str,
        libraries: Sequence[str],
    ) -> Detection:
        def may_pass(error: SyntaxError) -> bool:
            return spec.python is not None or may_be_newer(error)

        try:
            return detect(sources, environ, spec.command, may_pass=may_pass, libraries=libraries)
        except UsageError as error:
            hint = "Correct it. If the image has a newer Python that accepts it, --python python3 skips this check."
            raise UsageError(error.message, hint) from None


def must_travel(spec: Spec) -> list[str]:
    """The script, where it lies in the working folder."""
    folder, script = Path(spec.workdir), script_of(spec.command)
    inside = Path(os.path.normpath(folder / script)) if script else Path()
    return [str(inside.relative_to(folder))] if inside.is_relative_to(folder) else []


def find_python(spec: Spec, environ: Mapping[str, str]) -> str:
    """The Python that was asked for, that of the active environment, or the one that Pumasi itself runs on."""
    if spec.python is not None:
        found = shutil.which(Path(spec.python).expanduser(), path=environ.get("PATH"))
        if found is None:
            raise UsageError(f"There is no Python at {spec.python}.", "--python takes the path of an interpreter.")
        return str(Path(found).absolute())
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python = Path(environ.get(variable, ""), "bin", "python")
        if environ.get(variable) and os.access(python, os.X_OK):
            return str(python)
    return sys.executable


def _command(spec: Spec, folder: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What to execute: a script with its Python, or the program as it is found in the folder or on the path."""
    first = spec.command[0]
    if first.endswith(".py"):
        check_file(folder, first)
        return (find_python(spec, environ), *spec.command)
    if "/" in first:
        check_file(folder, first)
        if not os.access(folder / first, os.X_OK):
            raise UsageError(f"{first} is not executable.", f"chmod +x {first}, or name its interpreter before it.")
        return (str(folder / first), *spec.command[1:])
    beside = Path(find_python(spec, environ)).parent
    found = shutil.which(first, path=str(beside)) or shutil.which(first, path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"There is no program {first} on the PATH.", _where_from(folder, first))
    return (found, *spec.command[1:])


def _travelled(folder: Path, name: str) -> str:
    """What a file is called there. A path from the root on that is not in the folder is one of the image's, unless it
    is a script that is here: whoever names that one believes that it goes along."""
    path = Path(os.path.normpath(folder / name))
    if path.is_relative_to(folder):
        check_file(folder, name)
        inside = str(path.relative_to(folder))
        return inside if name.endswith(".py") else f"./{inside}"
    if not name.startswith("/") or (name.endswith(".py") and path.exists()):
        raise UsageError(f"{name} is not in {folder}, which is all that travels.", "Start pumasi in its folder.")
    return name


def _where_from(folder: Path, name: str) -> str:
    if package := package_of(name):
        return f"It comes with {package}: activate the environment that has it, or name its Python: --python."
    if (folder / name).is_file():
        return f"To run the one in this folder: ./{name}"
    return _similar(folder, name)


def check_file(folder: Path, name: str, *, may_be_folder: bool = False) -> None:
    path = folder / name
    if os.path.isdir(path) and not may_be_folder:  # noqa: PTH112
        raise UsageError(f"{name} is a folder, not a program.", "Name the script in it.")
    if not os.path.exists(path):  # noqa: PTH110
        raise UsageError(f"There is no {name} in {folder}.", _similar(folder, name))
    if not os.access(path, os.R_OK):
        raise UsageError(f"{name} can't be read.", "Check its permissions.")


def _similar(folder: Path, name: str) -> str:
    try:
        names = sorted(os.listdir((folder / name).parent))  # noqa: PTH208
    except OSError:
        names = []
    from difflib import get_close_matches

    near = get_close_matches(Path(name).name, names, 1, cutoff=0.75)
    return f"Did you mean {near[0]}?" if near else "Check the name and the folder."
