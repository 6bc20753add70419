"""Programs of workloads.py with language models: inference, moe, adapters. Sizes are those of programs.py.

Weights are random. Seeded generators draw the sizes, so every run makes the same requests.
"""

from random import Random

import torch
from torch import nn
from torch.nn import functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
half = dict(device=device, dtype=torch.bfloat16)


def plain(into, out):
    return nn.Linear(into, out, bias=False, **half)


class Adapted(nn.Module):
    """Adds the product of two thin learned layers, in 4 bytes, to a frozen layer."""

    def __init__(self, into, out, rank=16):
        super().__init__()
        self.frozen = plain(into, out)
        self.down = nn.Parameter(torch.randn(rank, into, device=device) / into**0.5)
        self.up = nn.Parameter(torch.zeros(out, rank, device=device))

    def forward(self, x):
        return self.frozen(x) + F.linear(F.linear(F.dropout(x, 0.05), self.down), self.up) * 2


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, **half))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def angles(start, length, head):
    rates = 5e5 ** (-torch.arange(0, head, 2, device=device) / head)
    turns = torch.arange(start, start + length, device=device)[:, None] * rates
    turns = torch.cat((turns, turns), -1)
    return turns.cos().bfloat16(), turns.sin().bfloat16()


def turned(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    """Attention in which several heads share keys and values. A cache grows by a copy."""

    def __init__(self, width, keys, head, linear):
        super().__init__()
        self.head = head
        self.q, self.k, self.v = linear(width, width), linear(width, keys), linear(width, keys)
        self.out = linear(width, width)

    def forward(self, x, places, cache):
        q, k, v = (f(x).unflatten(2, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = turned(q, *places), turned(k, *places)
        if cache is not None:
            if self in cache:
                k, v = torch.cat((cache[self][0], k), 2), torch.cat((cache[self][1], v), 2)
            cache[self] = k, v
        y = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width, inner, linear):
        super().__init__()
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Chooses two experts for each token. Some experts are chosen more often, different ones in each step."""

    def __init__(self, width, inner, experts, dice):
        super().__init__()
        self.dice, self.router = dice, plain(width, experts)
        self.experts = nn.ModuleList(FeedForward(width, inner, plain) for _ in range(experts))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        liking = (torch.rand(len(self.experts), device=device, generator=self.dice) + 0.5).log()
        odds, chosen = (self.router(tokens).float() + liking).softmax(-1).topk(2)
        odds = odds / odds.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == i)
            y = expert(tokens.index_select(0, token)) * odds[token, rank, None].to(x.dtype)
            out.index_add_(0, token, y)
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, width, attention, feed_forward):
        super().__init__()
        self.before, self.between = Norm(width), Norm(width)
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x, places, cache):
        x = x + self.attention(self.before(x), places, cache)
        return x + self.feed_forward(self.between(x))


class Decoder(nn.Module):
    def __init__(self, vocabulary, width, head, layers, tied=True):
        super().__init__()
        # cuDNN makes a plan for each new length, which takes longer than the attention
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.head, self.layers, self.last = head, nn.ModuleList(layers), Norm(width)
        self.tokens = nn.Embedding(vocabulary, width, **half)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.words = None if tied else plain(width, vocabulary)

    def forward(self, ids, start=0, cache=None):
        """Returns the output; with a cache, of the last token only."""
        x, places = self.tokens(ids), angles(start, ids.shape[1], self.head)
        for layer in self.layers:
            x = layer(x, places, cache)
        x = self.last(x if cache is None else x[:, -1])
        return F.linear(x, self.tokens.weight if self.words is None else self.words.weight)


def decoder(vocabulary, width, keys, head, inner, layers, linear):
    layer = lambda: Layer(width, Attention(width, keys, head, linear), FeedForward(width, inner, linear))
    return Decoder(vocabulary, width, head, [layer() for _ in range(layers)])


def loss_of(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def inference(vocabulary=128256, width=2048, keys=512, head=64, inner=8192, layers=16, unit=16):
    """A step is a batch of requests, prompts and answers. A period has four steps: few and many requests, long and short."""
    model = decoder(vocabulary, width, keys, head, inner, layers, plain)
    dice, answers, batches = Random(7), (24, 40, 48, 64), []
    random = torch.Generator().manual_seed(7)

    def step(i):
        if not batches:
            prompts = [unit * dice.randint(low, low + 29) for low in (8, 38, 68, 98)]
            batches.extend(zip(*(dice.sample(all, 4) for all in ((8, 16, 24, 32), prompts, answers))))
        batch, prompt, answer = batches.pop()
        ids = torch.randint(0, vocabulary, (batch, prompt), generator=random).to(device)
        cache, losses, start = {}, [], 0
        with torch.no_grad():
            for _ in range(answer):
                logits = model(ids, start, cache).float()
                start += ids.shape[1]
                ids = logits.argmax(-1, keepdim=True)
                losses.append(F.cross_entropy(logits, ids[:, 0]))
        return torch.stack(losses).mean()

    return step, 4


def moe(vocabulary=32000, width=2048, keys=512, head=128, inner=1408, layers=12, experts=16, length=1024):
    """A step is a batch of 8 texts of one length. Only the number of tokens of each expert changes."""
    dice, random = torch.Generator(device).manual_seed(3), torch.Generator().manual_seed(7)
    layer = lambda: Layer(width, Attention(width, keys, head, plain), Experts(width, inner, experts, dice))
    model = Decoder(vocabulary, width, head, [layer() for _ in range(layers)], tied=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(i):
        ids = torch.randint(0, vocabulary, (8, length + 1), generator=random).to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        return loss

    return step, 4


def adapters(vocabulary=128256, width=3072, keys=1024, head=128, inner=8192, layers=28, shrunk=1):
    """A step is a batch of two texts of one of eight lengths."""
    model = decoder(vocabulary, width, keys, head, inner, layers, Adapted)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.dtype == torch.float32)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    lengths = [n // shrunk for n in (512, 1024, 384, 896, 640, 1000, 768, 960)]
    random = torch.Generator().manual_seed(7)

    def step(i):
        ids = torch.randint(0, vocabulary, (2, lengths[i % 8] + 1), generator=random).to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = loss_of(model, ids)
        loss.backward()
        optimizer.step()
        return loss

    return step, 8
