"""Which framework a script trains with, and what will go wrong with it, told before the training starts.

A launcher in the command decides first, then the libraries of a program that is no script, then what trains together
(`tf.distribute`, `hvd.init`), then what is imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pumasi.core.frameworks import FRAMEWORKS, Layout, find_framework
from pumasi.core.frameworks.script import Import, Script
from pumasi.core.frameworks.source import local_imports, may_be_newer, read_script

__all__ = ["Detection", "detect", "joins", "local_imports", "may_be_newer", "traps"]

_KERAS = ("keras", "keras_core", "keras_hub", "keras_nlp", "keras_cv")


class Detection(NamedTuple):
    """`because` is a sentence without its full stop, for the plan line."""

    framework: str
    because: str
    script: Script


class _Evidence(NamedTuple):
    framework: str
    found: Import
    module: str
    is_sure: bool = True


def detect(
    sources: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
    *,
    may_pass: Callable[[SyntaxError], bool] = lambda error: False,
    libraries: Sequence[str] = (),
) -> Detection:
    """The framework behind `sources`: file name to text, the main script first, then the local modules that it imports
    (`local_imports` names them). `may_pass` decides on a syntax error in the script: it may run on another Python than
    this one. `libraries` are the shared libraries that a program needs which is no script. "none" when nothing is
    found: then everything is set, as for all others."""
    script = read_script(sources, environ or {}, command, may_pass=may_pass)
    script = script._replace(libraries=tuple(libraries))
    framework, because = _by_launcher(script) or _by_library(script) or _by_source(script)
    return Detection(framework, because, script)


def joins(detection: Detection) -> bool:
    """Whether the script calls or reads what needs a group, even when it is alone in it."""
    framework, script = find_framework(detection.framework), detection.script
    if framework is None:
        return False
    return any(call.name in framework.joins for call in script.calls) or script.reads(*framework.variables)


def traps(detection: Detection, layout: Layout) -> tuple[str, ...]:
    """What will go wrong without a word, one sentence each. A process that is alone has nobody to fall out with."""
    framework = find_framework(detection.framework)
    if framework is None or layout.slots < 2:
        return ()
    return tuple(framework.traps(detection.script, layout))


def _by_launcher(script: Script) -> tuple[str, str] | None:
    for framework in FRAMEWORKS:
        launcher = script.launcher(framework.launchers)
        if launcher:
            return framework.name, f"{launcher} starts it"
    return None


def _by_library(script: Script) -> tuple[str, str] | None:
    for framework in FRAMEWORKS:
        for name in script.libraries:
            if framework.libraries and re.fullmatch(framework.libraries, name):
                return framework.name, f"{script.command[0]} needs {name}"
    return None


def _by_source(script: Script) -> tuple[str, str]:
    evidence = _evidence(script)
    if not evidence:
        return "none", _nothing_found(script)
    together = _trains_together(script, evidence)
    if together is not None:
        return together
    only_distributed = [item for item in evidence if _is_only_distributed(item.framework)]
    first = min(only_distributed, key=_precedence) if only_distributed else evidence[0]
    return first.framework, f"{first.found.file} imports {first.module}"


def _nothing_found(script: Script) -> str:
    if script.main:
        return f"{script.main} imports no framework that Pumasi knows"
    return f"{script.command[0]} is no Python script" if script.command else "there is no Python script"


def _trains_together(script: Script, evidence: Sequence[_Evidence]) -> tuple[str, str] | None:
    """Of several frameworks the one whose distributed training is used; the others are there for their data sets."""
    seen = list(dict.fromkeys(item.framework for item in evidence))
    if len(seen) < 2:
        return None
    for item in sorted(evidence, key=_precedence):
        framework = find_framework(item.framework)
        starts = framework.starts if framework is not None else ()
        used = next((start for start in starts if script.names_under(start)), None)
        if used:
            return item.framework, f"{item.found.file} imports {item.module} and uses {used}"
    return None


def _precedence(item: _Evidence) -> int:
    return [framework.name for framework in FRAMEWORKS].index(item.framework)


def _is_only_distributed(name: str) -> bool:
    framework = find_framework(name)
    return framework is not None and framework.only_distributed


def _evidence(script: Script) -> list[_Evidence]:
    """Every import that tells something, in the order of the text; the unsure ones only where there is nothing else."""
    backend = script.environ.get("KERAS_BACKEND", "")
    found = [item for item in (_read_import(found, backend) for found in script.imports) if item is not None]
    sure = [item for item in found if item.is_sure]
    # A backend that was asked for is the one that trains: beside it tensorflow serves the data.
    told = [item for item in sure if backend and item.found.top in _KERAS]
    return [*told, *(item for item in sure if item not in told)] or found


def _read_import(found: Import, backend: str) -> _Evidence | None:
    if found.top in _KERAS:
        return _read_keras(found, backend)
    for framework in FRAMEWORKS:
        if found.top in framework.modules:
            return _Evidence(framework.name, found, found.module)
        if found.top in framework.companions:
            return _Evidence(framework.name, found, found.module, is_sure=False)
    return None


def _read_keras(found: Import, backend: str) -> _Evidence | None:
    if not backend:
        default = f"{found.module} (on TensorFlow, unless KERAS_BACKEND says otherwise)"
        usual = next(framework.name for framework in FRAMEWORKS if framework.runs_keras)
        return _Evidence(usual, found, default, is_sure=False)
    if find_framework(backend) is None:
        return None
    return _Evidence(backend, found, f"{found.module} (on {backend})")
