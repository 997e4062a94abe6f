"""One node's part of the star: it starts the ranks of its node when the hub says so, and tells how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

from pumasi.agent.children import Child, Children
from pumasi.agent.door import STRANGERS, Call, Door
from pumasi.agent.ending import Ending
from pumasi.agent.environment import environment
from pumasi.agent.folders import clear_folder, deliver, make_checkpoint_folders, write_file, write_testament
from pumasi.agent.frameworks import member_parts
from pumasi.agent.installing import Installation
from pumasi.agent.links import CALLING, DIALLING, READ, Link, Near, parse
from pumasi.agent.loop import Loop
from pumasi.agent.network import free_ports, listen_at
from pumasi.agent.output import Output, Voice
from pumasi.agent.processes import HARD, kill_family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Mapping

    from pumasi.agent.frameworks import Pids
    from pumasi.agent.hub import Hub
    from pumasi.agent.links import Message

AGAIN = 0.2
NAME_AGAIN = 1.0
"""Seconds after which a hub that is not there yet is called again, and one whose name is not known yet."""


class Member:
    """The agent of one node. `config` is complete. `lifeline` is a file that our parent holds open and writes commands
    to; `commands` is what has been read of it already."""

    def __init__(self, config: Message, lifeline: int | None, commands: bytes = b"") -> None:
        self.config = config
        Voice.first = config["first"]
        self.node = config["node"]
        self.marker = "PUMASI_GANG=" + config["gang"]
        self.loop = Loop()
        self.output = Output(1)
        self.children = Children(self.loop, self.output, self.report)
        self.ending = Ending(self.loop, self.children, self.marker, self.tell_ended)
        self.installation = Installation(config)
        self.voices: dict[int, Voice] = {}
        self.makes: dict[int, list[str]] = {rank["rank"]: rank["makes"] for rank in config["ranks"] if "makes" in rank}
        self.values: Mapping[str, Mapping[str, object]] = {"host": {}, "port": {}, "file": {}}
        self.address = config["address"]
        self.up: Link | Near = Near.nowhere()
        self.calling: Call | None = None
        self.why_alone = "the hub has not called"
        self.hub: Hub | None = None
        self.held: dict[str, socket.socket] = {}
        self.asked = False
        self.alone: Message = {"cause": "stopped"}
        self.result: Message | None = None
        self.lifeline = lifeline
        self.orphaned = False
        self.commands = commands
        self.parts = member_parts(self)
        if lifeline is not None:
            os.set_blocking(lifeline, False)
            self.loop.watch(lifeline, lambda: self.read_commands(lifeline))

    # -- life

    def run(self) -> int:
        self.watch_signals()
        for note in make_checkpoint_folders(self.config["ranks"]):
            self.output.say(event="note", text=note)
        try:
            self.open_star()
            self.obey(b"")
            self.loop.after(0, self.beat)
            while self.result is None:
                self.turn()
        finally:
            if not self.ending.gone:
                kill_family(self.marker, os.getpid())
        self.close(self.result)
        return 0 if self.result.get("cause") == "done" else 1

    def turn(self) -> None:
        self.output.pump()
        self.children.pace()
        self.loop.turn()
        if self.output.broken:
            self.parent_died()

    def watch_signals(self) -> None:
        self.wake, self.waker = socket.socketpair()
        self.wake.setblocking(False)
        self.waker.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
            # Not SIG_IGN, which the ranks would inherit.
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))
        self.loop.watch(self.wake, self.on_signal)

    def on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.wake.recv(4096)
        if self.asked:
            self.asked = False
            self.stop("stopped", self.config["grace"])
        self.children.reap()
        if self.ending.begun and not self.children.living():
            self.ending.check()

    def read_commands(self, lifeline: int) -> None:
        """Commands of our parent; the end of file is its death."""
        try:
            data = os.read(lifeline, READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.loop.unwatch(lifeline)
            self.parent_died()
            return
        self.obey(data)

    def obey(self, data: bytes) -> None:
        lines = (self.commands + data).split(b"\n")
        self.commands = lines.pop()
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.stop("stopped", float(parse(line)["grace"]))

    def close(self, result: Message) -> None:
        """Hand over what is left. A parent on the lifeline may take its time: it will notice when that is gone."""
        for child in self.children.all():
            self.children.drain(child)
        self.output.say(event="over", outcome=result)
        if self.config["testament"]:
            write_testament(self.config["testament"], result)
        self.output.pump()
        left, since = self.output.size, time.monotonic()
        while self.output.size:
            self.turn()
            if self.output.size < left:
                left, since = self.output.size, time.monotonic()
            elif (self.lifeline is None or self.orphaned) and time.monotonic() - since > self.config["silence"]:
                break

    # -- the star

    def open_star(self) -> None:
        if self.node == 0:
            self.open_hub()
        else:
            self.seek_hub()

    def open_hub(self) -> None:
        from pumasi.agent.hub import Hub

        hub = self.hub = Hub(self.config, self.loop, self.output)
        hub.join(0, Near(self.handle))
        self.up = Near(lambda message: hub.handle(0, message))
        try:
            if self.config["nodes"] > 1 or self.config["hostfile"]:
                hub.listen()
        except OSError as error:
            self.refuse(Voice(self.config["seats"][0]), error, "%s:%d" % tuple(self.config["hub"]))
            return
        self.set_up()

    def seek_hub(self) -> None:
        """Be called by the hub, and call it when that has not happened for a while."""
        if self.config["door"]:
            try:
                door = Door(self.loop, self.config["secret"], DIALLING, self.admit, STRANGERS)
                door.open(listen_at(*self.config["door"]))
            except OSError as error:
                self.output.say(event="note", text="The hub can't call this node: %s." % error)
        self.loop.after(self.config["call_after"] if self.config["door"] else 0, self.call)
        self.loop.after(self.config["start_timeout"], self.give_up)

    def admit(self, who: str, link: Link) -> None:
        if who != self.config["gang"] or self.has_met():
            link.close()
            return
        if self.calling:
            self.calling.cancel()
        self.meet_hub(link, [])

    def call(self) -> None:
        """Reach the hub, which may not be there yet."""
        if self.has_met() or self.ending.begun:
            return
        self.calling = Call(self.loop, self.config["secret"], CALLING, str(self.node))
        try:
            host, port = self.config["hub"]
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4]
        except OSError as error:
            self.call_again("%s: %s" % (host, error.strerror), NAME_AGAIN)
            return
        self.calling.start(address, self.meet_hub, self.call_again)

    def call_again(self, reason: str, seconds: float = AGAIN) -> None:
        self.why_alone = reason
        self.loop.after(seconds, self.call)

    def has_met(self) -> bool:
        return isinstance(self.up, Link)

    def give_up(self) -> None:
        if not self.has_met() and not self.ending.begun:
            self.end_alone(cause="no hub", error=self.why_alone)

    def meet_hub(self, link: Link, messages: list[Message]) -> None:
        self.up = link
        link.heed = lambda: self.read_hub(link)
        self.address = self.address or link.sock.getsockname()[0]
        self.set_up()
        for message in messages:
            self.handle(message)

    def read_hub(self, link: Link) -> None:
        for message in link.receive():
            self.handle(message)
        if link.closed:
            self.lose_hub(link)

    def lose_hub(self, link: Link) -> None:
        link.close()
        self.end_alone(cause="hub lost")

    def beat(self) -> None:
        if not self.up.closed:
            self.up.send(t="beat")
        if self.hub:
            self.hub.tell_all(t="beat")
            self.hub.check_silence()
        elif isinstance(self.up, Link) and not self.up.closed and self.up.is_silent(self.config["silence"]):
            self.lose_hub(self.up)
        self.loop.after(self.config["silence"] / 5, self.beat)

    def handle(self, message: Message) -> None:
        for part in self.parts:
            if message["t"] in part.handlers:
                part.handlers[message["t"]](message)
                return
        getattr(self, "on_" + message["t"])(message)

    def on_beat(self, message: Message) -> None:
        pass

    # -- before the start

    def set_up(self) -> None:
        """We are here when all is installed, so that the ranks start when every node is ready. Meanwhile we hear of the
        end, and say that we live."""
        if not self.installation.setup:
            self.arrive()
            return
        voice = self.voice(self.config["seats"][0])
        try:
            command = self.installation.prepare()
        except OSError as error:
            self.refuse(voice, error, self.config["dir"])
            return
        child = self.start(voice, "setup", command, dict(os.environ, PUMASI_GANG=self.config["gang"]))
        if child:
            self.children.hear(child, self.hear_installer)

    def hear_installer(self, words: Message) -> None:
        note = self.installation.hear(words)
        if note:
            where = "%s: " % self.config["names"][self.node] if self.config["nodes"] > 1 else ""
            self.output.say(event="note", text=where + note)

    def finish_set_up(self, voice: Voice, facts: Message) -> None:
        if self.ending.begun:
            return
        if facts["cause"] != "done":
            cause = facts["cause"] if facts["cause"] == "oom" else "setup"
            self.up.send(t="exit", **dict(facts, cause=cause, error=self.installation.doing))
            return
        voice.tail = b""
        self.installation.hold()
        self.arrive()

    def arrive(self) -> None:
        named = self.config["chief_ports"] if self.node == 0 else []
        names = [str(rank) for rank in self.config["seats"]] + named
        try:
            self.held = dict(zip(names, free_ports(len(names))))
        except OSError as error:
            self.refuse(Voice(self.config["seats"][0]), error, "ports")
            return
        ports = {name: sock.getsockname()[1] for name, sock in self.held.items()}
        self.up.send(t="here", address=self.address, ports=ports)

    def voice(self, rank: int) -> Voice:
        """One for each rank: the frames of what was installed before it started are numbered through with its own."""
        return self.voices.setdefault(rank, Voice(rank))

    # -- the start

    def on_go(self, message: Message) -> None:
        ports = {name: port for node in message["ports"] for name, port in node.items()}
        owners = {name: host for host, node in zip(message["hosts"], message["ports"]) for name in node}
        files = {name: path for part in self.parts for name, path in part.files().items()}
        self.values = {"host": owners, "port": ports, "file": files}
        self.release_ports(set(message["hosts"]))
        try:
            self.prepare()
        except OSError as error:
            self.refuse(Voice(self.config["seats"][0]), error, self.config["dir"])
            return
        starter = next((part for part in self.parts if part.starts_ranks()), None)
        pids = starter.start() if starter else self.start_ranks()
        if pids is not None:
            self.up.send(t="started", pids=pids)

    def release_ports(self, hosts: set[str]) -> None:
        for name, sock in self.held.items():
            server = next((part for part in self.parts if part.port == name), None)
            if server:
                server.serve(sock, hosts)
            else:
                sock.close()

    def prepare(self) -> None:
        """Files for every rank's Python, and what the parts need."""
        for name, text in self.config["files"].items():
            write_file(os.path.join(self.config["dir"], name), text)
        for draft, _ in self.makes.values():
            clear_folder(os.path.dirname(draft))
        for part in self.parts:
            part.prepare()

    def start_ranks(self) -> Pids | None:
        pids: Pids = {}
        for rank in self.config["ranks"]:
            command = [self.installation.program(rank["command"][0]), *rank["command"][1:]]
            child = self.start(self.voice(rank["rank"]), "rank", command, self.environment(rank["env"]))
            if child is None:
                return None
            pids[rank["rank"]] = child.pid
        return pids

    def environment(self, wanted: Mapping[str, str]) -> dict[str, str]:
        env = environment(self.config, wanted, self.values, self.address)
        self.installation.activate(env)
        for part in self.parts:
            part.add_variables(env)
        return env

    def start(self, voice: Voice, kind: str, command: list[str], env: dict[str, str]) -> Child | None:
        """None where it can't be started, which ends the gang."""
        try:
            return self.children.start(voice, kind, command, env, self.config["cwd"])
        except (OSError, ValueError) as error:
            self.refuse(voice, error, command[0])
            return None

    def refuse(self, voice: Voice, error: Exception, what: str) -> None:
        """What can't be started ends the gang like a rank that fails."""
        reason = "%s: %s" % (getattr(error, "filename", None) or what, getattr(error, "strerror", None) or error)
        # A file's name need not be text, but a sentence has to be.
        reason = reason.encode("utf-8", "backslashreplace").decode()
        self.up.send(t="exit", **self.children.exit_facts(voice, error=reason))

    # -- the end

    def report(self, child: Child, status: int) -> None:
        facts = self.children.exit_facts(child.voice, status)
        if child.kind == "setup":
            self.finish_set_up(child.voice, facts)
        elif child.kind == "rank":
            if facts["cause"] == "done" and facts["rank"] in self.makes:
                self.deliver(facts)
            self.output.say(event="exit", rank=child.voice.rank, code=facts["code"], signal=facts["signal"])
            self.up.send(t="exit", **facts)
        else:
            any(part.report(child, facts) for part in self.parts)

    def deliver(self, facts: Message) -> None:
        """What a rank has made goes to its place; one that has not made it is not done."""
        draft, place = self.makes[facts["rank"]]
        try:
            deliver(draft, place)
        except OSError as error:
            facts.update(cause="unmade", error="%s: %s" % (draft, error.strerror))

    def stop(self, cause: str, grace: float) -> None:
        if not self.up.closed:
            self.up.send(t="stop", cause=cause, grace=grace)
        else:
            self.end_alone(cause=cause)

    def parent_died(self) -> None:
        if not self.orphaned:
            self.orphaned = True
            self.stop("parent died", min(HARD, self.config["grace"]))

    def end_alone(self, **outcome: Any) -> None:
        """Without the hub: end our own ranks, so that nothing of a gang that has lost its head goes on."""
        self.alone = outcome
        self.ending.begin(min(HARD, self.config["grace"]))
        if self.ending.gone:
            self.on_over({"outcome": outcome})

    def tell_ended(self) -> None:
        if not self.up.closed:
            self.up.send(t="ended")
        else:
            self.on_over({"outcome": self.alone})

    def on_end(self, message: Message) -> None:
        self.ending.begin(message["grace"])

    def on_kill(self, message: Message) -> None:
        self.ending.kill()

    def on_over(self, message: Message) -> None:
        self.result = message["outcome"]
