"""pumasi nodes: what there is, what is free, and who holds the rest."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from pumasi.cli.grammar import JSON, Option, Verb
from pumasi.cli.parsing import Arguments
from pumasi.cli.pools import (
    examples_of,
    flags_of,
    given,
    in_full,
    in_usage,
    names,
    no_nodes,
    pool_with_nodes,
    refuse_stray,
    words_of,
)
from pumasi.cli.view.output import columns, paint, say, show, show_json
from pumasi.cli.view.text import table
from pumasi.core.printable import clean
from pumasi.errors import ClusterTrouble
from pumasi.pools.pool import Seen
from pumasi.registry import DEFAULT_POOL

Looking = AbstractAsyncContextManager[Callable[[], Awaitable[Seen]]]

ON = Option(("--on",), f"where: {DEFAULT_POOL} (default), {in_full()}", "POOL", names())
VERB = Verb(
    name="nodes",
    usage=("pumasi nodes [options]", *(f"pumasi nodes {on} [options]" for on in in_usage())),
    about="""Lists the GPUs of this machine, or the nodes of a Kubernetes cluster with their accelerators: how many are
    free, which pods hold the others, and which nodes are out, and why. Looks only: nothing is changed.""",
    options=(
        ON,
        *flags_of("nodes"),
        Option(("--watch",), "look again every 2 seconds, until Ctrl-C"),
        JSON._replace(help="print JSON, for programs; with --watch one line a change"),
    ),
    examples=(
        ("pumasi nodes", "this machine"),
        *examples_of("nodes"),
    ),
)
_HEADS = ("node", "total", "used", "free", "out because", "held by")
PAUSE = 2.0


def main(arguments: Arguments) -> int:
    import asyncio

    word = arguments.last("on") or DEFAULT_POOL
    pool = pool_with_nodes(word)
    if pool.name == DEFAULT_POOL:
        refuse_stray(arguments, "nodes", but=f"--on is {pool.name}")
    flags = given(arguments, words_of(pool).nodes)
    looking = pool.looking(pool.scope(word.partition(":")[2], {}), flags)
    if looking is None:
        raise no_nodes(word)
    summary = partial(pool.summary, flags=flags)
    if arguments.has("watch"):
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_watch(looking, Watcher(summary, as_json=arguments.has("json"))))
        return 0
    seen = asyncio.run(_look_once(looking))
    if arguments.has("json"):
        show_json(seen)
    else:
        show(_table(seen))
        say(*summary(seen))
    return 0


async def _look_once(looking: Looking) -> Seen:
    async with looking as look:
        return await look()


async def _watch(looking: Looking, watcher: Watcher) -> None:
    import asyncio

    async with looking as look:
        while True:
            try:
                watcher.see(await look())
            except ClusterTrouble as error:
                watcher.miss(error)
            await asyncio.sleep(PAUSE)


class Watcher:
    """Shows what has changed; on a terminal everything, in the place of what was there."""

    def __init__(self, summary: Callable[[Seen], Sequence[str]], *, as_json: bool) -> None:
        self._summary = summary
        self._as_json = as_json
        self._shown: object = None

    def see(self, seen: Seen) -> None:
        if sys.stdout.isatty() and not self._as_json:
            self._draw(seen)
        elif seen != self._shown:
            self._print(seen)
        self._shown = seen

    def miss(self, error: ClusterTrouble) -> None:
        """Whoever has seen something wants to see it again as soon as the cluster is back."""
        if self._shown is None:
            raise error
        if self._shown != error.message:
            say(error.message)
        self._shown = error.message

    def _draw(self, seen: Seen) -> None:
        lines = [*_table(seen), "", *self._summary(seen)]
        room = os.get_terminal_size(sys.stdout.fileno()).lines
        sys.stdout.write("\x1b[2J\x1b[H")
        show(lines[: room - 1] if room > 1 else lines)
        sys.stdout.flush()

    def _print(self, seen: Seen) -> None:
        import json

        show([json.dumps(seen, ensure_ascii=False)] if self._as_json else [*_table(seen), ""])
        sys.stdout.flush()
        if not self._as_json:
            say(*self._summary(seen))


def _table(seen: Seen) -> list[str]:
    rows = [
        (
            node["name"],
            str(node["total"]),
            str(node["used"]),
            str(node["free"]),
            clean(node["out"]),
            clean(", ".join(f"{each['namespace']}/{each['pod']} ({each['amount']})" for each in node["holders"])),
        )
        for node in seen
    ]
    head, *lines = table(_HEADS, rows, columns(), right=(1, 2, 3))
    return [paint(head, "dim", sys.stdout), *lines]
