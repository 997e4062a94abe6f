"""The agent where it is not installed: its modules come out of a text that was handed over.

That is quicker than to write them down and have them found, and than a zip, from which Python compiles each module
twice. Only what is imported is compiled. The pod's command executes this module's text before there is any import.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping


class Carried:
    """An importer of `files`, by their paths below `folder`, where they would be if they were written down."""

    def __init__(self, files: Mapping[str, str], folder: str) -> None:
        self.files = files
        self.folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        base = name.replace(".", "/")
        for file, is_package in ((base + ".py", False), (base + "/__init__.py", True)):
            if file in self.files:
                # The class of all specs, without an import.
                return type(sys.__spec__)(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        file = module.__spec__.origin
        exec(compile(self.files[file], os.path.join(self.folder, file), "exec"), module.__dict__)  # noqa: S102

    def write_down(self) -> None:
        """For programs that others start."""
        for file, text in self.files.items():
            path = os.path.join(self.folder, file)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)


def install(files: Mapping[str, str], folder: str) -> None:
    sys.meta_path.append(Carried(files, folder))


def write_down() -> None:
    """Whatever is carried, if anything is."""
    for finder in sys.meta_path:
        if hasattr(finder, "write_down"):
            finder.write_down()
