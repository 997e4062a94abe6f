"""Runs real agents: one process each, as a pool would, with configurations from `core.launch`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pumasi.agent.files import AGENT
from pumasi.agent.processes import family, kill_family
from pumasi.catalogue import catalogue_for, make_spec
from pumasi.core.frames import Frame, parse_frame
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of
from tests.harness import wait_for

Words = dict[str, Any]


class AgentProcess:
    """One agent. Its output is read by a thread, unless `deaf`: then nobody reads until `listen` is called."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        python: str = sys.executable,
        prefix: Sequence[str] = (),
        deaf: bool = False,
        env: Mapping[str, str] = {},
        more: bytes = b"",
        **options: Any,
    ) -> None:
        Path(config["dir"]).mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [*prefix, python, "-I", "-S", str(AGENT), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **env, "PUMASI_GANG": config["gang"]},
            start_new_session=True,
            **options,
        )
        self.pid = self.process.pid
        self.lines: list[bytes] = []
        self.errors = b""
        self.readers = [threading.Thread(target=self._read_errors, daemon=True)]
        self.readers[0].start()
        self.send(json.dumps(config).encode() + b"\n" + more)
        if not deaf:
            self.listen()

    def listens_at(self) -> int:
        """The port of a hub that nobody else hears: its first words are read here, and no more of them."""
        assert self.process.stdout is not None
        while not self.said("listening"):
            self.lines.append(self.process.stdout.readline().rstrip(b"\n"))
        return int(self.said("listening")[0]["port"])

    def listen(self) -> None:
        self.readers.append(threading.Thread(target=self._read, daemon=True))
        self.readers[-1].start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip(b"\n"))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors = self.process.stderr.read()

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def stop(self, grace: float) -> None:
        self.send(json.dumps({"grace": grace}).encode() + b"\n")

    def cut_lifeline(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def said(self, event: str) -> list[Words]:
        words = [json.loads(line[1:]) for line in list(self.lines) if line.startswith(b"@")]
        return [word for word in words if word["event"] == event]

    def wait_until_it_says(self, event: str) -> Words:
        found: list[Words] = wait_for(lambda: self.said(event), f"the agent to say {event}")
        return found[0]

    def frames(self, rank: int | None = None) -> list[Frame]:
        frames = [parse_frame(line) for line in list(self.lines) if not line.startswith(b"@")]
        return [frame for frame in frames if frame is not None and rank in (None, frame.rank)]

    def output(self, rank: int = 0, *, stderr: bool = False) -> bytes:
        return b"".join(frame.text + frame.end for frame in self.frames(rank) if frame.is_stderr is stderr)

    def wait_for_output(self, text: bytes, rank: int = 0) -> None:
        wait_for(lambda: text in self.output(rank), f"{text!r} from rank {rank}")

    def ends(self) -> Words:
        """How the gang ended, when the agent has too."""
        self.process.wait(60)
        for reader in self.readers:
            reader.join(60)
        (over,) = self.said("over")
        outcome: Words = over["outcome"]
        return outcome

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


class Star:
    """The agents of one gang. `placement` is slots a node, as a planner would give it: the chief's agent is the one of
    the node with the fewest. All ranks run the same command; PUMASI_RANK tells them apart."""

    def __init__(self, folder: Path, placement: Mapping[str, int], command: Sequence[str], **fields: Any) -> None:
        self.run = f"star-{secrets.token_hex(4)}"
        program_fields = {key: fields.pop(key) for key in list(fields) if key in Program._fields}
        addresses = fields.pop("addresses", [f"127.0.0.{index + 1}" for index in range(len(placement))])
        options = {"silence": 30.0, "grace": 10.0, "start_timeout": 60.0, **fields}
        spec = make_spec(command=("x",), workdir=str(folder), slots=sum(placement.values()), **options)
        program = Program(
            **{"framework": "none", "because": "", "files": {}, "command": tuple(command), **program_fields}
        )
        attempt = Attempt(self.run, 0, placement, {}, secrets.token_hex(16), "n", str(folder), addresses)
        self.configs = agent_configs(spec, program, attempt, gang_of(spec, program, attempt))
        self.agents: dict[int, AgentProcess] = {}

    def start(self, node: int = 0, **options: Any) -> AgentProcess:
        config = self.configs[node]
        if node:
            config["hub"][1] = self.port
        self.agents[node] = AgentProcess(config, **options)
        return self.agents[node]

    def start_all(self, **options: Any) -> list[AgentProcess]:
        return [self.start(node, **options) for node in range(len(self.configs))]

    @property
    def hub(self) -> AgentProcess:
        return self.agents[0]

    @property
    def port(self) -> int:
        return int(self.hub.wait_until_it_says("listening")["port"])

    @property
    def secret(self) -> str:
        return str(self.configs[0]["secret"])

    def processes(self) -> set[int]:
        """All that carry the mark of this gang, the agents too."""
        return family(f"PUMASI_GANG={self.run}.")

    def has_ended(self) -> bool:
        return not self.processes()

    def ranks(self) -> set[int]:
        return self.processes() - {agent_process.pid for agent_process in self.agents.values()}

    def clean_up(self) -> None:
        for agent_process in self.agents.values():
            if agent_process.process.poll() is None:
                agent_process.signal(signal.SIGKILL)
                agent_process.process.wait()
        kill_family(f"PUMASI_GANG={self.run}.")


class Stars:
    """Makes gangs for a test, and sees at its end that nothing of them is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Star] = []

    def __call__(self, placement: Mapping[str, int], command: Sequence[str] | str, **fields: Any) -> Star:
        words = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        self.made.append(Star(self.folder, placement, words, **fields))
        return self.made[-1]

    def one(self, command: Sequence[str] | str, **options: Any) -> AgentProcess:
        """The agent of a gang on one node; what is no field of a spec goes to the agent's process."""
        fields = {key: options.pop(key) for key in list(options) if key in catalogue_for({}).options}
        return self({"a": fields.pop("slots", 1)}, command, **fields).start(**options)

    def assert_nothing_left(self) -> None:
        for star in self.made:
            wait_for(star.has_ended, f"the end of {star.processes()}", 30)


def making_stars(folder: Path) -> Iterator[Stars]:
    stars = Stars(folder)
    try:
        yield stars
        stars.assert_nothing_left()
    finally:
        for star in stars.made:
            star.clean_up()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"
