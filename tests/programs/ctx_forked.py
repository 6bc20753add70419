#!/usr/bin/env python3
"""Checks that entries in a forked child answer as natively and wait for no lock."""
import errno

from harness import GPU, Tally, program, run

FORKED = program("ctx_forked")
OFF = {"GPUCACHE_REPORT": "off"}
tally = Tally()


def same(what, arguments, options=None):
    native = run([FORKED] + arguments, under=False, options=options)
    good = native.status == 0 and native.err == ""
    if GPU and not good:
        tally.note("ctx_forked: %s: left out, natively status %s" % (what, native.status))
        return
    tally.check(good, "ctx_forked: %s: natively: status %s" % (what, native.status), native.out + native.err)
    ran = run([FORKED] + arguments, options={**OFF, **(options or {})})
    different = [b for a, b in zip(native.out.splitlines(), ran.out.splitlines()) if a != b]
    tally.check((ran.status, ran.out, ran.err) == (native.status, native.out, native.err),
                "ctx_forked: %s: status %s" % (what, ran.status), "\n".join(different) + ran.err)


def main():
    same("what every entry answers", ["answers"])
    same("while others hold locks", ["busy", "50" if GPU else "300"])
    same("the end of its thread", ["thread"])
    same("a library is loaded", ["load", program("libplugin_deep.so"), "100" if GPU else "1000"],
         {"GPUCACHE_BACKEND": "pages", "GPUCACHE_BUDGET": "0"})
    ran = run([FORKED, "early"], options={**OFF, "GPUCACHE_MEMORY_LIMIT": "32M"})
    wanted = "parent: 3 3 3 3 3 3\nchild: 2 0\n"
    tally.check(ran.status == 0 and ran.out == wanted, "ctx_forked: calls before cuInit()", ran.out + ran.err)
    ran = run([FORKED, "early", "limit"], options=OFF)
    tally.check(ran.status == 0 and ran.out == "parent: 0\nchild: 2 0\n", "ctx_forked: a limit before cuInit()",
                ran.out + ran.err)
    ran = run([FORKED, "functions"], options=OFF)
    none = -errno.ENODEV
    wanted = "%d 0 0 %d %d %d 0 all 0 0 0\n0\n" % (none, none, none, none)
    tally.check(ran.status == 0 and ran.out == wanted, "ctx_forked: the functions of gpucache.h",
                "wanted %sgot %s" % (wanted, ran.out))
    loud = run([FORKED, "functions"], options={"GPUCACHE_LOG": "debug"})
    tally.check(loud.err.count("gpucache: mark") == 0 and loud.err.count("Reserved memory") == 1,
                "ctx_forked: the child reports nothing", loud.err)


tally.run(main)
