#!/usr/bin/env python3
"""Creates and ends contexts in some threads while other threads allocate.

ctx_lifecycles.py [SEEDS [NAME]]: runs SEEDS seeds in each configuration, or only in the named one. A seed has
ROUNDS rounds. On the simulator threads lose the CPU between the driver's work and the library's next step. At the
end no context is left, so the counters of a whole run are empty.
"""
import sys

from harness import GPU, MODES, Tally, check_books, program, run, run_with_report

ROUNDS = 40 if GPU else 250
SEEDS = 1 if GPU else 4
SWITCH = {"GPUCACHE_SIM_SWITCH": "10"}
OFTEN = {"GPUCACHE_SIM_SWITCH": "40", "GPUCACHE_SIM_SWITCH_US": "1000"}
GO = {"GPUCACHE_SIM_EVENTS_GO": "1"}  # a driver that crashes when a call names an event of an ended context
TWO = {"GPUCACHE_SIM_DEVICES": "2"}
TIGHT = MODES["barrier, tight"]
DECAY = {"GPUCACHE_BACKEND": "pages", "GPUCACHE_DECAY_MS": "0"}  # a tick every millisecond
SEGMENTS = {**DECAY, "GPUCACHE_BACKEND": "segments"}

# name: options, old driver, threads
CONFIGURATIONS = {
    "one device": (SWITCH, False, 6),
    "two devices": ({**SWITCH, **TWO}, False, 6),
    "often": ({**OFTEN, **TWO}, False, 8),
    "events go": ({**OFTEN, **GO}, False, 6),
    "as it comes": (TWO, False, 3),
    "tight": ({**TIGHT, **SWITCH}, False, 6),
    "tight, two devices": ({**TIGHT, **SWITCH, **TWO}, False, 6),
    "wait": ({**MODES["wait, tight"], **SWITCH, **TWO}, False, 6),
    "sync": ({**MODES["sync"], **SWITCH}, False, 6),
    "decay": ({**DECAY, **SWITCH, **GO}, False, 6),
    "decay, two devices": ({**DECAY, **OFTEN, **TWO}, False, 6),
    "decay of segments": ({**SEGMENTS, **SWITCH, **GO}, False, 6),
    "the same, two devices": ({**SEGMENTS, **OFTEN, **TWO}, False, 6),
    "limit": ({"GPUCACHE_MEMORY_LIMIT": "4G", **SWITCH, **TWO}, False, 6),
    "old driver": ({**SWITCH, **TWO}, True, 6),
}
ON_A_GPU = ["one device", "tight", "wait"]

tally = Tally()


def empty(device):
    """Returns the counters of a device that are not 0. All must be 0: its memory ended with its contexts."""
    left = [name for name in ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes",
                              "allocations", "segments") if device[name]["current"] != 0]
    return left + [kind for kind, of in device["outside_bytes"].items() if of["current"] != 0]


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    seeds = int(arguments[0]) if arguments else SEEDS
    first = 1
    natively = set()
    for name, (options, old, threads) in CONFIGURATIONS.items():
        if (len(arguments) > 1 and name != arguments[1]) or (GPU and name not in ON_A_GPU):
            continue
        command = [program("ctx_lifecycles"), str(ROUNDS), str(seeds), str(first), str(threads)]
        simulated = {k: v for k, v in options.items() if k.startswith("GPUCACHE_SIM_")}
        same = (tuple(sorted(simulated.items())), old)
        expected = "%d seeds of %d rounds, ok\n" % (seeds, ROUNDS)
        if same not in natively:  # options of the library do not change native runs
            natively.add(same)
            ran = run(command, under=False, options=simulated, old=old)
            tally.check(ran.status == 0 and ran.out == expected and not ran.err,
                        "ctx_lifecycles: %s: natively: status %s" % (name, ran.status),
                        ran.out + ran.err)
        ran, report = run_with_report(command, options=options, old=old)
        print("%-18s %5.1f s  %s" % (name, ran.seconds, ran.out.strip()))
        sys.stdout.flush()
        first += seeds
        if not tally.check(ran.status == 0 and ran.out == expected and not ran.err,
                           "ctx_lifecycles: %s: status %s" % (name, ran.status),
                           "%s %s\n%s" % (options, " ".join(command), ran.out + ran.err)):
            continue
        if tally.check(report is not None and report["devices"],
                       "ctx_lifecycles: %s: no report" % name):
            broken = check_books(report)
            tally.check(not broken, "ctx_lifecycles: %s: the counters" % name, "\n".join(broken))
            for device in report["devices"]:
                tally.check(not empty(device), "ctx_lifecycles: %s: left on device %d" % (
                    name, device["device"]), " ".join(empty(device)))


tally.run(main)
