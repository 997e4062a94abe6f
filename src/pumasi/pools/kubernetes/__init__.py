"""A Kubernetes cluster."""

from __future__ import annotations

from pumasi.pools.kubernetes.options import KubernetesOptions


class Kubernetes:
    name = "k8s"
    synonyms = ("kubernetes", "kube", "cluster")
    argument = "CONTEXT"
    argument_help = "of your kubeconfig"
    kind = "clusters"
    options = KubernetesOptions


POOL = Kubernetes()
