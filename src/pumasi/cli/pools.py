"""What the command line has of the pools: the words of --on, and the flags, examples and hints that a pool adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pumasi.cli.grammar import Option
from pumasi.errors import UsageError
from pumasi.pools import known_pools, pool_named
from pumasi.registry import DEFAULT_POOL, POOLS

if TYPE_CHECKING:
    from pumasi.cli.parsing import Arguments
    from pumasi.pools.pool import Pool, Scope

Examples = tuple[tuple[str, str], ...]


class Words(NamedTuple):
    """What `Pool.words` gives. `flags` narrow down where runs are looked for; `nodes` and `plan` are those of the verbs
    of these names, the latter made when they are needed. Examples go by verb, hints by the word of another tool that
    they answer."""

    flags: tuple[Option, ...] = ()
    nodes: tuple[Option, ...] = ()
    plan: Callable[[], tuple[Option, ...]] = tuple
    examples: Mapping[str, Examples] = {}
    verb_hints: Mapping[str, str] = {}
    option_hints: Mapping[str, str] = {}
    harmless: frozenset[str] = frozenset()
    """Keys of flags of `nodes` that are accepted without the pool."""


def others() -> list[Pool]:
    """The built-in pools beside the default one."""
    return [pool for pool in known_pools() if pool.name != DEFAULT_POOL]


def words_of(pool: Pool) -> Words:
    words: Words | None = pool.words()
    return words or Words()


def examples_of(verb: str) -> Examples:
    return tuple(example for pool in others() for example in words_of(pool).examples.get(verb, ()))


def flags_of(verb: str) -> tuple[Option, ...]:
    """`verb` is a field of `Words`."""
    return tuple(option for pool in others() for option in _flags(words_of(pool), verb))


def _flags(words: Words, verb: str) -> tuple[Option, ...]:
    return words.plan() if verb == "plan" else words.nodes if verb == "nodes" else words.flags


def names() -> tuple[str, ...]:
    return POOLS.names


def in_brief() -> str:
    """NAME, NAME:ARGUMENT"""
    return ", ".join(form for pool in others() for form in _forms(pool))


def in_full() -> str:
    """NAME, or NAME:ARGUMENT of …"""
    return ", or ".join(", or ".join(_forms(pool)) + f" {pool.argument_help}".rstrip() for pool in others())


def in_usage() -> list[str]:
    """--on NAME[:ARGUMENT]"""
    return [f"--on {pool.name}" + (f"[:{pool.argument}]" if pool.argument else "") for pool in others()]


def _forms(pool: Pool) -> list[str]:
    return [pool.name, *([f"{pool.name}:{pool.argument}"] if pool.argument else [])]


def where_options(help: str = "") -> tuple[Option, ...]:  # noqa: A002
    """For the verbs that are about a run."""
    default = f"where to look for the run: {in_brief()}; else among those known here"
    return (Option(("--on",), help or default, "POOL"), *flags_of("flags"))


def refuse_stray(arguments: Arguments, verb: str, *, but: str) -> None:
    """Refuse flags of other pools. `but` says what is given instead of one."""
    for pool in others():
        words = words_of(pool)
        for option in _flags(words, verb):
            if arguments.has(option.key) and option.key not in words.harmless:
                raise UsageError(f"{option.names[-1]} is for {kind_of(pool)}, but {but}.", f"Add --on {pool.name}.")


def kind_of(pool: Pool) -> str:
    return pool.kind or f"pools of the kind {pool.name}"


def place_in(arguments: Arguments) -> tuple[Pool, Scope] | None:
    """The pool that --on names, if any but the default one, and where in it to look for runs."""
    word = arguments.last("on")
    if word in (None, DEFAULT_POOL):
        for pool in others():
            for key in given(arguments, words_of(pool).flags):
                raise UsageError(f"--{key} is for {kind_of(pool)}.", f"Add --on {pool.name}.")
        return None
    pool = pool_in(arguments)
    return pool, pool.scope(str(word).partition(":")[2], given(arguments, words_of(pool).flags))


def pool_in(arguments: Arguments) -> Pool:
    """The pool that --on names. UsageError where there is none of that name."""
    word = arguments.last("on") or DEFAULT_POOL
    if not is_known(word):
        raise UsageError(f"'{word}' is no pool that Pumasi knows.", f"Write {_any_of_them()}.")
    return pool_named(word)


def is_known(word: str) -> bool:
    name = word.partition(":")[0]
    return name in POOLS.names or name in POOLS.installed()


def _any_of_them() -> str:
    *first, last = [f"--on {form}" for pool in known_pools() for form in _forms(pool)]
    return f"{', '.join(first)} or {last}"


def given(arguments: Arguments, options: Sequence[Option]) -> dict[str, str]:
    """Those that were given, by their keys; the last value counts."""
    return {option.key: arguments.last(option.key) or "" for option in options if arguments.has(option.key)}


def all_given(arguments: Arguments, options: Sequence[Option]) -> dict[str, list[str]]:
    return {option.key: arguments.all(option.key) for option in options if arguments.has(option.key)}


def pool_with_nodes(word: str) -> Pool:
    """For the verbs about nodes, what --on takes."""
    if is_known(word):
        return pool_named(word)
    raise no_nodes(word)


def no_nodes(word: str) -> UsageError:
    pool = others()[0]
    context = f"{pool.name}:{pool.argument} with a {pool.argument.lower()} {pool.argument_help}"
    return UsageError(f"'{word}' is no cluster that has nodes.", f"Write --on {pool.name}, or --on {context}.")
