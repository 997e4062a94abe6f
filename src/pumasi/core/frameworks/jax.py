"""JAX, and Keras 3 on JAX: an address to meet at, how many there are, and who one is.

`jax.distributed.initialize()` without arguments reads the address, but neither number nor id: the shim registers a
cluster environment that takes them from JAX_NUM_PROCESSES and JAX_PROCESS_ID.
"""

from __future__ import annotations

from collections.abc import Iterator

from pumasi.core.frameworks.base import Framework, Gang, Layout, Package, host, port
from pumasi.core.frameworks.gpus import seen
from pumasi.core.frameworks.script import Script
from pumasi.core.ranks import Rank

_OTHER_WAYS = r"\.distribut(?:ed|ion)\b|multihost|coordinator_address|COORDINATOR_ADDRESS|(?<![A-Za-z])tpu|TPU"


class Jax(Framework):
    name = "jax"
    synonyms = ("flax",)
    packages = (Package("jax", is_large=True),)
    modules = ("jax", "flax")
    companions = ("optax", "equinox", "haiku", "orbax", "chex", "jaxopt")
    starts = ("jax.distributed", "keras.distribution")
    joins = ("jax.distributed.initialize", "keras.distribution.initialize")
    ports = ("jax",)
    noise = r"a CUDA-enabled jaxlib is not installed\. Falling back to cpu"

    def environment(self, gang: Gang, rank: Rank) -> dict[str, str]:
        address = f"{host(0)}:{port('jax')}"
        return {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(gang.processes),
            "JAX_PROCESS_ID": str(rank.rank),
            "JAX_LOCAL_DEVICE_IDS": _local_devices(gang, rank),
            # With it, JAX swallows SIGTERM and trains on.
            "JAX_ENABLE_PREEMPTION_SERVICE": "false",
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(gang.processes),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(rank.rank),
        }

    def when_chosen(self, gang: Gang, rank: Rank) -> dict[str, str]:
        """The names that Kubeflow's JAXJob gives them, which its scripts hand to `initialize`: too plain for others."""
        return {
            "COORDINATOR_ADDRESS": host(0),
            "COORDINATOR_PORT": port("jax"),
            "NUM_PROCESSES": str(gang.processes),
            "PROCESS_ID": str(rank.rank),
        }

    def traps(self, script: Script, layout: Layout) -> Iterator[str]:
        yield from _no_arguments(script, layout)
        yield from _apart(script, layout)


def _local_devices(gang: Gang, rank: Rank) -> str:
    """Numbers among the GPUs that the rank sees. Without GPUs nothing comes of it, except that JAX does not go and ask
    Kubernetes."""
    if gang.per_node:
        return ",".join(str(number) for number in range(max(1, len(seen(gang, rank)))))
    is_alone = gang.see_gpus == "own" and seen(gang, rank)
    return "0" if is_alone else str(rank.local_rank)


def _no_arguments(script: Script, layout: Layout) -> Iterator[str]:
    calls = [call for call in script.calls if call.name == "jax.distributed.initialize"]
    bare = [call for call in calls if not (call.positional or call.is_open or "num_processes" in call.keywords)]
    if bare and not layout.shim:
        yield (
            f"{bare[0].file}, line {bare[0].line}: without the shim, jax.distributed.initialize() does not find "
            "the number of processes: leave out --no-shim, or give it num_processes and process_id."
        )


def _apart(script: Script, layout: Layout) -> Iterator[str]:
    takes_gradients = any(name.endswith((".grad", ".value_and_grad")) for name in script.names)
    if layout.processes < 2 or not (takes_gradients or script.fits_keras()) or script.may_start_elsewhere(_OTHER_WAYS):
        return
    start = "keras.distribution.initialize" if script.imports_any("keras") else "jax.distributed.initialize"
    yield (
        f"{script.main} never calls {start}, so {layout.processes} copies will train apart: "
        f"call {start}() first, without arguments."
    )


JAX = Jax()
