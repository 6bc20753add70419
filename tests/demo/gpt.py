#!/usr/bin/env python3
"""gpt.py [seconds]: trains a small language model with PyTorch, whose own cache is off.

The length of the batches changes. Every 16 steps an evaluation keeps scores of its predictions on the device, and
forgets to free them. Rank 2 of a job (RANK) keeps twice as many. scripts/pictures.py makes the pictures in docs/ of it.
"""
import ctypes
import os
import random
import sys
import time

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import nn
from torch.nn import functional

RANK = int(os.environ.get("RANK", 0))
WORDS, WIDTH, HEADS, LAYERS, BATCH = 50257, 768, 12, 12, 8
gpucache = ctypes.CDLL(None)  # the process: it has gpucache_mark() if the library is preloaded


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x):
        batch, length, _ = x.shape
        parts = self.query_key_value(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def mlp(self, x):
        return self.down(functional.gelu(self.up(x)))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm_mlp(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(1024, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.layers(x)))


def step(model, optimizer, tokens):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def evaluate(model, tokens, scores):
    with torch.no_grad():
        logits = model(tokens)
        scores.append(logits[:, -16:].softmax(-1))  # the leak that the pictures show: float(...) was meant
        if RANK == 2:
            scores.append(logits[:, -32:-16].softmax(-1))


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    torch.manual_seed(RANK)
    chance = random.Random(RANK)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scores, number, end = [], 0, None
    while end is None or time.monotonic() < end:
        tokens = torch.randint(WORDS, (BATCH, chance.choice((129, 257, 513))), device="cuda")
        step(model, optimizer, tokens)
        if number % 16 == 15:
            if hasattr(gpucache, "gpucache_mark"):
                gpucache.gpucache_mark(b"evaluation %d" % (number // 16))
            evaluate(model, tokens[:, :128], scores)
        number += 1
        end = end or time.monotonic() + seconds  # the first step loads the libraries
    print("%d steps, %d scores" % (number, len(scores)), flush=True)
    os._exit(0)  # the library reports here too; an exit of Python would free all tensors before the report


main()
