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
from tools.cluster.locks import locked
from tools.common import CHECKOUT


def session_name() -> str:
    """One for each checkout, and for each process of its test session."""
    digest = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]
    return f"test-{digest}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@contextmanager
def own_cluster(blueprint: Blueprint) -> Iterator[Cluster]:
    """A keeper waits for the end of its input, which ends with this process at the latest, and takes the cluster down.
    A second session of the same checkout waits for the first."""
    with locked(f"{blueprint.name}.session", seconds=3600):
        down = [sys.executable, "-m", "tools.cluster", "down", "--name", blueprint.name, "--after-input"]
        keeper = subprocess.Popen(
            down, cwd=CHECKOUT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield making.up(blueprint, lambda text: print(f"cluster: {text}", file=sys.stderr))
        finally:
            _, complaint = keeper.communicate(timeout=60)
        assert keeper.returncode == 0, complaint
