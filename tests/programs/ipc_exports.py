#!/usr/bin/env python3
"""Checks that exported memory changes its owner only after its work has completed."""
from harness import GPU, MODES, Tally, program, run

WAYS = ("handle", "tokens", "tokens among others", "address range", "sync memops")
REFUSED = {"tokens": "cuPointerGetAttribute", "tokens among others": "cuPointerGetAttributes"}

tally = Tally()


def early(way, options=None, under=True):
    ran = run([program("ipc_exports"), way], under=under,
              options=dict(options or {}, GPUCACHE_REPORT="off"))
    tally.check(ran.status == 0, "ipc_exports: %s: status %s" % (way, ran.status), ran.err)
    return ran.out


def main():
    for way in WAYS:
        native = early(way, under=False)
        tally.check(native.count("never") == 2, "ipc_exports: natively", native)
        for name, options in MODES.items():
            here = early(way, options)
            tally.check(here == native, "ipc_exports: %s: %s" % (way, name), here)
    if not GPU:  # proves the test itself: without an export the memory comes back early
        here = early("plain", MODES["barrier, tight"])
        tally.check(here.count("yes") == 2, "ipc_exports: nothing comes back early", here)
        for way, entry in REFUSED.items():
            here = early(way, dict(MODES["barrier, tight"], GPUCACHE_SIM_FAIL=entry + ":0:801:-1"))
            tally.check(here.count("yes") == 2,
                        "ipc_exports: a refused query of %s exports" % way, here)


tally.run(main)
