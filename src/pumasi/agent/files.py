"""The files that the agent writes down for every rank's Python."""

from __future__ import annotations

from pathlib import Path


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


def agent_text() -> str:
    return Path(__file__).with_name("agent.py").read_text(encoding="utf-8")


def loader_text() -> str:
    return Path(__file__).with_name("loader.py").read_text(encoding="utf-8")
