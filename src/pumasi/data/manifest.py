"""manifest.json: what a folder of parts was made from, how, and what each part has to be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from pumasi.data.files import Digest, Tick, counting, digest, sync_one
from pumasi.errors import UsageError

NAME = "manifest.json"
FORMAT = 1


class Part(NamedTuple):
    name: str
    rows: int
    bytes: int
    sha256: str


class PartSet(NamedTuple):
    """A folder of parts. `made` says whether this call has written them, or they were there."""

    folder: Path
    parts: tuple[Part, ...]
    made: bool = False


class Manifest(NamedTuple):
    """`seed` is None where nothing was shuffled, `stratify` where classes did not count."""

    name: str
    source: Digest
    mode: str
    n: int
    seed: int | None
    stratify: str | None
    parts: tuple[Part, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "source": {"name": self.name, **self.source._asdict()},
            "mode": self.mode,
            "n": self.n,
            "options": {"shuffle": self.seed is not None, "seed": self.seed, "stratify": self.stratify},
            "parts": [part._asdict() for part in self.parts],
        }

    def differences(self, wanted: Manifest) -> list[str]:
        """In words. The source's name does not count: the same bytes under another name are the same data."""
        pairs = (
            (self.source, wanted.source, f"it was made from another {self.name}"),
            (self.mode, wanted.mode, f"it was made by {self.mode}, not by {wanted.mode}"),
            (self.n, wanted.n, f"it has {self.n} parts, not {wanted.n}"),
            (self.seed, wanted.seed, f"its seed is {_word(self.seed)}, not {_word(wanted.seed)}"),
            (self.stratify, wanted.stratify, f"its classes are {_word(self.stratify)}, not {_word(wanted.stratify)}"),
        )
        return [words for mine, other, words in pairs if mine != other]


def _word(value: int | str | None) -> str:
    return "none" if value is None else str(value)


class Damaged(UsageError):
    """A part is not what the manifest says."""


def check(folder: str | os.PathLike[str], progress: Tick = lambda what, done, total: None) -> PartSet:
    """An error unless every part is, byte for byte, what was written. For trainers, before they read a part."""
    folder = Path(folder)
    manifest = read(folder)
    if manifest is None:
        raise UsageError(f"{folder} has no {NAME}: it is no folder of parts.", "Make one: pumasi data split FILE -n 5")
    tick = counting(progress, "checking", sum(part.bytes for part in manifest.parts))
    for part in manifest.parts:
        path = folder / part.name
        if not path.exists():
            raise _damaged(f"{path} is missing")
        # A file that was cut off, or grew, need not be read to its end.
        if path.is_file() and path.stat().st_size != part.bytes:
            raise _damaged(f"{path} has {path.stat().st_size:,} bytes in place of {part.bytes:,}")
        if digest(path, tick) != (part.bytes, part.sha256):
            raise _damaged(f"{path} has changed since it was written: its SHA-256 is another")
    return PartSet(folder, manifest.parts)


def _damaged(fact: str) -> Damaged:
    return Damaged(f"{fact}.", "Make the parts anew: the same command with --force.")


def write(folder: Path, manifest: Manifest) -> None:
    path = folder / NAME
    path.write_text(json.dumps(manifest.as_json(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    sync_one(path)


def read(folder: Path) -> Manifest | None:
    """None where there is none."""
    path = folder / NAME
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        version = told["format"]
        if version == FORMAT:
            return _from_json(told)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is no manifest of Pumasi's, or a damaged one.", "Name another folder.") from None
    raise UsageError(f"{path} has format {version}; this Pumasi knows {FORMAT}.", "Upgrade Pumasi.")


def _from_json(told: dict[str, Any]) -> Manifest:
    source, options = told["source"], told["options"]
    return Manifest(
        source["name"],
        Digest(source["bytes"], source["sha256"]),
        told["mode"],
        told["n"],
        options["seed"],
        options["stratify"],
        tuple(Part(*(part[field] for field in Part._fields)) for part in told["parts"]),
    )
