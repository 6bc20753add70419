#!/usr/bin/env python3
"""Checks that reports attribute memory to the library that asked for it, to the byte."""
import json
import os
import shutil
import tempfile

from harness import EMULATED, MODES, PROGRAMS, SIM, Tally, check_books, program, run, run_with_report

A, B = (os.path.join(PROGRAMS, "libmemory_%s.so" % letter) for letter in "ab")
PARTS = ("turns", "closed", "forked", "ended", "reset", "generated", "frames")
tally = Tally()


def counted(report):
    """Returns the rows of libraries, and the sum of all other rows."""
    rows = report["devices"][0]["libraries"]
    return ({row["name"]: (row["current"], row["peak"]) for row in rows if row["peak"] is not None},
            {row["name"]: row["current"] for row in rows if row["peak"] is None})


def part(name, what, options):
    ran, report = run_with_report([program("report_libraries"), name, A, B], options=options)
    if not tally.check(ran.status == 0 and report, "%s: status %s" % (what, ran.status), ran.out + ran.err):
        return
    # qemu maps a file at another address than the one that became free
    tally.check(EMULATED or "elsewhere" not in ran.out, what + ": the second library lies elsewhere", ran.out)
    tally.check("child" not in ran.out or "child 0" in ran.out, what + ": the child got memory", ran.out)
    said = [line.split() for line in ran.out.splitlines() if not line.startswith(("child", "elsewhere"))]
    expected = {name: (int(current), int(peak)) for name, current, peak in said if int(peak)}
    found, others = counted(report)
    tally.check(found == expected, what + ": libraries", "%s\nexpected %s" % (found, expected))
    rests = {"small blocks, of any library"} if "GPUCACHE_STACKS" not in options else set()
    tally.check(set(others) <= rests | {"reserve of the driver's pools"}, what + ": rows", others)
    broken = check_books(report)
    tally.check(not broken, what + ": books", "\n".join(broken))


def small():
    """Checks that small blocks have a row of their own."""
    _, report = run_with_report([program("report_libraries"), "turns", A, B])
    small_bytes = sum(100 + turn for turn in range(60))
    tally.check(counted(report)[1].get("small blocks, of any library") == small_bytes, "small blocks",
                "%s, expected %d" % (counted(report), small_bytes))


    _, report = run_with_report([program("report_libraries"), "turns", A, B], options={"GPUCACHE_DISABLE": "on"})
    others = counted(report)[1]  # with the pool off, small blocks are unpooled memory, which has a library
    tally.check(set(others) == {"reserve of the driver's pools"}, "small blocks, not pooled", others)


def many():
    """Checks that the libraries with most memory have rows of their own, and all others one row."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, "libmany_%d.so" % i) for i in range(12)]
        for path in paths:
            shutil.copy(A, path)
        ran, report = run_with_report([program("report_libraries"), "many", *paths],
                                      options={"LD_LIBRARY_PATH": PROGRAMS + ":" + SIM})
    said = [(name, int(current)) for name, current, _ in map(str.split, ran.out.splitlines())]
    found, others = counted(report)
    tally.check([(name, found[name][0]) for name in found] == said[:-7:-1], "many: the first six", found)
    tally.check(others == {"other libraries": sum(current for _, current in said[:-6])}, "many: the others", others)
    tally.check(not check_books(report), "many: books", check_books(report))


def threads():
    """Checks that the rows add up in each report, also while threads change them."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "reports")
        ran = run([program("report_libraries"), "threads", A, B], options={"REPORTS": path, "GPUCACHE_REPORT": "off"})
        tally.check(ran.status == 0, "threads: status %s" % ran.status, ran.out + ran.err)
        with open(path) as file:
            reports = [json.loads(line) for line in file]
    tally.check(len(reports) == 2000, "threads: %d reports" % len(reports))
    for report in reports:
        broken = check_books(report)
        if not tally.check(not broken, "threads: books", "\n".join(broken)):
            break


def main():
    for mode, options in MODES.items():
        for name in PARTS if mode in ("barrier", "segments", "sync") else ("turns",):
            part(name, "%s, %s" % (name, mode), options)
    for name in PARTS[1:]:
        part(name, name + ", not pooled", {"GPUCACHE_DISABLE": "on"})
    for frames in ("1", "16"):  # with call stacks, small blocks have a library too
        for name in PARTS:
            part(name, "%s, %s frames" % (name, frames), {"GPUCACHE_STACKS": frames})
        part("turns", "turns, not pooled, %s frames" % frames, {"GPUCACHE_STACKS": frames, "GPUCACHE_DISABLE": "on"})
    many()
    small()
    threads()
    text = run([program("report_libraries"), "turns", A, B]).err
    tally.check("By library (peak): " in text and "libmemory_a.so" in text, "text: no library", text)


tally.run(main)
