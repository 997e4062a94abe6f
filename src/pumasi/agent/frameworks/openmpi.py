"""OpenMPI: mpirun starts the ranks, and reaches other nodes through the agents in place of ssh.

mpirun on the chief's node calls `rsh` for each other node; that asks the hub, which has the node's agent run MPI's
daemon there. Between mpirun or a daemon and each rank stands `rank`, so that the rank's output and end are known.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys

from pumasi.agent import frameworks
from pumasi.agent.carried import write_down
from pumasi.agent.children import Child
from pumasi.agent.environment import fill
from pumasi.agent.folders import write_file
from pumasi.agent.links import READ, call_hub
from pumasi.agent.output import Voice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pumasi.agent.frameworks import Pids
    from pumasi.agent.hub import Hub
    from pumasi.agent.links import Link, Message
    from pumasi.agent.member import Member

PRETENDED = {"OMPI_MCA_coll": "^han", "OMPI_MCA_btl": "self,tcp"}
"""For nodes that are one machine: OpenMPI 5 takes them for one by their name, and hangs or crashes in shared memory."""
SETTLE = 1.5
"""Seconds that a rank gets to tell of its end when mpirun has ended: it knows more."""
TIDY = 5.0
"""Seconds that mpirun gets to end when its ranks are done."""
PREFIXES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "OPAL_", "HYDRA_", "I_MPI_", "MPI_")


class Part(frameworks.MemberPart):
    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self.handlers = {"run": self.on_run, "cut": self.on_cut}
        self.config = member.config
        self.launched: dict[str, Child] = {}
        self.expected: dict[int, Child] = {}

    def files(self) -> dict[str, str]:
        return {name: os.path.join(self.config["dir"], name) for name in ("hostfile", "rsh")}

    def prepare(self) -> None:
        """What mpirun needs to reach the other nodes, and the pipes of the ranks that it will start."""
        write_down()
        paths = self.files()
        words = " ".join(shlex.quote(word) for word in [*myself(), "rsh"])
        write_file(paths["hostfile"], fill(self.config["hostfile"] or "", self.member.values))
        write_file(paths["rsh"], '#!/bin/sh\nexec %s "$@"\n' % words, 0o700)
        for rank in self.config["ranks"] if self.config["launcher"] else ():
            self.expect(rank)

    def expect(self, rank: Message) -> None:
        """A rank that mpirun will start: `rank` opens these pipes and tells of its end."""
        number = rank["rank"]
        base = os.path.join(self.config["dir"], str(number))
        write_file(base + ".json", json.dumps(self.member.environment(rank["env"])))
        ends = []
        for name in (".out", ".err", ".end"):
            os.mkfifo(base + name, 0o600)
            # Open for writing too: it does not end when one writer does.
            ends.append(os.open(base + name, os.O_RDWR | os.O_NONBLOCK))
        child = self.expected[number] = Child(self.member.voice(number), "rank")
        self.member.children.expect(child, ends[0], ends[1])
        self.member.loop.watch(ends[2], lambda: self.read_end(child, ends[2]))

    def read_end(self, child: Child, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in os.read(fd, READ).splitlines():
                self.member.children.end(child, int(line))

    def add_variables(self, env: dict[str, str]) -> None:
        env["PUMASI_HUB"] = "%s:%d" % tuple(self.config["hub"])
        env["PUMASI_SECRET"] = self.config["secret"]
        if self.config["nodes"] > 1 and self.member.address.startswith("127."):
            for name, value in PRETENDED.items():
                env.setdefault(name, value)

    def starts_ranks(self) -> bool:
        return bool(self.config["launcher"])

    def start(self) -> Pids | None:
        if self.member.node == 0 and not self.start_mpirun():
            return None
        return dict.fromkeys(self.expected)

    def start_mpirun(self) -> bool:
        program = self.config["ranks"][0]["command"][0]
        known = {"{self}": myself(), program: [self.member.installation.program(program)]}
        words = [w for word in self.config["launcher"] for w in known.get(word, [word])]
        env = self.member.environment(self.config["ranks"][0]["env"])
        # The mpirun beside their Python is the one that its MPI belongs to; an image may have others. That of an
        # environment of ours is on the path already, behind what the environment has itself.
        beside = "" if self.member.installation.made else os.path.dirname(program)
        env["PATH"] = os.pathsep.join(filter(None, [beside, env.get("PATH", os.defpath)]))
        return self.member.start(self.expected[0].voice, "launcher", words, env) is not None

    def report(self, child: Child, facts: Message) -> bool:
        if child.kind == "launcher":
            self.member.up.send(t="launcher", **facts)
        elif self.launched.get(child.kind) is child:
            code = 255 if facts["code"] is None else facts["code"]
            self.member.up.send(t="ran", id=child.kind, code=code, said=facts["tail"])
        else:
            return False
        return True

    def on_run(self, message: Message) -> None:
        """One of MPI's daemons."""
        if not self.member.ending.begun:
            command = ["/bin/sh", "-c", message["command"]]
            child = self.member.start(Voice(None), message["id"], command, self.member.environment({}))
            if child:
                self.launched[message["id"]] = child

    def on_cut(self, message: Message) -> None:
        child = self.launched.get(message["id"])
        if child and child.pid:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGTERM)


class HubPart(frameworks.HubPart):
    """Launch requests: from `rsh` to the hub, from the hub to the node, and the exit code back."""

    # What MPI does to the ranks that are left when one has failed looks like a kill.
    echoes = frozenset({"SIGKILL"})

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.handlers = {"launcher": self.on_launcher, "ran": self.on_ran}
        self.visitors = {"rsh": self.welcome}
        self.launching = bool(hub.config["launcher"])
        self.launches: dict[str, tuple[Link, int]] = {}

    def patience(self) -> float:
        """mpirun tidies up after its ranks."""
        return TIDY if self.launching else 0

    def on_launcher(self, node: int, message: Message) -> None:
        """mpirun has ended. A rank that failed knows more about it, and comes first. mpirun's exit code 0 is not to be
        trusted: OpenMPI 5 says so when a daemon was killed."""
        self.launching = False
        self.hub.conclude_if_done()
        self.hub.loop.after(SETTLE, lambda: self.check_ranks(node, message))

    def check_ranks(self, node: int, message: Message) -> None:
        silent = sorted(self.hub.deciders - set(self.hub.exits))
        if message["cause"] != "done":
            self.hub.failures.append(dict(message, node=node))
        elif silent:
            self.hub.failures.append(dict(message, node=node, cause="vanished", rank=silent[0]))
        if self.hub.failures:
            self.hub.blame()

    def welcome(self, link: Link) -> None:
        link.heed = lambda: self.read(link)

    def read(self, link: Link) -> None:
        for message in link.receive():
            self.launch(link, message)
        if link.closed:
            self.drop(link)
            link.close()

    def launch(self, link: Link, message: Message) -> None:
        node = next((n for n, host in self.hub.hosts.items() if host == message["host"]), None)
        if node is None or node not in self.hub.links or self.hub.outcome:
            link.send(code=255, said=["no agent of this gang is on " + message["host"]])
            return
        number = str(len(self.launches))
        self.launches[number] = (link, node)
        self.hub.links[node].send(t="run", id=number, command=message["command"])

    def on_ran(self, node: int, message: Message) -> None:
        link, _ = self.launches[message["id"]]
        link.send(code=message["code"], said=message["said"])

    def drop(self, link: Link) -> None:
        """mpirun has ended its `rsh`: what that had started on the other node ends too."""
        for number, (other, node) in self.launches.items():
            if other is link and node in self.hub.links:
                self.hub.links[node].send(t="cut", id=number)


def myself() -> list[str]:
    return [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0])]


def rsh(words: list[str]) -> int:
    """What mpirun calls in place of ssh: have the agent on that host run the command, and wait for it."""
    host, port = os.environ["PUMASI_HUB"].rsplit(":", 1)
    sock = call_hub((host, int(port)), os.environ["PUMASI_SECRET"], "rsh", 30)
    sock.settimeout(None)
    message = {"host": words[0], "command": " ".join(words[1:])}
    sock.sendall(json.dumps(message).encode() + b"\n")
    answer = json.loads(sock.makefile("rb").readline() or b'{"code": 255, "said": []}')
    for line in answer["said"]:
        print(line, file=sys.stderr)
    return int(answer["code"])


def rank(command: list[str]) -> int:
    """Run one rank for mpirun, with the output and the environment that the agent has prepared for it."""
    own = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
    base = os.path.join(os.environ["PUMASI_DIR"], own)
    with open(base + ".json") as file:
        env = dict(json.load(file), **mpi_variables())
    with open(base + ".out", "wb") as out, open(base + ".err", "wb") as err:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=err)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _: process.send_signal(n))
    code = process.wait()
    status = code << 8 if code >= 0 else -code
    with open(base + ".end", "wb", buffering=0) as end:
        end.write(b"%d\n" % status)
    return code if code >= 0 else 128 - code


def mpi_variables() -> dict[str, str]:
    """mpirun tells its ranks who they are through these."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
