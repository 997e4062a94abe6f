"""One cluster for the session, one namespace for each test, and a look at what a test has left behind."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.owning import own_cluster, session_name
from tests.cluster.subject import EXISTING, Kubernetes, Namespace, existing_kubeconfig
from tests.harness import wait_for
from tools.cluster.blueprint import Blueprint

HERE = Path(__file__).parent
LEFT_OUT = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
    yield
    if existing_kubeconfig():
        owning = [item for item in items if item.get_closest_marker("own")]
        config.stash[LEFT_OUT] = [item.nodeid for item in owning]
        config.hook.pytest_deselected(items=owning)
        items[:] = [item for item in items if item not in owning]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if names := config.stash.get(LEFT_OUT, []):
        terminalreporter.section("left out")
        terminalreporter.write_line(
            f"{EXISTING} names a cluster that is not ours. Not run, because they break nodes or count on GPUs:"
        )
        for name in names:
            terminalreporter.write_line(f"  {name}")


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Kubernetes]:
    if found := existing_kubeconfig():
        kubectl = shutil.which("kubectl")
        assert kubectl, f"{EXISTING} is set, and there is no kubectl on the PATH"
        yield Kubernetes(found, kubectl, own=None)
        return
    with own_cluster(Blueprint(name=session_name())) as cluster:
        yield Kubernetes(cluster.kubeconfig, str(cluster.folder / "kubectl"), cluster)


@contextmanager
def fresh_namespace(kubernetes: Kubernetes) -> Iterator[Namespace]:
    """A test fails that leaves anything outside of its namespace, or in it what can't be cleared away. In a cluster
    that others use as well, only what belongs to the namespace can be told from what is theirs."""
    before = kubernetes.footprint() if kubernetes.own else {}
    place = Namespace(f"test-{secrets.token_hex(4)}", kubernetes)
    try:
        place.open()
        yield place
    finally:
        place.close()
    if kubernetes.own:
        # A busy machine's nodes may be late to say that they are well, and its controllers to take away.
        with suppress(AssertionError):
            wait_for(lambda: kubernetes.footprint() == before, "the cluster to be as it was")
        assert kubernetes.footprint() == before


@pytest.fixture
def namespace(kubernetes: Kubernetes) -> Iterator[Namespace]:
    with fresh_namespace(kubernetes) as place:
        yield place


@pytest.fixture(scope="module")
def shared_namespace(kubernetes: Kubernetes) -> Iterator[Namespace]:
    """For tests that do not disturb each other: to empty a namespace takes six seconds."""
    with fresh_namespace(kubernetes) as place:
        yield place
