"""A cluster that lives: holding it, breaking it, taking it down.

The cluster is one machine, with the control plane in it, and in that one machine for each node. Its folder lies outside
the checkout and is named after it: keys, logs, etcd's data, the nodes' disks, volumes. To take a cluster down is to
pull the outer machine's plug and to remove its control groups and its folder; that works at any moment of its life.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tools.cluster import blueprint as plans
from tools.cluster import keys
from tools.cluster.blueprint import Addresses, Blueprint
from tools.cluster.cgroups import Group
from tools.cluster.machine import Machine
from tools.common import CLUSTERS, Say, ToolError, locked, search_path, until

CTR = (f"{plans.PROGRAMS}/ctr", "--namespace", "k8s.io")

# In a node: a /run and a disk of its own. $1 the node's name.
NODE_MOUNTS = """
mkdir -p /tmp/$1
mount -t tmpfs -o mode=755 run /tmp/$1
mkdir -p /tmp/$1/pumasi /tmp/$1/lock
mount --rbind /run/pumasi /tmp/$1/pumasi
mount --no-mtab --move /tmp/$1 /run
rmdir /tmp/$1
mount -o loop /run/pumasi/cluster/$1/disk /var/lib
mkdir -p /var/lib/log /var/lib/cni/conf
mount --bind /var/lib/log /var/log
cp /run/pumasi/cluster/$1/pods.conflist /var/lib/cni/conf
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


class Cluster:
    def __init__(self, name: str, say: Say = lambda _: None) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name):
            raise ToolError(f"{name!r} can't be a cluster's name: small letters, digits and dashes, 31 at the most")
        os.environ["PATH"] = search_path()
        self.name = name
        self.say = say
        self.folder = CLUSTERS / name
        # Whoever has another home has other clusters, of the same names perhaps.
        self.identity = f"{name}-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:6]}"
        self.group = Group(f"pumasi-{self.identity}")
        self.control = Machine("control", self.folder, Group(f"{self.group.path}/system"))

    @property
    def kubeconfig(self) -> Path:
        return keys.kubeconfig_of(self.folder / "keys", plans.ADMIN)

    @property
    def kubectl_cache(self) -> Path:
        """What kubectl remembers of a cluster it remembers by address, and the next cluster may have the same."""
        return self.folder / "kubectl-cache"

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint.from_json((self.folder / "blueprint.json").read_text())

    @property
    def addresses(self) -> Addresses:
        return Addresses(int((self.folder / "index").read_text()))

    @property
    def programs(self) -> Path:
        return (self.folder / "kubectl").readlink().parent

    @property
    def is_whole(self) -> bool:
        return bool((self.folder / "whole").exists() and self.control.pid)

    def machine(self, name: str) -> Machine:
        """A node, or `control`."""
        if name == self.control.name:
            return self.control
        return Machine(name, self.folder, self.control.group, outer=self.control)

    def kubectl(self, *arguments: str, feed: str = "") -> str:
        command = [str(self.folder / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        environ = {**os.environ, "KUBECACHEDIR": str(self.kubectl_cache)}
        try:
            result = subprocess.run(command, input=feed, capture_output=True, text=True, timeout=120, env=environ)
        except subprocess.TimeoutExpired:
            raise ToolError(f"kubectl {' '.join(arguments)}: no answer") from None
        if result.returncode:
            raise ToolError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()[-2000:]}")
        return result.stdout

    def alone(self) -> AbstractContextManager[object]:
        waiting = f"the cluster {self.name} is being brought up or taken down by another process; waiting …"
        return locked(self.identity, 300, lambda: self.say(waiting))

    def down(self) -> bool:
        """Whether there was anything to take down."""
        with self.alone():
            found = self.folder.exists() or bool(self.group.folders())
            self.remove()
            return found

    def remove(self) -> None:
        """For whoever holds the lock."""
        self.control.pull_plug()
        self.group.remove()
        if (self.folder / "index").exists():
            link = self.addresses.link
            until(lambda: _unplugged(link), f"the link {link} to go", seconds=60)
        disks = list(self.folder.glob("*/disk"))
        until(lambda: not any(map(in_use, disks)), "the nodes' disks to be given back", seconds=60)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def start(self, machine: Machine, program: str) -> None:
        """A part of Kubernetes, on the machine where it belongs."""
        if machine.name == self.control.name:
            parts = plans.control_parts(self.blueprint, self.addresses)
        else:
            parts = plans.node_parts(self.blueprint, self.addresses, machine.name)
        machine.start(*parts[program])

    def boot(self, name: str) -> None:
        """A new node, or one that was powered off: its disk is as it was."""
        addresses, node = self.addresses, self.machine(name)
        index = self.blueprint.nodes.index(name)
        node.boot(Path(plans.PROGRAMS) / "init")
        node.run("sh", "-euc", NODE_MOUNTS, "sh", name)
        cable = [
            f"link add {name} type veth peer name eth0 netns {node.pid_inside_outer}",
            f"link set {name} master nodes up",
            f"route replace {plans.pods_of(index)} via {addresses.node(index)}",
        ]
        self.control.run("ip", "-batch", "-", feed="\n".join(cable))
        others = [other for other in range(len(self.blueprint.nodes)) if other != index]
        network = [
            "link set lo up",
            f"addr add {addresses.node(index)}/24 dev eth0",
            "link set eth0 up",
            f"route add {plans.SERVICES} via {addresses.control}",
            *(f"route add {plans.pods_of(other)} via {addresses.node(other)}" for other in others),
        ]
        node.run("ip", "-batch", "-", feed="\n".join(network))
        log = node.log_of("containerd")
        before = log.stat().st_size if log.exists() else 0
        self.start(node, "containerd")
        # A kubelet that finds no containerd, or one that is not ready, gives up.
        self.await_part(node, "containerd", lambda: b"successfully booted" in log.read_bytes()[before:])

    def join(self, name: str) -> None:
        """The node tells the API server that it is there."""
        node = self.machine(name)
        self.start(node, "kubelet")
        self.start(node, "kube-proxy")

    def power_off(self, name: str) -> None:
        """At once, and without a word to anybody."""
        self.machine(name).pull_plug()
        until(lambda: self._is_unplugged(name), f"the link of {name} to go", seconds=60)
        until(lambda: not in_use(self.folder / name / "disk"), f"the disk of {name} to be given back", seconds=60)

    def _is_unplugged(self, name: str) -> bool:
        """The kernel removes a dead node's link too, in its own time."""
        self.control.run("sh", "-c", 'ip link delete "$1" 2> /dev/null || true', "sh", name)
        links = Path(f"/proc/{self.control.pid}/net/dev").read_text()
        return not re.search(rf"^\s*{name}:", links, re.MULTILINE)

    def recover(self) -> None:
        """Waits until all is well after something was broken."""
        self.await_api()
        self.await_nodes()

    def await_api(self) -> None:
        self.await_part(self.control, "kube-apiserver", self._api_is_ready)

    def await_part(self, machine: Machine, program: str, met: Callable[[], bool], every: float = 0.05) -> None:
        """Waits for what a program is to do; where it fails, the program's own last words are told."""

        def met_while_it_lives() -> bool:
            if not machine.find(program):
                raise ToolError("it ended")
            return met()

        try:
            until(met_while_it_lives, "it to answer", seconds=120, every=every)
        except ToolError as trouble:
            words = machine.log_of(program).read_text(errors="replace")[-1500:]
            raise ToolError(f"{program} on {machine.name}: {trouble}\n{words}") from None

    def _api_is_ready(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
        direct, secure = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        opener = urllib.request.build_opener(direct, secure)
        try:
            with opener.open(f"{self.addresses.server}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def await_nodes(self) -> None:
        until(self._nodes_are_well, "the nodes to be ready, with their GPUs", seconds=120, every=0.2)

    def _nodes_are_well(self) -> bool:
        """Declares the GPUs of those that do not have them yet, or not any more."""
        items = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        found = {item["metadata"]["name"]: item for item in items}
        for name, count in zip(self.blueprint.nodes, self.blueprint.gpus, strict=True):
            if name in found and found[name]["status"]["capacity"].get(plans.GPU, "0") != str(count):
                self._declare_gpus(name, count)
        return all(name in found and is_well(found[name]) for name in self.blueprint.nodes)

    def _declare_gpus(self, node: str, count: int) -> None:
        amount = {plans.GPU: str(count)}
        patch = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)

    def processes_of(self, container: str) -> set[int]:
        """Of one container, by its id: its control group has that name."""
        return self.group.processes_of(container)

    def living_containers(self, namespace: str) -> list[str]:
        """Of one namespace's pods, as the nodes see them, whatever the API says."""
        found = []
        for name in self.blueprint.nodes:
            node = self.machine(name)
            known = node.run(*CTR, "containers", "list", "-q", f'labels."io.kubernetes.pod.namespace"=={namespace}')
            living = node.run(*CTR, "tasks", "list", "-q")
            found += sorted(set(known.split()) & set(living.split()))
        return found

    def memory(self) -> int:
        """Bytes that its processes hold, shared pages counted once."""
        return sum(_proportional_memory(pid) for pid in self.group.processes())


def is_well(node: dict[str, Any]) -> bool:
    """Ready, under no pressure, and nothing of an illness has stayed as a taint. Cordoned is not ill."""
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    pressed = any(status != "False" for kind, status in conditions.items() if kind != "Ready")
    taints = {taint["key"] for taint in node["spec"].get("taints", [])} - {"node.kubernetes.io/unschedulable"}
    ill = any(key.startswith("node.kubernetes.io/") for key in taints)
    return conditions.get("Ready") == "True" and not pressed and not ill


def _unplugged(link: str) -> bool:
    """The kernel removes it too, in its own time."""
    subprocess.run(["ip", "link", "delete", link], capture_output=True, timeout=60)
    return not (Path("/sys/class/net") / link).exists()


def in_use(disk: Path) -> bool:
    """Whether a loop device stands on this file. Its path is another one inside a machine; its inode is the same."""
    listed = ["losetup", "--list", "--noheadings", "--output", "BACK-INO"]
    inodes = subprocess.run(listed, capture_output=True, text=True, timeout=60).stdout.split()
    return str(disk.stat().st_ino) in inodes


def _proportional_memory(pid: int) -> int:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.split("Pss:")[1].split()[0]) * 1024
    return 0
