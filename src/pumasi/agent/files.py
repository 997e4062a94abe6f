"""What is sent to where a run is: the agent, and the files that it writes down for every rank's Python."""

from __future__ import annotations

import json
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


def step_files() -> dict[str, str]:
    """For tasks that divide data and average models: our own modules that do it."""
    package = Path(__file__).parent.parent
    paths = [
        package / "errors.py",
        package / "report.py",
        package / "steps.py",
        *package.glob("data/**/*.py"),
        *package.glob("models/**/*.py"),
    ]
    files = {f"steps/pumasi/{path.relative_to(package).as_posix()}": path.read_text(encoding="utf-8") for path in paths}
    return {"steps/pumasi/__init__.py": "", **files}


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
