#!/usr/bin/env python3
"""Compares answers of the `diff_*.c` programs natively and under the library, in every reuse mode.

diff.py [--gpu] [--but] [CLIENT...]: all clients, or those named (--but: those not named). Each client
of an area prints one line per behaviour. The importer of diff_ipc runs under the library when the
exporter does; without it, it must get errors and no bytes.

A driver may answer the same query differently the next time, a GPU's more than the simulator. Each
client therefore runs natively twice. On a GPU, lines that differ between the two runs are named and
not compared. Sections that crash a GPU's driver natively are named and left out.
"""
import os
import re
import sys

from harness import (FEW, GPU, HERE, MODES, Tally, check_books, in_pages, part_names, program, run, run_parts,
                     run_with_report, run_with_reports, side_by_side)

with open(os.path.join(HERE, "diff_faults.c")) as file:
    WAYS = re.findall(r'^    {"(.+)", \w+},$', file.read(), re.M)  # the calls that report a fault to a program
FAULTS = [["diff_contexts", "fault", str(i)] for i in range(6)] + [["diff_faults", str(i)] for i in range(len(WAYS))] + \
    [["diff_across", "fault"]]
CLIENTS = [["diff_pointers"], ["diff_mixes"], ["diff_contexts"]] + FAULTS + \
    [["diff_current"], ["diff_current", "0"], ["diff_current", "1"], ["diff_current", "2"], ["diff_bounds"]] + \
    [["diff_across"], ["diff_capture"], ["diff_peers"], ["diff_ipc"], ["diff_outside"], ["diff_old"], ["diff_async"]]
LEAST = 150
# Parts with many contexts and native frees: they take minutes on a GPU.
TOO_LONG = {"diff_mixes": ["series %d" % i for i in range(4, 20)], "diff_contexts": ["lives", "attach"],
            "diff_current": ["create", "primary"],  # both hang natively, 45 s each
            # these crash natively, and after each crash the parts before it run again
            "diff_async": ["capture of mode %d, in a stream that ended" % i for i in range(3)]}
WHOLE_DEVICE = ("diff_outside", "diff_async")  # each needs the whole device
# Native lines whose answer differs on the pages backend (docs/design/known-gaps.md).
NOT_IN_PAGES = {"diff_current": "^current: a stream's context current: other's"}
VARIES = object()  # stands for a line in which two native runs differ

tally = Tally()
compared = dropped = 0


def options(more):
    return {**({} if GPU else {"GPUCACHE_SIM_DEVICES": "2", "GPUCACHE_SIM_DRIVER_VERSION": "13030"}), **more}


def agree(what, first, second):
    """Returns the lines of two native runs by part, with VARIES for each line that differs."""
    agreed = {}
    for name, lines in first.lines.items():
        other = second.lines.get(name, [])
        agreed[name] = [a if a == b else VARIES for a, b in zip(lines, other)]
        for a, b in zip(lines, other):
            if a != b:
                varies(what, name, a, b)
        if len(lines) != len(other):
            varies(what, name, "%d lines" % len(lines), "%d lines" % len(other))
            agreed[name] = None
    return agreed


def varies(what, part, a, b):
    global dropped
    with tally.lock:
        dropped += 1
    if GPU:
        tally.note("diff: %s: not compared, two native runs differ (%s): %s | %s" % (what, part, a, b))
    else:
        tally.check(False, "diff: %s: two native runs differ" % what, "%s\n%s" % (a, b))


def differences(agreed, ours, but=None):
    """Returns [(part, index, native line, line under the library)], without native lines that match `but`."""
    found = []
    for name, lines in agreed.items():
        here = ours.lines.get(name, [])
        if lines is None or name in ours.died:
            continue
        if len(lines) != len(here):
            found.append((name, None, "%d lines" % len(lines), "%d lines" % len(here)))
        found += [(name, i, a, b) for i, (a, b) in enumerate(zip(lines, here))
                  if a is not VARIES and a != b and not (but and re.search(but, a))]
    return found


def client(command, name):
    global compared
    what = " ".join(name)
    skip = list(TOO_LONG.get(name[0], [])) if GPU else []
    native = run_parts(command, under=False, options=options({}), skip=skip)
    skip += native.died
    if GPU:
        for part, status in native.died.items():
            tally.note("diff: %s: left out, natively status %s: %s; it had said: %s" % (
                what, status, part or "the start", " | ".join(native.lines[part][-2:])))
            native.lines[part] = []
        if "" in native.died:
            tally.check(False, "diff: %s: does not run natively" % what, native.err)
            return
    tally.check(native.died or native.err == "" if GPU else not native.died and native.err == "",
                "diff: %s: natively %s" % (what, native.died), native.err)
    again = run_parts(command, under=False, options=options({}), skip=skip)
    agreed = agree(what, native, again)
    for part in again.died:
        if part in agreed:
            agreed[part] = None
    with tally.lock:
        compared += sum(a is not VARIES for lines in agreed.values() if lines for a in lines)

    def mode(label, more):
        but = NOT_IN_PAGES.get(name[0]) if in_pages(more) else None
        ours = run_parts(command, options=options({"GPUCACHE_REPORT": "off", **more}), skip=skip)
        differ = differences(agreed, ours, but)
        if differ and GPU:  # one more native run tells whether the driver itself has several answers
            third = run_parts(command, under=False, options=options({}), skip=skip)
            moved = {(part, i) for part, i, _, _ in differences(agreed, third)}
            for part, i, a, b in differ:
                if (part, i) in moved:
                    varies(what, part, a, b)
            differ = [d for d in differ if d[:2] not in moved]
        for part, _, a, b in differ[:8 if GPU else 3]:
            tally.check(False, "diff: %s: %s (%s)" % (what, label, part),
                        "natively: %s\nhere:     %s" % (a, b))
        for part, status in ours.died.items():
            tally.check(False, "diff: %s: %s: status %s in %s" % (
                what, label, status, part or "the start"),
                "\n".join(ours.lines[part][-3:]) + "\n" + ours.err[-2000:])
        tally.check(not differ and (ours.err == again.err or ours.died), "diff: %s: %s: %d lines differ" % (
            what, label, len(differ)), ours.err)

    # after a fault the end of a context takes a second on a GPU
    modes = {**(FEW if name in FAULTS else MODES), "disabled": {"GPUCACHE_DISABLE": "1"}}
    side_by_side([lambda m=m: mode(*m) for m in modes.items()], 1 if name[0] in WHOLE_DEVICE else 3)
    if not GPU:
        old_driver(command, what)
    one_device = native.lines[""] == ["peers: one device"]  # no call that the report would count
    if not one_device and (not GPU or name not in FAULTS):
        ran, report = run_with_report(command, options=options({"PROGRAM_SKIP": ",".join(skip)}))
        broken = check_books(report) if report else ["no report", ran.err]
        tally.check(not broken, "diff: %s: the counters, status %s" % (what, ran.status), "\n".join(broken))
    if name[0] == "diff_outside":
        outside(skip)
    if name == ["diff_current"] and not GPU:
        asked()
    if name[0] == "diff_async" and not GPU:
        costs()
    if name[0] == "diff_ipc":
        plain_importer()
        imports()


def old_driver(command, what):
    old = [run(command, under=u, old=True, options=options({"GPUCACHE_REPORT": "off"}))
           for u in (False, True)]
    differ = [(a, b) for a, b in zip(old[0].out.splitlines(), old[1].out.splitlines()) if a != b]
    tally.check((old[0].out, old[0].err, old[0].status) == (old[1].out, old[1].err, old[1].status),
                "diff: %s: old driver, status %s %s" % (what, old[0].status, old[1].status),
                "\n".join("natively: %s\nhere:     %s" % d for d in differ[:8]) + old[1].err)


def main():
    named = part_names([c[0] for c in CLIENTS])
    wanted = [c for c in CLIENTS if not named or (c[0] in named) != ("--but" in sys.argv)]
    jobs = [lambda c=c: client([program(c[0])] + c[1:], c) for c in wanted]
    side_by_side(jobs, 4)
    print("%d behaviours compared" % compared + (
        ", %d not: the driver's own answers vary" % dropped if dropped else ""))
    if not named:
        tally.check(compared >= LEAST, "diff: at least %d behaviours" % LEAST)


def plain_importer():
    """Checks that an importer without the library gets an error or the block itself, never other bytes."""
    for mode, more in FEW.items():
        ran = run([program("diff_ipc")], options=options(
            {"GPUCACHE_REPORT": "off", "GPUCACHE_TEST_PLAIN_IMPORTER": "1", **more}))
        imports = re.findall(r"ipc: import of (\d+): opened (\d+), holds (\w+)\.\.(\w+)", ran.out)
        tally.check(len(imports) == 24, "diff: importer without the library: %d lines" % len(imports),
                    ran.out[-500:] + ran.err)
        for i, (_, opened, first, last) in enumerate(imports):
            right = "%x" % (0xAB000000 + i)
            tally.check(opened != "0" or (first == right and last == right),
                        "diff: importer without the library: %s: block %d: opened %s holds %s..%s" % (
                            mode, i, opened, first, last))


def imports():
    """Checks that a segment is imported once, however many of its blocks are opened, and each block in pages separately."""
    for more in ({}, {"GPUCACHE_BACKEND": "segments"}):
        imported(more)


def imported(more):
    ran, reports = run_with_reports([program("diff_ipc")], options=options(more))
    kinds = {r["command"][-1]: r for r in reports if r}
    importer, pool_importer = ([kinds[k]] if k in kinds else [] for k in ("import", "import pool"))
    exporter = [r for r in reports if r and not r["command"][-1].startswith("import")]
    if not tally.check(len(importer) == len(exporter) == len(pool_importer) == 1,
                       "diff: imports: %d reports" % len(reports), ran.err):
        return
    of_pool = pool_importer[0]["devices"][0]["outside_bytes"]["ipc_imported"]
    tally.check((of_pool["total"], of_pool["current"]) == (3000000, 0), "diff: import of a pool's block",
                of_pool)
    counted = importer[0]["devices"][0]["outside_bytes"]["ipc_imported"]
    there = exporter[0]["devices"][0]["reserved_bytes"]["peak"]
    tally.check(0 < counted["peak"] <= there and counted["current"] == 0,
                "diff: imports: %s, where %d bytes are reserved" % (counted, there))


def asked():
    """Checks that the driver is asked for the current context once after a change, at each call with two contexts, else never."""
    ran = run([program("diff_current"), "count"], options=options({"GPUCACHE_REPORT": "off"}))
    times = {when: int(n) for when, n in re.findall(r"^(.*): (\d+)$", ran.out, re.M)}
    expected = {"begun": 1, "one": 0, "set": 1, "two": 100, "one again": 1, "two devices": 100,
                "one device": 1, "green": 0, "view": 100, "no view": 1}
    refused = [when for when in times if when.startswith("cu")]
    tally.check(len(refused) == 14, "diff: asked after %d calls that failed" % len(refused), ran.out)
    expected.update({when: 1 for when in refused})
    for when, n in expected.items():
        tally.check(times.get(when) == n, "diff: asked what is current: %s: %s times, not %d" % (
            when, times.get(when), n), ran.err)


def costs():
    """Checks that pending frees make no free in a stream slower, and add one query to a pair of calls at most."""
    ran = run([program("diff_async"), "count"], options=options({"GPUCACHE_REPORT": "off"}))
    said = re.findall(r"^(.*): (\d+)$", ran.out, re.M)
    names = ["1000 pairs", "1000 frees", "1000 frees", "1000 pairs", "the first pair afterwards",
             "1000 pairs in a stream"]
    if tally.check([name for name, _ in said] == names, "diff: costs of frees in streams", ran.out + ran.err):
        calls = [int(n) for _, n in said]
        most = [10**6, 2010, 2010, calls[0] + 1000, 20, 4500]
        tally.check(all(n <= m for n, m in zip(calls, most)),
                    "diff: costs of frees in streams: at most %s calls of the driver" % most, ran.out)


def outside(skip):
    """Checks that all unpooled memory was counted and freed, except memory that leaks natively."""
    ran, report = run_with_report([program("diff_outside")],
                                  options=options({"PROGRAM_SKIP": ",".join(skip)}))
    if not tally.check(report is not None, "diff: no report of diff_outside", ran.err):
        return
    kinds = report["devices"][0]["outside_bytes"]
    for kind in ("stream_ordered", "virtual", "array", "managed", "pinned_host"):
        tally.check(kinds[kind]["total"] > 0, "diff: %s was not counted" % kind, kinds[kind])
        tally.check(kinds[kind]["current"] == 0, "diff: %s is left" % kind, kinds[kind])
    if GPU:
        return
    kind = kinds["ipc_imported"]
    tally.check((kind["current"], kind["peak"], kind["total"]) == (0, 4 << 20, 4 << 20),
                "diff: imported memory", kind)
    # all kinds of memory count against the limit together; beyond it the error is the driver's
    ran, report = run_with_report([program("diff_outside")],
                                  options=options({"GPUCACHE_MEMORY_LIMIT": "2G"}))
    tally.check(ran.status in (0, 1), "diff: outside at a limit: status %s" % ran.status, ran.err)
    broken = check_books(report) if report else ["no report", ran.err]
    tally.check(not broken, "diff: outside at a limit", "\n".join(broken))


tally.run(main)
