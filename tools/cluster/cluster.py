"""A cluster from the outside: bringing it up, holding it, taking it down.

The cluster is one machine, with the control plane in it, and in that one machine for each node. Its folder lies outside
the checkout and is named after it: keys, logs, etcd's data, the nodes' disks, volumes. To take a cluster down is to
pull the outer machine's plug, to remove its control groups and its folder; that works at any moment of its life.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import platform
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tools.cluster import blueprint as plans
from tools.cluster import images, keys, programs
from tools.cluster.blueprint import Addresses, Blueprint
from tools.cluster.cgroups import Group
from tools.cluster.errors import ClusterError
from tools.cluster.locks import locked
from tools.cluster.machine import Machine
from tools.cluster.waiting import until
from tools.common import CACHE, CHECKOUT, search_path

CLUSTERS = CACHE / "clusters"
DISK = 4 << 30
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl", "/etc/ld.so.cache")

CTR = (f"{plans.PROGRAMS}/ctr", "--namespace", "k8s.io")

# In the control machine, before anything else: what is needed of the outside moves under /run/pumasi, then the outside
# can't be written any more. $1 programs, $2 folder, then the shares.
CONTROL_MOUNTS = """
mount -t tmpfs -o mode=755 run /mnt
mkdir -p /mnt/pumasi/programs /mnt/pumasi/cluster /mnt/pumasi/shares /mnt/lock
mount --rbind "$1" /mnt/pumasi/programs
mount --rbind "$2" /mnt/pumasi/cluster
shift 2
index=0
for share in "$@"; do
    if [ -d "$share" ]; then mkdir /mnt/pumasi/shares/$index; else touch /mnt/pumasi/shares/$index; fi
    mount --rbind "$share" /mnt/pumasi/shares/$index
    index=$((index + 1))
done
mount --no-mtab --move /mnt /run
mount -t tmpfs -o mode=1777 tmp /tmp
mkdir /run/pumasi/cluster/volumes /tmp/hostpath_pv
mount --bind /run/pumasi/cluster/volumes /tmp/hostpath_pv
mount -o remount,bind,ro /
echo 1 > /proc/sys/net/ipv4/ip_forward
"""

# In a node: a /run and a disk of its own. $1 the node's name.
NODE_MOUNTS = """
mount -t tmpfs -o mode=755 run /mnt
mkdir -p /mnt/pumasi /mnt/lock
mount --rbind /run/pumasi /mnt/pumasi
mount --no-mtab --move /mnt /run
mount -o loop /run/pumasi/cluster/$1/disk /var/lib
mkdir -p /var/lib/log /var/lib/cni/conf
mount --bind /var/lib/log /var/log
cp /run/pumasi/cluster/$1/pods.conflist /var/lib/cni/conf
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


class Cluster:
    """`say` tells a person what goes on."""

    def __init__(self, name: str, say: Callable[[str], None] = lambda _: None) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name):
            raise ClusterError(f"{name!r} can't be a cluster's name: small letters, digits and dashes, 31 at the most")
        os.environ["PATH"] = search_path()
        self.name = name
        self.say = say
        self.folder = CLUSTERS / name
        self.group = Group(f"pumasi-{name}")
        self.control = Machine("control", self.folder, Group(f"{self.group.path}/system"))

    @property
    def kubeconfig(self) -> Path:
        return keys.kubeconfig_of(self.folder / "keys", plans.ADMIN)

    @property
    def blueprint(self) -> Blueprint:
        return Blueprint.from_json((self.folder / "blueprint.json").read_text())

    @property
    def addresses(self) -> Addresses:
        return Addresses(int((self.folder / "index").read_text()))

    @property
    def nodes(self) -> list[Machine]:
        return [self.node(name) for name in self.blueprint.nodes]

    def node(self, name: str) -> Machine:
        return Machine(name, self.folder, self.control.group, outer=self.control)

    def machine(self, name: str) -> Machine:
        return self.control if name == self.control.name else self.node(name)

    @property
    def is_whole(self) -> bool:
        return bool((self.folder / "whole").exists() and self.control.pid)

    def kubectl(self, *arguments: str, feed: str = "") -> str:
        command = [str(self.folder / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        result = subprocess.run(command, input=feed, capture_output=True, text=True)
        if result.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {result.stderr.strip()[-2000:]}")
        return result.stdout

    def up(self, blueprint: Blueprint) -> None:
        check_machine()
        folder = programs.ensure(self.say)
        with self._alone():
            if self.is_whole:
                self._must_be_like(blueprint)
                return
            self._remove()
            try:
                self._build(blueprint, folder)
            except BaseException:
                self.say("it does not come up; taking it down …")
                with _uninterrupted():
                    try:
                        self._remove()
                    except ClusterError as trouble:
                        self.say(str(trouble))
                raise

    def down(self) -> bool:
        """Whether there was anything to take down."""
        with self._alone():
            found = self.folder.exists() or bool(self.group.folders())
            self._remove()
            return found

    def processes(self) -> set[int]:
        return self.group.processes()

    def processes_of(self, container: str) -> set[int]:
        """Of one container, by its id."""
        found: set[int] = set()
        for folder in self.group.folders():
            for file in folder.rglob(f"{container}/cgroup.procs"):
                found.update(int(pid) for pid in file.read_text().split())
        return found

    def living_containers(self, namespace: str) -> list[str]:
        """Of one namespace's pods, as the nodes see them, whatever the API says."""
        found = []
        for node in self.nodes:
            known = node.run(*CTR, "containers", "list", "-q", f'labels."io.kubernetes.pod.namespace"=={namespace}')
            living = node.run(*CTR, "tasks", "list", "-q")
            found += sorted(set(known.split()) & set(living.split()))
        return found

    def recover(self) -> None:
        """Waits until all is well after something was broken."""
        self.await_api()
        self.await_nodes()

    def memory(self) -> int:
        """Bytes that its processes hold, shared pages counted once."""
        return sum(_proportional_memory(pid) for pid in self.processes())

    def _alone(self) -> AbstractContextManager[None]:
        waiting = f"the cluster {self.name} is being brought up or taken down by another process; waiting …"
        return locked(self.name, 300, lambda: self.say(waiting))

    def _must_be_like(self, blueprint: Blueprint) -> None:
        if self.blueprint != blueprint:
            raise ClusterError(
                f"the cluster {self.name} is up already, with other settings: {self.blueprint.as_json()}. "
                "Take it down first, or give the new one another name"
            )
        self.say("is up already")

    def _build(self, blueprint: Blueprint, programs_folder: Path) -> None:
        started = time.monotonic()

        def step(text: str) -> None:
            self.say(f"{time.monotonic() - started:5.1f} s  {text}")

        self._lay_out(blueprint, programs_folder)
        self.group.make()
        self.control.group.make()
        shares = list(dict.fromkeys(shared_folders()))
        self.control.boot(programs_folder / "init")
        self.control.run("sh", "-euc", CONTROL_MOUNTS, "sh", str(programs_folder), str(self.folder), *shares)
        self._wire_control()
        self.start(self.control, "etcd")
        self.start(self.control, "kube-apiserver")
        self._write_runtime_spec(shares)
        step("control plane started")
        self._on_every_node(self._boot_node)
        step(f"{len(blueprint.gpus)} nodes booted")
        self.await_api()
        step("API server answers")
        self.start(self.control, "kube-controller-manager")
        self.start(self.control, "kube-scheduler")
        self.kubectl("create", "--validate=false", "-f", "-", feed=_list(plans.first_objects()))
        self.start(self.control, "coredns")
        self._on_every_node(self._load_images)
        self._on_every_node(self._start_kubelet)
        self.await_nodes()
        step("nodes are ready")
        if blueprint.simulated:
            self._simulate()
            step(f"{blueprint.simulated} simulated nodes are ready")
        until(self._first_account, "the first service account", seconds=30)
        (self.folder / "whole").touch()
        step("up")

    def _lay_out(self, blueprint: Blueprint, programs_folder: Path) -> None:
        self.folder.mkdir(mode=0o700, parents=True)
        addresses = self._claim_addresses()
        (self.folder / "blueprint.json").write_text(blueprint.as_json())
        (self.folder / "kubectl").symlink_to(programs_folder / "kubectl")
        names = [addresses.control, plans.API_SERVICE, "127.0.0.1"]
        keys.make(self.folder / "keys", addresses.server, names, plans.users(blueprint))
        shutil.copy(Path(__file__).with_name("kwok.yaml"), self.folder)
        (self.folder / "Corefile").write_text(plans.corefile(addresses))
        (self.folder / "containerd.toml").write_text(plans.containerd_config(str(programs.cni_folder())))
        self._write_images(programs_folder / "init")
        for index, name in enumerate(blueprint.nodes):
            node = self.folder / name
            node.mkdir()
            group = Group(f"{self.group.path}/{name}")
            group.make()
            (node / "kubelet.json").write_text(json.dumps(plans.kubelet_config(group.path, addresses)))
            (node / "kube-proxy.json").write_text(json.dumps(plans.kube_proxy_config(name)))
            (node / "pods.conflist").write_text(json.dumps(plans.cni_config(index)))
            with (node / "disk").open("wb") as disk:
                disk.truncate(DISK)
            _call("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(node / "disk"))

    def _claim_addresses(self) -> Addresses:
        """The lowest network that no other cluster has and no route of this machine crosses."""
        with locked("addresses", 60):
            taken = {int(file.read_text()) for file in CLUSTERS.glob("*/index")}
            routes = [ipaddress.ip_network(route, strict=False) for route in _routes()]
            for index in range(256):
                network = ipaddress.ip_network(Addresses(index).network)
                if index not in taken and not any(network.overlaps(route) for route in routes):
                    (self.folder / "index").write_text(str(index))
                    return Addresses(index)
        raise ClusterError("all networks from 10.88.0.0/24 to 10.88.255.0/24 are taken on this machine")

    def _wire_control(self) -> None:
        addresses = self.addresses
        link = addresses.link
        _call("ip", "link", "add", link, "type", "veth", "peer", "name", "outside", "netns", str(self.control.pid))
        _call("ip", "addr", "add", f"{addresses.outside}/24", "dev", link)
        _call("ip", "link", "set", link, "up")
        lines = [
            "link set lo up",
            "link add nodes type bridge",
            f"addr add {addresses.control}/24 dev nodes",
            "link set nodes up",
            "link set outside master nodes up",
        ]
        self.control.run("ip", "-batch", "-", feed="\n".join(lines))

    def _write_runtime_spec(self, shares: list[str]) -> None:
        plain = json.loads(self.control.run(f"{plans.PROGRAMS}/ctr", "oci", "spec"))
        (self.folder / "spec.json").write_text(json.dumps(plans.runtime_spec(plain, shares)))

    def _boot_node(self, index: int) -> None:
        addresses = self.addresses
        name = self.blueprint.nodes[index]
        node = self.node(name)
        node.boot(Path(plans.PROGRAMS) / "init")
        node.run("sh", "-euc", NODE_MOUNTS, "sh", name)
        peer = f"link add {name} type veth peer name eth0 netns {self._inner_pid(node)}"
        route = f"route replace {plans.pods_of(index)} via {addresses.node(index)}"
        self.control.run("ip", "-batch", "-", feed=f"{peer}\nlink set {name} master nodes up\n{route}")
        others = [other for other in range(len(self.blueprint.gpus)) if other != index]
        lines = [
            "link set lo up",
            f"addr add {addresses.node(index)}/24 dev eth0",
            "link set eth0 up",
            f"route add {plans.SERVICES} via {addresses.control}",
            *(f"route add {plans.pods_of(other)} via {addresses.node(other)}" for other in others),
        ]
        node.run("ip", "-batch", "-", feed="\n".join(lines))
        self.start(node, "containerd")

    def _inner_pid(self, node: Machine) -> int:
        """Process 1 of the node as the control machine numbers it."""
        status = Path(f"/proc/{node.pid}/status").read_text()
        return int(re.search(r"^NSpid:\s+(.*)$", status, re.M)[1].split()[-2])  # type: ignore[index]

    def _start_kubelet(self, index: int) -> None:
        node = self.nodes[index]
        self.start(node, "kubelet")
        self.start(node, "kube-proxy")

    def power_off(self, node: Machine) -> None:
        """At once, and without a word to anybody."""
        node.pull_plug()
        until(lambda: self._unplugged(node.name), f"the link of {node.name} to go", seconds=10)

    def _unplugged(self, node: str) -> bool:
        """The kernel removes a dead node's link too, in its own time."""
        self.control.run("sh", "-c", 'ip link delete "$1" 2> /dev/null || true', "sh", node)
        return not re.search(rf"^\s*{node}:", Path(f"/proc/{self.control.pid}/net/dev").read_text(), re.MULTILINE)

    def boot(self, node: Machine) -> None:
        """Brings a node back that was powered off; its disk is as it was."""
        index = self.blueprint.nodes.index(node.name)
        self._boot_node(index)
        self._start_kubelet(index)

    def start(self, machine: Machine, program: str) -> None:
        """A part of Kubernetes, on the machine where it belongs."""
        if machine.name == self.control.name:
            parts = plans.control_parts(self.blueprint, self.addresses)
        else:
            parts = plans.node_parts(self.blueprint, self.addresses, machine.name)
        machine.start(*parts[program])

    def _on_every_node(self, act: Callable[[int], None]) -> None:
        count = len(self.blueprint.gpus)
        with ThreadPoolExecutor(min(count, 8)) as threads:
            list(threads.map(act, range(count)))

    def _write_images(self, init: Path) -> None:
        machine = programs.architecture()
        path = f"{Path(sys.base_prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        pause = images.archive(plans.PAUSE_IMAGE, images.pause(init), ["/pause"], path, machine)
        host = images.archive(plans.IMAGE, images.host(), [], path, machine)
        (self.folder / "pause.tar").write_bytes(pause)
        (self.folder / "image.tar").write_bytes(host)

    def _load_images(self, index: int) -> None:
        node = self.node(self.blueprint.nodes[index])
        socket = Path(f"/proc/{node.pid}/root/run/containerd/containerd.sock")
        self._await(node, "containerd", socket.exists)
        for file in ("pause.tar", "image.tar"):
            node.run(*CTR, "images", "import", "--local", f"{plans.FOLDER}/{file}")

    def await_api(self) -> None:
        self._await(self.control, "kube-apiserver", self._api_is_ready)

    def _await(self, machine: Machine, program: str, condition: Callable[[], bool], every: float = 0.05) -> None:
        """Waits for what a program is to do; where it fails, the program's own last words are told."""

        def met() -> bool:
            if not machine.find(program):
                raise ClusterError("it ended")
            return condition()

        try:
            until(met, "it to answer", seconds=120, every=every)
        except ClusterError as trouble:
            words = machine.log_of(program).read_text(errors="replace")[-1500:]
            raise ClusterError(f"{program} on {machine.name}: {trouble}\n{words}") from None

    def _api_is_ready(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            return bool(opener.open(f"{self.addresses.server}/readyz", timeout=2).status == 200)
        except OSError:
            return False

    def await_nodes(self) -> None:
        until(self._nodes_are_ready, "the nodes to be ready, with their GPUs", seconds=120, every=0.2)

    def _nodes_are_ready(self) -> bool:
        found = {
            item["metadata"]["name"]: item for item in json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        }
        ready = True
        for name, count in zip(self.blueprint.nodes, self.blueprint.gpus, strict=True):
            if name not in found:
                ready = False
                continue
            if found[name]["status"]["capacity"].get(plans.GPU, "0") != str(count):
                self.declare_gpus(name, count)
            ready = ready and is_well(found[name])
        return ready

    def declare_gpus(self, node: str, count: int) -> None:
        amount = {plans.GPU: str(count)}
        patch = json.dumps({"status": {"capacity": amount, "allocatable": amount}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)

    def _simulate(self) -> None:
        self.start(self.control, "kwok")
        nodes = [plans.simulated_node(index) for index in range(self.blueprint.simulated)]
        self.kubectl("create", "--validate=false", "-f", "-", feed=_list(nodes))
        self._await(self.control, "kwok", self._simulated_are_ready, every=1)

    def _simulated_are_ready(self) -> bool:
        found = json.loads(self.kubectl("get", "nodes", "-l", "type=kwok", "-o", "json"))["items"]
        return len(found) == self.blueprint.simulated and all(is_well(item) for item in found)

    def _first_account(self) -> bool:
        return "default" in self.kubectl("get", "serviceaccounts", "-n", "default", "-o", "name")

    def _remove(self) -> None:
        self.control.pull_plug()
        self.group.remove()
        if (self.folder / "index").exists():
            until(lambda: _unplugged(self.addresses.link), f"the link {self.addresses.link} to go", seconds=10)
        disks = [str(disk) for disk in self.folder.glob("*/disk")]
        until(lambda: not set(disks) & _loop_files(), "the nodes' disks to be given back", seconds=10)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_machine() -> None:
    instead = (
        "use an existing cluster instead: kind, minikube or a cloud, and name its kubeconfig in PUMASI_TEST_KUBECONFIG"
    )
    if sys.platform != "linux":
        raise ClusterError(f"the test cluster needs Linux, and this is {platform.system()}: {instead}")
    if os.geteuid() != 0:
        raise ClusterError(
            f"the test cluster needs root, because it makes namespaces and mounts: use sudo, or {instead}"
        )
    if not Path("/dev/loop-control").exists():
        raise ClusterError(f"the test cluster needs loop devices for its nodes' disks (modprobe loop), or {instead}")


def shared_folders() -> Iterable[str]:
    """What containers see of this machine: its programs, the checkout, and the Pythons of its environments."""
    yield from (path for path in SYSTEM_FOLDERS if Path(path).exists())
    yield str(CHECKOUT)
    yield sys.base_prefix
    for python in CHECKOUT.glob(".venv*/bin/python"):
        yield str(python.resolve().parent.parent)


def is_well(node: dict[str, Any]) -> bool:
    """Ready, under no pressure, and nothing of an illness has stayed as a taint."""
    conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
    pressed = any(status != "False" for kind, status in conditions.items() if kind != "Ready")
    ill = any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints", []))
    return conditions.get("Ready") == "True" and not pressed and not ill


def _list(items: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _call(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise ClusterError(f"{' '.join(command)}: {result.stderr.strip()[-500:]}")
    return result.stdout


def _routes() -> Iterator[str]:
    for route in json.loads(_call("ip", "-json", "-4", "route") or "[]"):
        if route["dst"] != "default":
            yield route["dst"]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Whoever presses Ctrl-C twice gets what the first one promised."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _unplugged(link: str) -> bool:
    """The kernel removes it too, in its own time."""
    subprocess.run(["ip", "link", "delete", link], capture_output=True)
    return not (Path("/sys/class/net") / link).exists()


def _loop_files() -> set[str]:
    files = set()
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            files.add(file.read_text().strip())
    return files


def _proportional_memory(pid: int) -> int:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.split("Pss:")[1].split()[0]) * 1024
    return 0
