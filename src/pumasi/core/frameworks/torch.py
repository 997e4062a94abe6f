"""PyTorch: for each rank what torchrun would set; for one process a node what torchrun itself reads.

Never TORCHELASTIC_USE_AGENT_STORE: it promises a store that torchrun's own agent keeps, and all ranks would wait for it
in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pumasi.core.frameworks.base import Framework, Gang, Layout, Package, Sight, host, port
from pumasi.core.frameworks.lightning import LightningOptions, lightning_traps
from pumasi.core.frameworks.script import Script
from pumasi.core.ranks import Rank

if TYPE_CHECKING:
    from pumasi.core.spec import Spec

_OTHER_WAYS = r"torch\.distributed|init_process_group|init_device_mesh|init_rpc|Distributed\w*Parallel|fully_shard|FSDP"
_TELLS_ACCELERATE = ("__multi_gpu", "__num_machines", "__config_file", "__use_fsdp", "__use_deepspeed")
_SPAWNERS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_NO_GPU_FOR_NCCL = re.compile(r"nccl\w* requires at least one CUDA device|NCCL is only supported with GPUs")


class Torch(Framework):
    name = "torch"
    synonyms = ("pytorch", "lightning")
    options = LightningOptions
    modules = ("torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "deepspeed")
    companions = ("transformers", "trl", "peft", "diffusers", "sentence_transformers", "torchvision", "timm", "fastai")
    starts = (
        "torch.distributed",
        "torch.nn.parallel.DistributedDataParallel",
        "accelerate.Accelerator",
        "transformers.Trainer",
        "transformers.Seq2SeqTrainer",
        "lightning.Trainer",
        "lightning.Fabric",
        "lightning.pytorch.Trainer",
        "lightning.fabric.Fabric",
        "pytorch_lightning.Trainer",
        "deepspeed.initialize",
        "deepspeed.init_distributed",
    )
    launchers = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate launch", "deepspeed")
    launcher_packages = {"torchrun": "torch", "accelerate": "accelerate", "deepspeed": "deepspeed"}  # noqa: RUF012
    packages = (Package("torch", is_large=True), Package("transformers", is_large=True, is_beside=True))
    joins = ("torch.distributed.init_process_group", "torch.distributed.init_device_mesh")
    ports = ("torch",)
    see_gpus = "all"

    def wires(self, gang: Gang) -> bool:
        return super().wires(gang) or (gang.per_node and gang.slots > 1)

    def insists_on(self, spec: Spec) -> Sight | None:
        """A slot that is shown as a node has local rank 0, and would take the first GPU that it sees."""
        return "own" if spec[LightningOptions].slot_as_node else None

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        return _for_launcher(gang, rank) if gang.per_node else _for_rank(gang, rank)

    def when_chosen(self, gang: Gang, rank: Rank) -> dict[str, str]:
        """As torchrun does it: ranks that share a node would otherwise each start a thread for every core."""
        shares_node = rank.local_size > 1 and not gang.per_node
        return {"OMP_NUM_THREADS": "1"} if shares_node else {}

    def traps(self, script: Script, layout: Layout) -> Iterator[str]:
        yield from _launcher_traps(script, layout, self.launchers)
        yield from _spawns(script, layout)
        yield from lightning_traps(script, layout)
        yield from _apart(script, layout)

    def hint(self, tail: Sequence[str]) -> str:
        if not any(_NO_GPU_FOR_NCCL.search(line) for line in tail):
            return ""
        return 'NCCL needs GPUs, and this rank sees none: on CPUs, use init_process_group("gloo").'


def _for_rank(gang: Gang, rank: Rank) -> dict[str, str]:
    world = str(gang.processes)
    return {
        "MASTER_ADDR": host(0),
        "MASTER_PORT": port("torch"),
        "RANK": str(rank.rank),
        "WORLD_SIZE": world,
        **(_slot_as_node(gang, rank) if gang.options(LightningOptions).slot_as_node else _within_node(gang, rank)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank.rank),
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": gang.run,
        "TORCHELASTIC_RESTART_COUNT": str(gang.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(gang.restarts),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _within_node(gang: Gang, rank: Rank) -> dict[str, str]:
    return {
        "LOCAL_RANK": str(rank.local_rank),
        "LOCAL_WORLD_SIZE": str(rank.local_size),
        "GROUP_RANK": str(rank.node),
        "GROUP_WORLD_SIZE": str(len(gang.table.nodes)),
    }


def _slot_as_node(gang: Gang, rank: Rank) -> dict[str, str]:
    return {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank.rank),
        "GROUP_WORLD_SIZE": str(gang.processes),
        "NODE_RANK": str(rank.rank),
    }


def _for_launcher(gang: Gang, rank: Rank) -> dict[str, str]:
    """RANK and WORLD_SIZE count nodes, as scripts that spawn their own processes expect. No LOCAL_RANK and nothing of
    torchelastic's: by these Lightning would know that somebody else has started all processes already."""
    nodes = str(gang.processes)
    return {
        "MASTER_ADDR": host(0),
        "MASTER_PORT": port("torch"),
        "RANK": str(rank.rank),
        "WORLD_SIZE": nodes,
        "NODE_RANK": str(rank.rank),
        "GROUP_RANK": str(rank.rank),
        "PET_NNODES": nodes,
        "PET_NODE_RANK": str(rank.rank),
        "PET_NPROC_PER_NODE": str(gang.slots_on(rank.node)),
        "PET_MASTER_ADDR": host(0),
        "PET_MASTER_PORT": port("torch"),
    }


def _launcher_traps(script: Script, layout: Layout, launchers: tuple[str, ...]) -> Iterator[str]:
    launcher = script.launcher(launchers)
    itself = "give Pumasi the script itself"
    if launcher and not layout.per_node:
        yield (
            f"{launcher} starts processes of its own, and would do so in each of {layout.slots} slots: "
            f"run it with --per-node, or {itself}."
        )
    elif launcher == "accelerate launch" and layout.is_unequal:
        yield (
            "accelerate launch wants the same number of processes on every node, and here there are "
            f"{_listed(layout.shares)}: leave out accelerate launch and --per-node, and {itself}."
        )
    elif launcher == "accelerate launch" and layout.processes > 1 and _forgets_nodes(script.command, layout):
        yield (
            f"accelerate launch will let {layout.processes} nodes train apart without a word: "
            f"leave out accelerate launch and --per-node, and {itself}."
        )
    elif launcher == "deepspeed" and layout.processes > 1 and not {"--hostfile", "-H"} & set(script.command):
        yield (
            f"deepspeed without a hostfile knows its own node only, so {layout.processes} nodes will train apart: "
            f"leave out deepspeed and --per-node, and {itself}."
        )


def _forgets_nodes(command: tuple[str, ...], layout: Layout) -> bool:
    """On CPUs always; with one process a node, which it takes for the only one, unless it is told otherwise."""
    told = any(word.replace("-", "_").startswith(_TELLS_ACCELERATE) for word in command)
    return "--cpu" in command or (max(layout.shares) == 1 and not told)


def _spawns(script: Script, layout: Layout) -> Iterator[str]:
    """Only where the script always spawns: one that can also be a rank reads RANK, or asks before it spawns."""
    spawns = [call for call in script.calls if call.name in _SPAWNERS and not call.is_conditional]
    if spawns and not layout.per_node and not script.reads_rank():
        yield (
            f"{spawns[0].file}, line {spawns[0].line}: {spawns[0].name} starts processes of its own, "
            f"and would do so in each of {layout.slots} slots: run it with --per-node."
        )


def _apart(script: Script, layout: Layout) -> Iterator[str]:
    trains = any(call.method == "backward" for call in script.calls) or script.fits_keras()
    starts = script.names_under(*Torch.starts) or script.may_start_elsewhere(_OTHER_WAYS)
    if layout.processes < 2 or not trains or starts:
        return
    if script.imports_any("torch"):
        yield (
            f"{script.main} imports torch but never starts torch.distributed, so {layout.processes} copies will train "
            "apart: call init_process_group and wrap the model in DistributedDataParallel, or use accelerate."
        )
    else:
        yield (
            f"Keras on torch knows one process only, so {layout.processes} copies will train apart: set "
            "KERAS_BACKEND=jax and call keras.distribution.initialize(), or write a loop with DistributedDataParallel."
        )


def _listed(shares: tuple[int, ...]) -> str:
    return f"{', '.join(str(share) for share in shares[:-1])} and {shares[-1]}"


TORCH = Torch()
