"""Fully sharded training as PyTorch's FSDP2 tutorial teaches it, on CPU: each rank holds a part of every weight."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(world * 16, 12, generator=generator)
    y = x @ torch.randn(12, 1, generator=generator)
    x, y = x[rank::world], y[rank::world]
    for step in range(args.steps):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss={loss.item():.6f}", flush=True)
    weights = {name: value.full_tensor().numpy() for name, value in model.state_dict().items()}
    np.savez(Path(args.out) / f"rank{rank}.npz", **weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
