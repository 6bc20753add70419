#!/usr/bin/env python3
"""instructions.py [--update] [BUILD]: what a cached allocation and its free cost, counted.

Runs tests/bench/instructions.c of the build folder BUILD (build/gcc) under the library, on the
simulated driver, under callgrind, and compares with instructions.txt. --update writes that file
anew. Exit status: 0, 1 if a figure is exceeded, 77 if valgrind is missing.

Counts the instructions of the library, and those of libc and the loader that run for the library.
The driver's instructions are not counted; the driver's calls are, in a column of their own. The
program runs once with PAIRS pairs and once with twice as many: start, warm-up and end cancel out.
"""

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import callgrind

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(HERE, "instructions.txt")
PATTERNS = ("fixed", "mixed", "large", "handover", "inside", "statistics", "growing", "pinned", "ordered")
PAIRS = 8192
SLACK = 1.10
CALLS_SLACK = 0.01  # driver calls do not depend on the compiler

HEAD = """\
# Cost of a cached allocation and its free on the simulated driver: instructions of the library, and
# calls of the driver. tests/bench/instructions.c describes the patterns. The test allows a tenth more
# instructions than this table. To make the table again, after `scripts/test.sh cost`:
#
#   python3 tests/bench/instructions.py --update build/gcc
#
# It is measured with gcc's release code for x86_64. The same source and compiler give the same counts,
# except for one more or less update of the live page (0.4 instructions, or 9 with many blocks).
# gcc 11 and gcc 14 differed by 6 % when last compared, with the same driver calls.
"""


def self_and_helpers(path):
    """Counts instructions in the library, and in what the library calls except the driver."""
    total, where, callee, of_call = 0, "", None, False
    with open(path) as file:
        for line in file:
            if line.startswith("ob="):
                where = os.path.basename(line[3:].strip())
            elif line.startswith("cob="):
                callee = os.path.basename(line[4:].strip())
            elif line.startswith("calls="):
                of_call = True
            elif line[0].isdigit():
                cost = int(line.split()[1])
                if where.startswith("libgpucache.so"):
                    # without a cob= line the callee is in the same object
                    if not of_call or (callee and not callee.startswith(("libcuda.", "libgpuc"))):
                        total += cost
                if of_call:
                    callee, of_call = None, False
    return total


def driver_calls(path):
    with open(path) as file:
        return sum(int(line.split()[1]) for line in file)


def count(build, pattern, pairs):
    with tempfile.TemporaryDirectory() as folder:
        out, calls = os.path.join(folder, "callgrind"), os.path.join(folder, "calls")
        settings = {"GPUCACHE_BACKEND": "segments", "GPUCACHE_SIM_EAGER": "100", "GPUCACHE_SIM_COUNTS": calls}
        if pattern in ("statistics", "growing"):  # an update of the live page, which depends on the time, reads all blocks
            settings["GPUCACHE_LIVE"] = "off"
        callgrind.run(build, ["instructions", pattern, str(pairs)], out, settings, timeout=120)
        return self_and_helpers(out), driver_calls(calls)


def measure(build):
    jobs = [(build, p, n) for p in PATTERNS for n in (PAIRS, 2 * PAIRS)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        counts = list(pool.map(lambda job: count(*job), jobs))
    return {
        p: tuple((b - a) / PAIRS for a, b in zip(counts[2 * i], counts[2 * i + 1]))
        for i, p in enumerate(PATTERNS)
    }


def read_table():
    rows = {}
    with open(TABLE) as file:
        for line in file:
            words = line.partition("#")[0].split()
            if words and words[0] != "pattern":
                rows[words[0]] = float(words[1]), float(words[2])
    return rows


def write_table(measured):
    with open(TABLE, "w") as file:
        file.write(HEAD)
        file.write("%-10s %12s %12s\n" % ("pattern", "instructions", "driver_calls"))
        for pattern, (instructions, calls) in measured.items():
            file.write("%-10s %12.1f %12.3f\n" % (pattern, instructions, calls))


def main():
    arguments = [a for a in sys.argv[1:] if a != "--update"]
    build = os.path.abspath(arguments[0] if arguments else os.path.join(ROOT, "build", "gcc"))
    if not shutil.which("valgrind"):
        print("skipped: no valgrind here")
        return 77
    measured = measure(build)
    if "--update" in sys.argv:
        write_table(measured)
        print(open(TABLE).read(), end="")
        return 0
    allowed, failed = read_table(), False
    for pattern, found in measured.items():
        if pattern not in allowed:
            print("FAIL %s: no line in instructions.txt" % pattern)
            failed = True
            continue
        known = allowed[pattern]
        limits = known[0] * SLACK, known[1] + CALLS_SLACK
        names = ("instructions", "driver calls")
        for name, value, was, limit in zip(names, found, known, limits):
            verdict = "FAIL" if value > limit else "ok"
            failed = failed or value > limit
            print(
                "%-4s %s: %.5g %s per pair, %.5g in instructions.txt, at most %.5g"
                % (verdict, pattern, value, name, was, limit)
            )
    if not failed and any(measured[p][0] < allowed[p][0] / SLACK for p in measured):
        print("note: fewer than before; --update makes that the new measure")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
