"""Saves three trained models as PyTorch and safetensors do, or checks that their averages load and are right.

models_torch.py save|check FOLDER
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

action, folder = sys.argv[1], Path(sys.argv[2])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.short = torch.nn.Linear(6, 6).to(torch.bfloat16)
        self.tied = torch.nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.register_buffer("turned", torch.randn(3, 2).t())
        self.register_buffer("wave", torch.randn(4, dtype=torch.complex64))

    def forward(self, x):
        x = self.norm(self.first(x)).to(torch.bfloat16)
        return self.tied(self.short(x).float())


if action == "save":
    for number in range(3):
        torch.manual_seed(number)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), 0.01)
        for _ in range(number + 1):
            optimizer.zero_grad()
            net(torch.randn(16, 6) * 2 + number).square().mean().backward()
            optimizer.step()
        state = net.state_dict()
        torch.save(state, folder / f"state-{number}.pt")
        torch.save(
            {"model": state, "optimizer": optimizer.state_dict(), "epoch": 3, "device": torch.device("cpu")},
            folder / f"checkpoint-{number}.pth",
        )
        apart = {name: value.clone().contiguous() for name, value in state.items()}
        save_file(apart, folder / f"tensors-{number}.safetensors", {"format": "pt", "note": "kept"})
else:
    several = [torch.load(folder / f"state-{number}.pt", weights_only=True) for number in range(3)]

    def exact(name):
        wide = torch.complex128 if several[0][name].is_complex() else torch.float64
        values = torch.stack([each[name].to(wide) for each in several])
        if name == "norm.num_batches_tracked":
            return values.max(0).values
        mean = values.sum(0) / 3
        if name == "norm.running_var":
            means = torch.stack([each["norm.running_mean"].to(torch.float64) for each in several])
            mean = mean + means.var(0, correction=0)
        return mean

    checkpoint = torch.load(folder / "final.pth", weights_only=True, mmap=True)
    assert checkpoint["epoch"] == 3
    for state in (
        torch.load(folder / "final.pt", weights_only=True),
        checkpoint["model"],
        load_file(folder / "final.safetensors"),
    ):
        assert state.keys() == several[0].keys()
        for name, value in state.items():
            assert torch.equal(value, exact(name).to(value.dtype)), name
    net = Net()
    net.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    optimizer.load_state_dict(checkpoint["optimizer"])
    moments = [
        torch.load(folder / f"checkpoint-{number}.pth", weights_only=True)["optimizer"]["state"][0]["exp_avg"].double()
        for number in range(3)
    ]
    assert torch.equal(checkpoint["optimizer"]["state"][0]["exp_avg"], (sum(moments) / 3).float())
    assert checkpoint["optimizer"]["state"][0]["step"] == 3
    net(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    print("all are right")
