"""The loop of accelerate's quick tour: `prepare` everything, `accelerator.backward`, and no word about ranks."""

import os
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(240, 8, generator=generator)
    data = TensorDataset(x, x @ torch.randn(8, 1, generator=generator))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=20, shuffle=True))
    for epoch in range(4):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
        print(f"epoch {epoch}: loss={loss.item():.6f}", flush=True)
    weights = {name: value.numpy() for name, value in accelerator.unwrap_model(model).state_dict().items()}
    np.savez(Path(os.environ.get("OUT", ".")) / f"rank{accelerator.process_index}.npz", **weights)
    accelerator.end_training()


if __name__ == "__main__":
    main()
