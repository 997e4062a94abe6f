"""Files of variables, as dotenv and `docker run --env-file` have them. Pure.

    # a comment
    export NAME=value      # up to here
    PLAIN='as it $stands'
    ESCAPED="two\\nlines"
    FROM_HERE

A name alone takes its value from the environment. Values in quotes may go over several lines. `$` means nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_ENTRY = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    (?:[ \t]*=[ \t]*(?:'(?P<literal>[^']*)'|"(?P<escaped>(?:[^"\\]|\\.)*)"|(?P<plain>(?![ \t]*['"])[^\n]*)))?
    (?:[ \t]+\#[^\n]*|[ \t]*)\r?(?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_BLANK = re.compile(r"[ \t]*(?:#[^\n]*)?\r?(?:\n|\Z)")
_LINE = re.compile(r"[^\n]*(?:\n|\Z)")
_COMMENT = re.compile(r"(?:^|[ \t])#")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}
_FORM = "write NAME=VALUE"


def parse(text: str, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables, and what is wrong: "line 3: …". The last of two values counts."""
    values: dict[str, str] = {}
    mistakes: list[str] = []
    position, line, counted = 0, 1, 0
    while position < len(text):
        line, counted = line + text.count("\n", counted, position), position
        if blank := _BLANK.match(text, position):
            position = blank.end()
        elif entry := _ENTRY.match(text, position):
            position = entry.end()
            name, value = entry["name"], _value(entry)
            if value is None and name not in environ:
                mistakes.append(f"line {line}: {name} has no value, and is not set here; write {name}=VALUE")
            if value is not None and "\0" in value:
                mistakes.append(f"line {line}: the value of {name} holds a NUL; leave it out")
                continue
            values[name] = environ.get(name, "") if value is None else value
        else:
            found = _LINE.match(text, position)
            mistakes.append(f"line {line}: {_wrong(found[0] if found else '')}")
            position = found.end() if found else len(text)
    return values, mistakes


def _value(entry: re.Match[str]) -> str | None:
    if entry["escaped"] is not None:
        return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), entry["escaped"], flags=re.DOTALL)
    if entry["plain"] is not None:
        return _COMMENT.split(entry["plain"], 1)[0].strip()
    literal: str | None = entry["literal"]
    return literal


def _wrong(line: str) -> str:
    """Without the value, which may be a secret."""
    name, equals, _ = line.strip().removeprefix("export ").partition("=")
    if not equals:
        return f"this is no variable; {_FORM}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", name.strip()):
        return f'"{name.strip()[:40]}" can\'t name a variable; {_FORM}, the name with letters, digits and _'
    return f"{name.strip()} has a quote that is not closed, or text behind it; close it at the end of the value"
