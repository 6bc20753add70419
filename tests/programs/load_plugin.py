#!/usr/bin/env python3
"""Frees blocks through a plugin whose calls bypass the library."""
import os

from harness import MODES, PROGRAMS, Tally, program, run

tally = Tally()


def main():
    command = [program("load_plugin"), os.path.join(PROGRAMS, "libplugin_deep.so")]
    native = run(command, under=False)
    tally.check(native.status == 0, "plugin: natively: status %s" % native.status, native.err)
    for name, options in MODES.items():
        for old in (False, True)[:2 if name == "barrier" else 1]:
            ran = run(command, options=dict(options, GPUCACHE_REPORT="off"), old=old)
            tally.check((ran.status, ran.out) == (0, native.out),
                        "plugin: %s: status %s" % (name, ran.status), ran.out + ran.err)


tally.run(main)
