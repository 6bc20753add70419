#!/usr/bin/env python3
"""The differential harness: the same lines natively and under the library, in every reuse mode.

diff.py [--gpu] [CLIENT...]. Each client of an area prints one line per behaviour. The importer of
diff_ipc runs under the library when the exporter does; without it, it must get errors and no bytes.
"""
import re
import sys

from harness import GPU, MODES, Tally, check_books, program, run, run_with_report, run_with_reports

CLIENTS = [["diff_pointers"], ["diff_mixes"], ["diff_contexts"]] + \
    [["diff_contexts", "fault", str(i)] for i in range(6)] + \
    [["diff_faults", str(i)] for i in range(12)] + \
    [["diff_capture"], ["diff_peers"], ["diff_ipc"], ["diff_outside"]]
LEAST = 150

tally = Tally()


def options(more):
    return {**({} if GPU else {"GPUCACHE_SIM_DEVICES": "2"}), **more}


def main():
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    compared = 0
    for client in CLIENTS:
        if wanted and client[0] not in wanted:
            continue
        command, what = [program(client[0])] + client[1:], " ".join(client)
        native = run(command, under=False, options=options({}))
        again = run(command, under=False, options=options({}))
        lines = native.out.splitlines()
        tally.check(native.status == 0 and native.err == "", "diff: %s: natively %s" % (
            what, native.status), native.err + "\n".join(lines[-3:]))
        tally.check(native.out == again.out, "diff: %s: two native runs differ" % what)
        compared += len(lines)
        modes = {**MODES, "disabled": {"GPUCACHE_DISABLE": "1"}}
        for mode, more in modes.items():
            more = {"GPUCACHE_REPORT": "off", **more}
            ran = run(command, options=options(more))
            ours = ran.out.splitlines()
            differ = [(a, b) for a, b in zip(lines, ours) if a != b]
            for a, b in differ[:3]:
                tally.check(False, "diff: %s: %s" % (what, mode), "natively: %s\nhere:     %s" % (a, b))
            tally.check(not differ and len(lines) == len(ours) and ran.status == native.status and
                        ran.err == native.err,
                        "diff: %s: %s: %d of %d lines differ, %d here, status %s" % (
                            what, mode, len(differ), len(lines), len(ours), ran.status), ran.err)
        if not GPU:
            old = [run(command, under=u, old=True, options=options({"GPUCACHE_REPORT": "off"}))
                   for u in (False, True)]
            differ = [(a, b) for a, b in zip(old[0].out.splitlines(), old[1].out.splitlines())
                      if a != b]
            tally.check((old[0].out, old[0].err, old[0].status) ==
                        (old[1].out, old[1].err, old[1].status),
                        "diff: %s: old driver, status %s %s" % (what, old[0].status, old[1].status),
                        "\n".join("natively: %s\nhere:     %s" % d for d in differ[:8]) + old[1].err)
        ran, report = run_with_report(command, options=options({}))
        broken = check_books(report) if report else ["no report"]
        tally.check(not broken, "diff: %s: the books" % what, "\n".join(broken))
    print("%d behaviours compared" % compared)
    if not wanted:
        tally.check(compared >= LEAST, "diff: at least %d behaviours" % LEAST)
        outside()
        plain_importer()
        imports()
    tally.end()


def plain_importer():
    """An importer without the library gets an error, or the block itself; never other bytes."""
    for mode, more in MODES.items():
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
    """However many blocks of a segment are opened, it is there once."""
    ran, reports = run_with_reports([program("diff_ipc")], options=options({}))
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


def outside():
    """Everything that passes by was counted, and everything was given back but what leaks natively."""
    ran, report = run_with_report([program("diff_outside")], options=options({}))
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
    # all kinds together within the limit, and refused with the driver's own code beyond it
    ran, report = run_with_report([program("diff_outside")],
                                  options=options({"GPUCACHE_MEMORY_LIMIT": "2G"}))
    tally.check(ran.status in (0, 1), "diff: outside at a limit: status %s" % ran.status, ran.err)
    if report:
        broken = check_books(report)
        tally.check(not broken, "diff: outside at a limit", "\n".join(broken))


main()
