"""What a run needs to have installed: the files that name packages, read and checked on this machine before anything
starts, and put into the words of `agent/installer.py`, which does the work on every node."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pumasi.core.requirements import Line, from_pyproject, parse
from pumasi.core.spec import Spec
from pumasi.errors import UsageError
from pumasi.pools.kubernetes.notation import files_mount
from pumasi.pools.kubernetes.options import KubernetesOptions

CONVERTED = ".pumasi/requirements.txt"
"""Where a list that was made of a pyproject.toml or a uv.lock is in the folder that travels, which never has a .pumasi
of the user's."""
EXPORT = (
    "export",
    "--frozen",
    "--offline",
    "--no-emit-project",
    "--no-hashes",
    "--no-dev",
    "--no-header",
    "--no-annotate",
)
EXPORT_SECONDS = 60
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
LONGEST_REASON = 300


class _Read(NamedTuple):
    """One list of packages; `path` is seen from the working folder, and `constrains` says that it only constrains."""

    path: str
    text: str
    lines: list[Line]
    constrains: bool = False


def find_setup(spec: Spec, python: str) -> dict[str, Any]:
    """What each node does before the ranks start; see `agent/installer.py` for what each word means. Empty: nothing."""
    if spec.requirements is None and not spec.setup:
        return {}
    lists = [] if spec.requirements is None else _lists(spec, spec.requirements)
    is_movable = not any(line.is_local for each in lists for line in each.lines)
    volume = files_mount(spec[KubernetesOptions].mounts) if spec.pool != "local" else None
    asked = json.dumps([(each.path, each.text, _values_in(each.text, spec)) for each in lists])
    # In a cluster others can read this, and a hash of a password that is easy to guess tells it.
    has_key = is_movable and spec.pool == "local"
    return {
        "python": python,
        "requirements": None if spec.requirements is None else _described(spec, spec.requirements, lists),
        "commands": [list(command) for command in spec.setup],
        "cache": f"{volume.path}/pumasi/cache" if volume else "",
        "key": hashlib.sha256(asked.encode()).hexdigest() if has_key else "",
    }


def _values_in(text: str, spec: Spec) -> list[str | None]:
    """Those that pip puts in place of ${NAME}."""
    env = {**os.environ, **spec.env}
    return [env.get(name) for name in _VARIABLE.findall(text)]


def made_files(spec: Spec) -> dict[str, str]:
    """Files that are not in the working folder and have to be added to it where it travels: paths and texts."""
    if spec.requirements is None or not _is_converted(spec.requirements):
        return {}
    return {CONVERTED: _lists(spec, spec.requirements)[0].text}


def setup_files(spec: Spec) -> list[str]:
    """The files that have to travel with the working folder."""
    if spec.requirements is None or _is_converted(spec.requirements):
        return []
    return [each.path for each in _lists(spec, spec.requirements)]


def _lists(spec: Spec, name: str) -> list[_Read]:
    if _is_converted(name):
        path = Path(spec.workdir, name)
        text = _convert(path, name)
        lines = parse(text, name, converted=True)
        if any(line.is_local for line in lines) and not path.parent.samefile(spec.workdir):
            folder = Path(name).parent
            raise UsageError(
                f"{name} refers to files by paths that begin in {folder}, which is not the folder to run in.",
                f"Run in that folder: --workdir {folder} --requirements {path.name}",
            )
        return [_Read("", text, lines)]
    return list(_read_all(spec, _inside(spec, name)))


def _is_converted(name: str) -> bool:
    return Path(name).suffix in (".toml", ".lock")


def _inside(spec: Spec, name: str) -> str:
    """As seen from the working folder, where it lies in that."""
    path = Path(os.path.normpath(Path(spec.workdir, name)))
    return str(path.relative_to(spec.workdir)) if path.is_relative_to(spec.workdir) else str(path)


def _described(spec: Spec, name: str, lists: list[_Read]) -> dict[str, Any]:
    """The list is in a `file` that every node has; on this machine perhaps in the `text` that was made of one. A line
    may hold a credential: in a cluster, where others can read this, it names files and quotes none."""
    first = lists[0]
    file = first.path or (CONVERTED if spec.pool != "local" else "")
    return {
        "name": Path(name).name,
        "file": file,
        "text": "" if file else first.text,
        "count": sum(bool(line.package) for each in lists if not each.constrains for line in each.lines),
        "is_plain": all(line.is_plain for each in lists for line in each.lines),
    }


def _convert(path: Path, name: str) -> str:
    if path.name == "uv.lock":
        _read(path, name)
        return _exported(path)
    if path.name == "pyproject.toml":
        return from_pyproject(_toml(path, name), name)
    raise UsageError(
        f"{name} is not a list of packages that Pumasi knows.",
        "Give a requirements.txt, a pyproject.toml or a uv.lock.",
    )


def _toml(path: Path, name: str) -> Mapping[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
    try:
        return tomllib.loads(_read(path, name))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not TOML: {error}.", "Correct it, or give a requirements.txt.") from None


def _exported(path: Path) -> str:
    """Exactly the versions of the lock. Only uv knows how to read the markers and forks in it."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise UsageError(
            "uv.lock is read with uv, which is not on this machine.",
            "pip install uv, or give a file that it has written: uv export --no-emit-project > requirements.txt",
        )
    command = [uv, *EXPORT, "--format", "requirements-txt", "--project", str(path.parent)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"uv can't read {path.name}: {error}.", "Give a requirements.txt.") from None
    if done.returncode:
        said = " ".join(done.stderr.split())[:LONGEST_REASON]
        raise UsageError(f"uv can't read {path.name}: {said}", "`uv lock` writes it anew.")
    return done.stdout


def _read_all(spec: Spec, name: str) -> Iterator[_Read]:
    """The file and those that it includes, each once. In a cluster they have to lie in the folder that travels."""
    waiting, seen = [(name, "", False)], set[str]()
    while waiting:
        path, by, constrains = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        if spec.pool != "local" and path.startswith(("/", "../")):
            raise UsageError(f"{path} is not in {spec.workdir}, which is all that travels.", "Move it there.")
        text = _read(Path(spec.workdir, path), path, by)
        lines = parse(text, path)
        yield _Read(path, text, lines, constrains)
        for line in lines:
            if line.includes and "://" not in line.includes:
                place = f"{path}, line {line.number}"
                waiting.append((_beside(path, line.includes), place, constrains or line.constrains))


def _beside(path: str, other: str) -> str:
    """A file that another one includes is seen from that one."""
    return os.path.normpath(Path(path).parent / other)


def _read(path: Path, name: str, by: str = "") -> str:
    included = f", which {by} includes" if by else ""
    if path.exists() and not path.is_file():
        raise UsageError(f"{name}{included} is not an ordinary file.", "Save the list of packages in one.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"There is no {name} in {path.parent}{included}.", "Check the name and the folder.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}{included} is not UTF-8 text.", "Save the file as UTF-8.") from None
    except OSError as error:
        raise UsageError(f"{name}{included} can't be read: {error.strerror}.", "Check its permissions.") from None
