#!/usr/bin/env python3
"""Calls `gpucache.h` during changes, in signal handlers, on small stacks and before first use."""
from harness import Tally, program, run

REQUESTS = program("api_requests")
AGREE = ["asked: 1, disagree: 0, wrapped: 0"]
EXPECTED = {
    "values": AGREE,
    "signals": AGREE,
    "stack": ["0: at most 4 KiB: 1"] * 3,
    "limits": ["for all, before the first use: 0 0", "told: 64 MiB",
               "in force: 67108864, 65 MiB: 2", "a share below a byte: 0, in force: 1",
               "for all: 0, in force: 134217728", "on a device used later: 134217728, told: 128 MiB",
               "-22 -22 -22 -22 -22 -22 -22 -22 -22 -19 -19", "nothing changed: 134217728",
               "lifted: 0 0"],
    "raised": ["set: 0", "over it: 2", "far over it: 2", "raised: 0", "then: 0", "more: 0"],
    "first": ["over the first limit: 0"],
    "pinned": ["while a kernel waits: -16", "within 5 s: 1", "afterwards: 0",
               "without a context: 0", "still there: 0"],
}

tally = Tally()


def one(case, options):
    ran = run([REQUESTS, case], timeout=60, options={
        "GPUCACHE_REPORT": "off", "GPUCACHE_SIM_DEVICES": "2", "LD_BIND_NOW": "1", **options})
    tally.check(ran.status == 0 and ran.out.splitlines() == EXPECTED[case],
                "requests: %s, %s: status %s" % (case, options or "no options", ran.status), ran.out + ran.err)


def main():
    for case in EXPECTED:
        for _ in range(10 if case == "first" else 1):
            one(case, {"GPUCACHE_MEMORY_LIMIT": "1G"} if case in ("raised", "first") else {})
    for case in ("values", "signals", "limits"):
        one(case, {"GPUCACHE_DISABLE": "1"})


tally.run(main)
