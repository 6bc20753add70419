#!/usr/bin/env python3
"""Runs the examples of `gpucache.h` in `docs/examples` natively and under the library."""
import os
import sys

from harness import GPU, Tally, program, run

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PYTHON = [sys.executable, os.path.join(ROOT, "docs", "examples", "memory.py")]
tally = Tally()


def main():
    for name, command, kept, more in (
            ("C", [program("example")], 100, ["within a limit: out of memory"]), ("Python", PYTHON, 0, [])):
        native = run(command, under=False)
        tally.check((native.status, native.out, native.err) ==
                    (0, "with a batch: not under libgpucache\nwithout it: not under libgpucache\n", ""),
                    "examples: %s, natively" % name, native.out + native.err)
        ran = run(command, options={"GPUCACHE_REPORT": "off", "GPUCACHE_LOG": "error"})
        expected = ["with a batch: %d MiB live, %d MiB at most, %d MiB reserved" % (kept + 300, kept + 300, kept + 300),
                    "without it: %d MiB live, %d MiB at most, %d MiB reserved" % (kept, kept + 300, kept + 300),
                    "given back: %d MiB live, %d MiB at most, %d MiB reserved" % (kept, kept + 300, kept)] + more
        tally.check(ran.status == 0 and ran.out.splitlines() == expected, "examples: %s, under the library" % name,
                    "\n".join(ran.out.splitlines() + expected) + ran.err)
        if name == "C":
            tally.check("written on request" in ran.err and "100.00 MiB" in ran.err, "examples: the report", ran.err)


if GPU:  # what is reserved depends on the device's size
    sys.exit(77)
tally.run(main)
