"""What a command line runs in the end: through an interpreter, through a launcher, or by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath

_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


def first_word(command: Sequence[str]) -> str:
    return PurePath(command[0]).name


def script_of(command: Sequence[str]) -> str | None:
    """The Python file that the command runs."""
    target = target_of(command)
    return target if target and target.endswith(".py") else None


def target_of(command: Sequence[str]) -> str | None:
    """The file that Python runs in the end, or the module, written as a path."""
    first, *arguments = command
    program = first_word(command)
    if first.endswith(".py"):
        return first
    if _PYTHON.fullmatch(program):
        return _python_target(arguments)
    from pumasi.core.frameworks import is_launcher

    if not is_launcher((program, *arguments)):
        return None
    before_module = takewhile(lambda argument: argument not in ("-m", "--module"), arguments)
    return next((argument for argument in before_module if argument.endswith(".py")), None)


def _python_target(arguments: Sequence[str]) -> str | None:
    """Python's short options can be joined (-uB); of those, c and m are the last, W and X take a value."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-" or not argument.startswith("-"):
            return argument
        taking = re.match(r"-[^-cmWX]*([cmWX])", argument)
        value = (argument[taking.end() :] or next(rest, "")) if taking else ""
        if taking and taking[1] in "cm":
            return value.replace(".", "/") if taking[1] == "m" else None
    return None
