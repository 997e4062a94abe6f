"""Who uses Pumasi on this machine."""

from __future__ import annotations

import getpass
import os
import socket

from pumasi.core.person import Person


def this_person() -> Person:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # A container's user need not have a name.
        name = f"user {os.getuid()}"
    return Person(name, socket.gethostname())
