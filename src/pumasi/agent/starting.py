"""From the words on the command line to a running agent."""

from __future__ import annotations

import json
import os
import sys

from pumasi.agent.config import complete, objection
from pumasi.agent.folders import write_testament
from pumasi.agent.links import READ
from pumasi.agent.processes import adopt_orphans

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.agent.links import Message


def main(argv: list[str]) -> int:
    if argv[0] in ("rsh", "rank"):
        from pumasi.agent.frameworks import openmpi

        return openmpi.rsh(argv[1:]) if argv[0] == "rsh" else openmpi.rank(argv[1:])
    adopt_orphans()
    if argv[0] == "pod":
        from pumasi.agent.pod import pod

        return run(pod(), None)
    if argv[0] == "-":
        config, _, commands = read_config(0).partition(b"\n")
        return run(json.loads(config), 0, commands)
    with open(argv[0], encoding="utf-8") as file:
        return run(json.load(file), None)


def run(config: Message, lifeline: int | None, commands: bytes = b"") -> int:
    reason = objection(config)
    if reason:
        refuse(config, reason)
        return 1
    from pumasi.agent.member import Member

    return Member(complete(config), lifeline, commands).run()


def refuse(config: Message, reason: str) -> None:
    """End as a gang that has failed. Nothing is known of what else `config` may mean."""
    node = config.get("node")
    outcome = {"cause": "version", "node": node if isinstance(node, int) else 0, "error": reason}
    print("@" + json.dumps({"event": "over", "outcome": outcome}), flush=True)
    if config.get("testament"):
        write_testament(str(config["testament"]), outcome)


def read_config(fd: int) -> bytes:
    """The first line, and perhaps the beginning of what follows."""
    data = b""
    while b"\n" not in data:
        more = os.read(fd, READ)
        if not more:
            sys.exit(1)
        data += more
    return data
