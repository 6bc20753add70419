#!/usr/bin/env python3
"""Checks that every thread waits for a pending barrier when another context appears or becomes active."""
from harness import GPU, Tally, program, run

EXPECTED = """\
retained by two: 0 0, in the first context: 1
activated by two: 0 0, in the first context: 1
activated during a release of the first: 0 0, in the first context: 1
"""

tally = Tally()


def main():
    for seed in range(1, 2 if GPU else 4):
        simulated = {} if GPU else {"GPUCACHE_SIM_DEVICES": "2", "GPUCACHE_SIM_SEED": str(seed),
                                    "GPUCACHE_SIM_EVENTS_GO": "1"}
        ran = run([program("ctx_activation")], options={"GPUCACHE_BUDGET": "0", **simulated,
                                               "GPUCACHE_REPORT": "off"})
        tally.check(ran.status == 0 and ran.out == EXPECTED and ran.err.count("again: 1") == 3,
                    "seed %d: status %s" % (seed, ran.status), ran.out + ran.err)


tally.run(main)
