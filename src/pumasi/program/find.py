"""The user's program as it stands on this machine: found, readable, and known by the framework that it trains with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pumasi.agent.files import installer_files, shim_files
from pumasi.core.command import first_word, script_of
from pumasi.core.flows.average import flow as average
from pumasi.core.flows.average.checks import sent
from pumasi.core.flows.average.flow import suffix_of, without_suffix
from pumasi.core.flows.average.options import AverageOptions
from pumasi.core.frameworks import Layout
from pumasi.core.frameworks.detect import Detection, joins, local_imports, traps
from pumasi.core.frameworks.mpi import check_startable
from pumasi.core.launch import Program
from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.program.binaries import Mpirun, find_libraries
from pumasi.program.packages import find_setup
from pumasi.program.site import Site, check_file

MOST_SOURCES = 200
"""Modules beside the script that are looked at for the framework that they import."""
STEP = (
    "-c",
    "import os, sys; sys.path[:1] = [os.path.join(os.environ['PUMASI_DIR'], 'steps')]; "
    "from pumasi.steps import main; sys.exit(main(sys.argv[1:]))",
)
"""What we do ourselves between the user's programs, with their Python: see `steps`."""
_CHIEF_ONLY = frozenset(("mpirun", "mpiexec", "horovodrun"))


def find_program(spec: Spec, environ: Mapping[str, str], site: Site) -> Program:
    """The program of a run whose ranks start it at `site`. UsageError says what is missing, or can't be read."""
    folder = Path(spec.workdir)
    command = site.command(spec, environ)
    if spec.strategy == "average":
        command = without_suffix(command, suffix_of(spec.command))
    script = script_of(spec.command)
    sources = dict(_sources(folder, script)) if script else {}
    told = {**environ, **spec.env}
    libraries = _libraries(spec, command, told, site)
    found = site.detect(spec, sources, told, command[0], tuple(libraries))
    if spec.framework != "auto":
        found = found._replace(framework=spec.framework, because="as told")
    launcher = first_word(spec.command) in _CHIEF_ONLY
    setup = find_setup(spec, site.python(spec, environ), site)
    by_mpi = found.framework == "mpi" and spec.at_once > 1 and not launcher
    mpirun = _mpirun(spec, command, libraries, told, site) if by_mpi else None
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
    spec: Spec, command: tuple[str, ...], libraries: Mapping[str, Path | None], environ: Mapping[str, str], site: Site
) -> Mpirun:
    check_startable(spec.command[0], libraries)
    return site.mpirun(command[0], libraries, environ)


def _parts(spec: Spec, environ: Mapping[str, str], site: Site) -> dict[str, tuple[str, ...]]:
    """The commands of tasks beside the trainers."""
    if spec.strategy != "average":
        return {}
    asked, python = spec[AverageOptions], site.python(spec, environ)
    parts: dict[str, tuple[str, ...]] = {average.AVERAGE: (python, *STEP, "average")}
    here = sent(spec).values() if site.travels else [asked.split or asked.copy, asked.init]
    for path in filter(None, here):
        check_file(Path(spec.workdir), path, may_be_folder=path != asked.init)
    if asked.save and not site.travels:
        _check_writable(Path(spec.workdir, asked.save))
    if asked.split or asked.copy:
        parts[average.DATA] = (python, *STEP, "split" if asked.split else "copy")
    if asked.evaluate:
        judge = site.command(replace(spec, command=asked.evaluate), environ)
        parts[average.EVALUATE] = without_suffix(judge, suffix_of(spec.command))
    return parts


_POOR = (
    "To average once, at the end, models that began apart is likely to be poor: the same weight means another thing in "
    "each. --rounds with {init}, or --init, gives them a common start; --evaluate shows whether it helped."
)


def _notes(spec: Spec, found: Detection, site: Site) -> tuple[str, ...]:
    layout = Layout(spec.at_once, site.shares(spec), spec.per_node, spec.shim, sections=spec.sections)
    averaged, cores = spec[AverageOptions], os.cpu_count() or 1
    crowd = spec.slots > 2 * cores and spec.gpu != "required" and not spec.per_node and not site.travels
    poor = spec.strategy == "average" and spec.slots > 1 and averaged.rounds == 1 and averaged.init is None
    crowded = (f"{spec.slots} processes share the {cores} cores of this machine.",) if crowd else ()
    return (*_doubts(found), *([_POOR] if poor else []), *crowded, *traps(found, layout))


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
