#!/usr/bin/env python3
"""Checks advice, counters and words of reports."""
import os
import re
import shutil
import sys
import tempfile

from harness import BACKEND, GPU, LIBRARY, VARIANT, Tally, check_books, program, run, run_with_report

REPORTS = program("report_contents")
SERVED_BECAUSE = "GPUCACHE_BACKEND=" + VARIANT if VARIANT else "driver and device support them"
FULL = ("full", "large_pieces", "small_pieces", "odd_sizes", "next_to_an_array")
if BACKEND != "pages":  # these serve the request
    FULL += ("long_pieces",)
LIMITS = ({"GPUCACHE_MEMORY_LIMIT": "1G"}, {"GPUCACHE_MEMORY_FRACTION": "0.0625"})
tally = Tally()


def well_formed(what, text):
    """Checks that a report with its verdict has at most 25 lines of 75 columns, and whole sentences."""
    for one in re.split(r"(?<==\|\n)(?=gpucache|\|=)", text):
        lines = one.splitlines()
        tally.check(len(lines) <= 25 and all(len(l) <= 75 for l in lines),
                    "%s: %d lines" % (what, len(lines)), one)
        for line, after in zip(lines, lines[1:] + [""]):
            cut = line.strip("| ").endswith(",") and not after.startswith(("  ", "|   "))
            tally.check(not cut, "%s: a sentence is cut off" % what, one)
        for words in ("| Hit rate ", "| OOMs ", "Still live: "):
            tally.check(words in one, "%s: no %r" % (what, words), one)


def advice():
    """Checks that advice helps: the same program is served with it. Without advice the report says that none is known."""
    for case in FULL:
        for limit in LIMITS:
            what = "report_contents: %s, %s" % (case, limit)
            ran = run([REPORTS, case], options=limit)
            tally.check(ran.status == 0 and ran.out == "refused\n", what, ran.out + ran.err)
            well_formed(what, ran.err)
            line = re.findall(r"^Most likely to help: .*$", ran.err, re.M)
            found = re.findall(r"(GPUCACHE_\w+)=([^\s,]+)", line[0] if line else "")
            tally.check(any(option in limit for option, _ in found), what + ": no limit is advised", ran.err)
            for option, value in found:
                again = run([REPORTS, case], options={**limit, option: value})
                tally.check(again.out == "served\n", "%s: %s=%s does not help" % (what, option, value),
                            again.out + again.err)
            auto = run([REPORTS, case], options={**limit, "GPUCACHE_BACKEND": "auto"}).out == "served\n"
            tally.check(not auto or ("GPUCACHE_BACKEND", "auto") in found, what + ": auto helps, which is not said", ran.err)
    for options in ({}, LIMITS[0]):
        ran = run([REPORTS, "impossible"], options=options)
        tally.check(ran.out == "refused\n" and "No setting is known to help: " in ran.err and
                    "Most likely" not in ran.err, "report_contents: what nothing can help", ran.err)
        well_formed("report_contents: impossible, %s" % options, ran.err)


def counters():
    """Checks that a failed allocation counts as one OOM, and as one refusal if the limit was the reason."""
    for case in FULL + ("impossible",):
        for pool in ({}, {"GPUCACHE_DISABLE": "on"}, {"GPUCACHE_BUDGET": "0"}):
            ran, report = run_with_report([REPORTS, case], options={**pool, **LIMITS[0]})
            if ran.out == "served\n":  # only the pool has fragmentation
                continue
            device = report["devices"][0]
            tally.check((device["ooms"], device["limit_refusals"]) == (1, 1),
                        "report_contents: %s, %s: %d OOMs, %d at the limit" % (
                            case, pool, device["ooms"], device["limit_refusals"]), ran.err)
            broken = check_books(report)
            tally.check(not broken, "report_contents: %s: the counters" % case, "\n".join(broken))
    ran, report = run_with_report([REPORTS, "impossible"])
    device = report["devices"][0]
    tally.check((device["ooms"], device["limit_refusals"]) == (1, 0), "report_contents: without a limit", device)


def values():
    for case in ("pairs", "small_pieces", "large_pieces", "full"):
        ran, report = run_with_report([REPORTS, case])
        device = report["devices"][0]
        active, allocated = device["active_bytes"], device["allocated_bytes"]
        tally.check(active["total"] >= allocated["total"] and active["peak"] >= allocated["peak"],
                    "report_contents: %s: less was active than allocated" % case, (active, allocated))
        tally.check(2 ** 20 < report["host_bytes"] < 2 ** 27, "report_contents: %s: host memory" % case, report["host_bytes"])
        free = device["fragmentation"]
        tally.check((free["free_blocks"] > 0) == (free["largest_free_bytes"] > 0),
                    "report_contents: %s: %d free blocks, the largest %d bytes" % (
                        case, free["free_blocks"], free["largest_free_bytes"]))
    ran, report = run_with_report([REPORTS, "pinned"])
    hits, misses = (report["devices"][0]["pinned_" + k] for k in ("hits", "misses"))
    tally.check(hits + misses == 100 and hits >= 90, "report_contents: pinned: %d hits, %d misses" % (hits, misses))
    ran = run([REPORTS, "pinned"], options={})
    tally.check(re.search(r"host memory \d+\.\d\d MiB", ran.err), "report_contents: host memory in words", ran.err)
    tally.check("pinned hit rate %.2f%% of 100" % hits in ran.err, "report_contents: pinned in words", ran.err)


def reuse():
    """Checks that reports name the mode in force, not the requested one."""
    for options, old, value in (({}, False, "barrier"), ({}, True, "wait"),
                                ({"GPUCACHE_REUSE": "sync"}, True, "sync"),
                                ({"GPUCACHE_DISABLE": "1"}, False, "none")):
        ran, report = run_with_report([REPORTS, "pairs"], options=options, old=old)
        tally.check(report["devices"][0]["reuse"] == value, "report_contents: reuse, %s, old driver %s: %s" % (
            options, old, report["devices"][0]["reuse"]))


def passed_through():
    """Checks that with GPUCACHE_DISABLE and under compute-sanitizer every allocation is the driver's, is counted, and the
    report says so. Under a profiler, which is injected in the same way, the library pools as usual."""
    why = "under compute-sanitizer"
    port = {"NV_SANITIZER_INJECTION_PORT_BASE": "47000"}
    injection = "CUDA_INJECTION64_PATH"
    with tempfile.TemporaryDirectory() as folder:
        library, other = (os.path.join(folder, name) for name in ("libsanitizer-public.so", "libsanitizer-public.so.txt"))
        for path in (library, other):
            shutil.copy(os.path.join(os.path.dirname(program("report_contents")), "libplugin_deep.so"), path)  # any library
        for options, preload, reason in (
                ({"GPUCACHE_DISABLE": "1"}, [LIBRARY], "GPUCACHE_DISABLE"), (port, [LIBRARY], why),
                ({injection: "/opt/x/libsanitizer-collection.so"}, [LIBRARY], why), ({}, [LIBRARY, library], why),
                ({**port, "GPUCACHE_DISABLE": "on"}, [LIBRARY], "GPUCACHE_DISABLE"),
                ({**port, "GPUCACHE_DISABLE": "off"}, [LIBRARY], None), ({}, [LIBRARY, other], None),
                ({injection: "/opt/nsight-systems/libToolsInjection64.so"}, [LIBRARY], None),
                ({injection: "/opt/libsanitizer-collection.so/libcupti.so"}, [LIBRARY], None)):
            what = "report_contents: passed through, %s %s: " % (options, os.path.basename(preload[-1]))
            ran, report = run_with_report([REPORTS, "pairs"], options=options, preload=preload)
            device = report["devices"][0]
            tally.check(report["driver_version"] == 13000, what + "the driver's version", report["driver_version"])
            tally.check(ran.out == "served\n" and (device["backend"] == "none") == (reason is not None) and
                        device["backend_reason"] == (reason or SERVED_BECAUSE), what + "who serves",
                        "%s %s %s" % (ran.out, device["backend"], device["backend_reason"]))
            made, freed = (device["allocations"][k] for k in ("total", "freed"))
            tally.check(made > 0 and (device["driver_allocs"], device["driver_frees"], device["cache_hits"]) == (made, freed, 0)
                        if reason else device["driver_allocs"] < made, what + "calls", device)
            if preload != [LIBRARY] or len(options) > 1:
                continue
            text = run([REPORTS, "pairs"], options=options, preload=preload).err
            said = re.search(r"^\| Passed through and counted, not pooled: (.*?) +\|$", text, re.M)
            tally.check((said and said.group(1)) == reason, what + "is said", text)
            well_formed(what, text)


def options():
    for text in ("stdout", "-", "1", "on"):
        with tempfile.TemporaryDirectory() as folder:
            ran = run([REPORTS, "pairs"], options={"GPUCACHE_REPORT": text}, cwd=folder)
            tally.check(os.listdir(folder) == [] and "Reserved memory" in ran.err and
                        ran.out == "served\n" and ran.err.startswith(
                            'gpucache: GPUCACHE_REPORT="%s" makes no sense: accepted are ' % text),
                        "report_contents: to %s" % text, ran.err)
    with tempfile.TemporaryDirectory() as folder:
        ran = run([REPORTS, "pairs"], options={"GPUCACHE_REPORT": folder + "/it"})
        tally.check(ran.err == "gpucache: report written to %s/it\n" % folder,
                    "report_contents: where it was written", ran.err)
    ran = run([REPORTS, "pairs"], options={"GPUCACHE_REPORT": "off", "GPUCACHE_MEMORY_LIMIT": "0:8G,5:1G"})
    tally.check(ran.err == "gpucache: GPUCACHE_MEMORY_LIMIT=0:8G,5:1G: there is no device 5; this "
                "process sees 1, numbered from 0\n", "report_contents: a device that does not exist", ran.err)


def sources():
    """Checks that reports name the variable that sets the limit. Variables of HAMi-core count if no option sets one."""
    theirs = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_MEMORY_LIMIT_1": "512m"}
    for options, bytes, source in (
            ({}, None, None),
            (theirs, 1 << 30, "CUDA_DEVICE_MEMORY_LIMIT_0"),
            ({"CUDA_DEVICE_MEMORY_LIMIT": "2g"}, 2 << 30, "CUDA_DEVICE_MEMORY_LIMIT"),
            ({**theirs, "CUDA_DEVICE_MEMORY_LIMIT_0": "1 GiB"}, 2 << 30, "CUDA_DEVICE_MEMORY_LIMIT"),
            ({**theirs, **LIMITS[0]}, 1 << 30, "GPUCACHE_MEMORY_LIMIT"),
            ({**theirs, **LIMITS[1]}, 1 << 30, "GPUCACHE_MEMORY_FRACTION"),
            ({**theirs, "GPUCACHE_MEMORY_LIMIT": "none"}, None, None)):
        what = "report_contents: the limit of %s" % options
        ran, report = run_with_report([REPORTS, "pairs"], options=options)
        device = report["devices"][0]
        tally.check((device["limit_bytes"], device["limit_source"]) == (bytes, source), what, device)
        tally.check(ran.err.count("\n") == ("1 GiB" in options.values()), what + ": messages", ran.err)
        text = re.sub("^gpucache: .*\n", "", run([REPORTS, "pairs"], options=options).err)
        tally.check(("| The limit comes from %s " % source in text) == (source is not None), what + ": in words", text)
        well_formed(what, text)
    ran = run([REPORTS, "full"], options=theirs)
    found = re.search(r"^Most likely to help: (CUDA_DEVICE_MEMORY_LIMIT_0)=(\d+M) or more$", ran.err, re.M)
    tally.check(ran.out == "refused\n" and found, "report_contents: at the limit of %s" % theirs, ran.out + ran.err)
    again = run([REPORTS, "full"], options={**theirs, found.group(1): found.group(2)})
    tally.check(again.out == "served\n", "report_contents: %s does not help" % found.group(0), again.out + again.err)


def main():
    if GPU:  # the values are those of the simulated device
        sys.exit(77)
    advice()
    counters()
    values()
    reuse()
    passed_through()
    options()
    sources()


tally.run(main)
