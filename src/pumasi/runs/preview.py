"""What would be started, exactly; only the end of the id, GPUs, secrets, addresses and ports are chosen later, and
nothing is held."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pumasi.catalogue import defaults
from pumasi.core.flows import Flow
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of, program_of
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.planning import plan
from pumasi.core.ranks import chief_first
from pumasi.core.spec import Spec, run_name
from pumasi.pools import pool_named
from pumasi.pools.base import Request
from pumasi.pools.pool import Pool, Preview
from pumasi.registry import FLOWS
from pumasi.runs.prepare import prepare
from pumasi.store import default_home

if TYPE_CHECKING:
    from pumasi.pools.pool import Say


def preview(spec: Spec, say: Say, *, detached: bool) -> Preview:
    home = default_home(os.environ)
    spec, program, packed, _ = prepare(spec, home, say)
    pool = pool_named(spec.on)
    request = Request(f"{run_name(spec)}-xxxxx", spec, program, home, {}, packed)
    if FLOWS.get(spec.strategy).is_single and (own := pool.preview(request, detached=detached, say=say)):
        return own
    told = {**_asked(spec, program), **_started(pool, request)}
    return Preview(told, "".join(f"{line}\n" for line in _outline(told)))


def _asked(spec: Spec, program: Program) -> dict[str, Any]:
    usual = defaults(spec.dump())
    return {
        "spec": {name: value for name, value in spec.dump().items() if value != usual[name]},
        "framework": program.framework,
        "because": program.because,
        **({"setup": _asked_setup(program)} if program.setup else {}),
        "notes": list(program.notes),
    }


def _asked_setup(program: Program) -> dict[str, Any]:
    asked = {name: program.setup[name] for name in ("requirements", "commands") if program.setup.get(name)}
    if "requirements" in asked:
        asked["requirements"] = {name: asked["requirements"][name] for name in ("name", "count")}
    return asked


def _started(pool: Pool, request: Request) -> dict[str, Any]:
    folder = pool.folder(request.spec, request.home, request.run)
    if not FLOWS.get(request.spec.strategy).is_single:
        return {"tasks": list(_tasks(request.spec, request.program, folder))}
    return asyncio.run(_gang(pool, request, folder))


async def _gang(pool: Pool, request: Request, folder: str) -> dict[str, Any]:
    spec, program = request.spec, request.program
    async with pool.open(request, adopt=False) as runner:
        placement = plan(await runner.nodes(), spec.slots).placement
        nodes = chief_first(placement)
        attempt = Attempt(request.run, 0, placement, {}, "", "", folder, runner.addresses(nodes))
        gang = gang_of(spec, program, attempt)
        configs = agent_configs(spec, program, attempt, gang)
        await runner.close()
    return {
        "placement": placement,
        "chief": nodes[0],
        "launcher": configs[0]["launcher"],
        "ranks": [
            {"node": nodes[config["node"]], "role": gang.table.ranks[rank["rank"]].role, **rank}
            for config in configs
            for rank in config["ranks"]
        ],
    }


def _tasks(spec: Spec, program: Program, folder: str) -> Iterator[dict[str, Any]]:
    """Those of a small one: they show what all of them are. Each is done as soon as it is there."""
    kind = FLOWS.get(spec.strategy)
    flow: Flow = kind.open(kind.sample(spec), folder)
    while task := flow.next():
        yield {"task": task.name, "command": program_of(program, task).command, "env": {**spec.env, **task.env}}
        flow.ended(task.name, Outcome(Verdict.DONE))


def _outline(value: Any, indent: str = "") -> list[str]:
    """Nested values as one would write them in YAML."""
    lines: list[str] = []
    pairs = value.items() if isinstance(value, dict) else (("-", item) for item in value)
    for key, item in pairs:
        head = f"{indent}{key}" if key == "-" else f"{indent}{key}:"
        if isinstance(item, (dict, list, tuple)) and item:
            lines += [head, *_outline(item, indent + "  ")]
        else:
            lines.append(f"{head} {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    """In quotes where YAML would take it for something else."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/.~][\w/.,+@%=~-]*", value)
    return value if plain and value.lower() not in _YAML_WORDS else json.dumps(value, ensure_ascii=False)


_YAML_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "~", "y", "n"))
