"""pumasi serve --on k8s: what the command line has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumasi.cli.grammar import Option
from pumasi.cli.options import options_of
from pumasi.pools.kubernetes.options import CLUSTER, KubernetesOptions

if TYPE_CHECKING:
    from pumasi.cli.parsing import Arguments
    from pumasi.cli.verbs.serve import Telling

USAGE = (
    "pumasi serve FILE --on k8s[:CONTEXT] --image IMAGE [options]",
    "pumasi serve --on k8s[:CONTEXT] --list",
    "pumasi serve --on k8s[:CONTEXT] --token|--remove --name NAME",
)
ABOUT = """\
With --on k8s a cluster serves it, also when you are gone: FILE, and what belongs to it, goes onto a volume there; under
/volume/ it is there already. The same command with another FILE, or other options, changes what is served without a
request being lost. Who needs a token has the same one before and after."""
OPTIONS = (
    Option(("--on",), "serve it on a cluster: k8s, or k8s:CONTEXT of your kubeconfig", "POOL", group=CLUSTER),
    Option(("-n", "--namespace"), "the namespace (default: that of the kubeconfig)", "NAME", group=CLUSTER),
    Option(("--name",), "what it is called there (default: as FILE is)", "NAME", group=CLUSTER),
    Option(("--image",), "an image with numpy and the framework of the model", "IMAGE", group=CLUSTER),
    Option(("--python",), "the Python in it (default: python3)", "PATH", group=CLUSTER),
    Option(
        ("--volume",),
        "the volume for the files, by its claim; made where it is not there (default: as --name)",
        "NAME[:SIZE]",
        group=CLUSTER,
    ),
    Option(
        ("--expose",),
        "for whom: ClusterIP (default): the cluster; NodePort: who reaches its nodes; LoadBalancer",
        "HOW",
        ("ClusterIP", "NodePort", "LoadBalancer"),
        CLUSTER,
    ),
    *options_of(KubernetesOptions, "node_selector", "tolerations"),
    Option(("--dry-run",), "print the objects as YAML, and make nothing", group=CLUSTER),
    Option(("--list",), "list what is served in the namespace, and how to reach it", group=CLUSTER),
    Option(("--token",), "print the token of what is served as --name, and its address", group=CLUSTER),
    Option(("--remove",), "remove what is served as --name; the volume stays", group=CLUSTER),
)
EXAMPLES = (
    ("pumasi serve final.keras --on k8s --image IMG", "by a cluster, also when you are gone"),
    ("pumasi serve --on k8s --list", "what the cluster serves"),
)
WITHOUT_FILE = ("list", "token", "remove")
"""Options about what is served already."""


def main(arguments: Arguments, telling: Telling) -> int:
    from pumasi.pools.kubernetes.serving import verb

    return verb.main(arguments, telling)
