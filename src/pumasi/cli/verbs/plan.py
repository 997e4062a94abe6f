"""pumasi plan: the planner by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pumasi.cli.grammar import CLUSTER, JSON, NODES, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.verbs.nodes import GPU_RESOURCE, NAMESPACE, NVIDIA, ON, cluster, look_with
from pumasi.cli.view.output import show, show_json
from pumasi.cli.view.text import table
from pumasi.errors import SpecError, UsageError

if TYPE_CHECKING:
    from pumasi.core.planning import Node, Plan
    from pumasi.pools.kubernetes.discovery import NodeState

VERB = Verb(
    name="plan",
    usage=("pumasi plan --slots N --free N,N,… [options]", "pumasi plan --slots N --on k8s[:CONTEXT] [options]"),
    about="""Asks the planner where it would put slots, given what is free on each node, or on each node of a cluster.
    Nothing is started. It takes the fewest nodes, and among these ways the one that leaves the least fragmentation.

    Options whose help ends in * may be given several times.""",
    options=(
        Option(("--gpus", "--slots"), "how many slots are wanted; on a cluster a slot is a GPU", "N"),
        Option(("--free",), "free slots of each node: 5,3,2, or with names a=5,b=3", "LIST"),
        ON._replace(help="the cluster: k8s, or k8s:CONTEXT of your kubeconfig", choices=()),
        Option(("--max-per-node",), "at most so many slots on one node", "N"),
        GPU_RESOURCE._replace(group=CLUSTER),
        NAMESPACE._replace(group=CLUSTER),
        *NODES,
        Option(("--explain",), "say why, in sentences"),
        JSON,
    ),
    examples=(
        ("pumasi plan --slots 6 --free 5,3,2 --explain", "says [5, 1], and why"),
        ("pumasi plan --slots 4 --free a=2,b=2,c=8 --max-per-node 2", ""),
        ("pumasi plan --gpus 6 --on k8s --explain", "for what a cluster has free now"),
        ("pumasi plan --gpus 6 --on k8s --topology example.com/rack", "in one rack, if one has room"),
    ),
)
_MOST_DIGITS = 6
T = TypeVar("T")


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


def _nodes(arguments: Arguments) -> tuple[list[Node], list[str], bool]:
    """With a sentence for each node that is out, and whether it is known that nothing is in use."""
    pool = arguments.last("on")
    if pool is None:
        stray = [option.names[-1] for option in VERB.options if option.group == CLUSTER and arguments.has(option.key)]
        if stray:
            raise UsageError(f"{stray[0]} is for clusters, but --on names none.", "Add --on k8s.")
        return parse_free(_required(arguments, "free", "5,3,2")), [], False
    if arguments.last("free") is not None:
        raise UsageError("--free and --on both say what is free.", "Leave one of them out.")
    import asyncio

    from pumasi.pools.kubernetes.discovery import as_planner_nodes

    labels = _each(arguments, "topology", _labels)
    states = asyncio.run(_look(arguments, pool))
    nodes = as_planner_nodes(states, [label for several in labels for label in several])
    left_out = [f"{each.name} is left out: {each.out}." for each in states if each.out]
    return nodes, left_out, not any(each.used for each in states)


async def _look(arguments: Arguments, pool: str) -> list[NodeState]:
    from pumasi.pools.kubernetes.notation import toleration

    tolerations = _each(arguments, "toleration", toleration)
    selector = dict(_each(arguments, "node-selector", _label))
    async with cluster(pool) as api:
        return await look_with(api, arguments.last("gpu-resource") or NVIDIA, tolerations, selector)


def _each(arguments: Arguments, key: str, read: Callable[[str], T]) -> list[T]:
    """What `read` makes of all values of an option; its mistakes with the option's name."""
    try:
        return [read(text) for text in arguments.all(key)]
    except SpecError as error:
        raise UsageError(f"--{key}: {error.message}.", f"{error.hint[:1].upper()}{error.hint[1:]}.") from None


def _label(text: str) -> tuple[str, str]:
    from pumasi.pools.kubernetes.notation import label_value, qualified

    key, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f'"{text}" has no "="', "give KEY=VALUE")
    return qualified(key), label_value(value)


def _labels(text: str) -> list[str]:
    from pumasi.pools.kubernetes.notation import qualified

    return [qualified(label.strip()) for label in text.split(",")]


def describe(nodes: list[Node], slots: int, limit: int | None, answer: Plan) -> dict[str, Any]:
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
