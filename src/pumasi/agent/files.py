"""What is sent to where a run is: the agent, and the files that it writes down for every rank's Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

AGENT = Path(__file__).with_name("__main__.py")
"""What Python runs to be an agent."""
_PROGRAMS = ("files", "installer", "loader", "mends", "shim")
"""Modules in this folder that are not part of the agent: they are sent on their own, or not at all."""


def shim_files() -> dict[str, str]:
    """The shim, and `pumasi.report` where Pumasi is missing."""
    package = Path(__file__).parent.parent
    return {
        "shim/sitecustomize.py": (package / "agent" / "shim.py").read_text(encoding="utf-8"),
        "shim/pumasi_mends.py": (package / "agent" / "mends.py").read_text(encoding="utf-8"),
        "fallback/pumasi.py": (package / "report.py").read_text(encoding="utf-8"),
    }


def installer_files() -> dict[str, str]:
    """For a run that has something to install before it starts."""
    return {"installer.py": Path(__file__).with_name("installer.py").read_text(encoding="utf-8")}


def step_files(modules: Sequence[str]) -> dict[str, str]:
    """For tasks that a flow does itself: these modules and packages. The packages that they are in are empty there."""
    texts: dict[str, str] = {}
    for module in modules:
        place = Path(*module.split("."))
        texts |= {f"steps/{parent.as_posix()}/__init__.py": "" for parent in place.parents if parent.name}
        source = _source(module)
        paths = source.rglob("*.py") if source.is_dir() else [source]
        base = source if source.is_dir() else source.with_suffix("")
        texts |= {_under(place, base, path): path.read_text(encoding="utf-8") for path in paths}
    return texts


def _source(module: str) -> Path:
    """The file of a module, the folder of a package."""
    found = find_spec(module)
    assert found is not None, f"There is no module {module}."
    path = Path(str(found.origin))
    return path.parent if found.submodule_search_locations else path


def _under(place: Path, base: Path, path: Path) -> str:
    inside = f"{place.as_posix()}.py" if path.with_suffix("") == base else (place / path.relative_to(base)).as_posix()
    return f"steps/{inside}"


def agent_files() -> dict[str, str]:
    """The agent: its modules, where they are to be below a folder that Python imports from."""
    folder = Path(__file__).parent
    paths = [path for path in sorted(folder.glob("*.py")) if path.stem not in _PROGRAMS]
    paths += sorted(folder.glob("frameworks/*.py"))
    files = {f"pumasi/agent/{path.relative_to(folder).as_posix()}": path.read_text(encoding="utf-8") for path in paths}
    return {"pumasi/__init__.py": "", **files}


def agent_text() -> str:
    """`agent_files` as one text, for places where nothing of ours is installed."""
    return json.dumps(agent_files())


def loader_text() -> str:
    return Path(__file__).with_name("loader.py").read_text(encoding="utf-8")
