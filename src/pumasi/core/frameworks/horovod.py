"""Horovod in Gloo mode: no ssh and no MPI, only a key-value store that the chief's agent keeps for the rendezvous."""

from __future__ import annotations

from collections.abc import Iterator

from pumasi.core.frameworks.base import Framework, Gang, Layout, Package, host, port
from pumasi.core.frameworks.script import Script
from pumasi.core.ranks import Rank

PATIENCE = "600"
"""Seconds. By default one rank that imports 30 s longer than the others ends all of them."""


class Horovod(Framework):
    name = "horovod"
    modules = ("horovod",)
    starts = (
        "horovod.init",
        "horovod.torch.init",
        "horovod.tensorflow.init",
        "horovod.tensorflow.keras.init",
        "horovod.keras.init",
        "horovod.mxnet.init",
    )
    launchers = ("horovodrun",)
    reaching_out = ("horovodrun",)
    launcher_packages = {"horovodrun": "horovod"}  # noqa: RUF012
    packages = (Package("horovod"),)
    ports = ("horovod",)
    agent_part = "horovod"
    see_gpus = "all"
    only_distributed = True

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        return {
            "HOROVOD_RANK": str(rank.rank),
            "HOROVOD_SIZE": str(gang.processes),
            "HOROVOD_LOCAL_RANK": str(rank.local_rank),
            "HOROVOD_LOCAL_SIZE": str(rank.local_size),
            "HOROVOD_CROSS_RANK": str(rank.cross_rank),
            "HOROVOD_CROSS_SIZE": str(rank.cross_size),
            "HOROVOD_HOSTNAME": host(rank.rank),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": host(0),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port("horovod"),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": PATIENCE,
        }

    def traps(self, script: Script, layout: Layout) -> Iterator[str]:
        if script.launcher(self.launchers) and layout.processes > 1:
            yield (
                f"horovodrun starts processes of its own, and would do so {layout.processes} times: "
                "leave it out, and give Pumasi the script itself."
            )


HOROVOD = Horovod()
