#!/usr/bin/env python3
"""Checks law 3, never hanging, in every reuse mode, on the new and the old driver.

reuse_never_hanging.py [--gpu] [PROGRAMS]
"""
import re
import sys

from harness import GPU, MODES, Tally, program, run, run_parts

SIM = {"GPUCACHE_SIM_EAGER": "5"}
# no two streams in one queue of the hardware: see reuse_never_hanging.c
REAL = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
tally = Tally()


def green(which, device):
    """Checks that no record is made late on a device's pool after a green context's first record or wait; others make late
    records. Nothing decays here, because releases record events in frees."""
    ran = run([program("reuse_program_events"), "green", which, device],
              options={"GPUCACHE_SIM_DEVICES": "2", "GPUCACHE_REPORT": "off", "GPUCACHE_DECAY_MS": "never", **SIM})
    late = dict(re.findall(r"late records (\w+): (\d+)", ran.out))
    tally.check(int(late.get("before", 0)) > 0 and late.get("after") == "0",
                "reuse_never_hanging: %s of device %s: late records" % (which, device), ran.out + ran.err)
    tally.check(device == "0" or int(late.get("elsewhere", 0)) > 0,
                "reuse_never_hanging: %s of device %s: late records of the other" % (which, device), ran.out + ran.err)


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    count = arguments[0] if arguments else "400"
    tried = {"programs": 0}

    def expect(what, command, under=True, options=None, old=False, skip=()):
        options = {**(REAL if GPU else SIM), "GPUCACHE_REPORT": "off", **(options or {})}
        ran = run_parts(command, under=under, options=options, old=old,
                        timeout=25 if GPU else 60, skip=skip)
        tried["programs"] += 1
        if GPU and not under:
            for part, status in ran.died.items():
                tally.note("reuse_never_hanging: %s: left out, natively status %s in %s: %s" % (
                    " ".join(command[1:]), status, part or "the start", ran.err[-300:]))
        else:
            tally.check(not ran.died, "reuse_never_hanging: %s: %s: %s" % (what, " ".join(command[1:]), ran.died),
                        ran.err)
        return list(ran.died)

    programs = [[program("reuse_program_events"), "first"], [program("reuse_program_events"), "first", "again"],
                [program("reuse_never_hanging"), "all"], [program("reuse_never_hanging"), "random", count, "1", "1"],
                [program("reuse_never_hanging"), "random", str(int(count) // 4), "10001", "3"]]
    for command in programs:
        skip = expect("natively", command, under=False)
        if "" in skip:
            continue
        for name, options in MODES.items():
            expect(name, command, options=options, skip=skip)
            if not GPU:
                expect(name + ", old driver", command, options=options, old=True)
    if not GPU:
        small = [program("reuse_never_hanging"), "full_device"]
        for memory in ("40M", "80M"):
            expect("natively, " + memory, small, under=False,
                   options={"GPUCACHE_SIM_MEMORY": memory})
            for name, options in MODES.items():
                expect(name + ", " + memory, small,
                       options={**options, "GPUCACHE_SIM_MEMORY": memory})
        for device in ("0", "1"):
            for which in ("cuGreenCtxRecordEvent", "cuGreenCtxWaitEvent"):
                green(which, device)
    print("%d runs" % tried["programs"])


tally.run(main)
