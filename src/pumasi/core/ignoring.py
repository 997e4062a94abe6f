"""Which files are left out: the rules of .gitignore and .pumasiignore, as git understands them. Pure.

Paths are text with slashes, as the operating system gave it to Python. They are matched as bytes, because git does so:
`?` is one byte. The tests hold every verdict against that of git itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pumasi.core import credentials

GIT_FILE = ".gitignore"
OWN_FILE = ".pumasiignore"
VENVS = frozenset((".venv", "venv"))
"""Names of folders that are left out if they are virtual environments."""
_ALWAYS = """
.git .hg .svn .pumasi __pycache__ *.pyc .ipynb_checkpoints .mypy_cache .ruff_cache .pytest_cache .tox .DS_Store
node_modules
"""
_BOM = b"\xef\xbb\xbf"
_SPECIAL = re.compile(rb"[*?\[\\]")
_NEVER = b"(?!)"
_STARS = re.compile(rb"\*+")
# git has tables of its own: to it, neither form feed nor anything beyond ASCII belongs to a class.
_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


class Rule(NamedTuple):
    """A line of a file, or one of those that always hold: these have no file. `secret`: it names credentials."""

    file: str
    line: int
    text: str
    keeps: bool = False
    secret: bool = False


class _Pattern(NamedTuple):
    rule: Rule
    expression: bytes
    folders_only: bool
    by_name: bool


class RuleFile:
    """What one file says about the paths below its folder. `own` files can take back what is always left out."""

    def __init__(self, text: bytes, file: str, *, own: bool = False) -> None:
        patterns = list(_parse(text, file))[::-1]
        self.own = own
        self._of_folders = _Search(patterns)
        self._of_files = _Search([each for each in patterns if not each.folders_only])

    def last_match(self, path: bytes, is_folder: bool) -> Rule | None:
        return (self._of_folders if is_folder else self._of_files).first(path)


class _Search:
    """All patterns in two expressions: of alternatives that match, the first one is taken, and Python tells which it
    was. To ask each pattern by itself takes several times as long."""

    def __init__(self, patterns: Sequence[_Pattern]) -> None:
        self._by_name = [(place, each) for place, each in enumerate(patterns) if each.by_name]
        self._by_path = [(place, each) for place, each in enumerate(patterns) if not each.by_name]
        self._name_expression = _any_of(each for _, each in self._by_name)
        self._path_expression = _any_of(each for _, each in self._by_path)

    def first(self, path: bytes) -> Rule | None:
        found = []
        if self._by_name and (match := self._name_expression.fullmatch(path, path.rfind(b"/") + 1)):
            found.append(self._by_name[(match.lastindex or 0) - 1])
        if self._by_path and (match := self._path_expression.fullmatch(path)):
            found.append(self._by_path[(match.lastindex or 0) - 1])
        return min(found)[1].rule if found else None


class Rules:
    """The rules that hold in one folder, its own and those of all above it. Paths begin at the topmost folder."""

    def __init__(self, levels: tuple[tuple[int, RuleFile], ...] = ()) -> None:
        self._levels = levels

    def within(self, folder: str, files: Iterable[RuleFile]) -> Rules:
        """With the rules of a folder further down (the topmost is ""); the last file is the strongest."""
        start = len(_encode(folder)) + 1 if folder else 0
        added = tuple((start, each) for each in files)[::-1]
        return Rules(added + self._levels) if added else self

    def deciding(self, path: str, is_folder: bool) -> Rule | None:
        """The rule that has the last word on a path whose folders are not left out. A symbolic link is no folder."""
        return self._deciding(_encode(path), is_folder)

    def leaving_out(self, path: str, is_folder: bool, *, is_venv: bool = False) -> Rule | None:
        """The rule that leaves a path out, whose folders are not left out. That of git has no say in what Pumasi never
        takes along by itself."""
        encoded = _encode(path)
        rule = self._deciding(encoded, is_folder)
        if rule and not rule.keeps:
            return rule
        always = Rule("", 0, path.rpartition("/")[2]) if is_venv else _leaving_out_always(encoded, is_folder)
        if always is None or rule is None:
            return always
        return None if self.are_asking_for(path, is_folder) else always

    def are_asking_for(self, path: str, is_folder: bool = False) -> bool:
        """Whether a rule of ours takes the path along, whatever it is."""
        own = self._deciding(_encode(path), is_folder, own_only=True)
        return own is not None and own.keeps

    def _deciding(self, path: bytes, is_folder: bool, *, own_only: bool = False) -> Rule | None:
        for start, file in self._levels:
            if (file.own or not own_only) and (rule := file.last_match(path[start:], is_folder)):
                return rule
        return None


def _leaving_out_always(path: bytes, is_folder: bool) -> Rule | None:
    if rule := _always.last_match(path, is_folder):
        return rule
    rule = _credentials.last_match(path.lower(), is_folder)
    if rule is None or rule.keeps or (is_folder and not rule.text.endswith("/")):
        return None
    return rule._replace(secret=True)


def literally(path: str) -> str:
    """The pattern that matches this path only, below the folder of the file it stands in."""
    return "/" + re.sub(r"([*?\[\\]| $)", r"\\\1", path)


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _any_of(patterns: Iterable[_Pattern]) -> re.Pattern[bytes]:
    return re.compile(b"|".join(b"(%s)" % each.expression for each in patterns), re.DOTALL)


def _parse(text: bytes, file: str) -> Iterator[_Pattern]:
    for number, line in enumerate(text.removeprefix(_BOM).split(b"\n"), start=1):
        if not line.startswith(b"#"):
            stripped = _strip(line.removesuffix(b"\r").partition(b"\0")[0])
            yield from _pattern(stripped, file, number)


def _strip(line: bytes) -> bytes:
    """Without the spaces at its end, unless a backslash stands before them."""
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return kept + b" " if backslashes % 2 and kept != line else kept


def _pattern(line: bytes, file: str, number: int) -> Iterator[_Pattern]:
    keeps = line.startswith(b"!")
    pattern = line[1:] if keeps else line
    folders_only = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    by_name = b"/" not in pattern
    pattern = pattern.removeprefix(b"/")
    if pattern:
        rule = Rule(file, number, line.decode("utf-8", "replace"), keeps)
        yield _Pattern(rule, _expression(pattern), folders_only, by_name)


def _expression(pattern: bytes) -> bytes:
    """git compares the text before the first special character by itself, and has the rest matched as if nothing stood
    before it. So in foo**/bar the stars stand at a beginning, and match across folders."""
    special = _SPECIAL.search(pattern)
    place = begin = special.start() if special else len(pattern)
    parts = [re.escape(pattern[:begin])]
    while place < len(pattern):
        character = pattern[place : place + 1]
        if character == b"*":
            part, place = _stars(pattern, place, place == begin)
        elif character == b"[":
            part, place = _bracket(pattern, place)
        elif character == b"?":
            part, place = b"[^/]", place + 1
        elif character == b"\\":
            escaped = pattern[place + 1 : place + 2]
            part, place = re.escape(escaped) if escaped else _NEVER, place + 2
        else:
            part, place = re.escape(character), place + 1
        parts.append(part)
    return b"".join(parts)


def _stars(pattern: bytes, place: int, at_begin: bool) -> tuple[bytes, int]:
    match = _STARS.match(pattern, place)
    after = match.end() if match else place
    alone = at_begin or pattern[place - 1 : place] == b"/"
    if after - place < 2 or not alone:
        return b"[^/]*", after
    if pattern[after : after + 1] == b"/":
        return b"(?:.*/)?", after + 1
    return (b".*" if after == len(pattern) or pattern[after : after + 2] == b"\\/" else b"[^/]*"), after


def _bracket(pattern: bytes, place: int) -> tuple[bytes, int]:
    """The set that starts at `place`, and where it ends. One that is not closed matches nothing, and ends it all."""
    place += 1
    negated = pattern[place : place + 1] in (b"!", b"^")
    place += negated
    members: list[bytes] = []
    first, before = True, -1
    while first or pattern[place : place + 1] != b"]":
        first = False
        member, before, place = _member(pattern, place, before)
        if place > len(pattern):
            return _NEVER, len(pattern)
        members.append(member)
    inside = b"".join(members)
    if negated:
        return (b"[^/%s]" % inside if inside else b"[^/]"), place + 1
    return (b"(?!/)[%s]" % inside if inside else _NEVER), place + 1


def _member(pattern: bytes, place: int, before: int) -> tuple[bytes, int, int]:
    """One character, range or class of a set; the character that a range could start with, or -1; and where it ends,
    which is beyond the pattern if that is broken. `before` is the character before this one."""
    broken = (b"", -1, len(pattern) + 1)
    head = pattern[place : place + 1]
    follower = pattern[place + 1 : place + 2]
    if head == b"-" and before >= 0 and follower not in (b"", b"]"):
        end = place + 2 if follower == b"\\" else place + 1
        return (_range(before, pattern[end]), -1, end + 1) if end < len(pattern) else broken
    if head == b"[" and follower == b":":
        close = pattern.find(b"]", place + 2)
        if close < 0:
            return broken
        if close > place + 2 and pattern[close - 1 : close] == b":":
            named = _CLASSES.get(pattern[place + 2 : close - 1])
            return (named, -1, close + 1) if named else broken
    if head == b"\\":
        place += 1
    if place >= len(pattern):
        return broken
    return _range(pattern[place], pattern[place]), pattern[place], place + 1


def _range(low: int, high: int) -> bytes:
    return b"\\x%02x-\\x%02x" % (low, high) if low <= high else b""


_always = RuleFile("\n".join(_ALWAYS.split()).encode(), "")
_credentials = RuleFile("\n".join(credentials.NAMES.split()).encode(), "")
