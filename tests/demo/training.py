#!/usr/bin/env python3
"""training.py [seconds]: allocates and frees device memory as a training does, by the driver's own calls.

Weights and optimizer states stay. Activations follow a batch whose length changes. Small blocks come by the hundred,
and an evaluation now and then. Each evaluation forgets to free a block; rank 5 of a job (RANK) forgets two.
TRAINING_LIBRARY names a build of optimizer.c, which then allocates the optimizer states. The program does the same on
a GPU and on the simulated driver (tests/sim). scripts/pictures.py makes the pictures in docs/ of it.
"""
import ctypes
import os
import random
import sys
import time

MIB = 1 << 20
RANK = int(os.environ.get("RANK", 0))
cuda = ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)  # global: the optimizer's library finds cuMemAlloc there
optimizer = ctypes.CDLL(os.environ["TRAINING_LIBRARY"]).optimizer_allocate if "TRAINING_LIBRARY" in os.environ else cuda.cuMemAlloc_v2
gpucache = ctypes.CDLL(None)  # nothing is linked: without the library the name is not there


def check(result):
    if result != 0:
        raise RuntimeError("the driver says %d" % result)


def allocate(size, by=cuda.cuMemAlloc_v2):
    address = ctypes.c_uint64()
    result = by(ctypes.byref(address), ctypes.c_size_t(int(size)))
    if result == 2:
        raise MemoryError(size)
    check(result)
    return address.value


def free(address):
    check(cuda.cuMemFree_v2(ctypes.c_uint64(address)))


def mark(label):
    if hasattr(gpucache, "gpucache_mark"):
        gpucache.gpucache_mark(label.encode())


def step(chance, share):
    """Forward and backward: activations live until their layer's turn comes again."""
    activations = []
    for layer in range(24):
        length = int(share * chance.choice((0.5, 0.8, 1, 1, 1.2)) * 2048)
        activations.append(allocate(length * 4096 * 4 // 2))
        if layer % 3 == 0:
            workspace = allocate(48 * MIB + layer * 123 * 1024)
            free(workspace)
    small = [allocate(chance.choice((512, 2048, 9000, 70000, 400000))) for _ in range(120)]
    for activation in reversed(activations):
        gradient = allocate(12 * MIB)
        free(activation)
        free(gradient)
    for one in small:
        free(one)
    check(cuda.cuCtxSynchronize())


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    chance = random.Random(3)
    context = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    kept = [allocate(size * MIB) for size in [64, 130] + [34, 34, 17, 51] * 12]  # weights
    states = [allocate(size * MIB, optimizer) for size in [64, 130] + [34, 34, 17, 51] * 12]
    kept += [allocate(1000 + i * 700) for i in range(300)]
    forgotten, end, number = [], time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            step(chance, 0.6 + 0.4 * min(1, number / 40))
            if number % 16 == 15:
                mark("evaluation %d" % (number // 16))
                logits = allocate(900 * MIB)
                check(cuda.cuCtxSynchronize())
                time.sleep(0.05)
                free(logits)
                for _ in range(2 if RANK == 5 else 1):
                    forgotten.append(allocate(23 * MIB + 4096))  # the leak that the pictures show
            number += 1
            time.sleep(0.005)
    except MemoryError as error:
        print("out of memory: %d bytes" % error.args[0], file=sys.stderr)
        return 1
    for state in states:
        free(state)
    check(cuda.cuCtxSynchronize())
    return 0


sys.exit(main())
