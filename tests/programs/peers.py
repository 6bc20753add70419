#!/usr/bin/env python3
"""With two contexts a barrier of one does not order the other's copies: the library waits instead."""
from harness import MODES, Tally, program, run

tally = Tally()
for name, options in MODES.items():
    for seed in range(1, 5):
        ran = run([program("peers")], options=dict(options, GPUCACHE_REPORT="off", GPUCACHE_SIM_DEVICES="2",
                                                   GPUCACHE_SIM_SEED=str(seed)))
        tally.check(ran.status == 0 and ran.out == "overwritten: 0\n",
                    "%s, seed %d: status %s" % (name, seed, ran.status), ran.out + ran.err)
tally.end()
