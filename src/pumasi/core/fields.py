"""How what a user wrote becomes the value of a field, or a mistake: what is wrong with it, and what would be right."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from pumasi.errors import SpecError

ITS_OWN = object()
"""Stands for the example of the field itself."""

_LONGEST_SHOWN = 60
_FOREVER = 1e15
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_FACTORS = (1.0, *_UNITS.values())
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile(rf"({_NUMBER})|" + r"\s*".join(rf"(?:({_NUMBER})\s*{unit})?" for unit in _UNITS), re.IGNORECASE)
_NO_TIME = ("is not a length of time", "give seconds, or a text such as 90s, 15m, 2h30m or 1d")
_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}
_PLAIN = {"type": ["string", "number", "boolean"]}


class Mistake(NamedTuple):
    """`example` is something right, None where `right` has named it; `path` leads to the place within the field."""

    wrong: str
    right: str
    example: object = ITS_OWN
    path: tuple[str, ...] = ()


class Wrong(Exception):
    def __init__(self, *mistakes: Mistake) -> None:
        self.mistakes = mistakes


class Kind(NamedTuple):
    """`read` takes what was written and answers with the value, or raises Wrong. `schema` is for editors. `several` is
    "items" or "names" where it is a list, or names and values, of which a user may give one at a time."""

    read: Callable[[Any], Any]
    schema: Mapping[str, object]
    several: str = ""


def _wrong(value: object, wrong: str, right: str) -> Wrong:
    return Wrong(Mistake(f"{show(value)} {wrong}", right))


def whole(least: int, most: int) -> Kind:
    def read(value: object) -> int:
        number = _whole_number(value)
        if number is None:
            raise _wrong(value, "is not a whole number", f"give {least} or more")
        if number < least:
            raise _wrong(value, "is too small", f"give {least} or more")
        if number > most:
            raise _wrong(value, "is too large", f"give {most} at the most")
        return number

    return Kind(read, {"type": "integer", "minimum": least, "maximum": most})


def _whole_number(value: object) -> int | None:
    """True counts as 1 in Python; nobody who writes `slots: true` means one slot."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+", text := value.strip(), re.ASCII):
        return int(text[:20])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def switch() -> Kind:
    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        said = _SWITCHES.get(str(value).lower())
        if said is None:
            raise _wrong(value, "is neither yes nor no", "give true or false")
        return said

    return Kind(read, {"type": "boolean"})


def choice(*options: str, synonyms: Mapping[str, str] = {}) -> Kind:
    def read(value: object) -> str:
        if isinstance(value, str) and value in options:
            return value
        meant = synonyms.get(str(value).lower()) or closest(str(value), options)
        listed = f"{', '.join(options[:-1])} or {options[-1]}"
        right = f"did you mean {meant}? It can be {listed}" if meant else f"give {listed}"
        raise Wrong(Mistake(f"{show(value)} is not known", right, None))

    return Kind(read, {"type": "string", "enum": list(options)})


def open_choice(
    is_known: Callable[[str], bool], options: Callable[[], Sequence[str]], synonyms: Callable[[], Mapping[str, str]]
) -> Kind:
    """Of what can be added to: only a word that is not known is worth a look at all that there are."""

    def read(value: object) -> str:
        if isinstance(value, str) and is_known(value):
            return value
        return str(choice(*options(), synonyms=synonyms()).read(value))

    return Kind(read, {"type": "string"})


def text(*checks: Callable[[str], object]) -> Kind:
    """Text that stays as it is, if each check finds it right. A check says what is not by a SpecError: its message is
    what is wrong, its hint what would be right; or by Wrong."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise _wrong(value, "is not text", "give text, in quotes if need be")
        if re.search("[\0\ud800-\udfff]", value):
            raise _wrong(value, "holds a NUL or bytes that are not UTF-8", "leave those out")
        for check in checks:
            _in_words(check, value)
        return value

    return Kind(read, {"type": "string"})


def amount(parse: Callable[[object], Any]) -> Kind:
    """What `parse` makes of it."""
    return Kind(lambda value: _in_words(parse, value), {"type": ["number", "string"]})


def _in_words(function: Callable[[Any], Any], value: object) -> Any:
    try:
        return function(value)
    except SpecError as error:
        raise Wrong(Mistake(error.message, error.hint)) from None


def seconds(least: float, most: float) -> Kind:
    """A least of 0 itself is allowed."""

    def read(value: object) -> float:
        length = _in_words(_duration, value)
        if length < least:
            raise _wrong(value, "is too small", f"give {_length(least)} or more")
        if length > most:
            raise _wrong(value, "is too large", f"give {_length(most)} at the most")
        return float(length)

    return Kind(read, {"type": ["number", "string"], "minimum": 0})


def limit(most: float) -> Kind:
    """Seconds, and not none of them."""
    length = seconds(0.0, most)

    def read(value: object) -> float:
        if (found := length.read(value)) == 0:
            raise _wrong(value, "is too small", "give more than 0")
        return float(found)

    return length._replace(read=read)


def _length(bound: float) -> str:
    unit = next(unit for unit, factor in _UNITS.items() if bound % factor == 0)
    return f"{bound / _UNITS[unit]:g}{unit}"


def _duration(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _FOREVER:
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match or not match[0]:
        wrong, right = _NO_TIME
        raise SpecError(f"{show(value)} {wrong}", right)
    parts = zip(match.groups(), _FACTORS, strict=True)
    return min(sum(float(number) * factor for number, factor in parts if number), _FOREVER)


def parse_duration(value: object) -> float:
    """Seconds from 90, "90", "90s", "15m", "2h30m" or "1d"."""
    try:
        return _duration(value)
    except SpecError as error:
        raise SpecError(f"{error.message}; {error.hint}") from None


def optional(kind: Kind, unset: str | None = None) -> Kind:
    """`unset` is a word that takes back what a file has set."""

    def read(value: object) -> Any:
        return None if value is None or (unset is not None and value == unset) else kind.read(value)

    types = kind.schema["type"]
    return Kind(read, {**kind.schema, "type": [*([types] if isinstance(types, str) else types), "null"]})  # type: ignore[misc]


def many(kind: Kind, spread: Callable[[object], object] | None = None) -> Kind:
    """A list; one text is a list of one. `spread` makes the list of what can be written in other ways."""

    def read(value: object) -> tuple[Any, ...]:
        value = spread(value) if spread else [value] if isinstance(value, str) else value
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, "is not a list", "give a list")
        return tuple(_all([(str(number), kind, item) for number, item in enumerate(value)]))

    return Kind(read, {"type": ["array", "string"], "items": kind.schema}, "items")


def group(key: Kind, value: Kind) -> Kind:
    def read(given: object) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise _wrong(given, "is not a group of names and values", "give each name with its value")
        parts = [(str(name), kind, part) for name, held in given.items() for kind, part in ((key, name), (value, held))]
        found = _all(parts)
        return dict(zip(found[::2], found[1::2], strict=True))

    schema = {"type": ["object", "array"], "additionalProperties": _PLAIN, "items": {"type": "string"}}
    return Kind(read, schema, "names")


def _all(parts: Sequence[tuple[str, Kind, object]]) -> list[Any]:
    """Every mistake is told at once."""
    answers = [(name, read(kind, value)) for name, kind, value in parts]
    mistakes = [
        each._replace(path=(name, *each.path))
        for name, answer in answers
        if isinstance(answer, Wrong)
        for each in answer.mistakes
    ]
    if mistakes:
        raise Wrong(*mistakes)
    return [answer for _, answer in answers]


def read(kind: Kind, value: object) -> Any:
    """The value, or all that is Wrong with it."""
    try:
        return kind.read(value)
    except Wrong as wrong:
        return wrong


def distinct(kind: Kind, what: Callable[[Any], str] = str) -> Kind:
    """A list in which `what` each item means comes once."""

    def read(value: object) -> Any:
        items = kind.read(value)
        meant = [what(item) for item in items]
        for position, each in enumerate(meant):
            if each in meant[:position]:
                raise _wrong(each, "is given twice", "keep one")
        return items

    return kind._replace(read=read)


def words() -> Kind:
    """A command: a list, or one line, which no shell sees."""
    word = text()

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            try:
                value = shlex.split(value)
            except ValueError:
                raise _wrong(value, "has a quote that is not closed", "close it") from None
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, "is not a list", "give a list")
        if not value or value[0] == "":
            raise Wrong(
                Mistake("there is nothing to run", "give a script or a program, as in pumasi run train.py", None)
            )
        found = [str(each) if isinstance(each, PurePath) else each for each in value]
        return tuple(_all([(str(number), word, each) for number, each in enumerate(found)]))

    return Kind(read, {"type": ["string", "array"], "items": _PLAIN, "minItems": 1})


def closest(word: str, options: Sequence[str], likeness: float = 0.6) -> str | None:
    """What the user may have meant by `word`."""
    from difflib import get_close_matches

    others = [option for option in options if option != word]
    return next(iter(get_close_matches(word.lower(), others, 1, likeness)), None)


def show(value: object) -> str:
    """A value in a sentence: on one line and not too long."""
    if value is None:
        return "an empty value"
    if isinstance(value, str):
        shown = printable(value[:_LONGEST_SHOWN]) + "…" * (len(value) > _LONGEST_SHOWN)
        return shown if re.fullmatch(r"[-+]?[0-9.]+…?", shown) else f'"{shown}"'
    if isinstance(value, (Mapping, list, tuple)):
        return "a group of names and values" if isinstance(value, Mapping) else "a list"
    if isinstance(value, (int, float)) and -_FOREVER < value < _FOREVER:
        return json.dumps(value)
    return "this number" if isinstance(value, (int, float)) else f"a {type(value).__name__}"


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
