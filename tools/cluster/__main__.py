"""Brings a test cluster up, and takes it down."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle, islice

from tools.cluster import making, programs
from tools.cluster.blueprint import IMAGE, Blueprint
from tools.cluster.cluster import Cluster
from tools.common import ToolError

USAGE = """
{nodes} nodes with {gpus} GPUs{simulated}. To use the cluster:

    export KUBECONFIG={kubeconfig}
    export KUBECACHEDIR={cache}
    alias kubectl={kubectl}
    kubectl get nodes

The image {image} is there, as a stand-in: its containers see this machine's programs.
To take it down: make cluster-down{named}
"""


def say(text: str) -> None:
    sys.stderr.write(f"cluster: {text}\n")


def up(options: argparse.Namespace) -> None:
    gpus = tuple(islice(cycle(options.gpus), options.nodes or len(options.gpus)))
    blueprint = Blueprint(options.name, gpus, options.feature_gates, options.simulated)
    cluster = making.up(blueprint, say)
    usage = USAGE.format(
        nodes=len(blueprint.gpus),
        gpus=", ".join(map(str, blueprint.gpus)),
        simulated=f", and {blueprint.simulated} simulated ones with 8 each" if blueprint.simulated else "",
        kubeconfig=cluster.kubeconfig,
        cache=cluster.kubectl_cache,
        kubectl=cluster.folder / "kubectl",
        image=IMAGE.rpartition("/")[2],
        named="" if options.name == Blueprint.name else f" NAME={options.name}",
    )
    sys.stdout.write(usage)


def down(options: argparse.Namespace) -> None:
    making.check_machine()
    cluster = Cluster(options.name, say)
    if options.after_input:
        sys.stdin.buffer.read()
    say("down" if cluster.down() else "there was none")


def build(_: argparse.Namespace) -> None:
    making.check_machine()
    programs.ensure(say)


def between(low: int, high: int, text: str) -> int:
    if not text.isdecimal() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
    return int(text)


def node_count(text: str) -> int:
    return between(1, 200, text)


def simulated_count(text: str) -> int:
    return between(0, 10_000, text)


def gpu_counts(text: str) -> tuple[int, ...]:
    return tuple(between(0, 1000, part) for part in text.split(","))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python3 -m tools.cluster", description=__doc__)
    verbs = top.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, act: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(act=act)
        return made

    def named(made: argparse.ArgumentParser) -> None:
        made.add_argument("--name", default=Blueprint.name, help="several clusters can be up (%(default)s)")

    bring = verb("up", up, "bring a cluster up")
    named(bring)
    bring.add_argument("--nodes", type=node_count, metavar="N", help="as many as there are numbers of GPUs")
    bring.add_argument(
        "--gpus", type=gpu_counts, default=Blueprint.gpus, help="of each node, repeated as needed (5,3,2)"
    )
    bring.add_argument("--feature-gates", default="", metavar="A=true,B=false", help="for all parts of Kubernetes")
    bring.add_argument(
        "--simulated", type=simulated_count, default=0, metavar="N", help="nodes that only the API knows (kwok)"
    )
    take = verb("down", down, "take a cluster down; nothing of it stays behind")
    named(take)
    take.add_argument("--after-input", action="store_true", help="as soon as standard input ends")
    verb("build", build, "only build the programs, once")
    return top


def main() -> int:
    options = parser().parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        options.act(options)
    except (ToolError, OSError, subprocess.SubprocessError) as trouble:
        say(str(trouble))
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
