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
from tools.cluster.cluster import CTR, Cluster, is_well
from tools.common import CHECKOUT, CLUSTERS, Say, ToolError, locked, until

DISK = 4 << 30
SHARED = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl", "/etc/ld.so.cache")

# In the control machine, before anything else: what is needed of the outside comes under /run/pumasi, then the outside
# can't be written any more (what another mount hides can't be reached, and not be changed either). $1 programs,
# $2 folder, then the shares.
CONTROL_MOUNTS = """
run="$2/run"
mkdir "$run"
mount -t tmpfs -o mode=755 run "$run"
mkdir -p "$run/pumasi/programs" "$run/pumasi/cluster" "$run/pumasi/shares" "$run/lock"
mount --bind "$1" "$run/pumasi/programs"
mount --bind "$2" "$run/pumasi/cluster"
shift 2
index=0
for share in "$@"; do
    if [ -d "$share" ]; then
        mkdir "$run/pumasi/shares/$index"
        mount --rbind "$share" "$run/pumasi/shares/$index"
    else
        # A copy: who installs a package replaces the file, and a mount of the old one would lead nowhere.
        cp "$share" "$run/pumasi/shares/$index"
    fi
    index=$((index + 1))
done
mount --no-mtab --move "$run" /run
mount -t tmpfs -o mode=1777 tmp /tmp
while read -r _ place _; do
    case "$place" in
        /proc | /proc/* | /sys | /sys/* | /dev | /dev/* | /run | /tmp | /run/pumasi/cluster) ;;
        *) mount -o remount,bind,ro "$(printf %b "$place")" 2> /dev/null || true ;;
    esac
done < /proc/self/mounts
mkdir /run/pumasi/cluster/volumes /tmp/hostpath_pv
mount --bind /run/pumasi/cluster/volumes /tmp/hostpath_pv
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


def up(blueprint: Blueprint, say: Say) -> Cluster:
    check_machine()
    cluster = Cluster(blueprint.name, say)
    folder = programs.ensure(say)
    with cluster.alone():
        if cluster.is_whole:
            must_be_like(cluster, blueprint, folder)
            return cluster
        cluster.remove()
        try:
            make(cluster, blueprint, folder)
        except BaseException:
            with uninterrupted():
                say("it does not come up; taking it down …")
                try:
                    cluster.remove()
                except (ToolError, OSError) as trouble:
                    say(str(trouble))
            raise
    return cluster


def check_machine() -> None:
    instead = (
        "use an existing cluster instead: kind, minikube or a cloud, and name its kubeconfig in PUMASI_TEST_KUBECONFIG"
    )
    if sys.platform != "linux":
        raise ToolError(f"the test cluster needs Linux, and this is {platform.system()}: {instead}")
    if os.geteuid() != 0:
        raise ToolError(f"the test cluster needs root, because it makes namespaces and mounts: use sudo, or {instead}")
    if not Path("/dev/loop-control").exists():
        raise ToolError(f"the test cluster needs loop devices for its nodes' disks (modprobe loop), or {instead}")


def must_be_like(cluster: Cluster, blueprint: Blueprint, programs_folder: Path) -> None:
    if cluster.blueprint != blueprint or cluster.programs != programs_folder:
        raise ToolError(
            f"the cluster {cluster.name} is up already, with other settings or of another version: "
            f"{cluster.blueprint.as_json()}. Take it down first, or give the new one another name"
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
        (node / "kube-proxy.json").write_text(json.dumps(plans.kube_proxy_config(name, blueprint)))
        (node / "pods.conflist").write_text(json.dumps(plans.cni_config(index)))
        with (node / "disk").open("wb") as disk:
            disk.truncate(DISK)
        outside("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(node / "disk"))


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
    raise ToolError("all networks from 10.88.0.0/24 to 10.88.255.0/24 are taken on this machine")


def known_routes() -> Iterator[str]:
    for route in json.loads(outside("ip", "-json", "-4", "route") or "[]"):
        if route["dst"] != "default":
            yield route["dst"]


def wire(cluster: Cluster) -> None:
    """One cable from this machine into the cluster, where a bridge joins the nodes."""
    addresses, link = cluster.addresses, cluster.addresses.link
    outside("ip", "link", "add", link, "type", "veth", "peer", "name", "outside", "netns", str(cluster.control.pid))
    outside("ip", "addr", "add", f"{addresses.outside}/24", "dev", link)
    outside("ip", "link", "set", link, "up")
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
    yield from (path for path in SHARED if Path(path).exists())
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


def outside(*command: str) -> str:
    """What the command printed, outside of all machines; it must succeed."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode:
        raise ToolError(f"{' '.join(command)}: {result.stderr.strip()[-500:]}")
    return result.stdout


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Whoever presses Ctrl-C twice gets what the first one promised."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def borrowed(blueprint: Blueprint) -> Iterator[Cluster]:
    """The cluster of that name; one that has to be made is taken down afterwards."""
    own = not Cluster(blueprint.name).is_whole
    cluster = up(blueprint, lambda _: None)
    try:
        yield cluster
    finally:
        if own:
            cluster.down()
