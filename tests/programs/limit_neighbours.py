#!/usr/bin/env python3
"""Checks what two servers on one device see of each other, with limits and without."""
import os
import subprocess
import tempfile

from harness import GPU, Tally, environment, program
from report_live_page import eventually

SERVER = program("limit_neighbours")
MIB = 1 << 20
DEVICE, CONTEXT = 16384, 256  # MiB of the simulated device, and of one context
NEAR = 200 if GPU else 0  # MiB that a GPU's driver may allocate or free by itself
ROUNDS = 400
BACKENDS = ("pages", "segments")
tally = Tally()


class Server:
    """A process of limit_neighbours.c. Servers with the same file share the device."""

    def __init__(self, shared, under, options=None):
        more = {"GPUCACHE_REPORT": "off", "GPUCACHE_SIM_SHARED": shared, "GPUCACHE_SIM_CONTEXT_BYTES": "%dM" % CONTEXT, **(options or {})}
        self.child = subprocess.Popen([SERVER], env=environment(under, more), stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, text=True)
        self("info")  # the server has a context when it answers

    def __call__(self, order, value=0):
        self.child.stdin.write("%s %d\n" % (order, value))
        self.child.stdin.flush()
        answer = [int(word) for word in self.child.stdout.readline().split()]
        return answer[0] if len(answer) == 1 else answer

    def free(self):
        """Returns the free MiB that a server reads at its start."""
        return self("info")[0] // MIB

    def end(self):
        self.child.stdin.close()
        tally.check(self.child.wait(timeout=60) == 0, "neighbours: a server ends", self.child.returncode)
        self.child.stdout.close()


def profile(server, neighbour):
    """Starts like an inference server, which asks for free memory before and after its weights, and at its peak. The neighbour
    allocates or frees between any two queries. Returns the free MiB of each query, less the bytes of the server itself."""
    seen = [server.free()]
    tally.check(neighbour("take", 3000) == 0, "neighbours: the other one allocates")
    seen.append(server.free())
    tally.check(server("take", 2000) == 0, "neighbours: weights")
    neighbour("give")
    seen.append(server.free() + 2000)
    neighbour("take", 1000)
    tally.check(server("take", 1500) == 0, "neighbours: activations")
    seen.append(server.free() + 3500)
    server("give")
    neighbour("give")
    seen.append(server.free() + 2000)
    server("give")
    seen.append(server.free())
    return seen


def near(seen, expected):
    return all(abs(a - b) <= NEAR for a, b in zip(seen, expected))


def limits(options):
    """Returns lists of options that each set a limit of 6 GiB: bytes, HAMi-core's variable, and a fraction of the device."""
    return [{**options, **one} for one in ({"GPUCACHE_MEMORY_LIMIT": "6G"}, {"CUDA_DEVICE_MEMORY_LIMIT_0": "6144m"},
                                          {"GPUCACHE_MEMORY_FRACTION": "0.375"})[:2 if GPU else 3]]


def natively(shared):
    """Checks that natively each answer changes with the neighbour's memory."""
    one, other = Server(shared, False), Server(shared, False)
    before = one.free() if GPU else DEVICE - 2 * CONTEXT
    seen = profile(one, other)
    expected = [before, before - 3000, before, before - 1000, before, before]
    tally.check(near(seen, expected), "neighbours: natively", "%s, not %s" % (seen, expected))
    one.end(), other.end()
    return seen


def without_limits(shared, seen, backend):
    """Checks that without limits the answers are native ones, less the memory that the neighbour's pool keeps until its decay."""
    one, other = (Server(shared, True, {"GPUCACHE_BACKEND": backend, "GPUCACHE_DECAY_MS": "0"}) for _ in range(2))
    now = profile(one, other)
    tally.check(near(now[:2], seen), "neighbours: %s, without limits" % backend, "%s, natively %s" % (now, seen))
    tally.check(eventually(lambda: near([one.free()], seen[-1:])), "neighbours: %s, without limits, in the end" % backend, one.free())
    one.end(), other.end()


def with_limits(shared, backend):
    """Checks that a server with a limit sees its own memory only, and that each server can allocate up to its limit."""
    for options in limits({"GPUCACHE_BACKEND": backend}):
        what = "neighbours: %s" % options
        one, other = Server(shared, True, options), Server(shared, True, {**options, "GPUCACHE_DECAY_MS": "0"})
        tally.check(one("info") == [6144 * MIB, 6144 * MIB], what + ": free and total", one("info"))
        seen = profile(one, other)
        tally.check(seen == [6144] * 6, what + ": moves with the neighbour", seen)
        tally.check(other("churn", 700) == 0, what + ": churn")
        least, most = one("watch", ROUNDS)
        tally.check(least == most == 6144 * MIB, what + ": beside frees and allocations: %d to %d" % (least, most))
        tally.check(other("rest") > 0, what + ": the neighbour did nothing")
        for server in (one, other):
            tally.check(server("take", 6144) == 0 and server.free() == 0 and server("take", 64) == 2,
                        what + ": not all of its own, or more")
        one.end(), other.end()


def main():
    with tempfile.TemporaryDirectory() as folder:
        shared = os.path.join(folder, "devices")
        seen = natively(shared)
        for backend in BACKENDS:
            without_limits(shared, seen, backend)
            with_limits(shared, backend)
        one, other = Server(shared, False), Server(shared, False)
        tally.check(near([one.free()], seen), "neighbours: memory of servers that ended is free", one.free())
        one.end(), other.end()


tally.run(main)
