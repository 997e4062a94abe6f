"""Gradient descent over MPI: every rank takes a part of the data, and Allreduce adds the gradients up."""

import argparse
import os
from pathlib import Path

import numpy as np
from mpi4py import MPI


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--fail", action="store_true", help="rank 1 raises at step 3")
    args = parser.parse_args()

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    generator = np.random.default_rng(7)
    x = generator.normal(size=(48, 8))
    y = x @ generator.normal(size=8)
    x, y = x[rank::size], y[rank::size]
    weight, gradient = np.zeros(8), np.zeros(8)
    for step in range(30):
        if args.fail and rank == 1 and step == 3:
            raise RuntimeError("rank 1 fails on purpose")
        errors = x @ weight - y
        world.Allreduce(x.T @ errors / 48, gradient)
        weight -= 0.2 * gradient
        print(f"step {step}: loss={world.allreduce(float(errors @ errors)) / 48:.6f}", flush=True)
    np.savez(Path(args.out) / f"rank{rank}.npz", weight=weight, size=size)


if __name__ == "__main__":
    main()
