"""Data parallel training as PyTorch's DDP tutorial teaches it: env:// rendezvous, DistributedSampler, gloo on CPU."""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_data():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(240, 8, generator=generator)
    return TensorDataset(x, x @ torch.randn(8, 1, generator=generator))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--fail", action="store_true", help="rank 1 raises at step 3")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            if args.fail and rank == 1 and step == 3:
                raise RuntimeError("rank 1 fails on purpose")
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch}: loss={loss.item():.6f}", flush=True)
    weights = {name: value.numpy() for name, value in model.module.state_dict().items()}
    np.savez(Path(args.out) / f"rank{rank}.npz", **weights)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
