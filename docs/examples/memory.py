#!/usr/bin/env python3
"""memory.py: what a Python program may ask of libgpucache while it runs under it.

    python3 memory.py                       runs as it always did
    gpucache run -- python3 memory.py       says what it holds, and gives back what it does not need

There is nothing to install or to import: the functions are in the process, or they are not.
"""
import ctypes

MIB = 1 << 20
FIGURES = ("requested requested_peak allocated allocated_peak active active_peak reserved reserved_peak outside outside_peak "
           "largest_free limit total allocations hits misses ooms").split()


class Stats(ctypes.Structure):
    """struct gpucache_stats of gpucache.h."""
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in FIGURES]


gpucache = ctypes.CDLL(None)


def under_gpucache():
    return hasattr(gpucache, "gpucache_get_stats")


def stats(device=-1):
    """Returns the metrics of a device, or of all; None if there are none."""
    found = Stats(size=ctypes.sizeof(Stats))
    if under_gpucache() and gpucache.gpucache_get_stats(device, ctypes.byref(found)) == 0:
        return found
    return None


def say(when):
    if not under_gpucache():
        print("%s: not under libgpucache" % when)
        return
    gpucache.gpucache_mark(when.encode())
    found = stats()
    if found:
        print("%s: %d MiB live, %d MiB at most, %d MiB reserved" % (
            when, found.requested // MIB, found.requested_peak // MIB, found.reserved // MIB))


def main():
    # In place of PyTorch, CuPy or whatever the program uses.
    cuda = ctypes.CDLL("libcuda.so.1")
    context, batch = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0

    assert cuda.cuMemAlloc_v2(ctypes.byref(batch), ctypes.c_size_t(300 * MIB)) == 0
    say("with a batch")
    assert cuda.cuMemFree_v2(batch) == 0
    say("without it")
    if under_gpucache():
        gpucache.gpucache_empty_cache(-1)
        say("given back")


main()
