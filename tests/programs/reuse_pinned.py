#!/usr/bin/env python3
"""Checks that pinned host memory is reused, and only after its work has completed."""
import re

from harness import GPU, MODES, Tally, program, run

tally = Tally()


def without_count(text):
    return re.sub(r"driver calls.*\n", "", text)


def calls(ran):
    return int(re.search(r"100 pairs: (\d+)", ran.out).group(1))


def main():
    native = run([program("reuse_pinned"), "count"], under=False)
    tally.check(native.status == 0, "natively: status %s" % native.status, native.err)
    for seed in range(1, 2 if GPU else 4):
        ran = run([program("reuse_pinned_threads"), "50" if GPU else "300"],
                  options={"GPUCACHE_SIM_SWITCH": "30", "GPUCACHE_SIM_SEED": str(seed)})
        tally.check(ran.status == 0 and set(re.findall(r": (\d+)", ran.out)) == {"0"},
                    "at once, seed %d: status %s" % (seed, ran.status), ran.out + ran.err)
    for name, options in list(MODES.items()) + [("off", {"GPUCACHE_PINNED": "off"})]:
        ran = run([program("reuse_pinned"), "count"], options=dict(options, GPUCACHE_REPORT="off"))
        tally.check(ran.status == 0 and without_count(ran.out) == without_count(native.out),
                    "%s: status %s" % (name, ran.status), ran.out + ran.err)
        if not GPU and ran.status == 0:
            kept = name not in ("off", "sync")
            tally.check(calls(ran) <= 2 if kept else calls(ran) == 100,
                        "%s: %d calls of the driver for 100 pairs" % (name, calls(ran)))
            tally.check(not kept or "calls with one in use: 0" in ran.out,
                        "%s: one in use hides one that is not" % name, ran.out)


tally.run(main)
