#!/usr/bin/env python3
"""Lets the simulated driver fail one call after another of a program.

oom_failing_calls.py [all]: every call of the program, one after another, or some of them. GPUCACHE_TEST_BACKEND chooses one backend.
"""
import json
import os
import re
import sys
import tempfile

from harness import GPU, VARIANT, Tally, check_books, program, run

FAULTS = program("oom_failing_calls")
ALL = "all" in sys.argv
NOT_SUPPORTED, NO_MEMORY, UNKNOWN, DEAD = "801", "2", "999", "700"
tally = Tally()


def reports_in(folder):
    """Yields the number of each child, and its last report."""
    last = {}
    for name in os.listdir(folder):
        k, _, n = name.partition(".")
        last[k] = max(last.get(k, -1), int(n or 0))
    for k, n in sorted(last.items()):
        with open("%s/%s%s" % (folder, k, ".%d" % n if n else "")) as file:
            yield k, json.load(file)


def sweep(symbol, error, times, first, last, step, **options):
    """Runs one child for each failing call, from first to last in steps. With last -1 the sweep ends at the last call."""
    what = "oom_failing_calls: %s %s x%s, %s" % (symbol, error, times, " ".join(options.values()))
    options = {"GPUCACHE_SIM_MEMORY": "250M", **{"GPUCACHE_" + name: value for name, value in options.items()}}
    with tempfile.TemporaryDirectory() as folder:
        ran = run([FAULTS, folder, str(first), str(last), str(step), symbol, error, times], options=options, timeout=3000)
        lines = ran.out.splitlines()
        wrong = [line for line in lines if line.startswith("k ") or line.startswith("without a failure")]
        tally.check(ran.status == 0 and not wrong and lines[-1:] == ["end"], what, ran.out)
        count = 0
        for k, report in reports_in(folder):
            broken = check_books(report)
            tally.check(report["reason"] == "exit" and not broken, "%s: the report of %s" % (what, k),
                        "\n".join([report["reason"]] + broken))
            count += 1
        tally.check(count > 1, what + ": no reports", ran.err)


def as_natively(backend):
    """Compares the output natively and under the library while no call fails."""
    values = []
    with tempfile.TemporaryDirectory() as folder:
        for under in (False, True):
            ran = run([FAULTS, folder, "1", "0", "1", "*", "0", "0"], under=under,
                      options={"GPUCACHE_SIM_MEMORY": "250M", "GPUCACHE_BACKEND": backend})
            values.append([line for line in ran.out.splitlines() if not re.match("calls|requested", line)])
    tally.check(values[0] == values[1] and len(values[0]) == 7, "oom_failing_calls: as natively", values)


def main():
    if GPU:  # only the simulated driver fails on demand
        sys.exit(77)
    for backend, calls in (("segments", 950), ("pages", 2420)):
        if VARIANT and backend != VARIANT:
            continue
        as_natively(backend)
        some = 1 if ALL else calls // 30
        for n, (error, more) in enumerate(((NOT_SUPPORTED, {}), (NO_MEMORY, {"BUDGET": "0"}), (UNKNOWN, {"REUSE": "wait"}))):
            sweep("*", error, "1", n * some // 3, -1, some, BACKEND=backend, **more)
        for error in (DEAD, NOT_SUPPORTED):
            sweep("*", error, "-1", 3, calls, max(some, 7) * 3, BACKEND=backend)
        # calls that release memory late or never, and calls that change a setting of the thread
        symbols = {"segments": ["cuStreamQuery", "cuStreamSynchronize", "cuMemFreeAsync"],
                   "pages": ["cuMemUnmap", "cuMemRelease", "cuMemSetAccess"]}[backend]
        for symbol in symbols + ["cuMemFree_v2", "cuThreadExchangeStreamCaptureMode"]:
            step = 1 if ALL or symbol in ("cuStreamQuery", "cuStreamSynchronize") else some // 2
            sweep(symbol, NOT_SUPPORTED, "1", 0, -1, step, BACKEND=backend)
            sweep(symbol, NOT_SUPPORTED, "-1", 0, 0, 1, BACKEND=backend)
        if backend == "segments":  # without a stream for its frees, memory must go back nevertheless
            sweep("cuStreamCreateWithPriority", NOT_SUPPORTED, "1000000", 0, 0, 1, BACKEND=backend)
        else:
            for symbol in ("cuMemCreate", "cuMemMap", "cuMemSetAccess"):  # some calls fail, though memory remains
                sweep(symbol, NO_MEMORY, "1000000", 3, 33, 15, BACKEND=backend)
            # memory that the driver serves instead counts against the limit, also if the driver does not name the device
            sweep("cuCtxGetDevice", UNKNOWN, "1", 0, -1, 1 if ALL else some // 8, BACKEND=backend, SIM_FAIL="cuMemCreate:3:999:-1")
            sweep("cuMemUnmap", UNKNOWN, "4", 0, -1, 1 if ALL else some // 2, BACKEND=backend, BUDGET="0")


tally.run(main)
