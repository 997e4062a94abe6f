"""Words of a command line ─► the options and arguments of a verb, or a sentence that says which word is wrong.

Not argparse: it can't leave to the script what stands after it (`pumasi run train.py --slots 3` gives `--slots 3` to
train.py), and every message of it would have to be said again in other words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pumasi.cli.foreign import OPTIONS, is_count, option_hint
from pumasi.cli.grammar import HELP, Option, Verb
from pumasi.errors import UsageError


class Arguments(NamedTuple):
    """`values` has the options that were given, by their key; `rest` is all that is no option of ours."""

    values: dict[str, list[str]]
    rest: list[str]

    def has(self, key: str) -> bool:
        return key in self.values

    def last(self, key: str) -> str | None:
        return self.values[key][-1] if key in self.values else None

    def all(self, key: str) -> list[str]:
        return self.values.get(key, [])


def parse(verb: Verb, words: Sequence[str]) -> Arguments:
    known = {name: option for option in (*verb.options, HELP) for name in option.names}
    given = Arguments({}, [])
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--":
            given.rest.extend(words[position:])
            break
        if not word.startswith("-") or word == "-":
            given.rest.append(word)
            if verb.passes_on:
                given.rest.extend(words[position:])
                break
        else:
            position = _take_option(verb, known, words, position, given)
    if not given.has(HELP.key):
        _check_count(verb, given.rest)
    return given


def _take_option(verb: Verb, known: dict[str, Option], words: Sequence[str], position: int, given: Arguments) -> int:
    """Reads the option in the word before `position`; the answer is the position after it and its value."""
    for name, attached in _names(_ours(words, position, known), known):
        if name not in known:
            known |= {each: option for option in verb.more() for each in option.names}
        option = known.get(name)
        if option is None:
            raise _unknown_option(verb, name, known)
        if not option.value:
            if attached is not None:
                raise UsageError(f"{name} takes no value, but was given '{attached}'.")
            attached = ""
        elif attached is None and _ends(words, position, known):
            if not option.value.startswith("["):
                raise UsageError(f"{name} needs a value.", _needs(option))
            attached = ""
        elif attached is None:
            attached = words[position]
            position += 1
        given.values.setdefault(option.key, []).append(attached)
    return position


def _ours(words: Sequence[str], position: int, known: dict[str, Option]) -> str:
    """The word before `position`, in our own words. -np can also be the namespace p: then no number comes after it."""
    word = words[position - 1]
    name, equals, value = word.partition("=")
    ours = OPTIONS.get(name)
    next_word = words[position] if position < len(words) else ""
    if ours not in known or (word == "-np" and not is_count(next_word)):
        return word
    return f"{ours}{equals}{value}"


def _ends(words: Sequence[str], position: int, known: dict[str, Option]) -> bool:
    return position == len(words) or words[position] in known or words[position] == "--"


def _names(word: str, known: dict[str, Option]) -> Iterable[tuple[str, str | None]]:
    """The options in one word, each with the value that stands in the same word: --tail=5, -n5, -fn5."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return [(name, value if equals else None)]
    found: list[tuple[str, str | None]] = []
    for index, letter in enumerate(word[1:], start=2):
        option = known.get(f"-{letter}")
        takes_rest = option is not None and bool(option.value) and index < len(word)
        found.append((f"-{letter}", word[index:].removeprefix("=") if takes_rest else None))
        if takes_rest or option is None:
            break
    return found


def _needs(option: Option) -> str:
    if option.choices:
        return f"It is one of {', '.join(option.choices)}."
    return f"Write {option.names[-1]} {option.value}: {option.help}."


def _unknown_option(verb: Verb, name: str, known: Collection[str]) -> UsageError:
    near = closest(name.lstrip("-"), (one[2:] for one in known if one.startswith("--")))
    if "--slots" in known and (foreign := option_hint(name)):
        hint = foreign
    elif near:
        hint = f"Did you mean --{near}?"
    elif verb.passes_on:
        hint = f"Options of your script stand after it: pumasi {verb.name} train.py {name} …"
    else:
        hint = f"'pumasi {verb.name} --help' lists them."
    return UsageError(f"'pumasi {verb.name}' has no option {name}.", hint)


def _check_count(verb: Verb, rest: Sequence[str]) -> None:
    fewest, most = verb.takes
    usage = f"Usage: {verb.usage[0]}"
    if len(rest) < fewest:
        raise UsageError(f"'pumasi {verb.name}' needs {verb.completes[0]}.", usage)
    if most == 0 and rest:
        raise UsageError(f"'pumasi {verb.name}' takes no arguments, but was given '{rest[0]}'.", usage)
    if most is not None and len(rest) > most:
        raise UsageError(f"'pumasi {verb.name}' takes only one {verb.completes[0]}; '{rest[most]}' is too much.", usage)


def closest(word: str, known: Iterable[str], *, least: float = 0.6) -> str:
    """The word in `known` that `word` is probably meant to be, or an empty one."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=least)), "")
