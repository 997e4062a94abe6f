"""Who does something to a run: a record says who started it, and an outcome who stopped it."""

from __future__ import annotations

from typing import NamedTuple

from pumasi.core.printable import clean

LONGEST = 60
"""Characters of a name that are shown."""


class Person(NamedTuple):
    """`name` is the login name; where a cluster knows the person by another one, that follows: "kim as admin"."""

    name: str
    host: str

    def __str__(self) -> str:
        return f"{self.name} from {self.host}"

    def known_as(self, user: str) -> Person:
        """With the name that a cluster has for this person; empty where it gives none."""
        return self if user in ("", self.name) else self._replace(name=f"{self.name} as {user}")


def read_name(text: str) -> str:
    """The name of a person as a cluster keeps it, where anybody may have written anything: on one line, without control
    characters, and not too long."""
    name = clean(text)
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
