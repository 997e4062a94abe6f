"""What an agent is told: made by `core.launch`, perhaps of another version than this agent, which travels with the run.

Fields that are unknown here are ignored, and missing ones have a default. A configuration of a newer version is
refused: its fields may mean something else.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.agent.links import Message

VERSION = 1

DEFAULTS = {
    "address": "",
    "call_after": 0.0,
    "chief_ports": [],
    "cwd": "/",
    "deciders": [],
    "door": None,
    "files": {},
    "first": 0,
    "gang": "",
    "grace": 15.0,
    "hostfile": None,
    "hub": ["", 0],
    "launcher": None,
    "names": ["this node"],
    "node": 0,
    "nodes": 1,
    "parts": [],
    "ranks": [],
    "seats": [0],
    "secret": "",
    "setup": None,
    "silence": 30.0,
    "start_timeout": 600.0,
    "testament": "",
    "total": 1,
}
"""What each field means when it is missing.

| field | meaning |
|---|---|
| `node`, `nodes`, `names` | this node's number, how many there are, and what they are called |
| `gang` | the mark of all processes of this gang on this node |
| `ranks` | this node's processes: `rank`, `command`, `env`, and `makes`: a draft and where it goes |
| `seats` | the ranks that have a port on this node, whoever starts them |
| `first` | the number of rank 0 in the output of the run |
| `total`, `deciders` | how many ranks there are, and those whose end is the end of the gang |
| `hub`, `secret`, `address` | where the hub listens, what its members know, and this node's address |
| `door` | a host and a port: where a member is called by the hub, and the hub is told of its members; None: they call |
| `call_after` | seconds after which a member that has not been called calls the hub itself |
| `chief_ports` | names of ports that are needed on the chief's node |
| `parts` | modules of `agent/frameworks` that this gang needs |
| `hostfile`, `launcher` | for OpenMPI: what to write into its host file, and the command that starts the ranks |
| `files`, `dir`, `cwd` | what to write into the agent's own folder, that folder, and where the ranks start |
| `setup` | what to do before the ranks start, see `installer.py` |
| `start_timeout`, `silence`, `grace` | seconds: until all are there, without a word, and to end in |
| `testament` | a file for the outcome |
"""


def complete(config: Message) -> Message:
    """`config` with a value for every field."""
    return {**DEFAULTS, "version": VERSION, **config}


def objection(config: Message) -> str:
    """Why this agent can't follow `config`; "" if it can."""
    version = config.get("version", VERSION)
    if isinstance(version, int) and version <= VERSION:
        return ""
    return "This agent understands configurations up to version %d, and was given one of version %s" % (
        VERSION,
        version,
    )
