"""The files that are served, by their names alone: what can be told without numpy or a framework."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from pumasi.errors import UsageError

KERAS = (".keras", ".h5", ".hdf5")
TORCH = (".pt", ".pth")
SUFFIXES = (*KERAS, *TORCH)
PREPROCESSING = ".preprocessing.json"
WITHOUT_ARCHITECTURE = "It has weights, but not the layers that they belong to."
SAVE_WHOLE = "Load the weights into the model in Python and save all of it: model.save('final.keras')."
SAVE_SCRIPT = "In Python: torch.jit.script(model).save('final.pt')."


class Sources(NamedTuple):
    """The files that an ensemble is made of."""

    model: Path
    votes: Path | None = None
    preprocessing: Path | None = None

    def models(self) -> list[Path]:
        """The main one first, the others by name."""
        if self.votes is None:
            return [self.model]
        if not self.votes.is_dir():
            raise UsageError(f"There is no folder {self.votes}.")
        found = (each for each in sorted(self.votes.iterdir()) if each.suffix.lower() in SUFFIXES and each.is_file())
        shown = (each for each in found if not each.name.startswith("."))
        there = os.path.exists(self.model)  # noqa: PTH110 (one that may not be looked at is none that is here)
        return [self.model, *(each for each in shown if not (there and each.samefile(self.model)))]

    def described_by(self) -> Path | None:
        found = self.preprocessing or beside(self.model)
        return found if self.preprocessing or found.exists() else None


def beside(model: Path) -> Path:
    return Path(f"{model}{PREPROCESSING}")


def check(path: Path) -> None:
    """That there is such a file, that it can be read, and that it may be a model that can be served."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"There is no file {path}.") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if is_folder:
        raise UsageError(f"{path} is a folder.", "Name a model in it, and let the others vote: --vote FOLDER.")
    suffix = path.suffix.lower()
    if path.name.lower().endswith(".weights.h5"):
        raise UsageError(f"{path} can't be served. {WITHOUT_ARCHITECTURE}", SAVE_WHOLE)
    if suffix in (".npz", ".safetensors"):
        raise UsageError(f"{path} can't be served. {WITHOUT_ARCHITECTURE}", f"{SAVE_WHOLE} {SAVE_SCRIPT}")
    if suffix not in SUFFIXES:
        raise UsageError(f"{path} is no model that can be served.", f"Such models end in {', '.join(SUFFIXES)}.")
    if not os.access(path, os.R_OK):
        raise unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def unreadable(path: str | Path, error: OSError) -> UsageError:
    user, group = os.geteuid(), os.getegid()
    hint = f"The server runs as user {user}, group {group}: the file and the folders above it must be readable for it."
    return UsageError(f"{path} can't be read: {error.strerror}.", hint if error.errno == errno.EACCES else "")
