#!/usr/bin/env python3
"""Checks that idle memory is released and the driver's call retried after out of memory."""
import os
import re

from harness import HERE, Tally, program, run

ROOM = program("oom_retry")
OFF = {"GPUCACHE_REPORT": "off"}
TABLE = os.path.join(HERE, "..", "..", "src", "driver", "table", "entry_points.def")
tally = Tally()


def retried():
    """Returns the RETRIED entries, and the others whose row names this test."""
    with open(TABLE) as file:
        rows = re.findall(r'^(ENTRY|RETRIED)\((\w+),(.*?)"?\)$', file.read(), re.M | re.S)
    return [symbol for macro, symbol, rest in rows
            if macro == "RETRIED" or "programs/oom_retry" in rest.rpartition('"')[2]]


def refused():
    names = retried()
    native = run([ROOM, "refused"] + names, under=False)
    ran = run([ROOM, "refused"] + names, options=OFF)
    tally.check(native.status == 0 and ran.status == 0, "retry: status %s, natively %s" % (
        ran.status, native.status), native.err + ran.err)
    tally.check(len(names) > 80, "retry: the table could not be read", names)
    tally.check([line.split(":")[0] for line in native.out.splitlines()] == names, "retry: natively, a line for each entry",
                native.out)
    told = {line.split(":")[0]: line for line in ran.out.splitlines()}
    for line in native.out.splitlines():
        name = line.split(":")[0]
        tally.check(line == name + ": 2, asked 1, nothing back", "retry: natively", line)
        tally.check(told.get(name) == name + ": 2, asked 2, memory back", "retry: " + name, told.get(name))
    ran = run([ROOM, "refused"] + names, options={**OFF, "GPUCACHE_DISABLE": "1"})
    tally.check(ran.out == native.out, "retry: disabled", ran.out)


def served():
    """Checks that the retry serves each request whose first call of the driver is refused, launches excepted."""
    ran = run([ROOM, "served"], options=OFF)
    codes = re.findall(r"(\w+): (\d+)", ran.out)
    tally.check(ran.status == 0 and len(codes) == 16, "retry: served: status %s" % ran.status, ran.out + ran.err)
    for name, code in codes:
        if name != "launched":
            tally.check(code == "0", "retry: served: %s answers %s" % (name, code))
    tally.check(re.findall(r"launched: (\d+)", ran.out) == ["9", "11"], "retry: a launch is made once",
                ran.out)


def main():
    refused()
    served()


tally.run(main)
