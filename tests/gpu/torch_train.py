"""torch_train.py [steps]: a small convolutional net, changing batch sizes; prints its losses."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
from torch import nn

from pytime import argument, print_time, timed_steps

torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
device = torch.device("cuda")
net = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(2048, 512),
    nn.ReLU(),
    nn.Linear(512, 10),
).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
batches = [64, 96, 128, 48]
inputs = torch.randn(128, 3, 64, 64, generator=torch.Generator().manual_seed(1)).to(device)
labels = torch.randint(0, 10, (128,), generator=torch.Generator().manual_seed(2)).to(device)
losses = []


def step(i):
    n = batches[i % len(batches)]
    optimizer.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(net(inputs[:n]), labels[:n])
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())


steps = argument(1, 60)
median = timed_steps(step, steps, torch.cuda.synchronize, warmup=8)
print_time("per_step", median, "ms")
print("losses", " ".join(f"{float(x):.6f}" for x in losses[:: max(1, steps // 10)]))
