#!/usr/bin/env python3
"""Checks that the library waits before a second context can copy reused memory."""
from harness import GPU, MODES, Tally, program, run

tally = Tally()


def main():
    for name, options in MODES.items():
        for seed in range(1, 2 if GPU else 5):
            simulated = {} if GPU else {"GPUCACHE_SIM_DEVICES": "2", "GPUCACHE_SIM_SEED": str(seed)}
            ran = run([program("ctx_peers")], options={**options, **simulated, "GPUCACHE_REPORT": "off"})
            tally.check(ran.status == 0 and ran.out == "overwritten: 0\n",
                        "%s, seed %d: status %s" % (name, seed, ran.status), ran.out + ran.err)
            if GPU:
                tally.note("%s: %s" % (name, ran.err.strip()[-200:]))


tally.run(main)
