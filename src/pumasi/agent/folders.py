"""Files that the agent writes for the ranks, and what the ranks have made."""

from __future__ import annotations

import contextlib
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.agent.links import Message

LAST_WORDS = 4096
"""Bytes that Kubernetes keeps of a container's last words."""


def write_file(path: str, text: str, mode: int = 0o600) -> None:
    """For nobody else to read: an environment may hold secrets."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8") as file:
        file.write(text)


def clear_folder(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)


def deliver(draft: str, place: str) -> None:
    """A file, and before it those beside it whose names begin with its own: they describe it."""
    folder, name = os.path.split(draft)
    os.stat(draft)
    os.makedirs(os.path.dirname(place), exist_ok=True)
    for each in sorted(os.listdir(folder), reverse=True):
        if each.startswith(name):
            os.replace(os.path.join(folder, each), place + each[len(name) :])
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def make_checkpoint_folders(ranks: list[Message]) -> list[str]:
    """What the user should know about them: a volume may belong to somebody else."""
    notes = []
    for folder in sorted({rank["env"].get("PUMASI_CHECKPOINT_DIR", "") for rank in ranks} - {""}):
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            notes.append("The folder for checkpoints, %s, can't be made: %s." % (folder, error.strerror))
    return notes


def write_testament(path: str, result: Message) -> None:
    """Where Kubernetes looks for a container's last words: they outlive its log, but are cut."""
    words = dict(result, tail=list(result.get("tail") or ()))
    while len(json.dumps(words)) > LAST_WORDS and words["tail"]:
        words["tail"].pop(0)
    with contextlib.suppress(OSError):
        write_file(path, json.dumps(words)[:LAST_WORDS])
