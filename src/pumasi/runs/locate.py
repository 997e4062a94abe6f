"""The user's program as it stands on this machine: found, readable, and known by the framework that it trains with."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pumasi.agent.files import installer_files, shim_files
from pumasi.core.command import program_of, script_of
from pumasi.core.frameworks import Framework, Layout, find_framework, is_reaching_out, package_of
from pumasi.core.frameworks.detect import Detection, detect, joins, local_imports, may_be_newer, traps
from pumasi.core.launch import Program
from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.pools.local.options import LocalOptions
from pumasi.registry import FLOWS
from pumasi.runs.binaries import Mpirun, find_libraries, find_mpirun
from pumasi.runs.packages import find_setup

MOST_SOURCES = 200
"""Modules beside the script that are looked at for the framework that they import."""
_STEP = (
    "import os, sys; sys.path[:1] = [os.path.join(os.environ['PUMASI_DIR'], 'steps')]; "
    "from {} import main; sys.exit(main(sys.argv[1:]))"
)
"""What a flow does itself between the user's programs, with their Python."""


def find_program(spec: Spec, environ: Mapping[str, str]) -> Program:
    folder = Path(spec.workdir)
    here = spec.pool == "local"
    command = FLOWS.get(spec.strategy).words(spec, _resolved(spec, environ))
    script = script_of(spec.command)
    sources = dict(_sources(folder, script)) if script else {}
    told = {**environ, **spec.env}
    libraries = _libraries(spec, command, told)
    found = _detect(spec, sources, told, command[0], tuple(libraries))
    if spec.framework != "auto":
        found = found._replace(framework=spec.framework, because="as told")
    launcher = is_reaching_out(program_of(spec.command))
    framework = find_framework(found.framework)
    setup = find_setup(spec, find_python(spec, environ) if here else spec.python or "python3")
    by_mpi = framework is not None and framework.by_mpirun and spec.at_once > 1 and not launcher
    mpirun = _mpirun(spec, command, libraries, told, framework) if framework and by_mpi else None
    return Program(
        command=command,
        framework=found.framework,
        because=found.because,
        files={**(shim_files() if spec.shim else {}), **(installer_files() if setup else {})},
        mpirun=mpirun.path if mpirun else None,
        launcher=launcher,
        joins=joins(found),
        notes=(*_notes(spec, found), *filter(None, [mpirun.note if mpirun else ""])),
        parts=_parts(spec, environ),
        setup=setup,
    )


def _libraries(spec: Spec, command: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, Path | None]:
    """Nothing for scripts, nor for programs of an image, which can't be looked at; what travels there is written with
    "./", see `_travelled`."""
    is_here = spec.pool == "local" or command[0].startswith("./")
    return find_libraries(Path(spec.workdir, command[0]), environ) if is_here and not script_of(spec.command) else {}


def _mpirun(
    spec: Spec,
    command: tuple[str, ...],
    libraries: Mapping[str, Path | None],
    environ: Mapping[str, str],
    framework: Framework,
) -> Mpirun:
    framework.check_startable(spec.command[0], libraries)
    return find_mpirun(command[0], libraries, environ) if spec.pool == "local" else Mpirun("mpirun")


def _detect(
    spec: Spec, sources: Mapping[str, str], environ: Mapping[str, str], python: str, libraries: Sequence[str]
) -> Detection:
    """A syntax error is told before anything starts, unless another Python may accept it: one that was named, or that
    of an image, which may be newer."""
    if spec.pool == "local":
        same = Path(python).resolve() == Path(sys.executable).resolve()
        return detect(sources, environ, spec.command, may_pass=lambda _: not same, libraries=libraries)

    def may_pass(error: SyntaxError) -> bool:
        return spec.python is not None or may_be_newer(error)

    try:
        return detect(sources, environ, spec.command, may_pass=may_pass, libraries=libraries)
    except UsageError as error:
        hint = "Correct it. If the image has a newer Python that accepts it, --python python3 skips this check."
        raise UsageError(error.message, hint) from None


def _resolved(spec: Spec, environ: Mapping[str, str]) -> tuple[str, ...]:
    folder = Path(spec.workdir)
    return _command(spec, folder, environ) if spec.pool == "local" else _command_elsewhere(spec, folder)


def _parts(spec: Spec, environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The commands of tasks that run something else than the main one."""
    flow = FLOWS.get(spec.strategy)
    programs = flow.programs(spec)
    for path, may_be_folder in flow.reads(spec).items():
        _check_file(Path(spec.workdir), path, may_be_folder=may_be_folder)
    for path in flow.writes(spec):
        _check_writable(Path(spec.workdir, path))
    python = find_python(spec, environ) if spec.pool == "local" else spec.python or "python3"
    step = (python, "-c", _STEP.format(flow.steps))
    return {
        name: (*step, *words) if is_step else flow.words(spec, _resolved(replace(spec, command=words), environ))
        for name, (words, is_step) in programs.items()
    }


def _notes(spec: Spec, found: Detection) -> tuple[str, ...]:
    shares = spec[LocalOptions].nodes or (spec.at_once,)
    layout = Layout(spec.at_once, shares, spec.per_node, spec.shim, sections=spec.sections)
    cores = os.cpu_count() or 1
    crowd = spec.slots > 2 * cores and spec.gpu != "required" and not spec.per_node and spec.pool == "local"
    crowded = (f"{spec.slots} processes share the {cores} cores of this machine.",) if crowd else ()
    return (*_doubts(found), *FLOWS.get(spec.strategy).notes(spec), *crowded, *traps(found, layout))


def _doubts(found: Detection) -> Iterator[str]:
    if found.script.trouble:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        yield f"{found.script.trouble}, says Python {version} here. The Python of the run may accept it."


def _command(spec: Spec, folder: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What to execute: a script with its Python, or the program as it is found in the folder or on the path."""
    first = spec.command[0]
    if first.endswith(".py"):
        _check_file(folder, first)
        return (find_python(spec, environ), *spec.command)
    if "/" in first:
        _check_file(folder, first)
        if not os.access(folder / first, os.X_OK):
            raise UsageError(f"{first} is not executable.", f"chmod +x {first}, or name its interpreter before it.")
        return (str(folder / first), *spec.command[1:])
    beside = Path(find_python(spec, environ)).parent
    found = shutil.which(first, path=str(beside)) or shutil.which(first, path=environ.get("PATH"))
    if found is None:
        raise UsageError(f"There is no program {first} on the PATH.", _where_from(folder, first))
    return (found, *spec.command[1:])


def _command_elsewhere(spec: Spec, folder: Path) -> tuple[str, ...]:
    """Where the working folder travels to an image: files are looked for in the folder, programs in the image."""
    first, *rest = spec.command
    if first.endswith(".py") or "/" in first:
        first = _travelled(folder, first)
    return (spec.python or "python3", first, *rest) if first.endswith(".py") else (first, *rest)


def _travelled(folder: Path, name: str) -> str:
    """What a file is called there. A path from the root on that is not in the folder is one of the image's, unless it
    is a script that is here: whoever names that one believes that it goes along."""
    path = Path(os.path.normpath(folder / name))
    if path.is_relative_to(folder):
        _check_file(folder, name)
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


def _check_file(folder: Path, name: str, *, may_be_folder: bool = False) -> None:
    path = folder / name
    if os.path.isdir(path) and not may_be_folder:  # noqa: PTH112
        raise UsageError(f"{name} is a folder, not a program.", "Name the script in it.")
    if not os.path.exists(path):  # noqa: PTH110
        raise UsageError(f"There is no {name} in {folder}.", _similar(folder, name))
    if not os.access(path, os.R_OK):
        raise UsageError(f"{name} can't be read.", "Check its permissions.")


def _check_writable(path: Path) -> None:
    """Better now than when the training is done."""
    folder = next(each for each in path.parents if each.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} can't be written.", "Choose another file with --save.")


def _similar(folder: Path, name: str) -> str:
    try:
        names = sorted(os.listdir((folder / name).parent))  # noqa: PTH208
    except OSError:
        names = []
    from difflib import get_close_matches

    near = get_close_matches(Path(name).name, names, 1, cutoff=0.75)
    return f"Did you mean {near[0]}?" if near else "Check the name and the folder."


def _sources(folder: Path, script: str) -> Iterator[tuple[str, str]]:
    """The script, and the modules beside it that it imports, and so on."""
    main = folder / script
    if not main.is_file():
        return
    waiting, seen = [main], set[Path]()
    while waiting and len(seen) < MOST_SOURCES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        inside = path.relative_to(main.parent)
        text = _read(path)
        yield str(inside), text
        for module in sorted(local_imports(text, ".".join(inside.parent.parts))):
            waiting += _module_files(main.parent, module)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path.name} can't be read: {error.strerror}.", "Check its permissions.") from None


def _module_files(folder: Path, module: str) -> Iterator[Path]:
    base = folder.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            yield path
