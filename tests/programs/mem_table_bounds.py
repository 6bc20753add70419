#!/usr/bin/env python3
"""Fills each table of the library to its bound plus one.

mem_table_bounds.py [NAME...]: all parts, or those named.
"""
import sys

from harness import GPU, Tally, part_names, program, run

# name: counts, options of the simulated driver. memops sets the attribute of two blocks in three.
PARTS = {
    "contexts": ([510, 511, 513, 1100], {"GPUCACHE_SIM_MEMORY": "64M"}),
    "memops": ([1536, 1537, 3000], {"GPUCACHE_SIM_MEMORY": "8G"}),
    "streams": ([65], {"GPUCACHE_SIM_MEMORY": "1G"}),
    "captures": ([65], {"GPUCACHE_SIM_MEMORY": "1G"}),
    "pinned": ([4097], {}),
    "devices": ([1], {"GPUCACHE_SIM_DEVICES": "65"}),
    "no_current": ([1], {}),
}
LINES = {"memops": 2, "captures": 3, "devices": 5, "no_current": 4}

tally = Tally()


def part(name, count, options):
    what = "mem_table_bounds: %s %d" % (name, count)
    command = [program("mem_table_bounds"), name, str(count)]
    native = run(command, under=False, options=options)
    tally.check(native.status == 0 and native.out.count("\n") == LINES.get(name, 1),
                what + ", natively", native.out + native.err)
    for backend in ("segments", "pages"):
        for budget in ({}, {"GPUCACHE_BUDGET": "0"}):
            ours = run(command, options={**options, **budget, "GPUCACHE_BACKEND": backend, "GPUCACHE_REPORT": "off"})
            tally.check(ours.status == 0 and ours.out == native.out, "%s, %s %s" % (what, backend, budget),
                        ours.out + native.out + ours.err)


def main():
    if GPU:  # only the simulated driver has so many contexts and devices
        sys.exit(77)
    wanted = part_names(PARTS)
    for name, (counts, options) in PARTS.items():
        for count in counts:
            if not wanted or name in wanted:
                part(name, count, options)


tally.run(main)
