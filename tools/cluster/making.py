"""Bringing a cluster up, step by step; what does not come up is taken down again."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.cluster import blueprint as plans
from tools.cluster import images, keys, programs
from tools.cluster.blueprint import Addresses, Blueprint
from tools.cluster.cgroups import Group
from tools.cluster.cluster import CLUSTERS, CTR, Cluster, is_well
from tools.cluster.errors import ClusterError
from tools.cluster.locks import locked
from tools.cluster.waiting import until
from tools.common import CHECKOUT, Say

DISK = 4 << 30
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl", "/etc/ld.so.cache")

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


def up(blueprint: Blueprint, say: Say) -> Cluster:
    check_machine()
    folder = programs.ensure(say)
    cluster = Cluster(blueprint.name, say)
    with cluster.alone():
        if cluster.is_whole:
            must_be_like(cluster, blueprint)
            return cluster
        cluster.remove()
        try:
            make(cluster, blueprint, folder)
        except BaseException:
            say("it does not come up; taking it down …")
            with uninterrupted():
                try:
                    cluster.remove()
                except ClusterError as trouble:
                    say(str(trouble))
            raise
    return cluster


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


def must_be_like(cluster: Cluster, blueprint: Blueprint) -> None:
    if cluster.blueprint != blueprint:
        raise ClusterError(
            f"the cluster {cluster.name} is up already, with other settings: {cluster.blueprint.as_json()}. "
            "Take it down first, or give the new one another name"
        )
    cluster.say("is up already")


def make(cluster: Cluster, blueprint: Blueprint, programs_folder: Path) -> None:
    started = time.monotonic()

    def step(text: str) -> None:
        cluster.say(f"{time.monotonic() - started:5.1f} s  {text}")

    control = cluster.control
    lay_out(cluster, blueprint, programs_folder)
    shares = list(dict.fromkeys(shared_folders()))
    control.boot(programs_folder / "init")
    control.run("sh", "-euc", CONTROL_MOUNTS, "sh", str(programs_folder), str(cluster.folder), *shares)
    wire(cluster)
    cluster.start(control, "etcd")
    cluster.start(control, "kube-apiserver")
    write_runtime_spec(cluster, shares)
    step("control plane started")
    on_every_node(cluster, cluster.boot)
    step(f"{len(blueprint.gpus)} nodes booted")
    cluster.await_api()
    step("API server answers")
    cluster.start(control, "kube-controller-manager")
    cluster.start(control, "kube-scheduler")
    create(cluster, plans.first_objects())
    cluster.start(control, "coredns")
    on_every_node(cluster, lambda node: load_images(cluster, node))
    on_every_node(cluster, cluster.join)
    cluster.await_nodes()
    cluster.await_part(control, "coredns", lambda: listens(cluster.addresses.control, 53))
    step("nodes are ready")
    if blueprint.simulated:
        simulate(cluster)
        step(f"{blueprint.simulated} simulated nodes are ready")
    until(lambda: has_account(cluster), "the first service account", seconds=30)
    (cluster.folder / "whole").touch()
    step("up")


def lay_out(cluster: Cluster, blueprint: Blueprint, programs_folder: Path) -> None:
    folder = cluster.folder
    folder.mkdir(mode=0o700, parents=True)
    addresses = claim_addresses(folder)
    write_whole(folder / "blueprint.json", blueprint.as_json())
    (folder / "kubectl").symlink_to(programs_folder / "kubectl")
    names = [addresses.control, plans.API_SERVICE, "127.0.0.1"]
    keys.make(folder / "keys", addresses.server, names, plans.users(blueprint))
    shutil.copy(Path(__file__).with_name("kwok.yaml"), folder)
    (folder / "Corefile").write_text(plans.corefile(addresses))
    (folder / "containerd.toml").write_text(plans.containerd_config(str(programs.cni_folder())))
    write_images(folder, programs_folder / "init")
    cluster.control.group.make()
    for index, name in enumerate(blueprint.nodes):
        node = folder / name
        node.mkdir()
        group = Group(f"{cluster.group.path}/{name}")
        group.make()
        (node / "kubelet.json").write_text(json.dumps(plans.kubelet_config(group.path, addresses)))
        (node / "kube-proxy.json").write_text(json.dumps(plans.kube_proxy_config(name)))
        (node / "pods.conflist").write_text(json.dumps(plans.cni_config(index)))
        with (node / "disk").open("wb") as disk:
            disk.truncate(DISK)
        call("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(node / "disk"))


def claim_addresses(folder: Path) -> Addresses:
    """The lowest network that no other cluster has and no route of this machine crosses."""
    with locked("addresses", 60):
        taken = {int(file.read_text()) for file in CLUSTERS.glob("*/index")}
        routes = [ipaddress.ip_network(route, strict=False) for route in known_routes()]
        for index in range(256):
            network = ipaddress.ip_network(Addresses(index).network)
            if index not in taken and not any(network.overlaps(route) for route in routes):
                write_whole(folder / "index", str(index))
                return Addresses(index)
    raise ClusterError("all networks from 10.88.0.0/24 to 10.88.255.0/24 are taken on this machine")


def known_routes() -> Iterator[str]:
    for route in json.loads(call("ip", "-json", "-4", "route") or "[]"):
        if route["dst"] != "default":
            yield route["dst"]


def wire(cluster: Cluster) -> None:
    """One cable from this machine into the cluster, where a bridge joins the nodes."""
    addresses, link = cluster.addresses, cluster.addresses.link
    call("ip", "link", "add", link, "type", "veth", "peer", "name", "outside", "netns", str(cluster.control.pid))
    call("ip", "addr", "add", f"{addresses.outside}/24", "dev", link)
    call("ip", "link", "set", link, "up")
    lines = [
        "link set lo up",
        "link add nodes type bridge",
        f"addr add {addresses.control}/24 dev nodes",
        "link set nodes up",
        "link set outside master nodes up",
    ]
    cluster.control.run("ip", "-batch", "-", feed="\n".join(lines))


def shared_folders() -> Iterable[str]:
    """What containers see of this machine: its programs, the checkout, and the Pythons of its environments."""
    yield from (path for path in SYSTEM_FOLDERS if Path(path).exists())
    yield str(CHECKOUT)
    yield sys.base_prefix
    for python in CHECKOUT.glob(".venv*/bin/python"):
        yield str(python.resolve().parent.parent)


def write_runtime_spec(cluster: Cluster, shares: list[str]) -> None:
    plain = json.loads(cluster.control.run(f"{plans.PROGRAMS}/ctr", "oci", "spec"))
    (cluster.folder / "spec.json").write_text(json.dumps(plans.runtime_spec(plain, shares)))


def write_images(folder: Path, init: Path) -> None:
    machine = programs.architecture()
    path = f"{Path(sys.base_prefix) / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    pause = images.archive(plans.PAUSE_IMAGE, images.pause(init), ["/pause"], path, machine)
    host = images.archive(plans.IMAGE, images.host(), [], path, machine)
    (folder / "pause.tar").write_bytes(pause)
    (folder / "image.tar").write_bytes(host)


def load_images(cluster: Cluster, name: str) -> None:
    node = cluster.machine(name)
    listening = Path(f"/proc/{node.pid}/root/run/containerd/containerd.sock")
    cluster.await_part(node, "containerd", listening.exists)
    for file in ("pause.tar", "image.tar"):
        node.run(*CTR, "images", "import", "--local", f"{plans.FOLDER}/{file}")


def simulate(cluster: Cluster) -> None:
    cluster.start(cluster.control, "kwok")
    count = cluster.blueprint.simulated
    create(cluster, [plans.simulated_node(index) for index in range(count)])

    def are_ready() -> bool:
        found = json.loads(cluster.kubectl("get", "nodes", "-l", "type=kwok", "-o", "json"))["items"]
        return len(found) == count and all(is_well(item) for item in found)

    cluster.await_part(cluster.control, "kwok", are_ready, every=1)


def create(cluster: Cluster, items: list[dict[str, Any]]) -> None:
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("create", "--validate=false", "-f", "-", feed=feed)


def has_account(cluster: Cluster) -> bool:
    return "default" in cluster.kubectl("get", "serviceaccounts", "-n", "default", "-o", "name")


def listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


def on_every_node(cluster: Cluster, act: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, cluster.blueprint.nodes))


def write_whole(path: Path, text: str) -> None:
    """Whoever finds the file finds all of it."""
    half = path.with_suffix(".half")
    half.write_text(text)
    half.replace(path)


def call(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode:
        raise ClusterError(f"{' '.join(command)}: {result.stderr.strip()[-500:]}")
    return result.stdout


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Whoever presses Ctrl-C twice gets what the first one promised."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
