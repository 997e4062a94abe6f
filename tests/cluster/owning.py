"""A cluster that lives as long as the process that asked for it, however that process ends."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tools.cluster import making
from tools.cluster.blueprint import Blueprint
from tools.cluster.cluster import Cluster
from tools.common import CHECKOUT, locked


def session_name() -> str:
    """One for each checkout, and for each process of its test session."""
    digest = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
    return f"test-{digest}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@contextmanager
def own_cluster(blueprint: Blueprint) -> Iterator[Cluster]:
    """A keeper waits for the end of its input, which ends with this process at the latest, and takes the cluster down.
    It holds the session's lock too: the next session of this checkout begins when the keeper has done its work."""
    with locked(
        f"{blueprint.name}.session", 240, lambda: say("waiting for another session of this checkout …")
    ) as lock:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tools.cluster", "down", "--name", blueprint.name, "--after-input"],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )
        try:
            Cluster(blueprint.name).down()
            yield making.up(blueprint, say)
        finally:
            keeper.communicate(timeout=60)
            if keeper.returncode:
                Cluster(blueprint.name).down()
        assert keeper.returncode == 0, "the keeper did not do its work"


def say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr)
