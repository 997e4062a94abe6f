"""A manager in this process: `pumasi run`, at a terminal or not, and the manager in the background.

attached     Ctrl-C asks whether to stop or to leave the run running; a lost terminal leaves it running
background   SIGTERM stops the run, SIGUSR1 at once
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from pumasi.core.events import Left, Note, StopAsked
from pumasi.core.outcome import Outcome, Verdict
from pumasi.errors import ClusterTrouble, PumasiError, SystemTrouble
from pumasi.pools import pool_named, pool_of
from pumasi.pools.base import Request
from pumasi.pools.processes import bury
from pumasi.runs.adoption import left_behind
from pumasi.runs.manager import Manager
from pumasi.runs.prepare import adopted, interrupted, new_record, prepare
from pumasi.runs.recorder import Recorder, Unwatched, View
from pumasi.store import RunRecord, Store

if TYPE_CHECKING:
    from pumasi.core.spec import Spec
    from pumasi.runs.foreground import Foreground
    from pumasi.runs.prepare import Prepared

QUESTION = "[s]top it, [l]eave it running, or go on? Type s, l or nothing, then Enter. (Ctrl-C again stops it.)"


def run(store: Store, spec: Spec, view: View, *, foreground: Foreground | None = None) -> Outcome | None:
    """Run it here and now. None: the user has left it running in the background, which only a user at a terminal can
    do, where the process has a `foreground`."""
    prepared = prepare(spec, store.home, lambda text: view.event(time.time(), Note(text=text)))
    left = interrupted(store, prepared.spec)
    if left is not None and pool_named(spec.on).outlives_manager:
        prepared = adopted(prepared.spec, left.id)
    with _interrupts_held():
        record = left or new_record(store, prepared.spec, prepared.program.framework, detached=False)
        session = Session(store, record, prepared, view, foreground=foreground)
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
        if store.run(record.id).ended is None and (left is None or not pool_of(left).outlives_manager):
            bury(store, record, "stopped", 5, "Stopped on request.")
        return Outcome(Verdict.STOPPED, "Stopped on request.")


def _has_terminal() -> bool:
    """Whether this process belongs to a terminal, wherever its streams go."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


class Session:
    """One manager, with what it hears from its user and from other processes."""

    def __init__(
        self, store: Store, record: RunRecord, prepared: Prepared, view: View, *, foreground: Foreground | None = None
    ) -> None:
        self._store = store
        self._record = record
        self._prepared = prepared
        self._foreground = foreground
        self._terminal = foreground is not None
        # Asked now: a terminal that has hung up does not say any more that it is one.
        self._terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]
        self._may_lose_terminal = bool(self._terminals) or _has_terminal()
        self._hung_up = False
        self._is_dark = False
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
        with self._store.lock(self._record.id):
            self._recorder.update(time.time(), pid=os.getpid())
            try:
                outcome = asyncio.run(self._run(lifeline))
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None
            self._store.mark_complete(self._record.id)
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
        if self._foreground is not None:
            loop.add_reader(self._foreground.lifeline, os.kill, os.getpid(), signal.SIGKILL)
        record, prepared = self._record, self._prepared
        request = Request(
            run=record.id,
            spec=prepared.spec,
            program=prepared.program,
            home=self._store.home,
            fields=record.copied(),
            packed=prepared.packed,
            say=lambda text: self._recorder.event(time.time(), Note(text=text)),
        )
        self._opening = asyncio.current_task()
        async with pool_named(prepared.spec.on).open(request, adopt=prepared.is_adopted) as runner:
            self._opening = None
            if runner.user:
                self._recorder.update(time.time(), user=runner.user)
            self._recorder.copy = runner.copy
            runner.found = runner.found or left_behind(self._store, record)
            folder = runner.folder(self._store.folder(record.id))
            manager = Manager(record.id, folder, prepared.spec, prepared.program, runner, self._recorder)
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
        """Go on without a terminal, and end the process that the shell waits for."""
        assert self._foreground is not None
        self._recorder.view.event(time.time(), Left(run=self._record.id))
        self._recorder.view.close()
        asyncio.get_running_loop().remove_reader(self._foreground.lifeline)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of a session's first process hangs up on the others
        os.setsid()
        self._go_dark((0, 1, 2))
        self._recorder.update(time.time(), detached=True)
        self._foreground.release()

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
