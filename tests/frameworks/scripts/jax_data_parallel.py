"""Data parallel training on several JAX processes, as JAX' multi-process guide teaches it.

`jax.distributed.initialize()` gets no argument; where nothing tells JAX about its gang, they can be given by hand.
"""

import argparse
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def loss_of(params, x, y):
    hidden = jnp.maximum(x @ params["w1"] + params["b1"], 0)
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


@jax.jit
def train_step(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda value, gradient: value - 0.05 * gradient, params, gradients), loss


def fail(how):
    if how == "raise":
        raise RuntimeError("rank 1 fails on purpose")
    sys.exit(9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--by-hand", nargs=3, metavar=("ADDRESS", "PROCESSES", "ID"))
    parser.add_argument("--fail", choices=["raise", "exit"], help="rank 1 fails at step 3")
    args = parser.parse_args()

    if args.by_hand:
        address, processes, number = args.by_hand
        jax.distributed.initialize(address, int(processes), int(number))
    else:
        jax.distributed.initialize()
    rank, world = jax.process_index(), jax.process_count()

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    generator = np.random.default_rng(7)
    x = generator.normal(size=(48, 8)).astype("float32")
    y = x @ generator.normal(size=(8, 1)).astype("float32")
    params = {
        "w1": generator.normal(size=(8, 16)).astype("float32") * 0.3,
        "b1": np.zeros(16, "float32"),
        "w2": generator.normal(size=(16, 1)).astype("float32") * 0.3,
        "b2": np.zeros(1, "float32"),
    }
    share = len(x) // world
    mine = slice(rank * share, (rank + 1) * share)
    x = jax.make_array_from_process_local_data(split, x[mine])
    y = jax.make_array_from_process_local_data(split, y[mine])
    params = jax.device_put(params, whole)
    for step in range(12):
        if args.fail and rank == 1 and step == 3:
            fail(args.fail)
        params, loss = train_step(params, x, y)
        print(f"step {step}: loss={float(loss):.6f}", flush=True)
    np.savez(Path(args.out) / f"rank{rank}.npz", **{name: np.asarray(value) for name, value in params.items()})


if __name__ == "__main__":
    main()
