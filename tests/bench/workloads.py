"""workloads.py gpt|resnet|gnn [periods]: the training programs behind the recorded traces.

Prints ms per step, peak memory and losses. Memory is cached by PyTorch unless
PYTORCH_NO_CUDA_MEMORY_CACHING=1. Inputs change their shape from step to step and every shape comes
back after a period: what an allocator is asked for varies, and repeats. The model and input sizes
were read off the traces.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
import torch
from torch import nn
from torch.nn import functional as F

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


def main():
    torch.manual_seed(0)
    name = sys.argv[1]
    step, period = {"gpt": gpt, "resnet": resnet, "gnn": gnn}[name]()
    periods = argument(2, 3 if name == "gnn" else 8)
    warmup = 1 if name == "gnn" else 2
    losses, times = [], []
    for round in range(warmup + periods):
        start = time.perf_counter()
        for i in range(period):
            losses.append(step(i).detach())
        torch.cuda.synchronize()
        if round >= warmup:
            times.append((time.perf_counter() - start) * 1e3 / period)
    print_time("per_step", sorted(times)[len(times) // 2], "ms")
    print_time("per_step_least", min(times), "ms")
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") != "1":
        live = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        print_time("peak_live", live / 2**20, "MiB")
        print_time("peak_reserved_over_live", torch.cuda.max_memory_reserved() / live, "ratio")
    # only the first: sums in any order drift apart as training goes on
    print("losses", " ".join(f"{float(x):.4f}" for x in losses[:4]))


if __name__ == "__main__":
    main()
