"""pumasi plan: the planner by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import (
    all_given,
    examples_of,
    flags_of,
    in_full,
    in_usage,
    no_nodes,
    pool_with_nodes,
    refuse_stray,
    words_of,
)
from pumasi.cli.view.output import show, show_json
from pumasi.cli.view.text import table
from pumasi.errors import UsageError
from pumasi.pools.pool import Room

if TYPE_CHECKING:
    from pumasi.core.planning import Node, Plan

VERB = Verb(
    name="plan",
    usage=(
        "pumasi plan --slots N --free N,N,… [options]",
        *(f"pumasi plan --slots N {on} [options]" for on in in_usage()),
    ),
    about="""Asks the planner where it would put slots, given what is free on each node, or on each node of a cluster.
    Nothing is started. It takes the fewest nodes, and among these ways the one that leaves the least fragmentation.

    Options whose help ends in * may be given several times.""",
    options=(
        Option(("--gpus", "--slots"), "how many slots are wanted; on a cluster a slot is a GPU", "N"),
        Option(("--free",), "free slots of each node: 5,3,2, or with names a=5,b=3", "LIST"),
        Option(("--on",), f"the cluster: {in_full()}", "POOL"),
        Option(("--max-per-node",), "at most so many slots on one node", "N"),
        *flags_of("plan"),
        Option(("--explain",), "say why, in sentences"),
        JSON,
    ),
    examples=(
        ("pumasi plan --slots 6 --free 5,3,2 --explain", "says [5, 1], and why"),
        ("pumasi plan --slots 4 --free a=2,b=2,c=8 --max-per-node 2", ""),
        *examples_of("plan"),
    ),
)
_MOST_DIGITS = 6


def main(arguments: Arguments) -> int:
    from pumasi.core.planning import plan

    slots = _whole_number("--slots", _required(arguments, "slots", "6"))
    nodes, left_out, idle = _nodes(arguments)
    most = arguments.last("max-per-node")
    limit = None if most is None else _whole_number("--max-per-node", most)
    answer = plan(nodes, slots, most_per_node=limit, idle=idle)
    told = describe(nodes, slots, limit, answer)
    told["explain"] += left_out
    if arguments.has("json"):
        show_json(told)
        return 0
    rows = [(name, str(share), "chief" if name == told["chief"] else "") for name, share in answer.placement.items()]
    show([str(told["shares"]), *table(("node", "slots", ""), rows, 100, right=(1,))])
    if arguments.has("explain"):
        show(["", *told["explain"]])
    return 0


def _nodes(arguments: Arguments) -> Room:
    word = arguments.last("on")
    if word is None:
        refuse_stray(arguments, "plan", but="--on names none")
        return Room(parse_free(_required(arguments, "free", "5,3,2")), [], False)
    if arguments.last("free") is not None:
        raise UsageError("--free and --on both say what is free.", "Leave one of them out.")
    pool = pool_with_nodes(word)
    room = pool.room(pool.scope(word.partition(":")[2], {}), all_given(arguments, words_of(pool).plan()))
    if room is None:
        raise no_nodes(word)
    return room


def describe(nodes: Sequence[Node], slots: int, limit: int | None, answer: Plan) -> dict[str, Any]:
    from pumasi.core.planning import DEFAULT_MIX
    from pumasi.core.planning.explanation import explain
    from pumasi.core.ranks import chief_first

    return {
        "shares": list(answer.shares),
        "placement": answer.placement,
        "chief": chief_first(answer.placement)[0],
        "mix": {str(wanted): share for wanted, share in DEFAULT_MIX.items()},
        "explain": explain(nodes, slots, answer, most_per_node=limit),
    }


def parse_free(text: str) -> list[Node]:
    """5,3,2 or a=5,b=3"""
    from pumasi.core.planning import Node

    nodes: dict[str, Node] = {}
    for position, part in enumerate(text.split(",")):
        name, equals, free = part.strip().rpartition("=")
        name = name.strip() if equals else f"node-{position}"
        if not name or not _is_count(free.strip()):
            raise UsageError(
                f"--free lists the free slots of each node; '{part}' is no number of slots.",
                "Write --free 5,3,2 or --free a=5,b=3.",
            )
        if name in nodes:
            raise UsageError(f"--free names the node {name} twice.", "Give every node a name of its own.")
        nodes[name] = Node(name, int(free))
    return list(nodes.values())


def _required(arguments: Arguments, key: str, example: str) -> str:
    value = arguments.last(key)
    if value is None:
        raise UsageError(f"'pumasi plan' needs --{key}.", f"Write --{key} {example}.")
    return value


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _whole_number(option: str, text: str) -> int:
    if not _is_count(text) or int(text) < 1:
        raise UsageError(f"{option} takes a whole number from 1 on; '{text}' is none.", f"Write {option} 6.")
    return int(text)
