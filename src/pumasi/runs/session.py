"""A manager in a process: in the terminal, or in the background where no terminal can take it along.

attached     Ctrl-C asks whether to stop or to leave the run running; a lost terminal leaves it running
background   started by `pumasi run -d` and by the Python API; SIGTERM stops the run, SIGUSR1 at once
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pumasi.agent.processes import kill_family
from pumasi.catalogue import defaults, recorded_spec
from pumasi.core.command import script_of
from pumasi.core.events import Finished, Left, Note, StopAsked
from pumasi.core.flows import Flow
from pumasi.core.launch import Attempt, Program, agent_configs, gang_of, program_of
from pumasi.core.outcome import Outcome, Verdict
from pumasi.core.planning import plan
from pumasi.core.ranks import chief_first
from pumasi.core.spec import Spec, run_name
from pumasi.errors import ClusterTrouble, NotThere, PumasiError, SystemTrouble
from pumasi.pools import open_pool
from pumasi.pools.base import Request
from pumasi.pools.kubernetes import notation
from pumasi.pools.kubernetes.options import KubernetesOptions
from pumasi.registry import FLOWS
from pumasi.runs.adoption import left_behind
from pumasi.runs.locate import find_program, find_python
from pumasi.runs.manager import Manager
from pumasi.runs.packages import made_files, setup_files
from pumasi.runs.recorder import Recorder, Unwatched, View
from pumasi.store import RunRecord, Store, default_home
from pumasi.store.home import runs_folder
from pumasi.store.person import this_person

if TYPE_CHECKING:
    from pumasi.runs.folder import LeaveOut

START_SECONDS = 30.0
"""How long a background manager may take to be there."""
MOST_LOOKED_AT = 100
"""Runs, from the newest on, among which one is looked for that can go on."""
Say = Callable[[str], None]
QUESTION = "[s]top it, [l]eave it running, or go on? Type s, l or nothing, then Enter. (Ctrl-C again stops it.)"


def run(store: Store, spec: Spec, view: View, *, terminal: bool) -> Outcome | None:
    """Run it here and now. None: the user has left it running in the background."""
    spec, program, packed = prepare(spec, store.home, lambda text: view.event(time.time(), Note(text=text)))
    left = interrupted(store, spec)
    adopting = _adopting(store, left, spec, view, terminal=terminal) if left is not None and left.is_remote else None
    with _interrupts_held():
        record = left or new_record(store, spec, program.framework, detached=False)
        session = adopting or Session(store, record, spec, program, view, terminal=terminal, packed=packed)
        return _see_through(store, session, record, left)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Block SIGINT from the creation of a run's record until its session handles it, so that Ctrl-C can't leave a
    record without an end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _see_through(store: Store, session: Session, record: RunRecord, left: RunRecord | None) -> Outcome | None:
    try:
        return session.run()
    except ClusterTrouble as trouble:
        if not session.has_begun:
            if left is None:
                store.delete_run(record.id)
            raise
        hint = f"{record.id} goes on in the cluster without a manager here: pumasi attach {record.id} returns to it."
        raise ClusterTrouble(trouble.message, f"{trouble.hint}\n{hint}" if trouble.hint else hint) from None
    except PumasiError:
        if not session.has_begun and left is None:
            store.delete_run(record.id)
        raise
    except KeyboardInterrupt:
        # It came before the manager could hear it, or after it had ended.
        if store.run(record.id).ended is None and (left is None or not left.is_remote):
            bury(store, record, "stopped", 5, "Stopped on request.")
        return Outcome(Verdict.STOPPED, "Stopped on request.")


def bury(store: Store, record: RunRecord, verdict: str, exit_code: int, reason: str) -> None:
    """Close the record of a run that nobody steers any more."""
    kill_family(f"PUMASI_GANG={record.id}.")
    shutil.rmtree(store.folder(record.id) / "tmp", ignore_errors=True)
    now = time.time()
    errors = store.folder(record.id) / "manager.err"
    said = errors.exists() and errors.stat().st_size
    hint = f"What the manager said is in {errors}." if said else f"What it printed: pumasi logs {record.id}"
    outcome: dict[str, object] = {"verdict": verdict, "reason": reason, "hint": hint}
    # In this order: who sees that the run has ended finds the event that tells how.
    store.add_event(record.id, now, Finished(verdict=verdict, reason=reason, hint=hint))
    store.update_run(record.id, state=verdict, ended=now, outcome=outcome, exit_code=exit_code)


def interrupted(store: Store, spec: Spec) -> RunRecord | None:
    """One's own run of several tasks that asked for the very same and whose manager died. It goes on with what is
    done."""
    if FLOWS.get(spec.strategy).is_single:
        return None
    asked = json.loads(json.dumps(spec.dump()))
    for record in store.runs(limit=MOST_LOOKED_AT):
        if record.started_here and record.spec == asked and can_go_on(store, record):
            return reopen(store, record)
    return None


def can_go_on(store: Store, record: RunRecord) -> bool:
    if store.manager_pid(record.id) is not None:
        return False
    if record.is_remote:
        return record.ended is None and not record.detached and _is_there(record)
    lost = record.state == "lost" and "task" not in (record.outcome or {})  # for its manager, not for one of its tasks
    return (record.ended is None or lost) and bool(store.tasks(record.id))


def _is_there(record: RunRecord) -> bool:
    """In its cluster, and not over."""
    from pumasi.pools.kubernetes.pool import program_left

    try:
        asyncio.run(program_left(recorded_spec(record.spec), record.id, os.environ))
    except NotThere:
        return False
    return True


def reopen(store: Store, record: RunRecord) -> RunRecord:
    if record.is_remote:
        return record
    kill_family(f"PUMASI_GANG={record.id}.")
    shutil.rmtree(store.folder(record.id) / "tmp", ignore_errors=True)
    store.reopen(record.id)
    return store.run(record.id)


def _adopting(store: Store, record: RunRecord, spec: Spec, view: View, *, terminal: bool) -> Session:
    """For a run that goes on in a cluster."""
    from pumasi.pools.kubernetes.pool import program_left

    program = asyncio.run(program_left(spec, record.id, os.environ))
    return Session(store, record, spec, program, view, terminal=terminal)


def preview(spec: Spec) -> dict[str, Any]:
    """What would be started, exactly; only the end of the id, GPUs, secrets, addresses and ports are chosen later, and
    nothing is held."""
    from pumasi.pools.local.pool import make_pool

    home = default_home(os.environ)
    spec, program, _ = prepare(spec, home)
    run_id = f"{run_name(spec)}-xxxxx"
    usual = defaults()
    told = {
        "spec": {name: value for name, value in spec.dump().items() if value != usual[name]},
        "framework": program.framework,
        "because": program.because,
        **({"setup": _asked_setup(program)} if program.setup else {}),
        "notes": list(program.notes),
    }
    if not FLOWS.get(spec.strategy).is_single:
        return {**told, "tasks": list(_tasks(spec, program, _folder_of(spec, home, run_id)))}
    pool = make_pool(spec, home)
    placement = plan(asyncio.run(pool.nodes()), spec.slots).placement
    nodes = chief_first(placement)
    attempt = Attempt(run_id, 0, placement, {}, "", "", _folder_of(spec, home, run_id), pool.addresses(nodes))
    gang = gang_of(spec, program, attempt)
    configs = agent_configs(spec, program, attempt, gang)
    return {
        **told,
        "placement": placement,
        "chief": nodes[0],
        "launcher": configs[0]["launcher"],
        "ranks": [
            {"node": nodes[config["node"]], "role": gang.table.ranks[rank["rank"]].role, **rank}
            for config in configs
            for rank in config["ranks"]
        ],
    }


def _asked_setup(program: Program) -> dict[str, Any]:
    asked = {name: program.setup[name] for name in ("requirements", "commands") if program.setup.get(name)}
    if "requirements" in asked:
        asked["requirements"] = {name: asked["requirements"][name] for name in ("name", "count")}
    return asked


def _folder_of(spec: Spec, home: Path, run_id: str) -> str:
    if spec.pool == "local":
        return str(runs_folder(home) / run_id)
    from pumasi.pools.kubernetes.manifests import folder_of

    return folder_of(spec, run_id)


def _tasks(spec: Spec, program: Program, folder: str) -> Iterator[dict[str, Any]]:
    """Those of a small one: they show what all of them are. Each is done as soon as it is there."""
    kind = FLOWS.get(spec.strategy)
    flow: Flow = kind.open(kind.sample(spec), folder)
    while task := flow.next():
        yield {"task": task.name, "command": program_of(program, task).command, "env": {**spec.env, **task.env}}
        flow.ended(task.name, Outcome(Verdict.DONE))


def prepare(spec: Spec, home: Path, say: Say = lambda text: None) -> tuple[Spec, Program, bytes]:
    """Whatever can't work, whoever waits, is told before anything is written or started. With the program, and the
    working folder where it has to travel. `say` is called before work that takes long."""
    spec = _settled(spec)
    FLOWS.get(spec.strategy).check(spec)
    if spec.pool == "local":
        from pumasi.pools.local.pool import make_pool

        plan(make_pool(spec, home).capacity(), spec.at_once)
    program, packed = pack_program(spec, say)
    if spec.pool != "local":
        program = program._replace(notes=(*program.notes, *_readable(spec.env)))
    return spec, program, packed


def _readable(env: Mapping[str, str]) -> Iterator[str]:
    """What a user may not expect others to see: variables stand in the pods and in the record."""
    from pumasi.pools.kubernetes.rendering import open_secrets

    if names := open_secrets(env):
        yield (
            f"Who may read the run in the cluster can read {', '.join(names)}. "
            f"A reference keeps the value in a Secret: --env-from-secret {names[0]}=SECRET/KEY"
        )


def _settled(spec: Spec) -> Spec:
    """With the names that the kubeconfig has for the cluster and the namespace now: it may say otherwise tomorrow. With
    what its flow takes from the environment, and the Python of this shell, if another one may go on with the run."""
    flow = FLOWS.get(spec.strategy)
    spec = flow.settle(spec, os.environ)
    if spec.pool == "local":
        return spec if flow.is_single else replace(spec, python=find_python(spec, os.environ))
    from pumasi.kube.config import connect

    found = connect(spec.context, os.environ)
    where = f"k8s:{found.context}" if found.context else "k8s"
    asked = spec[KubernetesOptions]
    volume = (f"{notation.volume(asked.volume).name}:{notation.VOLUME_PATH}",) if asked.volume else ()
    mounts = (*volume, *(mount for mount in asked.mounts if mount not in volume))
    return spec.changed({"on": where, "namespace": asked.namespace or found.namespace, "mounts": mounts})


def pack_program(spec: Spec, say: Say, leave_out: LeaveOut = lambda status, head: False) -> tuple[Program, bytes]:
    """The program, and the working folder where it has to travel; see `code.pack`."""
    program = find_program(spec, os.environ)
    if spec.pool == "local":
        return program, b""
    from pumasi.runs.folder import pack

    folder, script = Path(spec.workdir), script_of(spec.command)
    inside = Path(os.path.normpath(folder / script)) if script else Path()
    must = [str(inside.relative_to(folder))] if inside.is_relative_to(folder) else []
    must += setup_files(spec)
    stays = [folder / path for path in FLOWS.get(spec.strategy).files(spec).values()]
    code = pack(folder, must, leave_out, stays, say, made_files(spec))
    return program._replace(notes=(*program.notes, *code.notes)), code.packed


def detach(
    store: Store, spec: Spec, *, lifeline: bool = False, warn: Say = lambda text: None
) -> tuple[RunRecord, subprocess.Popen[bytes]]:
    """Start it in the background. With a lifeline it is stopped when the process that holds its other end is gone.
    `warn` is told the notes of the program, which are events of the run too."""
    spec, program, _ = prepare(spec, store.home)
    for note in program.notes:
        warn(note)
    left = interrupted(store, spec) if spec.pool == "local" else None
    record = left or new_record(store, spec, program.framework, detached=True)
    return record, start_background(store, record, "lifeline" if lifeline else "alone")


def start_background(store: Store, record: RunRecord, mode: str) -> subprocess.Popen[bytes]:
    """A manager in a process of its own: for a new run ("alone", "lifeline"), or for one to "adopt"."""
    environ = {name: value for name, value in os.environ.items() if name != "PUMASI_GANG"}
    with (store.folder(record.id) / "manager.err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "pumasi.runs.session", str(store.home), record.id, mode],
            env=environ,
            cwd=store.home,  # Python looks for modules here first, and a user's queue.py is not the one that we need
            stdin=subprocess.PIPE if mode == "lifeline" else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    _await_manager(store, record.id, process)
    return process


def new_record(store: Store, spec: Spec, framework: str, *, detached: bool) -> RunRecord:
    user, host = this_person()
    told = {"framework": framework, "detached": detached, "user": user, "host": host}
    return store.create_run(run_name(spec), spec.dump(), time.time(), **told)


def _await_manager(store: Store, run_id: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while store.manager_pid(run_id) is None and store.run(run_id).ended is None:
        if process.poll() is not None or time.monotonic() > deadline:
            errors = store.folder(run_id) / "manager.err"
            raise SystemTrouble(f"The background manager of {run_id} did not start.", f"What it said is in {errors}.")
        time.sleep(0.02)


def _has_terminal() -> bool:
    """Whether this process belongs to a terminal, wherever its streams go."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Session:
    """`packed` is the working folder, for a pool that is elsewhere; without it the run is one that goes on there, and
    is adopted."""

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        spec: Spec,
        program: Program,
        view: View,
        *,
        terminal: bool,
        packed: bytes | None = None,
    ) -> None:
        self._store = store
        self._record = record
        self._spec = spec
        self._program = program
        self._packed = packed
        self._terminal = terminal
        # Asked now: a terminal that has hung up does not say any more that it is one.
        self._terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
        self._may_lose_terminal = bool(self._terminals) or _has_terminal()
        self._hung_up = False
        self._is_dark = False
        self._left = False
        self._seen = 0
        self._interrupts = 0
        self._recorder = Recorder(store, record.id, view)
        self._wishes: list[tuple[bool, str]] = []
        self._opening: asyncio.Task[Any] | None = None
        self._manager: Manager | None = None

    def run(self, lifeline: int | None = None) -> Outcome | None:
        # Frames come by the million and never in cycles: to look for those costs a tenth of the pace.
        gc.set_threshold(100_000)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, self._hang_up_early)
        known = self._store.events(self._record.id)
        self._seen = known[-1].seq if known else 0
        with self._store.lock(self._record.id) as lock:
            self._lock = lock
            self._recorder.update(time.time(), pid=os.getpid())
            try:
                outcome = asyncio.run(self._run(lifeline))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
            self._store.mark_complete(self._record.id)
        if self._left:
            os._exit(0)
        return outcome

    async def _run(self, lifeline: int | None) -> Outcome:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        loop.add_signal_handler(signal.SIGTERM, self._stop_as_asked, False)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        if self._hung_up:
            self._hang_up()
        loop.add_signal_handler(signal.SIGUSR1, self._stop_as_asked, True)
        if lifeline is not None:
            loop.add_reader(lifeline, self._lose_lifeline, lifeline)
        record, folder = self._record, self._store.folder(self._record.id)
        request = Request(
            run=record.id,
            spec=self._spec,
            program=self._program,
            home=self._store.home,
            fields=record.copied(),
            packed=self._packed or b"",
            say=lambda text: self._recorder.event(time.time(), Note(text=text)),
        )
        self._opening = asyncio.current_task()
        async with open_pool(request, adopt=self._packed is None) as pool:
            self._opening = None
            if pool.user:
                self._recorder.update(time.time(), user=pool.user)
            self._recorder.copy = pool.copy
            pool.found = pool.found or left_behind(self._store, record)
            manager = Manager(record.id, pool.folder(folder), self._spec, self._program, pool, self._recorder)
            self._manager = manager
            for force, by in self._wishes:
                manager.stop(force=force, by=by)
            return await manager.run()

    @property
    def has_begun(self) -> bool:
        return self._manager is not None

    def stop(self, *, force: bool = False, by: str = "") -> None:
        """Before the manager is there, nothing has begun; in the moment between, the wish is kept for it."""
        if self._manager is not None:
            self._manager.stop(force=force, by=by)
            return
        self._wishes.append((force, by))
        if self._opening is not None:
            self._opening.cancel()

    def _stop_as_asked(self, force: bool) -> None:
        """Another process sent a signal; `pumasi stop` has written down before who asks. What was asked of an earlier
        session of the same run does not count."""
        by = ""
        with contextlib.suppress(SystemTrouble):
            rows = self._store.events(self._record.id, after=self._seen)
            asked = [row.event.by for row in rows if isinstance(row.event, StopAsked)]
            by = asked[-1] if asked else ""
        self.stop(force=force, by=by)

    def _lose_lifeline(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        self.stop()

    def _interrupt(self) -> None:
        """At a terminal the first Ctrl-C asks, the second stops, the third uses force; elsewhere there is no asking."""
        self._interrupts += 1
        if self._terminal and self._interrupts == 1:
            self._recorder.view.ask(QUESTION)
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._answer)
            return
        if self._terminal:
            self._expect_no_answer()
        self.stop()

    def _expect_no_answer(self) -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())

    def _answer(self) -> None:
        try:
            answer = os.read(sys.stdin.fileno(), 256).strip().lower()
        except OSError:  # The terminal is gone.
            self._hang_up()
            return
        if answer not in (b"", b"s", b"stop", b"l", b"leave"):
            self._recorder.view.ask(QUESTION)
            return
        self._expect_no_answer()
        self._recorder.view.ask("")
        self._interrupts = 0
        if answer.startswith(b"s"):
            self.stop()
        elif answer.startswith(b"l"):
            self._leave()

    def _hang_up_early(self, _signal: int, _frame: FrameType | None) -> None:
        """Before the loop can hear it."""
        self._hung_up = True

    def _hang_up(self) -> None:
        """The terminal is gone: a healthy run goes on without it, also one whose streams are all redirected. Without a
        terminal it is a wish to end. One terminal may hang up several times: the kernel does, and so does the shell
        that ran in it."""
        if self._may_lose_terminal:
            self._go_dark(self._terminals)
        else:
            self.stop()

    def _leave(self) -> None:
        """Go on in a child, and end the process that the terminal waits for. The agents do not notice: their lifelines
        are open in the child too."""
        self._recorder.view.event(time.time(), Left(run=self._record.id))
        self._recorder.view.close()
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of a session's first process hangs up on the others
        self._store.close()  # the next use opens it again: SQLite must not be open across a fork
        if os.fork():
            os._exit(0)
        os.setsid()
        asyncio._set_running_loop(loop)  # asyncio remembers in which process a loop runs
        self._left = True
        self._lock.claim()
        self._go_dark((0, 1, 2))
        self._recorder.update(time.time(), pid=os.getpid(), detached=True)

    def _go_dark(self, streams: Sequence[int]) -> None:
        """Do without these; after a hang-up what goes to a file goes on."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self._is_dark:
            return
        self._is_dark = True
        self._terminal = False
        self._expect_no_answer()
        if 1 in streams:
            with contextlib.suppress(OSError):
                self._recorder.view.close()
            self._recorder.view = Unwatched()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in streams:
            os.dup2(nowhere, fd)
        os.close(nowhere)


def main(home: str, run_id: str, mode: str) -> int:
    """The background manager."""
    store = Store.open(Path(home))
    record = store.run(run_id)
    spec = recorded_spec(record.spec)
    if mode == "adopt":
        session = _adopting(store, record, spec, Unwatched(), terminal=False)
    else:
        program, packed = pack_program(spec, lambda text: None)
        session = Session(store, record, spec, program, Unwatched(), terminal=False, packed=packed)
    try:
        outcome = session.run(0 if mode == "lifeline" else None)
    except PumasiError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return outcome.verdict.exit_code if outcome else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
