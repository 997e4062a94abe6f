"""Breaks a cluster for real. What breaks it undoes itself, and waits until the cluster is well again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from tests.cluster.subject import Kubernetes, Namespace
from tools.cluster.cluster import Cluster
from tools.cluster.machine import Machine
from tools.common import ToolError

# Most of it at once, and the rest until there is no more.
FILL = """
fallocate -l "$(($(stat -f -c '%a * %S' /var/lib) - 8000000))" /var/lib/filler.0
cat /dev/zero > /var/lib/filler.1 2> /dev/null || true
"""
Breaker = Callable[[Kubernetes, str, str], AbstractContextManager[None]]


def own(kubernetes: Kubernetes) -> Cluster:
    assert kubernetes.own is not None, "only a cluster of our own is ours to break"
    return kubernetes.own


@contextmanager
def killed(kubernetes: Kubernetes, machine: str, program: str) -> Iterator[None]:
    """The machine is a node's name or `control`; the program is kubelet, containerd, kube-apiserver, etcd, …"""
    cluster = own(kubernetes)
    where = cluster.machine(machine)
    try:
        where.kill(program)
        yield
    finally:
        _start_again(cluster, where, program)


def _start_again(cluster: Cluster, machine: Machine, program: str) -> None:
    """As whoever watches over such programs does: also if it ends again before it is well, which an API server does
    when it has to wait too long for etcd."""
    for left in reversed(range(3)):
        if not machine.find(program):
            cluster.start(machine, program)
        try:
            cluster.recover()
            return
        except ToolError:
            if not left or machine.find(program):
                raise


@contextmanager
def frozen(kubernetes: Kubernetes, machine: str, program: str) -> Iterator[None]:
    """The process is there and keeps its connections, and answers nothing."""
    cluster = own(kubernetes)
    where = cluster.machine(machine)
    try:
        where.signal(program, signal.SIGSTOP)
        yield
    finally:
        where.signal(program, signal.SIGCONT)
        cluster.recover()


@contextmanager
def cut_off(kubernetes: Kubernetes, node: str) -> Iterator[None]:
    """The node's cable is out: it lives on, alone."""
    cluster = own(kubernetes)
    try:
        cluster.control.run("ip", "link", "set", node, "down")
        yield
    finally:
        cluster.control.run("ip", "link", "set", node, "up")
        cluster.recover()


@contextmanager
def powered_off(kubernetes: Kubernetes, node: str) -> Iterator[None]:
    """The node's plug is pulled: all its processes are gone at once; its disk is there when it boots again."""
    cluster = own(kubernetes)
    try:
        cluster.power_off(node)
        yield
    finally:
        if not cluster.machine(node).pid:
            cluster.boot(node)
            cluster.join(node)
        cluster.recover()


@contextmanager
def full_disk(kubernetes: Kubernetes, node: str) -> Iterator[None]:
    """Not a byte is free on the disk where the node keeps volumes, logs and containers."""
    cluster = own(kubernetes)
    machine = cluster.machine(node)
    try:
        machine.run("sh", "-c", FILL)
        yield
    finally:
        machine.run("sh", "-c", "rm -f /var/lib/filler.*")
        cluster.recover()


@contextmanager
def cordoned(kubernetes: Kubernetes, node: str) -> Iterator[None]:
    try:
        kubernetes.kubectl("cordon", node)
        yield
    finally:
        kubernetes.kubectl("uncordon", node)


@contextmanager
def drained(kubernetes: Kubernetes, node: str) -> Iterator[None]:
    try:
        kubernetes.kubectl(
            "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--grace-period=1"
        )
        yield
    finally:
        kubernetes.kubectl("uncordon", node)


@contextmanager
def tainted(kubernetes: Kubernetes, node: str, taint: str) -> Iterator[None]:
    """`taint` as kubectl has it: KEY=VALUE:EFFECT"""
    kubernetes.kubectl("taint", "node", node, taint)
    try:
        yield
    finally:
        kubernetes.kubectl("taint", "node", node, f"{taint}-")


def evict(namespace: Namespace, pod: str) -> None:
    """As a drain or an autoscaler does."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace.name}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.cluster.kubectl("create", "--raw", path, "-f", "-", feed=json.dumps(eviction))


def kill_pod(namespace: Namespace, pod: str) -> None:
    """kill -9 for every process in the pod's containers."""
    for pid in namespace.processes(pod):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
