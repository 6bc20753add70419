"""workloads.py NAME [periods] [--nvml] [--tiny]: real programs. gpt, resnet and gnn are behind the recorded traces;
inference, moe, diffusion, adapters and amr are those whose allocations programs.py writes.

Prints ms per step, peak memory and losses. Memory is cached by PyTorch unless
PYTORCH_NO_CUDA_MEMORY_CACHING=1. Inputs change their shape from step to step. Every shape of gpt, resnet, gnn,
diffusion and adapters comes back after a period: what an allocator is asked for varies, and repeats. In the others
only the work of a period is about the same. The model and input sizes of the first three were read off the traces.

--nvml   the device's memory as NVML sees it, at its peak: looked at every 20 ms by another process, and at the end,
         less what was used at the start. No other process may use the GPU
--tiny   small sizes, on a CPU too: whether one of the five runs
"""

import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
import torch
from torch import nn
from torch.nn import functional as F

import language_models
import nvml
from amr import amr
from diffusion import diffusion
from pytime import argument, print_time

device = torch.device("cuda")
random = torch.Generator().manual_seed(7)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (
            t.view(n, length, self.heads, -1).transpose(1, 2)
            for t in self.qkv(self.before(x)).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT2(nn.Module):
    def __init__(self, vocabulary=50304, width=768, heads=12, layers=12, longest=1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids, labels):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        logits = F.linear(self.last(self.blocks(x)), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gpt():
    """GPT-2 small, bf16 autocast, batches of 8, eight sequence lengths."""
    model = GPT2().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    lengths = [512, 1024, 640, 1000, 384, 896, 768, 960]
    tokens = torch.randint(0, 50257, (8, 1025), generator=random).to(device)

    def step(i):
        length = lengths[i % 8]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens[:, :length], tokens[:, 1 : length + 1])
        loss.backward()
        optimizer.step()
        return loss

    return step, 8


def resnet():
    """ResNet-50, channels-last, eight pairs of batch and image size."""
    from torchvision.models import resnet50

    model = resnet50(weights=None).to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    shapes = [(32, 224), (48, 176), (20, 256), (24, 192), (48, 288), (32, 160), (8, 320), (16, 128)]

    def step(i):
        n, size = shapes[i % 8]
        images = torch.randn(n, 3, size, size, device=device, generator=on_device).to(
            memory_format=torch.channels_last
        )
        labels = torch.randint(0, 1000, (n,), device=device, generator=on_device)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    on_device = torch.Generator(device).manual_seed(3)
    return step, 8


def gnn():
    """Graph attention over 24 random graphs of 20 000 to 120 000 nodes, twelve edges a node."""
    from torch_geometric.nn import GATConv

    layers = nn.ModuleList(
        [GATConv(64, 64, heads=4), *(GATConv(256, 64, heads=4) for _ in range(3))]
    ).to(device)
    last = nn.Linear(256, 40).to(device)
    optimizer = torch.optim.Adam([*layers.parameters(), *last.parameters()], lr=1e-3)
    sizes = torch.randint(20_000, 120_001, (24,), generator=random).tolist()
    on_device = torch.Generator(device)

    def step(i):
        n = sizes[i % 24]
        on_device.manual_seed(i % 24)
        edges = torch.randint(0, n, (2, 12 * n), device=device, generator=on_device)
        x = torch.randn(n, 64, device=device, generator=on_device)
        labels = torch.randint(0, 40, (n,), device=device, generator=on_device)
        optimizer.zero_grad(set_to_none=True)
        for layer in layers:
            x = F.elu(layer(x, edges))
        loss = F.cross_entropy(last(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step, 24


# name: (function, periods that are measured, sizes with --tiny)
PROGRAMS = {
    "gpt": (gpt, 8, None),
    "resnet": (resnet, 8, None),
    "gnn": (gnn, 3, None),
    "inference": (
        language_models.inference,
        5,
        dict(vocabulary=211, width=64, keys=32, head=16, inner=96, layers=2, unit=1),
    ),
    "moe": (
        language_models.moe,
        6,
        dict(vocabulary=211, width=64, keys=32, head=16, inner=48, layers=2, experts=4, length=32),
    ),
    "diffusion": (diffusion, 4, dict(channels=(32, 64, 64, 64), seen=24, finest=32, shrunk=4)),
    "adapters": (
        language_models.adapters,
        8,
        dict(vocabulary=211, width=64, keys=32, head=16, inner=96, layers=2, shrunk=16),
    ),
    "amr": (amr, 5, dict(unit=1)),
}


def main():
    flags = {a for a in sys.argv if a.startswith("--")}
    sys.argv = [a for a in sys.argv if a not in flags]
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS or flags - {"--nvml", "--tiny"}:
        sys.exit(__doc__)
    used = nvml.Used() if "--nvml" in flags else None
    before = used.now() if used else 0
    name = sys.argv[1]
    function, periods, tiny = PROGRAMS[name]
    if "--tiny" not in flags or tiny is None:
        tiny = {}
        torch.cuda.init()  # raises an error that names the reason without a GPU
    torch.manual_seed(0)
    step, period = function(**tiny)
    periods = argument(2, periods)
    losses, times = [], []
    for round in range(2 + periods):
        start = time.perf_counter()
        for i in range(period):
            losses.append(step(i).detach())
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if round >= 2:
            times.append((time.perf_counter() - start) * 1e3 / period)
    print_time("per_step", statistics.median(times), "ms")
    print_time("per_step_least", min(times), "ms")
    if used:
        print_time("peak_nvml", (used.most() - before) / 2**20, "MiB")
        used.close()
    if torch.cuda.is_available() and os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        live = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        print_time("peak_live", live / 2**20, "MiB")
        print_time("peak_reserved_over_live", torch.cuda.max_memory_reserved() / live, "ratio")
    # only the first: sums in any order drift apart as training goes on
    print("losses", " ".join(f"{float(x):.4f}" for x in losses[:4]))


if __name__ == "__main__":
    main()
