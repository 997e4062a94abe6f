"""The command line, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pumasi.cli.main import main
from pumasi.store import Store

Answer = tuple[int, str, str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PUMASI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    return Store.open(tmp_path / "home")


@pytest.fixture
def pumasi(store: Store, capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def call(*words: str) -> Answer:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return call
