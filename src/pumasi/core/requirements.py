"""A list of packages, as pip reads it: what it asks for, what it refers to, and every line that pip would not take.

Mistakes are found before anything starts, not minutes later in a pod. The check is a light one: pip has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pumasi.errors import UsageError

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_EXTRAS = r"(?:\s*\[\s*(?:[\w.-]+(?:\s*,\s*[\w.-]+)*\s*,?\s*)?\])?"
_VERSION = r"(?:===?|~=|!=|<=|>=|<|>)\s*[^\s,;()]+"
_VERSIONS = rf"(?:\s*\(?\s*{_VERSION}(?:\s*,\s*{_VERSION})*\s*,?\s*\)?)?"
_NAMED = re.compile(rf"({_NAME}){_EXTRAS}{_VERSIONS}\s*(?:;\s*(.+))?")
_AT_URL = re.compile(rf"{_NAME}{_EXTRAS}\s*@\s*\S+.*")
_URL = re.compile(r"(?:[a-z]+\+)?[a-z]+://\S+.*", re.IGNORECASE)
_PATH = re.compile(
    r"(?:\.{0,2}/\S.*)|\.{1,2}|(?:[^\s;]+/)?[^\s;]+\.(?:whl|zip|tar\.gz|tar\.bz2|tgz)(?:\[.*\])?(?:\s*;.+)?"
)
_OPTION = re.compile(r"(-[a-zA-Z]|--[a-z][a-z-]*)[=\s]*(.*)")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
"""Options that name another file, and whether that one only constrains."""
_INDEXES = ("-i", "--index-url", "--extra-index-url")
_EDITABLE = ("-e", "--editable")
_LINKS = ("-f", "--find-links")
_OTHERS = (
    *("--no-index", "--no-binary", "--only-binary", "--prefer-binary", "--require-hashes", "--pre", "--trusted-host"),
    *("--use-feature", "--global-option", "--config-settings", "--hash"),
)


class Line(NamedTuple):
    """`package` is a requirement as it was written; `includes` another file, which only constrains if `constrains`.
    `is_plain`: a package by its name, or the address of an index, which mean the same wherever they are read;
    `is_local`: it refers to files that may change while the text stays the same."""

    number: int
    package: str = ""
    includes: str = ""
    constrains: bool = False
    is_plain: bool = True
    is_local: bool = False


def parse(text: str, name: str, *, converted: bool = False) -> list[Line]:
    """UsageError names the file and the line that pip would not take; not the line where the text was made of
    another file."""
    return [
        _line(number, words, name if converted else f"{name}, line {number}") for number, words in _logical_lines(text)
    ]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Without comments, and with those joined that end in a backslash, as pip does it."""
    begun, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            held += line[:-1]
            continue
        whole = _COMMENT.sub("", held + line).strip()
        if whole:
            yield begun, whole
        begun, held = 0, ""
    if held.strip():
        yield begun, held.strip()


def _line(number: int, words: str, place: str) -> Line:
    if words.startswith("-"):
        return _option(number, words, place)
    package, *options = re.split(r"\s+(?=--)", words)
    if _AT_URL.fullmatch(package) or _URL.fullmatch(package):
        return Line(number, package, is_plain=False, is_local="file:" in package)
    if _PATH.fullmatch(package):
        return Line(number, package, is_plain=False, is_local=True)
    if _NAMED.fullmatch(package):
        return Line(number, package, is_plain=not options)
    raise UsageError(
        f'{place}: "{words}" is not a package that pip knows how to read.',
        "Write one package per line, as in numpy or numpy>=1.26,<3.",
    )


def _option(number: int, words: str, place: str) -> Line:
    found = _OPTION.fullmatch(words)
    option, value = (found[1], found[2].strip()) if found else (words, "")
    if option in _INCLUDES:
        if not value:
            raise UsageError(f"{place}: {option} names no file.", f"Write {option} FILE.")
        is_far = "://" in value
        return Line(number, includes=value, constrains=_INCLUDES[option], is_plain=not is_far, is_local=is_far)
    if option in _INDEXES:
        return Line(number, is_plain="$" not in value)  # pip knows which variables it takes
    if option in _EDITABLE:
        return Line(number, value, is_plain=False, is_local=True)
    if option in _LINKS:
        return Line(number, is_plain=False, is_local="://" not in value)
    if option in _OTHERS:
        return Line(number, is_plain=False)
    raise UsageError(f"{place}: {option} is not an option that pip knows in a file of requirements.", "Leave it out.")


def from_pyproject(data: Mapping[str, Any], name: str) -> str:
    """The dependencies of a project, one per line; the project itself is not among them."""
    project = data.get("project")
    if not isinstance(project, Mapping):
        raise UsageError(
            f"{name} has no [project] table, whose dependencies would be installed.",
            "Write the packages into a requirements.txt, and give that one.",
        )
    dynamic = project.get("dynamic", [])
    if isinstance(dynamic, list) and "dependencies" in dynamic:
        raise UsageError(
            f"The dependencies in {name} are dynamic: they are known only when the project is built.",
            "Write the packages into a requirements.txt, and give that one.",
        )
    packages = project.get("dependencies", [])
    if not isinstance(packages, list) or not all(isinstance(each, str) for each in packages):
        raise UsageError(f"{name}: project.dependencies is not a list of texts.", 'Write it as ["numpy", "keras>=3"].')
    return "".join(f"{each}\n" for each in packages)
