#!/usr/bin/env python3
"""Checks that threads at a limit are refused nothing that fits."""
import re
import sys
import tempfile

from harness import GPU, Tally, program, run, side_by_side

LIMIT = program("limit_threads")
OFF = {"GPUCACHE_REPORT": "off"}
SWITCH = {"GPUCACHE_SIM_SWITCH": "30"}
BACKENDS = ("segments", "pages")
SEEDS = range(1, 9)
# 256 MiB in all. All blocks of a row have one size, because segments may not serve mixed sizes.
TURNS = [
    "held:64 async:32 async:32 pool:32:2",
    "held:128 pool:32 create:32 create:32 pool:32 more:200",
    "held:128 pool:32 async:32 create:32 pool:32 more:200 moreasync:200",
]
tally = Tally()


def turns():
    for seed in SEEDS:
        for who in TURNS:
            command = [LIMIT, "turns", "60"] + who.split()
            options = {**SWITCH, "GPUCACHE_SIM_SEED": str(seed)}
            if seed == SEEDS[0]:
                ran = run(command, under=False, options={**options, "GPUCACHE_SIM_MEMORY": "256M"})
                tally.check(ran.out == "refused 0\n", "limit: %s: natively" % who, ran.out + ran.err)
            for backend in BACKENDS:
                ran = run(command, options={**OFF, **options, "GPUCACHE_BACKEND": backend,
                                            "GPUCACHE_MEMORY_LIMIT": "256M"})
                tally.check((ran.status, ran.out) == (0, "refused 0\n"),
                            "limit: %s: %s, seed %d: status %s" % (who, backend, seed, ran.status), ran.out + ran.err)


# At most 15 of 16 blocks of 16 MiB are requested. One thread frees memory into the pool, and another thread makes the pool
# release it. A third thread may take that memory first, and free it into the pool again.
MIXED = ["pool pool pool array array", "pool pool create array create"]
CONTEXTS = ["pool pool other other"]
MODULES = ["pool pool pool array module", "pool pool create module module"]


def mixed():
    """Checks requests of several kinds at a limit. The library repeats a refused request a bounded number of times, and a
    schedule may use all of them: one run may be refused something. With one repetition, one run in five is refused."""
    refusals = []
    for who in MIXED + CONTEXTS + MODULES:
        for seed in SEEDS[:len(SEEDS) // 3]:
            command = [LIMIT, "mixed", str(seed), "3000", "240", "16"] + who.split()
            sim = {**SWITCH, "GPUCACHE_SIM_SEED": str(seed), "GPUCACHE_SIM_MODULE_BYTES": "16M"}
            full = {"GPUCACHE_SIM_MEMORY": "256M"}
            if seed == SEEDS[0]:
                ran = run(command, under=False, options={**sim, **full})
                tally.check(ran.out == "refused 0\n", "limit: mixed %s: natively" % who, ran.out + ran.err)
            places = {"the driver": full, "a limit": {"GPUCACHE_MEMORY_LIMIT": "256M"}}
            for place in list(places)[:1 if who in MODULES or seed % 2 else 2]: # the limit does not count code
                for backend in BACKENDS:
                    ran = run(command, options={**OFF, **sim, **places[place], "GPUCACHE_BACKEND": backend})
                    what = "limit: mixed %s: by %s: %s, seed %d: status %s" % (who, place, backend, seed, ran.status)
                    tally.check(ran.status == 0 and "refused" in ran.out, what, ran.out + ran.err)
                    refusals += [what + ": " + ran.out] if ran.out != "refused 0\n" else []
    tally.check(len(refusals) < 2, "limit: mixed: refused where natively nothing is", "".join(refusals))


def slow():
    """Checks requests on a device with much unfinished work. Memory whose work ends while one thread waits may go to other
    threads, which free as much again. With one wait only, one run in three is refused something."""
    refusals = []
    for who in ["pool pool", "pool pool pool pool", MIXED[0]]:
        for mib in ("16", "4"):
            for seed in SEEDS[:len(SEEDS) // 2]:
                for backend in BACKENDS:
                    ran = run([LIMIT, "mixed", str(seed), "3000", "240", mib] + who.split(),
                              options={**OFF, "GPUCACHE_BACKEND": backend, "GPUCACHE_SIM_MEMORY": "256M",
                                       "GPUCACHE_SIM_EAGER": "5", "GPUCACHE_SIM_SEED": str(seed)})
                    what = "limit: slow %s, %s MiB: %s, seed %d: status %s" % (who, mib, backend, seed, ran.status)
                    tally.check(ran.status == 0 and "refused" in ran.out, what, ran.out + ran.err)
                    refusals += [what + ": " + ran.out] if ran.out != "refused 0\n" else []
    tally.check(len(refusals) < 2, "limit: slow: refused where natively nothing is", "".join(refusals))


def behind():
    """Checks that a request waits for its memory as long as the native free does: longer than any wait of the library's own."""
    def one(kind, backend):
        options = {**OFF, "GPUCACHE_SIM_MEMORY": "256M", "GPUCACHE_SIM_HANG_MS": "20000"}
        ran = run([LIMIT, "behind", kind, "192", "2500000"], under=backend is not None,
                  options={**options, "GPUCACHE_BACKEND": backend} if backend else options)
        tally.check((ran.status, ran.out) == (0, "answer 0\n"),
                    "limit: %s behind work of 2.5 s: %s: status %s" % (kind, backend or "natively", ran.status), ran.out + ran.err)

    side_by_side([lambda k=kind, b=backend: one(k, b) for kind in ("pool", "other", "create", "array", "managed")
                  for backend in (None,) + BACKENDS], simulated=15)  # all of them sleep


def two_contexts():
    """Checks that free memory is released before any wait for deferred frees, whose work may end only after the request."""
    for kind in ("pool", "create", "array", "managed"):
        for backend in (None,) + BACKENDS:
            options = {**OFF, "GPUCACHE_SIM_MEMORY": "256M"}
            ran = run([LIMIT, "two_contexts", kind, "150", "100", "40"], under=backend is not None,
                      options={**options, "GPUCACHE_BACKEND": backend} if backend else options)
            tally.check((ran.status, ran.out) == (0, "answer 0\n"),
                        "limit: %s during a free that waits: %s: status %s" % (kind, backend or "natively", ran.status), ran.out + ran.err)


def full():
    for sizes in ("1 2 3 4", "2 6 10"):
        for backend in BACKENDS:
            ran = run([LIMIT, "full"] + sizes.split(),
                      options={**OFF, **SWITCH, "GPUCACHE_BACKEND": backend, "GPUCACHE_MEMORY_LIMIT": "256M"})
            tally.check(ran.status == 0 and re.search(r"would have fitted 0 KiB\n$", ran.out),
                        "limit: full of %s: %s" % (sizes, backend), ran.out + ran.err)


def refused():
    """Checks requests that the driver refuses, without a limit."""
    for kind in ("array", "create", "pool", "async"):
        for backend in BACKENDS:
            ran = run([LIMIT, "refused", "100", "200"] + [kind] * 3,
                      options={**OFF, **SWITCH, "GPUCACHE_BACKEND": backend, "GPUCACHE_SIM_MEMORY": "256M",
                               "GPUCACHE_LOG": "error"})
            tally.check((ran.status, ran.out) == (0, "refused 120, soon\n"),
                        "limit: refused by the driver: %s: %s: status %s" % (kind, backend, ran.status), ran.out)


def taken_in_vain():
    """Checks that no pages are taken one by one for a request that is then refused: other processes would miss them."""
    with tempfile.TemporaryDirectory() as folder:
        counts = folder + "/counts"
        ran = run([LIMIT, "refused", "100", "200"] + ["pool"] * 3,
                  options={**OFF, "GPUCACHE_BACKEND": "pages", "GPUCACHE_SIM_MEMORY": "256M", "GPUCACHE_LOG": "error",
                           "GPUCACHE_SIM_COUNTS": counts})
        with open(counts) as file:
            made = sum(int(line.split()[1]) for line in file if line.startswith("cuMemCreate "))
        tally.check(ran.status == 0 and made <= 101 + 2 * 120,
                    "limit: 120 requests of 100 MiB where 56 are left: %d pages made, 101 of them for 200" % made, ran.out)


def main():
    if GPU:  # threads lose the CPU on demand only in the simulated driver
        sys.exit(77)
    turns()
    mixed()
    slow()
    behind()
    two_contexts()
    full()
    refused()
    taken_in_vain()


tally.run(main)
