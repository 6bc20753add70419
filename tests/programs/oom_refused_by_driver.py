#!/usr/bin/env python3
"""Runs programs while the driver or the system refuses calls of the library."""
import sys
import tempfile

from harness import GPU, MODES, Tally, check_books, program, run, run_with_report

OFF = {"GPUCACHE_REPORT": "off"}
REFUSALS = program("oom_refused_by_driver")
tally = Tally()


def same(case, refused, sim=None, modes=MODES, **more):
    """Checks that the lines are the native ones in every mode, while calls are refused."""
    sim = sim or {}
    native = run([REFUSALS, case], under=False, options=sim, **more)
    tally.check(native.status == 0 and native.err == "", "oom_refused_by_driver: %s: natively" % case,
                native.out + native.err)
    for mode, options in modes.items():
        for name, refusal in refused.items():
            ran = run([REFUSALS, case], options={**OFF, **sim, **options, **refusal}, **more)
            tally.check((ran.status, ran.out, ran.err) == (native.status, native.out, ""),
                        "oom_refused_by_driver: %s, %s: %s: status %s" % (case, name, mode, ran.status),
                        "natively:\n%s\nunder the library:\n%s%s" % (native.out, ran.out, ran.err))


def records():
    fail = lambda rule: {"GPUCACHE_SIM_FAIL": "cuCtxRecordEvent:" + rule}
    same("records", {"none": {}, "all": fail("0:801:-1"), "all but a few": fail("7:801:-1"),
                     "the first few": fail("0:801:9"), "some later": fail("3:2:5")})
    same("records_small", {"none": {}, "all": fail("0:801:-1"), "the first few": fail("0:801:9"),
                           "some later": fail("3:2:5")}, {"GPUCACHE_SIM_MEMORY": "512M"})


def unaligned():
    for misalign in ("0", "512", "65536"):
        for old in (False, True):
            same("unaligned", {"alignment": {}}, {"GPUCACHE_SIM_MISALIGN": misalign}, old=old)
    with tempfile.TemporaryDirectory() as folder:
        ran = run([REFUSALS, "unaligned"], options={**OFF, "GPUCACHE_SIM_MISALIGN": "512",
                                                    "GPUCACHE_SIM_COUNTS": folder + "/counts"})
        with open(folder + "/counts") as file:
            calls = dict(line.split() for line in file)
    # three frees of the program, and one from which the library learns the refusal
    tally.check(int(calls.get("cuMemAlloc_v2", 0)) <= 4, "oom_refused_by_driver: unaligned: asked again and again",
                "%s\n%s" % (calls, ran.err))


def host_memory():
    same("host_memory", {"memory": {}})
    ran, report = run_with_report([REFUSALS, "host_memory"])
    if tally.check(report is not None, "oom_refused_by_driver: host_memory: no report", ran.err):
        device = report["devices"][0]
        tally.check(device["allocations"]["total"] == 1601 and device["allocations"]["current"] == 0 and
                    device["requested_bytes"]["current"] == 0,
                    "oom_refused_by_driver: host_memory: not all is counted", device)
        broken = check_books(report)
        tally.check(not broken, "oom_refused_by_driver: host_memory: the counters", "\n".join(broken))


def sandbox():
    same("sandbox", {"membarrier": {}})


def main():
    if GPU:  # only the simulated driver refuses on demand
        sys.exit(77)
    records()
    unaligned()
    host_memory()
    sandbox()


tally.run(main)
