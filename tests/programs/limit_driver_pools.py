#!/usr/bin/env python3
"""Checks that the reserve of the driver's own pools is counted and limited.

Without a limit each case of limit_driver_pools.c prints the native lines, and the report has the
reserve that the driver told the program. With a limit every request fits, because idle memory is
released, and the pools never hold more than the limit.
"""
import re

from harness import GPU, Tally, check_books, program, run, run_with_report

MIB = 1 << 20
RESERVE = program("limit_driver_pools")
# case: MiB that the driver's pools keep at least
COUNTED = {"kept": 100, "kept_by_two": 140, "dropped": 0, "dropped_in_capture": 0, "trimmed": 0, "set": 110,
           "set_location": 110, "reset": 10, "destroyed": 10, "graph": 50, "any_node": 50, "captured": 50}
LIMITED = {
    "reserve_for_plain": ["alloc: 0", "within: 1"],
    "reserve_for_another": ["alloc: 0", "within: 1"],
    "reserve_kept": ["alloc: 0", "within: 1, kept: 1"],
    "reserve_of_graphs": ["alloc: 0", "within: 1"],
    "full": ["256 of 1 MiB, then 2; reserve within: 1", "one freed, one more, one too many: 0 2 2",
             "after all were freed: 0 2 0 0 0"],
    "lowered": ["alloc: 2 0", "free, nothing else is live: 0 0 0 0 0"],
    "threads": ["other codes 0, most that was reserved within: 1", "all of it can be had: 0"],
}

tally = Tally()


def counted(case, least, options):
    native = run([RESERVE, case], under=False)
    ran, report = run_with_report([RESERVE, case], options=options)
    what = "reserve: %s, %s" % (case, options or "no options")
    tally.check(native.status == 0 and native.err == "", what + ": natively", native.out + native.err)
    tally.check((ran.status, ran.out) == (native.status, native.out), what, ran.out + ran.err)
    told = re.search(r"at the end: (\d+) MiB", ran.out)
    if not tally.check(report is not None and told, what + ": no report", ran.err):
        return
    tally.check(int(told.group(1)) >= least, what + ": the driver keeps less", ran.out)
    figure = report["devices"][0]["outside_bytes"]["stream_ordered"]
    tally.check(figure["current"] == int(told.group(1)) * MIB and figure["peak"] >= figure["current"],
                what + ": the report's figure", "%s\n%s" % (figure, ran.out))
    broken = check_books(report)
    tally.check(not broken, what + ": the counters", "\n".join(broken))


def limited(case, wanted, options):
    ran, report = run_with_report([RESERVE, case], options={"GPUCACHE_MEMORY_LIMIT": "256M", **options})
    what = "reserve: %s at a limit, %s" % (case, options)
    tally.check(ran.status == 0 and ran.out.splitlines() == [case + ": " + w for w in wanted], what,
                ran.out + ran.err)
    if tally.check(report is not None, what + ": no report", ran.err):
        device = report["devices"][0]
        most = device["outside_bytes"]["stream_ordered"]["peak"]
        # The free memory of a pool may be in several ranges: the pool then grows, and the block is freed.
        beyond = 4 * 32 * MIB if case == "threads" else 0
        tally.check(most <= 256 * MIB + beyond, what + ": %d bytes at the peak" % most)
        broken = check_books(report) if case != "lowered" else []
        tally.check(not broken, what + ": the counters", "\n".join(broken))


def no_calls_without_need():
    """Checks that allocations without a limit do not query the driver's pools."""
    if GPU:
        return
    import os
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        ran = run([RESERVE, "threads"], options={"GPUCACHE_REPORT": "off",
                                                 "GPUCACHE_SIM_COUNTS": folder + "/counts"})
        with open(os.path.join(folder, "counts")) as file:
            counts = dict(line.split() for line in file)
    calls, allocations = (int(counts.get(name, 0)) for name in ("cuMemPoolGetAttribute", "cuMemAllocAsync"))
    tally.check(ran.status == 0 and calls < allocations / 4,
                "reserve: %d looks at %d allocations" % (calls, allocations), ran.err)


def no_capture_is_broken():
    """Checks a thread that queries free memory while another one begins and ends captures."""
    for seed in range(1, 2 if GPU else 4):
        ran = run([RESERVE, "captures"], options={"GPUCACHE_SIM_SWITCH": "20", "GPUCACHE_SIM_SEED": str(seed)})
        tally.check(ran.status == 0 and ran.out == "captures: invalidated: 0\n", "reserve: captures", ran.out + ran.err)


def no_node_of_another_device_is_missed():
    if not GPU:
        ran = run([RESERVE, "captured_elsewhere"], options={"GPUCACHE_MEMORY_LIMIT": "256M", "GPUCACHE_SIM_DEVICES": "2"})
        tally.check(ran.out == "captured_elsewhere: one more: 2 0\n", "reserve: captured_elsewhere", ran.out + ran.err)


def main():
    for options in ({}, {"GPUCACHE_DISABLE": "1"}, {"GPUCACHE_MEMORY_LIMIT": "4G"}):
        for case, least in COUNTED.items():
            counted(case, least, options)
    for options in ({}, {"GPUCACHE_DISABLE": "1"}, {"GPUCACHE_BUDGET": "0"}):
        for case, wanted in LIMITED.items():
            limited(case, wanted, options)
    no_calls_without_need()
    no_capture_is_broken()
    no_node_of_another_device_is_missed()


tally.run(main)
