#!/usr/bin/env python3
"""Checks that a full device refuses nothing that the driver alone serves.

`oom_full_device.py MODE FIRST LAST` runs other seeds of one mode.
"""
import sys

from harness import GPU, Tally, program, run

KINDS = ["large", "small", "ordered", "virtual", "array", "info"]
# By mode: memory, per cent of calls at which a thread loses the CPU, seeds, backends.
MODES = {
    "streams": ("48M", "10", range(1, 9), ["segments", "pages"]),
    "caches": ("10M", "10", range(1, 25), ["segments", "pages"]),
    "one": ("64M", "5", range(1, 121), ["pages"]),
}
# In these modes the limit bounds the memory, and not the device.
LIMITED = {"caches": {"GPUCACHE_SIM_MEMORY": "4G", "GPUCACHE_MEMORY_LIMIT": "10M"}}
BOUNDS = {"device": {}, "limit": {"GPUCACHE_SIM_MEMORY": "4G", "GPUCACHE_MEMORY_LIMIT": "64M"}}

tally = Tally()


def crowded(mode, which, options, backends=("segments", "pages"), natively=True, bound=None):
    if natively:
        native = run([program("oom_full_device"), mode, which], under=False, options=options)
        tally.check((native.status, native.out) == (0, "0 refused\n"),
                    "oom_full_device: %s %s natively: status %s" % (mode, which, native.status), native.out + native.err)
    for backend in backends:
        ran = run([program("oom_full_device"), mode, which],
                  options={**options, **(bound or LIMITED.get(mode, {})),
                           "GPUCACHE_BACKEND": backend, "GPUCACHE_REPORT": "off"})
        tally.check((ran.status, ran.out) == (0, "0 refused\n"),
                    "oom_full_device: %s %s on %s: status %s" % (mode, which, backend, ran.status), ran.out + ran.err)


def one_thread(mode, kinds, bounds=tuple(BOUNDS)):
    """Runs a mode of one thread, with the device and the limit as the bound."""
    for kind in kinds:
        for bound in bounds:
            crowded(mode, kind, {"GPUCACHE_SIM_MEMORY": "64M"}, bound=BOUNDS[bound])


def main():
    if GPU:
        print("needs the simulator")
        sys.exit(77)
    named = sys.argv[1:]
    if not named:
        for kind in KINDS:
            crowded("barrier", kind, {"GPUCACHE_SIM_MEMORY": "64M"})
        one_thread("own", KINDS[:-1])
        one_thread("reserve", KINDS[:-1])
        one_thread("capture", ["large", "small", "ordered"], ["device"])
    for mode, (memory, switch, seeds, backends) in MODES.items():
        if named and named[0] != mode:
            continue
        for seed in range(int(named[1]), int(named[2]) + 1) if named else seeds:
            crowded(mode, str(seed), {"GPUCACHE_SIM_MEMORY": memory, "GPUCACHE_SIM_SWITCH": switch}, backends,
                    natively=seed <= 3)


tally.run(main)
