"""The chief's part of the star: it talks to every node, its own included, in the same words."""

from __future__ import annotations

import functools
import re

from pumasi.agent.frameworks import hub_parts
from pumasi.agent.links import CALLING, DIALLING, Link, Near, member_mark
from pumasi.agent.network import listen_at
from pumasi.agent.processes import HARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pumasi.agent.addresses import Members
    from pumasi.agent.links import Message
    from pumasi.agent.loop import Loop
    from pumasi.agent.output import Output

AGAIN = 0.05
"""Seconds after which a member that did not answer is called again."""
SETTLE = 1.5
"""Seconds that the hub waits for the cause when the first failure looks like the echo of another."""
ECHO = (
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket closed|UNAVAILABLE|heartbeat|HorovodInternal"
    r"|coordination service|peer.{0,20}(exited|disconnected|died)|gloo.{0,80}(timed? ?out|error)|Shutdown barrier"
)


class Hub:
    """Starts the ranks when all nodes are there, ends them together, and tells who failed first."""

    def __init__(self, config: Message, loop: Loop, output: Output) -> None:
        self.config = config
        self.loop = loop
        self.output = output
        self.nodes = config["nodes"]
        self.names = config["names"]
        self.deciders = set(config["deciders"])
        self.short_grace = min(HARD, config["grace"])
        self.links: dict[int, Link | Near] = {}
        self.addresses: Members = {}
        self.hosts: dict[int, str] = {}
        self.ports: dict[int, dict[str, int]] = {}
        self.pids: dict[int, dict[int, int | None]] = {}
        self.exits: dict[int, Message] = {}
        self.failures: list[Message] = []
        self.ended: set[int] = set()
        self.outcome: Message | None = None
        self.over = False
        self.parts = hub_parts(self)
        self.echoes = {"SIGABRT", "SIGTERM"}.union(*(part.echoes for part in self.parts))
        loop.after(config["start_timeout"], self.check_arrivals)

    # -- who is there

    def listen(self) -> None:
        """Be called by members, and by whoever a framework's part expects."""
        from pumasi.agent.door import STRANGERS, Door

        host, port = self.config["hub"]
        listener = listen_at(host, port)
        self.config["hub"] = [self.config["address"] or host, listener.getsockname()[1]]
        Door(self.loop, self.config["secret"], CALLING, self.admit, self.nodes + STRANGERS).open(listener)
        if self.config["door"]:
            self.listen_for_addresses()
        self.output.say(event="listening", port=self.config["hub"][1])

    def listen_for_addresses(self) -> None:
        from pumasi.agent.addresses import Counter

        counter = Counter(self.loop, self.config["secret"], self.config["gang"], self.told)
        counter.open(listen_at(*self.config["door"]))

    def told(self, members: Members) -> None:
        """Call the members at these addresses."""
        for node, address in members.items():
            if 0 < node < self.nodes and self.addresses.get(node) != address:
                is_new = node not in self.addresses
                self.addresses[node] = address
                if is_new:
                    self.dial(node)

    def dial(self, node: int) -> None:
        """Until the member answers: its agent may not be there yet."""
        from pumasi.agent.door import Call

        if node in self.links or self.outcome:
            return
        call = Call(self.loop, self.config["secret"], DIALLING, member_mark(self.config["gang"], node))
        call.start(
            self.addresses[node],
            functools.partial(self.met, node),
            lambda _: self.loop.after(AGAIN, lambda: self.dial(node)),
        )

    def met(self, node: int, link: Link, messages: list[Message]) -> None:
        self.join(node, link)
        for message in messages:
            self.handle(node, message)

    def admit(self, who: str, link: Link) -> None:
        for part in self.parts:
            if who in part.visitors:
                part.visitors[who](link)
                return
        if not who.isdigit() or int(who) not in range(1, self.nodes):
            link.close()
            return
        self.join(int(who), link)

    def join(self, node: int, link: Link | Near) -> None:
        if node in self.links:
            self.links[node].close()
        self.links[node] = link
        if isinstance(link, Link):
            link.heed = functools.partial(self.read, node, link)
        if self.outcome:
            link.send(t="end", grace=0)

    def read(self, node: int, link: Link) -> None:
        for message in link.receive():
            self.handle(node, message)
        if link.closed and self.links.get(node) is link:
            self.lost(node)

    def tell_all(self, **message: Any) -> None:
        for link in list(self.links.values()):
            link.send(**message)

    def handle(self, node: int, message: Message) -> None:
        for part in self.parts:
            if message["t"] in part.handlers:
                part.handlers[message["t"]](node, message)
                return
        getattr(self, "on_" + message["t"])(node, message)

    def on_beat(self, node: int, message: Message) -> None:
        pass

    def check_silence(self) -> None:
        for node, link in list(self.links.items()):
            if isinstance(link, Link) and (link.closed or link.is_silent(self.config["silence"])):
                self.lost(node)

    def lost(self, node: int) -> None:
        """A member's connection has closed, or it has been silent for too long. Who has not arrived may call again, or
        is called again."""
        self.links.pop(node).close()
        if node not in self.hosts and not self.outcome:
            if node in self.addresses:
                self.dial(node)
            return
        self.ended.add(node)
        self.conclude(cause="silent", node=node, grace=self.short_grace)
        self.finish_if_ended()

    # -- the start

    def on_here(self, node: int, message: Message) -> None:
        if node in self.hosts:
            # Another agent in the place of one that had arrived: Jobs start their pods again one by one.
            self.conclude(cause="silent", node=node, grace=self.short_grace)
            return
        self.hosts[node] = message["address"]
        self.ports[node] = message["ports"]
        if len(self.hosts) == self.nodes and not self.outcome:
            hosts = [self.hosts[n] for n in range(self.nodes)]
            self.tell_all(t="go", hosts=hosts, ports=[self.ports[n] for n in range(self.nodes)])

    def check_arrivals(self) -> None:
        missing = [self.names[n] for n in range(self.nodes) if n not in self.hosts]
        if missing:
            self.conclude(cause="absent", nodes=missing, grace=0)

    def on_started(self, node: int, message: Message) -> None:
        self.pids[node] = message["pids"]
        if len(self.pids) == self.nodes and not self.outcome:
            ranks = [{"rank": int(r), "node": n, "pid": p} for n, pids in self.pids.items() for r, p in pids.items()]
            self.output.say(event="running", ranks=sorted(ranks, key=lambda r: r["rank"]))

    # -- who failed first

    def on_exit(self, node: int, message: Message) -> None:
        rank = message["rank"]
        self.exits[rank] = message
        if self.outcome:
            return
        if message["cause"] != "done":
            self.failed(node, message)
        else:
            self.conclude_if_done()

    def conclude_if_done(self) -> None:
        """When all that decide are done."""
        if all(self.exits.get(rank, {}).get("cause") == "done" for rank in self.deciders):
            patience = max((part.patience() for part in self.parts), default=0)
            self.loop.after(patience, functools.partial(self.conclude, cause="done", grace=self.short_grace))

    def failed(self, node: int, message: Message) -> None:
        """The first failure is the one that matters, unless it is the echo of one that is slower to show."""
        failure = dict(message, node=node)
        self.failures.append(failure)
        if not self.seems_echo(failure):
            self.blame()
        elif len(self.failures) == 1:
            self.loop.after(SETTLE, self.blame)

    def seems_echo(self, failure: Message) -> bool:
        if failure["signal"] in self.echoes and failure["cause"] != "oom":
            return True
        told = re.search(ECHO, "\n".join(failure["tail"]), re.IGNORECASE)
        return failure["signal"] != "SIGKILL" and told is not None

    def blame(self) -> None:
        if self.outcome:
            return
        causes = [failure for failure in self.failures if not self.seems_echo(failure)]
        first = (causes or self.failures)[0]
        facts = {key: first[key] for key in ("cause", "rank", "node", "code", "signal", "error", "tail")}
        self.conclude(grace=self.short_grace, **facts)

    # -- the end

    def on_stop(self, node: int, message: Message) -> None:
        self.conclude(cause=message["cause"], node=node, grace=message["grace"])
        if message["grace"] <= 0:
            self.tell_all(t="kill")

    def on_ended(self, node: int, message: Message) -> None:
        self.ended.add(node)
        self.finish_if_ended()

    def conclude(self, cause: str, grace: float, **facts: Any) -> None:
        if self.outcome:
            return
        self.outcome = dict(facts, cause=cause)
        self.output.say(event="ending", outcome=self.outcome)
        self.tell_all(t="end", grace=grace)
        self.loop.after(grace + 2 * HARD, self.finish)

    def finish_if_ended(self) -> None:
        if self.ended.issuperset(self.links):
            self.finish()

    def finish(self) -> None:
        if not self.over:
            self.over = True
            self.tell_all(t="over", outcome=self.outcome)
