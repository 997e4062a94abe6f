"""Text that somebody else has written, as it may be printed."""

from __future__ import annotations


def clean(text: str) -> str:
    """One line without control characters: a command or a metric's name must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)
