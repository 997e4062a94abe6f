"""The conformance suite of a pool from outside: whoever writes one subclasses `PoolLifeContract` and names the pool.

    class TestMyPool(PoolLifeContract):
        on = "mine"

Runs are started for real, so the place has to be reachable. What a manager needs of a pool is in `testing.pools`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pumasi.core.frames import OpenLines
from pumasi.errors import NotFound, UsageError
from pumasi.pools import pool_named, pool_of
from pumasi.runs import background, control
from pumasi.runs.config import build_spec
from pumasi.store import RunRecord, Store

SECONDS = 120.0
HELLO = "print('hello', flush=True)\n"
SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
FAIL = "import sys\nsys.exit(3)\n"


class Watcher:
    """A view that remembers."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.text = b""
        self._lines = OpenLines()

    def event(self, at: float, event: Any) -> None:
        self.kinds.append(type(event).__name__)

    def output(self, frames: Any) -> None:
        self.text += b"".join(frame.text + frame.end for frame in self._lines.closing([*frames]))

    def reading(self, rank: int, reading: Any) -> None: ...

    def ask(self, question: str) -> None: ...

    def close(self) -> None: ...


class PoolLifeContract:
    """`on` is what --on takes; `options` is what a run needs there besides, such as an image."""

    on: str
    options: Mapping[str, object] = {}

    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setenv("PUMASI_HOME", str(tmp_path / "home"))
        store = Store.open(tmp_path / "home")
        yield store
        for record in store.runs():
            control.delete(store, record, force=True, tell=lambda text: None)

    def start(self, store: Store, folder: Path, script: str) -> RunRecord:
        (folder / "train.py").write_text(script)
        asked = {"command": ["train.py"], "on": self.on, "grace": "2s", **self.options}
        return background.detach(store, build_spec(asked, folder, os.environ))

    def until_it_says(self, store: Store, record: RunRecord, word: bytes) -> None:
        """From the beginning of its output on, whatever was read before."""
        log, text = store.follow_log(record.id), b""
        with control.kept_up(store, record) as check:
            while word not in text:
                check()
                text += b"".join(frame.text for frame in log.read())

    def test_a_run_goes_on_by_itself_and_is_known_by_its_pool(self, store: Store, tmp_path: Path) -> None:
        record = self.start(store, tmp_path, HELLO)
        assert pool_of(record) is pool_named(self.on)
        ended = control.wait(store, record.id, SECONDS)
        assert (ended.state, ended.exit_code) == ("done", 0)
        assert control.find(store, record.id).state == "done"

    def test_how_it_ended_is_known(self, store: Store, tmp_path: Path) -> None:
        ended = control.wait(store, self.start(store, tmp_path, FAIL).id, SECONDS)
        assert (ended.state, ended.exit_code) == ("failed", 1)

    def test_events_and_output_are_followed_to_the_end_and_read_again_later(self, store: Store, tmp_path: Path) -> None:
        record = self.start(store, tmp_path, HELLO)
        live, later = Watcher(), Watcher()
        assert control.follow(store, record.id, live).state == "done"
        assert control.follow(store, record.id, later).state == "done"
        assert live.text == later.text == b"hello\n"
        assert live.kinds[-1] == later.kinds[-1] == "Finished"

    @pytest.mark.parametrize("force", [False, True])
    def test_a_run_is_stopped_by_whoever_asks(self, store: Store, tmp_path: Path, force: bool) -> None:
        record = self.start(store, tmp_path, SLEEP)
        self.until_it_says(store, record, b"ready")
        ended = control.stop(store, control.find(store, record.id), force=force, tell=lambda text: None)
        assert (ended.state, ended.exit_code) == ("stopped", 5)

    def test_who_waits_does_so_for_as_long_as_they_like(self, store: Store, tmp_path: Path) -> None:
        record = self.start(store, tmp_path, SLEEP)
        with pytest.raises(TimeoutError):
            control.wait(store, record.id, 0.0)

    def test_only_an_ended_run_is_removed_without_force(self, store: Store, tmp_path: Path) -> None:
        record = self.start(store, tmp_path, SLEEP)
        self.until_it_says(store, record, b"ready")
        with pytest.raises(UsageError, match="is still"):
            control.delete(store, record, force=False, tell=lambda text: None)
        control.delete(store, record, force=True, tell=lambda text: None)
        with pytest.raises(NotFound):
            store.run(record.id)
