"""The formats, by the ending of the source's name; a folder has none. A new one is a module beside the others, with
`open_source` as `base` describes it, and a line here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from pumasi.data.formats.base import OpenSource
from pumasi.errors import UsageError

_MODULES = {
    ".npz": "npz",
    ".npy": "npy",
    ".csv": "csv_text",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
}


def suffix_of(path: Path) -> str:
    if not path.exists():
        raise UsageError(f"There is no {path}.", "Check the name of the file.")
    suffix = "" if path.is_dir() else path.suffix.lower()
    if suffix not in _MODULES and not path.is_dir():
        raise UsageError(
            f"{path} has a format that Pumasi does not know.", f"It knows {', '.join(_MODULES)}, and folders of files."
        )
    return suffix


def opener(suffix: str) -> OpenSource:
    module = import_module(f"pumasi.data.formats.{_MODULES[suffix] if suffix else 'folder'}")
    return module.open_source  # type: ignore[no-any-return]
