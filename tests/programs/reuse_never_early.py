#!/usr/bin/env python3
"""Checks law 2, never early, in every reuse mode and under pressure.

reuse_never_early.py [SCHEDULES [NAME]]: runs SCHEDULES schedules in each configuration, or only in the named one.
The counters of the report prove that a configuration used the mechanism that it tests.
"""
import sys

from harness import GPU, Tally, check_books, program, run, run_with_report

LIMIT = {"GPUCACHE_MEMORY_LIMIT": "16M"}
TIGHT = {"GPUCACHE_BUDGET": "0"}
WAIT = {"GPUCACHE_REUSE": "wait"}
SYNC = {"GPUCACHE_REUSE": "sync"}
DECAY = {"GPUCACHE_BACKEND": "pages", "GPUCACHE_DECAY_MS": "0"}  # after five milliseconds
SEGMENTS = {**DECAY, "GPUCACHE_BACKEND": "segments"}

# name: options, old driver, least eagerness, counters that must have moved, counters that must not
CONFIGURATIONS = {
    "relaxed": ({}, False, 3, ["epochs"], []),
    "tight": (TIGHT, False, 3, ["barriers"], []),
    "pressure changes": ({"GPUCACHE_BUDGET": "12M"}, False, 3, ["barriers", "epochs"], []),
    "wait, relaxed": (WAIT, False, 3, ["epochs"], ["barriers"]),
    "wait, tight": ({**WAIT, **TIGHT}, False, 3, ["cpu_waits"], ["barriers"]),
    "sync": (SYNC, False, 3, ["cpu_waits"], ["barriers"]),
    "limit": (LIMIT, False, 40, ["oom_retries", "limit_refusals"], []),
    "limit, tight": ({**LIMIT, **TIGHT}, False, 40, ["oom_retries", "barriers"], []),
    "limit, wait": ({**LIMIT, **WAIT, **TIGHT}, False, 40, ["oom_retries", "cpu_waits"],
                    ["barriers"]),
    "small device": ({"GPUCACHE_SIM_MEMORY": "16M"}, False, 40, ["oom_retries"], []),
    "decay": (DECAY, False, 3, ["driver_frees"], []),
    "decay, tight": ({**DECAY, **TIGHT}, False, 3, ["barriers", "driver_frees"], []),
    "memory that moves": ({"GPUCACHE_BACKEND": "pages", **TIGHT}, False, 3, ["barriers"], []),
    "decay of segments": (SEGMENTS, False, 3, ["driver_frees"], []),
    "the same, tight": ({**SEGMENTS, **TIGHT}, False, 3, ["barriers", "driver_frees"], []),
    "old driver": ({}, True, 3, ["cpu_waits"], ["barriers"]),
    "old driver, tight": (TIGHT, True, 3, ["cpu_waits"], ["barriers"]),
    "old driver, sync": (SYNC, True, 3, ["cpu_waits"], ["barriers"]),
    "old driver, limit": (LIMIT, True, 40, ["oom_retries"], ["barriers"]),
}


SIMULATED = ["small device"] + [name for name in CONFIGURATIONS if "old driver" in name]

tally = Tally()


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    count = int(arguments[0]) if arguments else 200 if GPU else 400
    seed = 1
    ran = run([program("reuse_never_early"), str(count // 4), "1", "4", "3"], under=False)
    tally.check(ran.status == 0, "reuse_never_early: natively", ran.out + ran.err)
    for name, (options, old, eager, moved, still) in CONFIGURATIONS.items():
        if (len(arguments) > 1 and name != arguments[1]) or (GPU and name in SIMULATED):
            continue
        command = [program("reuse_never_early"), str(count), str(seed), "4", str(eager)]
        ran, report = run_with_report(command, options=options, old=old)
        print("%-18s %5.1f s  %s" % (name, ran.seconds, ran.out.strip()))
        sys.stdout.flush()
        if not tally.check(ran.status == 0, "reuse_never_early: %s: status %s" % (name, ran.status),
                           "%s %s\n%s" % (options, " ".join(command), ran.err)):
            continue
        if tally.check(report is not None and report["devices"], "reuse_never_early: %s: no report" % name):
            device = report["devices"][0]
            for counter in moved:
                tally.check(device[counter] > 0, "reuse_never_early: %s: no %s" % (name, counter))
            for counter in still:
                tally.check(device[counter] == 0, "reuse_never_early: %s: %s" % (name, counter))
            broken = check_books(report)
            tally.check(not broken, "reuse_never_early: %s: the counters" % name, "\n".join(broken))
        seed += count


tally.run(main)
