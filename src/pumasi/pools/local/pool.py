"""This machine as a pool: one agent, or several on different loopback addresses that pretend to be nodes.

An agent's standard input is its lifeline: it closes when the manager is gone, however it went, and the agent ends
everything. An agent that is killed itself leaves ranks behind; they carry the gang's mark and are found by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pumasi.agent.files import AGENT
from pumasi.agent.processes import kill_family
from pumasi.core.frames import separate
from pumasi.core.planning import Node
from pumasi.core.spec import MOST_SLOTS, Spec
from pumasi.errors import DoesNotFit
from pumasi.pools.base import Order, Pool, Request, Sink
from pumasi.pools.local.gpus import Gpu, list_gpus
from pumasi.pools.local.options import LocalOptions

INSISTENCE = 3.0
"""Seconds that agents get to obey a kill, or to say their last words, before they are killed themselves."""
_PIPE_SIZE = 1 << 20


@contextlib.asynccontextmanager
async def open_pool(request: Request, *, adopt: bool) -> AsyncIterator[Pool]:
    """A gang dies with its manager here, so that there is never anything to adopt."""
    yield make_pool(request.spec, request.home)


def make_pool(spec: Spec, home: Path) -> LocalPool:
    return LocalPool(spec, home, list_gpus(os.environ) if spec.gpu != "none" else ())


class LocalPool(Pool):
    def __init__(self, spec: Spec, home: Path, gpus: Sequence[Gpu]) -> None:
        self._spec = spec
        self._home = home
        self._pretended = spec[LocalOptions].nodes
        self._gpus = gpus if spec.gpu != "none" else ()
        self._held: dict[str, dict[str, IO[str]]] = {}
        self._gangs: dict[tuple[str, int], LocalGang] = {}
        self._environments: set[str] = set()

    async def nodes(self, spec: Spec | None = None) -> list[Node]:
        if self._gpus and self._pretended is None:
            return [Node(platform.node(), len(self._free_gpus()))]
        return self.capacity()

    def capacity(self) -> list[Node]:
        if self._pretended is not None:
            return [Node(f"node-{index}", free) for index, free in enumerate(self._pretended)]
        if self._spec.gpu == "required" and not self._gpus:
            raise DoesNotFit(
                "This machine has no GPU that Pumasi can see.",
                "Train on the CPU with --slots, or see `pumasi doctor`.",
            )
        return [Node(platform.node(), len(self._gpus) or MOST_SLOTS)]

    def addresses(self, nodes: Sequence[str]) -> Sequence[str]:
        """Linux answers on all of 127.0.0.0/8; elsewhere the pretended nodes share one address."""
        if sys.platform.startswith("linux"):
            return [f"127.0.{index // 250}.{index % 250 + 1}" for index in range(len(nodes))]
        return ["127.0.0.1"] * len(nodes)

    async def reserve(self, task: str, placement: Mapping[str, int]) -> Mapping[str, Sequence[str]] | None:
        if not self._gpus or self._pretended is not None:
            return {}
        wanted = sum(placement.values())
        self._release(task)
        held: dict[str, IO[str]] = {}
        self._held[task] = held
        for gpu in self._gpus:
            if len(held) < wanted and not gpu.busy and (file := self._lock(gpu)):
                held[gpu.handle] = file
        if len(held) < wanted:
            self._release(task)
            return None
        return {platform.node(): list(held)}

    def _free_gpus(self) -> list[Gpu]:
        free = []
        for gpu in self._gpus:
            if not gpu.busy and (file := self._lock(gpu)):
                file.close()
                free.append(gpu)
        return free

    def _lock(self, gpu: Gpu) -> IO[str] | None:
        """A GPU belongs to the run that holds the lock on its file; the kernel frees it when the manager dies."""
        folder = self._home / "gpus"
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        file = (folder / gpu.handle.replace("/", "_")).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        return file

    def _release(self, task: str) -> None:
        for file in self._held.pop(task, {}).values():
            file.close()

    async def launch(self, order: Order, sink: Sink) -> None:
        gang = LocalGang(order, sink, self._forget, self._home / "environments")
        self._gangs[order.task, order.attempt] = gang
        self._environments |= {config["setup"]["own"] for config in order.configs if config.get("setup")}
        try:
            await gang.start()
        except OSError:
            gang.kill()
            gang.clean_up()
            raise

    def _forget(self, order: Order) -> None:
        self._gangs.pop((order.task, order.attempt), None)
        self._release(order.task)

    def end(self, task: str, attempt: int, grace: float) -> None:
        gang = self._gangs.get((task, attempt))
        if gang is not None:
            gang.end(grace)

    async def close(self) -> None:
        for gang in list(self._gangs.values()):
            gang.kill()
        for task in list(self._held):
            self._release(task)
        for environment in self._environments:
            shutil.rmtree(environment, ignore_errors=True)
            Path(f"{environment}.lock").unlink(missing_ok=True)


class LocalGang:
    """The agents of one attempt. Packages that they install are kept in `environments`."""

    def __init__(self, order: Order, sink: Sink, forget: Any, environments: Path) -> None:
        self.order = order
        self.sink = sink
        self.forget = forget
        self.environments = environments
        self.agents: dict[int, AgentProcess] = {}
        self.facts: Mapping[str, Any] | None = None
        self.starting: asyncio.Future[None] | None = None
        self.insisting = False
        self.killed = False
        self.over = False

    @property
    def mark(self) -> str:
        return "PUMASI_GANG=" + str(self.order.configs[0]["gang"]).rpartition(".")[0] + "."

    async def start(self) -> None:
        await self._start_agent(0, {})

    async def _start_members(self, port: int) -> None:
        changes = {"hub": [self.order.configs[0]["hub"][0], port]}
        node = 0
        try:
            for node in range(1, len(self.order.configs)):
                if not self.killed:
                    await self._start_agent(node, changes)
        except OSError as error:
            self.facts = {"cause": "unstartable", "node": node, "error": str(error)}
            self.kill()

    async def _start_agent(self, node: int, changes: Mapping[str, Any]) -> None:
        config = {**self.order.configs[node], **changes}
        if config.get("setup"):
            config["setup"] = {**config["setup"], "shared": str(self.environments)}
        Path(config["dir"]).mkdir(mode=0o700, parents=True, exist_ok=True)
        agent = AgentProcess(self, node, config)
        agent.start()
        self.agents[node] = agent
        await agent.listen()

    def said(self, node: int, words: Mapping[str, Any]) -> None:
        if words["event"] == "listening":
            self.starting = asyncio.ensure_future(self._start_members(int(words["port"])))
        elif words["event"] == "over":
            if node == 0 or self.facts is None:
                self.facts = words["outcome"]
        else:
            self.sink.said(self.order, words)

    def closed(self, node: int, said_over: bool) -> None:
        """An agent is gone. One that went without a word was killed: then nothing of the gang may go on."""
        agent = self.agents.pop(node)
        agent.forget_process()
        if not said_over:
            self.facts = self.facts or {"cause": "agent died", "node": node, "tail": agent.last_words()}
            self.kill()
        if not self.agents:
            self._finish()
        elif node == 0:
            self._insist()

    def _finish(self) -> None:
        if self.over:
            return
        self.over = True
        kill_family(self.mark)
        self.clean_up()
        self.sink.ended(self.order, self.facts or {"cause": "stopped"})

    def clean_up(self) -> None:
        for config in self.order.configs:
            shutil.rmtree(config["dir"], ignore_errors=True)
        self.forget(self.order)

    def end(self, grace: float) -> None:
        hub = self.agents.get(0)
        if hub is not None:
            hub.tell({"grace": grace})
        if grace <= 0:
            self._insist()

    def _insist(self) -> None:
        if not self.insisting:
            self.insisting = True
            asyncio.get_running_loop().call_later(INSISTENCE, self._kill_if_silent)

    def _kill_if_silent(self) -> None:
        """Agents that still have something to say may say it: it may be us who are slow."""
        loop = asyncio.get_running_loop()
        if any(loop.time() - agent.heard > INSISTENCE for agent in self.agents.values()):
            self.kill()
        elif self.agents:
            loop.call_later(INSISTENCE, self._kill_if_silent)

    def kill(self) -> None:
        self.killed = True
        for agent in list(self.agents.values()):
            agent.kill()
        if self.agents:
            kill_family(self.mark)


class AgentProcess(asyncio.Protocol):
    """One agent: its configuration and commands go in, frames and its own words come out."""

    def __init__(self, gang: LocalGang, node: int, config: Mapping[str, Any]) -> None:
        self.gang = gang
        self.node = node
        self.config = config
        self.errors = Path(config["dir"]) / "agent.err"
        self.rest = b""
        self.heard = 0.0
        self.said_over = False

    def start(self) -> None:
        environ = {**os.environ, "PUMASI_GANG": str(self.config["gang"])}
        with self.errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(AGENT), "-"],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self.tell(self.config)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)  # type: ignore[arg-type]

    async def listen(self) -> None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, self.process.stdout)

    def tell(self, words: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(words).encode() + b"\n")
            self.process.stdin.flush()

    def data_received(self, data: bytes) -> None:
        self.heard = asyncio.get_running_loop().time()
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self.rest += data
            return
        chunk, self.rest = self.rest + whole + newline, rest
        for part in separate(chunk):
            if isinstance(part, bytes):
                self.gang.sink.frames(self.gang.order, part)
            else:
                self.said_over = self.said_over or part["event"] == "over"
                self.gang.said(self.node, part)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gang.closed(self.node, self.said_over)

    def last_words(self) -> list[str]:
        """Why it died, if that was a mistake in it."""
        with contextlib.suppress(OSError):
            return self.errors.read_text(errors="replace").splitlines()[-20:]
        return []

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def forget_process(self) -> None:
        """Reap it; a manager that was forked off is not its parent and has nothing to reap."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=INSISTENCE)
