"""The user's program as it stands on this machine: found, readable, and known by the framework that it trains with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pumasi.agent.files import installer_files, shim_files
from pumasi.core.command import first_word, script_of
from pumasi.core.frameworks import Framework, Layout, find_framework, is_reaching_out
from pumasi.core.frameworks.detect import Detection, joins, local_imports, traps
from pumasi.core.launch import Program
from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.program.binaries import Mpirun, find_libraries
from pumasi.program.packages import find_setup
from pumasi.program.site import Site, check_file
from pumasi.registry import FLOWS

MOST_SOURCES = 200
"""Modules beside the script that are looked at for the framework that they import."""
_STEP = (
    "import os, sys; sys.path[:1] = [os.path.join(os.environ['PUMASI_DIR'], 'steps')]; "
    "from {} import main; sys.exit(main(sys.argv[1:]))"
)
"""What a flow does itself between the user's programs, with their Python."""


def find_program(spec: Spec, environ: Mapping[str, str], site: Site) -> Program:
    """The program of a run whose ranks start it at `site`. UsageError says what is missing, or can't be read."""
    folder = Path(spec.workdir)
    command = FLOWS.get(spec.strategy).words(spec, site.command(spec, environ))
    script = script_of(spec.command)
    sources = dict(_sources(folder, script)) if script else {}
    told = {**environ, **spec.env}
    libraries = _libraries(spec, command, told, site)
    found = site.detect(spec, sources, told, command[0], tuple(libraries))
    if spec.framework != "auto":
        found = found._replace(framework=spec.framework, because="as told")
    launcher = is_reaching_out(first_word(spec.command))
    framework = find_framework(found.framework)
    setup = find_setup(spec, site.python(spec, environ), site)
    by_mpi = framework is not None and framework.by_mpirun and spec.at_once > 1 and not launcher
    mpirun = _mpirun(spec, command, libraries, told, site, framework) if framework and by_mpi else None
    return Program(
        command=command,
        framework=found.framework,
        because=found.because,
        files={**(shim_files() if spec.shim else {}), **(installer_files() if setup else {})},
        mpirun=mpirun.path if mpirun else None,
        launcher=launcher,
        joins=joins(found),
        notes=(*_notes(spec, found, site), *filter(None, [mpirun.note if mpirun else ""])),
        parts=_parts(spec, environ, site),
        setup=setup,
    )


def _libraries(spec: Spec, command: tuple[str, ...], environ: Mapping[str, str], site: Site) -> dict[str, Path | None]:
    """Nothing for scripts, nor for programs that are not on this machine."""
    file = "" if script_of(spec.command) else site.file(spec, command)
    return find_libraries(Path(file), environ) if file else {}


def _mpirun(
    spec: Spec,
    command: tuple[str, ...],
    libraries: Mapping[str, Path | None],
    environ: Mapping[str, str],
    site: Site,
    framework: Framework,
) -> Mpirun:
    framework.check_startable(spec.command[0], libraries)
    return site.mpirun(command[0], libraries, environ)


def _parts(spec: Spec, environ: Mapping[str, str], site: Site) -> dict[str, tuple[str, ...]]:
    """The commands of tasks that run something else than the main one."""
    flow = FLOWS.get(spec.strategy)
    programs = flow.programs(spec)
    for path, may_be_folder in flow.reads(spec).items():
        if not (site.travels and spec.place.keeps(path)):
            check_file(Path(spec.workdir), path, may_be_folder=may_be_folder)
    for path in () if site.travels else flow.writes(spec):
        _check_writable(Path(spec.workdir, path))
    python = site.python(spec, environ)
    step = (python, "-c", _STEP.format(flow.steps))
    return {
        name: (*step, *words) if is_step else flow.words(spec, site.command(replace(spec, command=words), environ))
        for name, (words, is_step) in programs.items()
    }


def _notes(spec: Spec, found: Detection, site: Site) -> tuple[str, ...]:
    layout = Layout(spec.at_once, site.shares(spec), spec.per_node, spec.shim, sections=spec.sections)
    cores = os.cpu_count() or 1
    crowd = spec.slots > 2 * cores and spec.gpu != "required" and not spec.per_node and not site.travels
    crowded = (f"{spec.slots} processes share the {cores} cores of this machine.",) if crowd else ()
    return (*_doubts(found), *FLOWS.get(spec.strategy).notes(spec), *crowded, *traps(found, layout))


def _doubts(found: Detection) -> Iterator[str]:
    if found.script.trouble:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        yield f"{found.script.trouble}, says Python {version} here. The Python of the run may accept it."


def _check_writable(path: Path) -> None:
    """Better now than when the training is done."""
    folder = next(each for each in path.parents if each.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} can't be written.", "Choose another file with --save.")


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
