#!/usr/bin/env python3
"""Checks which entries `dlsym` and `cuGetProcAddress` return for every request."""
import os
import re
import sys
import tempfile

from harness import GPU, HERE, Tally, program, run

CLIENT = program("load_entries")
ROOT = os.path.join(HERE, "..", "..")
REQUESTS = os.path.join(ROOT, "tests", "data", "cudart-13.0-requests.txt")
OFF = {"GPUCACHE_REPORT": "off"}

tally = Tally()


def replaced():
    with open(os.path.join(ROOT, "src", "driver", "table", "entry_points.def")) as file:
        return set(re.findall(r"^(?:ENTRY|FAST|NOTICED|BOUNDED|ORDERED|RETRIED)\((\w+),", file.read(), re.M))


OURS = replaced()


def expected(line):
    """Returns the line that must appear under the library for a line of the driver alone."""
    def place(match):
        symbol = match.group(1)
        return symbol + (" libgpucache.so" if symbol in OURS else match.group(0)[len(symbol):])
    return re.sub(r"\b(cu\w+) libcuda\.so[.\d]*", place, line)


def known_difference(native, ours):
    """Returns whether a difference is allowed. Without a driver in the global scope, look-ups may find the library's exported
    entries, which work once there is a driver. Or they find nothing, and the message names the library's file."""
    nothing = re.fullmatch(r"(.* (default|next|program) (\w+)): nothing; .*: (undefined symbol: \w+)",
                           native)
    if not nothing or nothing.group(3) not in OURS:
        return False
    if ours == "%s: %s libgpucache.so; no error" % (nothing.group(1), nothing.group(3)):
        return True
    return ours.startswith(nothing.group(1) + ": nothing; ") and ours.endswith(nothing.group(4))


def other_name(native, ours):
    """Returns the other exported name of an address, because the loader may name either."""
    place = r"(cu\w+) (libcuda\.so[.\d]*|libgpucache\.so)"
    if re.sub(place, "", native) != re.sub(place, "", ours):
        return False
    pairs = list(zip(re.findall(place, native), re.findall(place, ours)))
    if all(a == b or (b[0] in OURS and b[1] == "libgpucache.so") for a, b in pairs):
        tally.note("load_entries: another name of the same address? driver: %s | here: %s" % (native, ours))
        return True
    return False


def compare(what, command, old=False, translate=expected):
    native = run(command, under=False, options=OFF, old=old)
    ran = run(command, options=OFF, old=old)
    fine = native.status == 0 or GPU  # wrong requests may crash a driver
    tally.check(fine and ran.status == native.status and ran.err == native.err,
                "load_entries: %s: status %s, natively %s" % (what, ran.status, native.status),
                native.err + ran.err)
    theirs, ours = native.out.splitlines(), ran.out.splitlines()
    tally.check(len(theirs) == len(ours) > 0, "load_entries: %s: lines" % what)
    for a, b in zip(theirs, ours):
        tally.check(b == translate(a) or known_difference(a, b) or (GPU and other_name(a, b)),
                    "load_entries: %s" % what,
                    "driver: %s\nwanted: %s\ngot:    %s" % (a, translate(a), b))


def main():
    names = ["cuMemAlloc_v2", "cuMemFree_v2", "cuInit", "cuLaunchKernel", "cuGetProcAddress_v2",
             "cuGetExportTable", "cuNoSuchThing", "cudaMalloc", "cudnnCreate", "malloc", "c", "cu",
             "dlsym_", "printf"]
    for old in ([False] if GPU else [False, True]):
        compare("requests" + (", old" if old else ""), [CLIENT, "requests", REQUESTS], old)
        compare("symbols" + (", old" if old else ""), [CLIENT, "symbols"] + names, old)
    for _ in range(5 if GPU else 20):
        compare("race", [CLIENT, "race"])
    with tempfile.TemporaryDirectory() as empty:
        if not GPU:
            import harness
            harness.SIM = empty
            compare("missing", [CLIENT, "missing"])
            ran = run([CLIENT, "missing"], options=OFF)
            tally.check("missing, default cuMemAlloc_v2: nothing" in ran.out,
                        "load_entries: a program that asks for an entry sees that there is no driver",
                        ran.out)
    ran = run([CLIENT, "weak"], options=OFF)
    tally.check(ran.status == 0 and ran.out.strip() in ("", "3 3 3") and ran.err == "",
                "load_entries: entries called without a driver", "%s %s" % (ran.status, ran.out + ran.err))


tally.run(main)
