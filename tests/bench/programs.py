#!/usr/bin/env python3
"""programs.py NAME [--periods=N] [--seed=N] [--strict]: the allocations of a program, as tests/data/traces has them.

Not recorded: written from the structure of such programs (layers, shapes, what is kept for the backward pass, what is
temporary), each tensor an allocation of its own, as PyTorch without its cache makes them. workloads.py runs real ones
of the same names and sizes on a GPU.

    inference   a language model of 1 billion parameters decodes batches of requests; each token makes every layer's
                keys and values longer, by a copy
    moe         a mixture of experts trains; how many tokens an expert gets never repeats
    diffusion   a diffusion model trains on pictures of eight formats, and now and then makes some
    adapters    a frozen language model of 3 billion parameters is tuned by adapters; eight lengths of text
    amr         a blast wave in a grid that is refined where it runs: patches come, grow and go
    random      RMM's random_allocations benchmark, as in pairs.h, with other sizes in each round
    queue       blocks of up to 200 MiB, which go in the order in which they came
    serving     a cache of what it was asked for, of 20 GiB: from 10 KiB to 2 GiB each, any of which may go
    bursts      a second of rest, then 20 blocks of up to 1 GiB, for which any others go

A line `# period N` stands where a period begins: one of the program's own, all formats or lengths of text, a batch of
requests, a wave. --strict makes each period draw the same random numbers, so that all are equal.
"""

import sys
from collections import namedtuple
from random import Random

KI, MI = 1 << 10, 1 << 20

# The memory of an operation: its result, temporary memory, whether the backward pass needs the result, and the bytes of
# its weights' gradient. `hold` keeps the result until the operation that names the same key in `use` has run.
Op = namedtuple("Op", "out temp kept weight flops hold use", defaults=((), True, 0, 0, None, None))


class Program:
    """Writes the rows. Time advances by the work of the CPU or of the device, whichever takes longer."""

    def __init__(self, out, seed):
        self.out, self.seed = out, seed
        self.us, self.last, self.number = 0.0, 0, 0
        self.random = Random(seed).random

    def period(self, number, strict):
        if strict:
            self.random = Random(self.seed).random
        self.out.write("# period %d\n" % number)

    def new(self, size):
        self.last += 1
        self.us += 2
        self.out.write("%d,0,a,%d,%d\n" % (self.us, self.last, max(1, int(size))))
        return self.last

    def drop(self, *blocks):
        for block in blocks:
            self.us += 1
            self.out.write("%d,0,f,%d,\n" % (self.us, block))

    def work(self, size, flops=0):
        """Adds the device time for these bytes and operations. A launch takes the CPU 4 us."""
        self.us += max(4, size / 3e6 + flops / 4e8)

    def between(self, low, high):
        return low + int(self.random() * (high - low + 1))

    def temporary(self, *sizes):
        blocks = [self.new(size) for size in sizes]
        self.work(sum(sizes))
        self.drop(*blocks)


class Step:
    """One forward pass over a list of operations, and the backward pass."""

    def __init__(self, program, ops):
        self.program, self.ops, self.kept, self.gradients = program, ops, [], []

    def forward(self, first, training):
        """Takes `first`, the input. Returns the last result unless training."""
        p, previous, previous_kept, held = self.program, first, training, {}
        for op in self.ops:
            temps = [p.new(size) for size in op.temp]
            result = p.new(op.out)
            p.work(op.out + sum(op.temp), op.flops)
            p.drop(*temps)
            if op.use is not None and op.use in held:
                p.drop(held.pop(op.use))
            if not previous_kept:
                p.drop(previous)
            keeps = training and op.kept
            if training:
                self.kept.append(result if keeps else None)
            elif op.hold is not None:
                held[op.hold] = result
                keeps = True
            previous, previous_kept = result, keeps
        if training and not previous_kept:
            p.drop(previous)
        if training:
            self.first = first
        return None if training else previous

    def backward(self):
        p = self.program
        gradient = p.new(4)
        for i in range(len(self.ops) - 1, -1, -1):
            op = self.ops[i]
            temps = [p.new(size) for size in op.temp]
            before = p.new(self.ops[i - 1].out) if i > 0 else None
            if op.weight:
                self.gradients.append(p.new(op.weight))
            p.work(2 * (op.out + sum(op.temp)), 2 * op.flops)
            p.drop(*temps, gradient)
            if self.kept[i] is not None:
                p.drop(self.kept[i])
            gradient = before
        p.drop(self.first)
        self.kept = []
        return self.gradients


def optimizer_step(p, sizes, batch=64):
    """Updates many parameters at a time, with a temporary of the size of each."""
    for start in range(0, len(sizes), batch):
        p.temporary(*sizes[start : start + batch])


# --- language models ---


def norm(tokens, width):
    return [
        Op(4 * tokens * width, temp=(4 * tokens * width,)),
        Op(4 * tokens, temp=(4 * tokens * width,)),
        Op(2 * tokens * width),
    ]


def linear(tokens, into, out, rank=0, weight=0):
    if not rank:
        return [Op(2 * tokens * out, weight=weight, flops=2 * tokens * into * out)]
    return [
        Op(2 * tokens * into, kept=False),
        Op(2 * tokens * rank, weight=4 * into * rank),
        Op(
            2 * tokens * out,
            temp=(2 * tokens * out, 2 * tokens * out),
            weight=4 * out * rank,
            flops=2 * tokens * into * out,
        ),
    ]


def attention(tokens, width, keys, heads, rank=0, weights=False):
    square = 4 * width * width if weights else 0
    ops = norm(tokens, width)
    ops += linear(tokens, width, width, rank, square)
    ops += linear(tokens, width, keys, rank, square and 4 * width * keys)
    ops += linear(tokens, width, keys, rank, square and 4 * width * keys)
    ops += [Op(2 * tokens * width, temp=(tokens * width, 2 * tokens * width))]  # rotary position embedding
    ops += [Op(2 * tokens * keys, temp=(tokens * keys, 2 * tokens * keys))]
    ops += [Op(4 * tokens * heads), Op(2 * tokens * width, flops=4 * tokens * tokens * width)]
    ops += linear(tokens, width, width, rank, square)
    return ops + [Op(2 * tokens * width)]


def feed_forward(tokens, width, inner, rank=0):
    ops = norm(tokens, width)
    ops += linear(tokens, width, inner, rank) + [Op(2 * tokens * inner)]
    ops += linear(tokens, width, inner, rank) + [Op(2 * tokens * inner)]
    return ops + linear(tokens, inner, width, rank) + [Op(2 * tokens * width)]


def words(tokens, width, vocabulary):
    """Returns the operations of the probabilities of the next word, and of the loss."""
    return norm(tokens, width) + [
        Op(2 * tokens * vocabulary, kept=False, flops=2 * tokens * width * vocabulary),
        Op(4 * tokens * vocabulary, kept=False),
        Op(4 * tokens * vocabulary),
        Op(4),
    ]


def adapters(p, periods, strict):
    width, keys, inner, heads, layers, vocabulary, rank = 3072, 1024, 8192, 24, 28, 128256, 16
    lengths = (512, 1024, 384, 896, 640, 1000, 768, 960)
    p.new(2 * vocabulary * width)
    for _ in range(layers):
        for into, out in ((width, width), (width, keys), (width, keys), (width, width)):
            p.new(2 * into * out)
        for into, out in ((width, inner), (width, inner), (inner, width)):
            p.new(2 * into * out)
        p.new(2 * width), p.new(2 * width)
    parameters = []
    for _ in range(layers):
        for into, out in ((width, width), (width, keys), (width, keys), (width, width)):
            parameters += [4 * into * rank, 4 * out * rank]
        for into, out in ((width, inner), (width, inner), (inner, width)):
            parameters += [4 * into * rank, 4 * out * rank]
    for size in parameters:
        p.new(size)
    p.new(32 * MI)  # cuBLAS
    moments, gradients = False, []
    for period in range(periods):
        p.period(period, strict)
        for length in lengths:
            tokens = 2 * length
            ops = []
            for _ in range(layers):
                ops += attention(tokens, width, keys, heads, rank) + feed_forward(tokens, width, inner, rank)
            ids = p.new(8 * tokens)
            step = Step(p, ops + words(tokens, width, vocabulary))
            p.drop(*gradients)
            step.forward(p.new(2 * tokens * width), True)
            gradients = step.backward()
            if not moments:
                for size in parameters:
                    p.new(size), p.new(size)
                moments = True
            optimizer_step(p, parameters)
            p.drop(ids)


def experts_of_layer(p, tokens, width, inner, experts):
    """Returns the operations of two experts for each token. Some experts are chosen more often than others."""
    weights = [0.5 + p.random() for _ in range(experts)]
    counts = [int(2 * tokens * w / sum(weights)) for w in weights]
    ops = norm(tokens, width) + [
        Op(4 * tokens * experts, weight=2 * width * experts),
        Op(4 * tokens * 2),
        Op(8 * tokens * 2),
    ]
    for n in counts:
        ops += [
            Op(8 * n),
            Op(2 * n * width),
            Op(2 * n * inner, weight=2 * width * inner, flops=2 * n * width * inner),
            Op(2 * n * inner),
            Op(2 * n * inner, weight=2 * width * inner, flops=2 * n * width * inner),
            Op(2 * n * inner),
            Op(2 * n * width, weight=2 * width * inner, flops=2 * n * width * inner),
            Op(2 * n * width, temp=(2 * n * width,)),
        ]
    return ops + [Op(2 * tokens * width)]


def moe(p, periods, strict):
    width, keys, inner, heads, layers, experts, vocabulary = 2048, 512, 1408, 16, 12, 16, 32000
    batch, length, steps = 8, 1024, 4
    parameters = [2 * vocabulary * width] * 2
    for _ in range(layers):
        parameters += [2 * width * width, 2 * width * keys, 2 * width * keys, 2 * width * width, 2 * width, 2 * width]
        parameters += [2 * width * experts] + [2 * width * inner] * (3 * experts)
    for size in parameters:
        p.new(size)
    p.new(32 * MI)
    moments, gradients = False, []
    for period in range(periods):
        p.period(period, strict)
        for _ in range(steps):
            tokens, ops = batch * length, []
            for _ in range(layers):
                ops += attention(tokens, width, keys, heads, weights=True)
                ops += experts_of_layer(p, tokens, width, inner, experts)
            ids = p.new(8 * tokens)
            p.drop(*gradients)
            step = Step(p, ops + words(tokens, width, vocabulary))
            step.forward(p.new(2 * tokens * width), True)
            gradients = step.backward()
            if not moments:
                for size in parameters:
                    p.new(size), p.new(size)
                moments = True
            optimizer_step(p, parameters, 8)
            p.drop(ids)


def inference(p, periods, strict):
    """Writes batches of up to 32 requests. As with DynamicCache, `cat` makes a new cache for each token."""
    width, keys, inner, layers, vocabulary = 2048, 512, 8192, 16, 128256
    p.new(2 * vocabulary * width)
    for _ in range(layers):
        for size in (width, width // 4, width // 4, width, inner, inner, inner):
            p.new(2 * width * size)
    p.new(32 * MI)
    for period in range(periods):
        p.period(period, strict)
        batch = 8 * p.between(1, 4)
        longest, answer = 16 * p.between(8, 128), p.between(24, 64)
        cache, fresh = [], batch * longest
        for token in range(answer):
            length, ids = longest + token, p.new(8 * fresh)
            x = p.new(2 * fresh * width)
            for layer in range(layers):
                q, out = p.new(2 * fresh * width), p.new(2 * fresh * width)
                k, v = p.new(2 * fresh * keys), p.new(2 * fresh * keys)
                if token == 0:
                    cache.append([k, v])
                else:
                    for i, one in enumerate((k, v)):
                        longer = p.new(2 * batch * length * keys)
                        p.work(4 * batch * length * keys)
                        p.drop(cache[layer][i], one)
                        cache[layer][i] = longer
                p.work(2 * batch * length * keys)
                p.drop(q)
                gate, up = p.new(2 * fresh * inner), p.new(2 * fresh * inner)
                p.work(6 * width * inner)
                p.drop(gate, up, x)
                x = out
            p.temporary(2 * batch * vocabulary, 4 * batch * vocabulary)
            p.drop(x, ids)
            fresh = batch
        for k, v in cache:
            p.drop(k, v)


# --- a diffusion model ---

CHANNELS = (320, 640, 1280, 1280)


def residual(pixels, into, out):
    ops = [Op(2 * pixels * into), Op(2 * pixels * into)]
    ops += [Op(2 * pixels * out, temp=(16 * MI,), weight=2 * 9 * into * out, flops=18 * pixels * into * out)]
    ops += [Op(2 * pixels * out), Op(2 * pixels * out)]
    ops += [Op(2 * pixels * out, temp=(16 * MI,), weight=2 * 9 * out * out, flops=18 * pixels * out * out)]
    if into != out:
        ops += [Op(2 * pixels * out, weight=2 * into * out)]
    return ops + [Op(2 * pixels * out)]


def looks(pixels, channels, batch):
    """Returns the operations of attention to the picture and to 77 words, and of a gated layer."""
    n, one = 2 * pixels * channels, 2 * channels * channels
    ops = [Op(n), Op(n, weight=one)]
    for words_seen in (pixels, 77 * batch):
        ops += [Op(n), Op(n, weight=one)]
        ops += [Op(2 * words_seen * channels, weight=one), Op(2 * words_seen * channels, weight=one)]
        ops += [Op(4 * pixels * 8), Op(n), Op(n, weight=one), Op(n)]
    return ops + [Op(n), Op(8 * n, weight=8 * one), Op(4 * n), Op(4 * n), Op(n, weight=4 * one), Op(n)]


def unet(batch, height, width):
    ops, skips = [Op(2 * batch * height * width * 320, hold=0)], [(320, 0)]
    into = 320
    for level, channels in enumerate(CHANNELS):
        pixels = batch * (height >> level) * (width >> level)
        for _ in range(2):
            ops += residual(pixels, into, channels)
            if level < 3:
                ops += looks(pixels, channels, batch)
            ops[-1] = ops[-1]._replace(hold=len(skips))
            skips.append((channels, len(skips)))
            into = channels
        if level < 3:
            ops.append(Op(pixels // 2 * channels, weight=18 * channels * channels, hold=len(skips)))
            skips.append((channels, len(skips)))
    ops += residual(pixels, 1280, 1280) + looks(pixels, 1280, batch) + residual(pixels, 1280, 1280)
    for level in (3, 2, 1, 0):
        channels, pixels = CHANNELS[level], batch * (height >> level) * (width >> level)
        for _ in range(3):
            more, key = skips.pop()
            ops.append(Op(2 * pixels * (into + more), use=key))
            ops += residual(pixels, into + more, channels)
            if level < 3:
                ops += looks(pixels, channels, batch)
            into = channels
        if level > 0:
            ops.append(Op(8 * pixels * channels, weight=18 * channels * channels))
    return ops + [Op(2 * pixels * 320), Op(2 * pixels * 4)]


def decoder(height, width):
    """Returns the operations of the layers from the model's pixels to the picture's."""
    ops = []
    for channels, times in ((512, 1), (512, 2), (256, 4), (128, 8)):
        pixels = height * width * times * times
        for _ in range(3):
            ops += [Op(2 * pixels * channels), Op(2 * pixels * channels, temp=(32 * MI,)), Op(2 * pixels * channels)]
    return ops + [Op(2 * pixels * 3)]


def diffusion(p, periods, strict):
    formats = ((64, 64), (72, 56), (56, 72), (80, 48), (48, 80), (96, 40), (64, 48), (88, 48))
    batch, gradients = 6, []
    parameters = [op.weight for op in unet(1, 64, 64) if op.weight]
    for size in parameters:
        p.new(2 * size), p.new(2 * size), p.new(2 * size)  # parameters of 4 bytes, and the optimizer's state
    p.new(32 * MI)
    for period in range(periods):
        p.period(period, strict)
        for height, width in formats:
            p.drop(*gradients)
            latent = p.new(4 * batch * height * width * 4)
            copies = [p.new(size) for size in parameters]  # in half the precision
            step = Step(p, unet(batch, height, width))
            step.forward(p.new(2 * batch * height * width * 4), True)
            gradients = step.backward()
            p.drop(*copies, latent)
            optimizer_step(p, [2 * size for size in parameters])
        for height, width in formats[:2]:
            copies = [p.new(size) for size in parameters]
            latent = p.new(2 * 8 * height * width)
            for _ in range(8):  # one batch with the words and without
                noise = Step(p, unet(2, height, width)).forward(p.new(2 * 8 * height * width), False)
                p.drop(latent)
                latent = noise
            p.drop(Step(p, decoder(height, width)).forward(latent, False), *copies)


# --- a simulation ---


class Patch:
    """A box of cells with 5 quantities and 4 cells around it; as many again for the old state."""

    def __init__(self, p, sides, place):
        self.sides, self.place = sides, place
        self.cells = (sides[0] + 8) * (sides[1] + 8) * (sides[2] + 8)
        self.fields = [p.new(8 * 5 * self.cells), p.new(8 * 5 * self.cells)]


def advance(p, patches):
    """Writes one step of one level: ghosts from neighbours, fluxes in three directions, the new state."""
    for patch in patches:
        ghosts = [p.new(8 * 5 * 4 * side * side) for side in patch.sides]
        state = p.new(8 * 6 * patch.cells)
        p.work(8 * 11 * patch.cells)
        p.drop(*ghosts)
        fluxes = [p.new(8 * 5 * patch.cells) for _ in range(3)]
        p.work(8 * 40 * patch.cells)
        p.drop(state, *fluxes)
    p.temporary(8 * len(patches), 8 * 1024)


def regrid(p, old, wanted):
    """Makes the new patches from the old ones. An unchanged patch stays."""
    stays = {patch.place: patch for patch in old}
    new = []
    for place, sides in wanted:
        patch = stays.get(place)
        if patch and patch.sides == sides:
            new.append(stays.pop(place))
        else:
            new.append(Patch(p, sides, place))
            p.temporary(8 * 5 * sides[0] * sides[1] * sides[2])
    for patch in stays.values():
        p.drop(*patch.fields)
    return new


def wave(p, level, time):
    """Returns boxes of 24 to 80 cells a side along the front. Their number grows with its distance."""
    radius = 1 - abs(2 * time - 1)
    boxes = []
    for place in range(int((6 << 2 * level) * radius * radius) + 2):
        if p.random() < 0.8:
            sides = tuple(8 * p.between(5 - level, 11 - level) for _ in range(3))
            boxes.append((place, sides))
    return boxes


def amr(p, periods, strict):
    levels = [[Patch(p, (64, 64, 64), place) for place in range(27)], [], []]
    p.new(64 * MI)
    for period in range(periods):
        p.period(period, strict)
        steps = 24
        for step in range(steps):
            if step % 3 == 0:
                for level in (1, 2):
                    tags = p.new(sum(patch.cells for patch in levels[level - 1]))
                    levels[level] = regrid(p, levels[level], wave(p, level, step / steps))
                    p.drop(tags)
            for level, times in ((0, 1), (1, 2), (2, 4)):
                for _ in range(times):
                    advance(p, levels[level])


# --- a benchmark, and programs that do nothing else ---


def random_allocations(p, periods, strict):
    """Writes 1000 allocations of up to 64 MiB in each round, with at most 16 000 MiB live."""
    for period in range(periods):
        p.period(period, strict)
        blocks, live, count = [], 0, 0
        for _ in range(2000):
            size = p.between(1, 64 * MI)
            if not blocks or (p.random() < 0.73 and count < 1000 and live + size < 16000 * MI):
                blocks.append((p.new(size), size))
                live += size
                count += 1
            else:
                at = p.between(0, len(blocks) - 1)
                block, size = blocks[at]
                blocks[at] = blocks[-1]
                blocks.pop()
                p.drop(block)
                live -= size
        p.drop(*(block for block, _ in blocks))


def queue(p, periods, strict):
    blocks, live = [], 0
    for period in range(periods):
        p.period(period, strict)
        for _ in range(1000):
            size = p.between(1, 200 * MI)
            blocks.append((p.new(size), size))
            live += size
            p.us += 30
            while live > 12 * 1024 * MI:
                block, size = blocks.pop(0)
                p.drop(block)
                live -= size


def serving(p, periods, strict):
    blocks, live, most = [], 0, 20 * 1024 * MI

    def drop_any():
        at = p.between(0, len(blocks) - 1)
        block, size = blocks[at]
        blocks[at] = blocks[-1]
        blocks.pop()
        p.drop(block)
        return size

    for period in range(periods):
        p.period(period, strict)
        for _ in range(1500):
            size = min(int(10 * KI * 2 ** (18 * (p.random() + p.random() + p.random()) / 3 + 1.5)), 2 * 1024 * MI)
            while live + size > most:
                live -= drop_any()
            blocks.append((p.new(size), size))
            live += size
            p.us += 20
            if p.random() < 0.5:
                live -= drop_any()


def bursts(p, periods, strict):
    blocks, live, most = [], 0, 16 * 1024 * MI
    for period in range(periods):
        p.period(period, strict)
        for _ in range(20):
            size = p.between(8 * MI, 1024 * MI)
            while live + size > most:
                block, gone = blocks.pop(p.between(0, len(blocks) - 1))
                p.drop(block)
                live -= gone
            blocks.append((p.new(size), size))
            live += size
            p.us += 100
        p.us += 1e6


PROGRAMS = {  # name: (function, number of periods)
    "inference": (inference, 24),
    "moe": (moe, 12),
    "diffusion": (diffusion, 14),
    "adapters": (adapters, 14),
    "amr": (amr, 16),
    "random": (random_allocations, 160),
    "queue": (queue, 40),
    "serving": (serving, 40),
    "bursts": (bursts, 150),
}


def write(name, out, periods=None, seed=1, strict=False):
    program, usual = PROGRAMS[name]
    out.write("time_us,thread,op,id,bytes\n")
    program(Program(out, seed), periods or usual, strict)


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("--")]
    options = dict((a.lstrip("-").split("=") + [""])[:2] for a in sys.argv[1:] if a.startswith("--"))
    if len(names) != 1 or names[0] not in PROGRAMS or set(options) - {"periods", "seed", "strict"}:
        sys.exit(__doc__)
    write(names[0], sys.stdout, int(options.get("periods", 0)), int(options.get("seed", 1)), "strict" in options)


if __name__ == "__main__":
    main()
