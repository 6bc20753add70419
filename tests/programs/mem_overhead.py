#!/usr/bin/env python3
"""Bounds the refusals, the memory and the time that the library adds to the native driver (`mem_overhead.txt`).

Runs the rows of mem_overhead.txt, natively and under the library, checks their bounds and prints a table of the
values. `mem_overhead.py NAME...` runs only the rows whose names begin so.
"""
import os
import re
import sys
import types

from harness import BACKEND, HERE, Tally, part_names, program, run

tally = Tally()


def rows():
    with open(os.path.join(HERE, "mem_overhead.txt")) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, command, options, bounds, before = (f.strip() for f in line.split("|"))
                yield (name, command.split(), dict(o.split("=", 1) for o in options.split()),
                       [b.strip() for b in bounds.split(",")], before)


def values(text):
    return {name: float(number) for name, number in re.findall(r"\b([a-z_]\w*)=(-?[\d.]+)", text)}


def said(ran):
    lines = ran.out.strip().splitlines()
    return lines[-1] if lines and ran.status == 0 else "status %s" % ran.status


def check(name, command, options, bounds, before):
    command = [program(command[0])] + command[1:]
    ran = run(command, options={"GPUCACHE_REPORT": "off", **options})
    native = None
    if any("native." in bound for bound in bounds):
        native = run(command, under=False, options=options)
    print("%s\n    %-9s%s" % (name, "before", before))
    if native:
        print("    %-9s%s" % ("natively", said(native)))
    print("    %-9s%s" % ("now", said(ran)))
    sys.stdout.flush()
    if not tally.check(ran.status == 0, name + ": status %s" % ran.status, ran.out + ran.err):
        return
    if native and not tally.check(native.status == 0, name + ": natively: status %s" % native.status, native.out + native.err):
        return
    known = values(ran.out)
    known["pages"] = BACKEND == "pages"
    known["native"] = types.SimpleNamespace(**values(native.out)) if native else None
    for bound in bounds:
        tally.check(eval(bound, {"__builtins__": {}}, known), "%s: not %s" % (name, bound), known)


def main():
    names = part_names([row[0] for row in rows()], matches=lambda name, known: known.startswith(name))
    for row in rows():
        if not names or any(row[0].startswith(n) for n in names):
            check(*row)


tally.run(main)
