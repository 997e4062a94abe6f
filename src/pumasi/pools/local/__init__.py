"""This machine."""

from __future__ import annotations

from pumasi.pools.local.options import LocalOptions


class Local:
    name = "local"
    synonyms = ("localhost", "here")
    argument = ""
    argument_help = ""
    kind = ""
    options = LocalOptions


POOL = Local()
