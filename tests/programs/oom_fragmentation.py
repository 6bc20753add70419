#!/usr/bin/env python3
"""Bounds the share of requests that fragmentation refuses near the end of a device.

Each seed runs natively, to find the requests that are served, and then under the library. Requests that are
refused there are the cost of fragmentation. Their share, by the live part of the device, is printed and bounded.
`oom_fragmentation.py FIRST LAST` runs other seeds.
"""
import sys

from harness import Tally, program, run

MIXES = ["one size", "small", "large", "multiples of 2 MiB", "all sizes"]
LEVELS = ["below 80 %", "80 to 90 %", "90 to 95 %", "above 95 %"]
# Maximum of refused requests among 1000 that the driver alone serves: by mix, at each level. Seed 27 has two outcomes; the
# rarer one takes "large" to 170 at the second level. Above 95 % the mix of one size has few requests.
MOST = [[120, 30, 30, 130], [5, 100, 40, 120], [160, 190, 150, 120], [80, 130, 150, 100],
        [70, 120, 220, 350]]

tally = Tally()


def memory(seed):
    return "%dM" % (64 << (seed // len(MIXES) * 3 % 9) | (seed * 7919 % 31) << 1)


def levels(out):
    return [[float(n) for n in line.split()[2:]] for line in out.splitlines() if line.startswith("level")]


def main():
    first, last = [int(a) for a in sys.argv[1:3]] if len(sys.argv) > 2 else (0, 29)
    sums = [[[0.0] * 4 for _ in LEVELS] for _ in MIXES]
    for seed in range(first, last + 1):
        command = [program("oom_fragmentation"), str(seed)]
        options = {"GPUCACHE_SIM_MEMORY": memory(seed), "GPUCACHE_REPORT": "off"}
        native = run(command, under=False, options=options, timeout=60)
        if not tally.check(native.status == 0, "oom_fragmentation: %d: natively: status %s" % (seed, native.status), native.err):
            continue
        answers = native.out.split("answers ")[1].split()[0]
        ran = run(command + [answers], options=options, timeout=60)
        if not tally.check(ran.status == 0, "oom_fragmentation: %d: status %s" % (seed, ran.status), ran.err):
            continue
        said = levels(ran.out)
        if not tally.check([len(level) for level in said] == [4] * len(LEVELS),
                           "oom_fragmentation: %d: the values of %d levels" % (seed, len(said)), ran.out):
            continue
        for total, level in zip(sums[seed % len(MIXES)], said):
            total[:] = [a + b for a, b in zip(total, level)]
        if "-v" in sys.argv:
            print(seed, memory(seed), ran.out.splitlines()[0], said, "%.1f s" % ran.seconds)
    print("refused of 1000 that the driver alone serves (and of 1000 MiB), by how full the device is:")
    for mix, name in enumerate(MIXES):
        shares = []
        for level, total in enumerate(sums[mix]):
            served, refused, served_mib, refused_mib = total
            share = 1000 * refused / max(served + refused, 1)
            shares.append("%s: %.1f (%.1f)" % (LEVELS[level], share,
                                               1000 * refused_mib / max(served_mib + refused_mib, 1)))
            tally.check(share <= MOST[mix][level], "oom_fragmentation: %s, %s: %.1f of 1000 refused" % (name, LEVELS[level], share))
        print("    %-20s %s" % (name, ", ".join(shares)))


tally.run(main)
