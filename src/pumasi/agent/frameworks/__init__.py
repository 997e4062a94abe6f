"""What the agent does for one framework alone: one module per framework, imported only where a gang needs it.

A module `NAME.py` in this folder is used by gangs whose configuration has NAME among its `parts`, see `agent_part` in
`core/frameworks/base.py`. It has two classes: `Part`, a `MemberPart` for every node, and `HubPart`, for the chief's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Callable, Dict, List, Mapping

    from pumasi.agent.children import Child
    from pumasi.agent.hub import Hub
    from pumasi.agent.links import Link, Message
    from pumasi.agent.member import Member

    Pids = Dict[int, "int | None"]


class MemberPart:
    """What a framework needs on a node. A part overrides what it needs; by itself it does nothing.

    `port` is the name of a port of the chief's node on which the agent itself listens. `handlers` are for messages of
    the hub, by their type. Methods that write files may raise OSError, which ends the gang.
    """

    port = ""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.handlers: Mapping[str, Callable[[Message], None]] = {}

    def serve(self, listener: socket.socket, hosts: set[str]) -> None:
        """`listener` is bound to `port`; `hosts` are the addresses of the gang."""

    def files(self) -> Mapping[str, str]:
        """Names and paths of files that stand behind `{file:NAME}`."""
        return {}

    def prepare(self) -> None:
        """Called before the ranks start, when all hosts and ports are known."""

    def add_variables(self, env: dict[str, str]) -> None:
        """Add to the environment of a rank what depends on this machine."""

    def starts_ranks(self) -> bool:
        """Whether `start` starts the ranks in place of the member."""
        return False

    def start(self) -> Pids | None:
        """The process id of each rank, None for one that is not ours; None in place of all if that has failed."""
        raise NotImplementedError

    def report(self, child: Child, facts: Message) -> bool:
        """A child has ended. Answers whether it was one of this part's own."""
        return False


class HubPart:
    """What a framework needs of the hub. `handlers` are for messages of members, `visitors` for those who call the hub
    and are no members, by the name that they give. `echoes` are signals that mean that another rank failed first."""

    echoes: frozenset[str] = frozenset()

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.handlers: Mapping[str, Callable[[int, Message], None]] = {}
        self.visitors: Mapping[str, Callable[[Link], None]] = {}

    def patience(self) -> float:
        """Seconds to wait when all ranks that decide are done, before the gang ends."""
        return 0


def _module(name: str) -> object:
    return __import__("%s.%s" % (__name__, name), fromlist=["Part", "HubPart"])


def member_parts(member: Member) -> List[MemberPart]:
    return [_module(name).Part(member) for name in member.config["parts"]]  # type: ignore[attr-defined]


def hub_parts(hub: Hub) -> List[HubPart]:
    modules = [_module(name) for name in hub.config["parts"]]
    return [module.HubPart(hub) for module in modules if hasattr(module, "HubPart")]
