#!/usr/bin/env python3
"""Runs programs whose contexts or streams change while memory is in use."""
from harness import GPU, MODES, Tally, program, run, run_with_report

SMALL = {"GPUCACHE_SIM_MEMORY": "512M"}
TWO = {"GPUCACHE_SIM_DEVICES": "2"}

# case: options of the simulator, number of seeds, whether the old driver has it, whether it runs on a GPU
CASES = {
    "launches_during_pairs": ({}, 3, False, False),
    "growth_during_spinner": (SMALL, 2, True, False),
    "late_context": (TWO, 1, True, True),
    "late_switch": (TWO, 2, True, False),
    "late_stream": (TWO, 2, True, False),
    "blocked": (TWO, 1, True, False),
    "peer": (TWO, 1, True, False),
    "came_back": (TWO, 1, True, False),
    "late_cpu": ({}, 1, True, False),
    "host_function": ({}, 1, True, True),
    "refused_first": ({**TWO, "GPUCACHE_SIM_FAIL": "cuEventCreate:0:999:2"}, 1, True, False),
    "dead_current": ({}, 2, True, False),  # a GPU's driver aborts in a thread that releases the handle
    "green_last": ({}, 2, False, True),
    "green_twice": ({}, 2, False, False),
    "green_managed": ({"GPUCACHE_MEMORY_LIMIT": "100M"}, 1, False, False),
    "streams_ended": ({}, 1, False, True),
    "reset_during_pairs": ({"GPUCACHE_SIM_SWITCH": "10"}, 3, True, True),
    "reset_during_large_pairs": ({**SMALL, "GPUCACHE_SIM_SWITCH": "50"}, 1, True, False),
}

tally = Tally()


def compare(case, options, old):
    command = [program("ctx_changes"), case] + (["8"] if GPU else [])  # a reset takes half a second on a GPU
    native = run(command, under=False, options=options, old=old)
    tally.check(native.status == 0 and native.out.endswith("done\n"),
                "ctx_changes: %s: natively %s" % (case, native.status), native.err)
    for name, mode in MODES.items():
        ran = run(command, options={**options, **mode, "GPUCACHE_REPORT": "off"}, old=old)
        tally.check((ran.status, ran.out) == (native.status, native.out),
                    "ctx_changes: %s, %s%s: status %s" % (case, name, ", old driver" if old else "",
                                                       ran.status), ran.out + ran.err)


def main():
    for case, (options, seeds, knows_old, on_gpu) in CASES.items():
        if GPU and not on_gpu:
            continue
        for seed in range(1, 2 if GPU else seeds + 1):
            compare(case, {**options, "GPUCACHE_SIM_SEED": str(seed)}, False)
        if knows_old and not GPU:
            compare(case, options, True)
    if not GPU:  # a handle of a destroyed context counts as no context: barriers are possible
        ran, report = run_with_report([program("ctx_changes"), "dead_current"],
                                      MODES["barrier, tight"])
        tally.check(report["devices"][0]["barriers"] > 0, "ctx_changes: no barriers any more", ran.err)
        for case, possible in (("blocked", True), ("peer", False), ("came_back", False)):
            ran, report = run_with_report([program("ctx_changes"), case],
                                          {**MODES["barrier, tight"], **TWO})
            barriers = report["devices"][0]["barriers"]
            tally.check((barriers > 0) == possible,
                        "ctx_changes: %s: %d barriers" % (case, barriers), ran.err)
        ran, report = run_with_report([program("ctx_changes"), "streams_ended"])
        waits = report["devices"][0]["cpu_waits"]  # a single stream gets barriers instead
        tally.check(waits == 0, "ctx_changes: streams_ended: %d waits of the CPU" % waits, ran.err)


tally.run(main)
