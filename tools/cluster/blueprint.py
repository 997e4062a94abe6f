"""What a cluster is to be, as values: addresses, command lines and configurations. Nothing here touches the machine.

Every cluster has a network of its own, so that all of them use the same addresses inside; only the one network that
the machine shares with the cluster's nodes, 10.88.INDEX.0/24, differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

GPU = "nvidia.com/gpu"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10.1"
# Stands in for the public image: no registry can be reached, and its containers see this machine's programs.
IMAGE = "docker.io/library/python:3.12-slim"
SIMULATED_MARK = "kwok.x-k8s.io/node"

# Where things are inside a machine, wherever they are outside.
PROGRAMS = "/run/pumasi/programs"
FOLDER = "/run/pumasi/cluster"
SHARES = "/run/pumasi/shares"
KEYS = f"{FOLDER}/keys"
# Where Kubernetes' own provisioner for tests makes volumes: it can't be told another place.
VOLUMES = "/tmp/hostpath_pv"

PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"

ADMIN = "admin"
USERS = {
    ADMIN: "system:masters",
    "kwok": "system:masters",
    "system:kube-controller-manager": "",
    "system:kube-scheduler": "",
    "system:kube-proxy": "",
    "coredns": "",
}


@dataclass(frozen=True)
class Blueprint:
    """`gpus` has one number for each node; `simulated` counts nodes of which only the API knows (8 GPUs each)."""

    name: str = "pumasi"
    gpus: tuple[int, ...] = (5, 3, 2)
    feature_gates: str = ""
    simulated: int = 0

    @property
    def nodes(self) -> list[str]:
        return [f"node-{index}" for index in range(len(self.gpus))]

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Blueprint:
        values = json.loads(text)
        return cls(**{**values, "gpus": tuple(values["gpus"])})


@dataclass(frozen=True)
class Addresses:
    index: int

    @property
    def link(self) -> str:
        """The machine's end of the wire to the cluster."""
        return f"pumasi-{self.index}"

    @property
    def network(self) -> str:
        return f"10.88.{self.index}.0/24"

    @property
    def outside(self) -> str:
        return f"10.88.{self.index}.254"

    @property
    def control(self) -> str:
        return f"10.88.{self.index}.1"

    @property
    def server(self) -> str:
        return f"https://{self.control}:6443"

    def node(self, index: int) -> str:
        return f"10.88.{self.index}.{10 + index}"


def pods_of(index: int) -> str:
    return f"10.244.{index}.0/24"


def users(blueprint: Blueprint) -> dict[str, str]:
    return {**USERS, **{f"system:node:{name}": "system:nodes" for name in blueprint.nodes}}


def kubeconfig(user: str) -> str:
    return f"{KEYS}/{user.replace(':', '-')}.kubeconfig"


def _gates(blueprint: Blueprint) -> list[str]:
    return [f"--feature-gates={blueprint.feature_gates}"] if blueprint.feature_gates else []


def etcd() -> list[str]:
    return [
        f"{PROGRAMS}/etcd",
        f"--data-dir={FOLDER}/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server(blueprint: Blueprint, addresses: Addresses) -> list[str]:
    """Feature gates often guard kinds that are not served unless asked for: with gates, all kinds are served."""
    served = ["--runtime-config=api/all=true"] if blueprint.feature_gates else []
    return [
        f"{PROGRAMS}/kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={addresses.control}",
        f"--tls-cert-file={KEYS}/server.crt",
        f"--tls-private-key-file={KEYS}/server.key",
        f"--kubelet-client-certificate={KEYS}/kubelet-client.crt",
        f"--kubelet-client-key={KEYS}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={KEYS}/accounts.pub",
        f"--service-account-signing-key-file={KEYS}/accounts.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICES}",
        f"--token-auth-file={KEYS}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *_gates(blueprint),
        *served,
    ]


def controller_manager(blueprint: Blueprint) -> list[str]:
    return [
        f"{PROGRAMS}/kube-controller-manager",
        f"--kubeconfig={kubeconfig('system:kube-controller-manager')}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={KEYS}/accounts.key",
        f"--root-ca-file={KEYS}/ca.crt",
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=12s",
        "--enable-hostpath-provisioner=true",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        *_gates(blueprint),
    ]


def scheduler(blueprint: Blueprint) -> list[str]:
    return [
        f"{PROGRAMS}/kube-scheduler",
        f"--kubeconfig={kubeconfig('system:kube-scheduler')}",
        "--leader-elect=false",
        *_gates(blueprint),
    ]


def coredns() -> list[str]:
    return [f"{PROGRAMS}/coredns", "-conf", f"{FOLDER}/Corefile"]


def corefile(addresses: Addresses) -> str:
    """Names are remembered as long as in users' clusters, the missing ones too."""
    return (
        f".:53 {{\n"
        f"    bind {addresses.control}\n"
        f"    errors\n"
        f"    kubernetes cluster.local in-addr.arpa ip6.arpa {{\n"
        f"        kubeconfig {kubeconfig('coredns')}\n"
        f"        pods insecure\n"
        f"        ttl 5\n"
        f"    }}\n"
        f"    cache 30\n"
        f"}}\n"
    )


def kwok(addresses: Addresses) -> list[str]:
    return [
        f"{PROGRAMS}/kwok",
        f"--kubeconfig={kubeconfig('kwok')}",
        f"--config={FOLDER}/kwok.yaml",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={SIMULATED_MARK}=fake",
        f"--node-ip={addresses.control}",
        "--node-lease-duration-seconds=40",
        "--cidr=10.245.0.0/16",
    ]


def containerd() -> list[str]:
    return [f"{PROGRAMS}/containerd", "--config", f"{FOLDER}/containerd.toml"]


def containerd_config(cni: str) -> str:
    return f"""version = 3
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd/opt"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
  stand_in = "{IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{FOLDER}/spec.json"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{cni}"]
  conf_dir = "/var/lib/cni/conf"
"""


def runtime_spec(plain: dict[str, Any], shares: list[str]) -> dict[str, Any]:
    """Every container sees these folders of the machine, at their own paths, read-only. Before it starts, new volumes
    are opened for all users, as kind and k3s make them: Kubernetes makes them for root alone (0750), and `fsGroup` does
    not change volumes that are folders of a node."""
    mounts = [
        {"destination": path, "type": "bind", "source": f"{SHARES}/{index}", "options": ["rbind", "ro"]}
        for index, path in enumerate(shares)
    ]
    opening = f"find {VOLUMES} -mindepth 1 -maxdepth 1 -perm 0750 -exec chmod 0777 {{}} + || true"
    hooks = {"createRuntime": [{"path": "/bin/sh", "args": ["sh", "-c", opening], "env": ["PATH=/usr/bin:/bin"]}]}
    return {**plain, "mounts": [*plain["mounts"], *mounts], "hooks": hooks}


def cni_config(index: int) -> dict[str, Any]:
    ipam = {"type": "host-local", "ranges": [[{"subnet": pods_of(index)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": ipam}]}


def kubelet(node: str, address: str, blueprint: Blueprint) -> list[str]:
    return [
        f"{PROGRAMS}/kubelet",
        f"--kubeconfig={kubeconfig(f'system:node:{node}')}",
        f"--config={FOLDER}/{node}/kubelet.json",
        f"--hostname-override={node}",
        f"--node-ip={address}",
        *_gates(blueprint),
    ]


def kubelet_config(group: str, addresses: Addresses) -> dict[str, Any]:
    """A dead node shows in test time: the lease is short. A full disk evicts; a full memory is the machine's affair."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"x509": {"clientCAFile": f"{KEYS}/ca.crt"}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{group}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDomain": "cluster.local",
        "clusterDNS": [addresses.control],
        "resolvConf": "",
        "evictionHard": {"nodefs.available": "5%", "imagefs.available": "5%"},
        "evictionPressureTransitionPeriod": "5s",
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 8,
        "volumePluginDir": "/var/lib/kubelet/plugins",
    }


def kube_proxy(node: str) -> list[str]:
    return [f"{PROGRAMS}/kube-proxy", f"--config={FOLDER}/{node}/kube-proxy.json"]


def kube_proxy_config(node: str, blueprint: Blueprint) -> dict[str, Any]:
    gates = [gate.partition("=") for gate in blueprint.feature_gates.split(",") if gate]
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": PODS,
        "clientConnection": {"kubeconfig": kubeconfig("system:kube-proxy")},
        "hostnameOverride": node,
        "conntrack": {"maxPerCore": 0},
        "featureGates": {name: value == "true" for name, _, value in gates},
    }


def control_parts(blueprint: Blueprint, addresses: Addresses) -> dict[str, list[str]]:
    commands = (
        etcd(),
        api_server(blueprint, addresses),
        controller_manager(blueprint),
        scheduler(blueprint),
        coredns(),
        kwok(addresses),
    )
    return _by_program(commands)


def node_parts(blueprint: Blueprint, addresses: Addresses, node: str) -> dict[str, list[str]]:
    address = addresses.node(blueprint.nodes.index(node))
    return _by_program((containerd(), kubelet(node, address, blueprint), kube_proxy(node)))


def _by_program(commands: Iterable[list[str]]) -> dict[str, list[str]]:
    return {command[0].removeprefix(f"{PROGRAMS}/"): command for command in commands}


def first_objects() -> list[dict[str, Any]]:
    """What a cluster has before its users come: storage on demand, and a name server that may look names up."""
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "standard",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/host-path",
        },
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "coredns"}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "coredns"},
            "subjects": [{"apiGroup": rbac, "kind": "User", "name": "coredns"}],
        },
    ]


def simulated_node(index: int) -> dict[str, Any]:
    name = f"simulated-{index}"
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", GPU: "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {SIMULATED_MARK: "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": SIMULATED_MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": resources, "capacity": resources},
    }
