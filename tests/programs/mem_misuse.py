#!/usr/bin/env python3
"""Misuses memory and options, and expects the error codes of the driver and one warning.

Each case of mem_misuse.c runs natively and under the library: same output, same exit status, nothing on
stderr. The script also tests invalid options, reports that cannot be written, and contents of reports.
"""
import os
import re
import socket
import sys
import tempfile

from harness import (FEW, GPU, MODES, Tally, check_books, program, run, run_with_report,
                     side_by_side)

OFF = {"GPUCACHE_REPORT": "off"}
MISUSE = program("mem_misuse")
SMALL = {} if GPU else {"GPUCACHE_SIM_MEMORY": "512M"}
# Cases for a small device. A second free after cuMemFreeAsync crashes a GPU's driver.
NOT_ON_GPU = ["fill_up", "small_then_large", "reuse_descriptors", "async_mixes",
              "after_destroy",  # damages the heap of a GPU's driver, natively too
              "errno_stays"]  # a GPU's driver changes errno when it calls the system

# Cases whose answers a limit does not change.
AT_A_LIMIT = ["wrong_and_large", "destroyed_stream", "unreadable", "unreadable_before_init",
              "many_levels"]

EXITS = {"exit_live": 7, "exit_quick": 8, "abort_live": -6, "kill_live": -9, "term_live": -15,
         "main_thread_ends": 6}

# Pairs of an option and an invalid value.
NONSENSE = [
    ("MEMORY_FRACTION", "much"), ("MEMORY_FRACTION", "0"), ("MEMORY_FRACTION", "1.5"),
    ("MEMORY_FRACTION", "-0.5"), ("MEMORY_FRACTION", "0:0.5,0.3"),
    ("MEMORY_LIMIT", "all"), ("MEMORY_LIMIT", "8X"), ("MEMORY_LIMIT", "-1"),
    ("MEMORY_LIMIT", "99999999999G"), ("MEMORY_LIMIT", "0:"), ("MEMORY_LIMIT", "8 G"),
    ("REPORT_FORMAT", "xml"), ("REPORT_FORMAT", "JSON "), ("REPORT_SIGNAL", "KILL"),
    ("REPORT_SIGNAL", "99"), ("REPORT_SIGNAL", "SIGNAL"), ("REPORT_INTERVAL", "0.0001"),
    ("REPORT_INTERVAL", "often"), ("REPORT_INTERVAL", "-1"), ("REUSE", "never"),
    ("BACKEND", "disk"), ("BUDGET", "some"), ("BUDGET", "-1"), ("DECAY_MS", "soon"),
    ("DECAY_MS", "-5"), ("STACKS", "many"), ("STACKS", "1000"), ("TRACE", "%z"), ("TRACE_EVENTS", "0"),
    ("LIVE", "maybe"), ("PINNED", "maybe"), ("DISABLE", "perhaps"), ("LOG", "loud"), ("LOG", "4"),
    ("MEMORY_LIMIT", "\x1b[31m8G\n"), ("REUSE", "x" * 5000),
]

# Pairs of a name that is no option, and the most similar option.
UNKNOWN = [
    ("GPUCACHE_MEMORY_LIMITS", "GPUCACHE_MEMORY_LIMIT"), ("GPUCACHE_REPROT", "GPUCACHE_REPORT"),
    ("GPUCACHE_DISABLED", "GPUCACHE_DISABLE"), ("GPUCACHE_REUS", "GPUCACHE_REUSE"),
    ("GPUCACHE_log", "GPUCACHE_LOG"),
]

tally = Tally()


left_out = set(NOT_ON_GPU if GPU else [])


def cases():
    listed = run([MISUSE, "list"], under=False).out.split()
    return [c for c in listed if c not in left_out]


def some(these):
    """Returns these cases; on a GPU every sixth one, because they are equal on every driver."""
    return these[::6] if GPU else these


def under_equals_native(case):
    native = run([MISUSE, case], under=False, options=SMALL)
    good = native.status == EXITS.get(case, 0) and native.err == ""
    if GPU and not good:  # the case crashes the driver natively
        left_out.add(case)
        tally.note("misuse: %s: left out, natively status %s: %s" % (
            case, native.status, (native.out + native.err)[-200:].replace("\n", " | ")))
        return
    tally.check(good, "misuse: %s: natively: status %s" % (case, native.status),
                native.out + native.err)
    modes = {**FEW, "disabled": {"GPUCACHE_DISABLE": "1"}}
    if case in AT_A_LIMIT:
        modes["limit"] = {"GPUCACHE_MEMORY_LIMIT": "256M"}
    for mode, options in modes.items():
        ran = run([MISUSE, case], options={**OFF, **SMALL, **options})
        same = ran.status == native.status and ran.out == native.out and ran.err == ""
        tally.check(same, "misuse: %s: %s: status %s" % (case, mode, ran.status),
                    "natively:\n%s\nunder the library:\n%s%s" % (native.out, ran.out, ran.err))


def one_line(what, options, pattern, more=""):
    """Checks that the program continues, and that stderr has exactly one line."""
    ran = run([MISUSE, "ok"], options=options)
    tally.check(ran.status == 0 and ran.out == "still works: 7 9 0 0\n",
                "misuse: %s: the program" % what, ran.out + ran.err)
    lines = [l for l in ran.err.splitlines() if not l.startswith("|")]
    tally.check(len(lines) == 1 and re.fullmatch(pattern, lines[0]), "misuse: %s: the line" % what,
                ran.err)
    table = len(ran.err.splitlines()) - len(lines)
    tally.check((table > 0) == bool(more), "misuse: %s: the report" % what, ran.err)


def options_without_sense():
    for name, value in some(NONSENSE):
        full = "GPUCACHE_" + name
        one_line("%s=%.20r" % (name, value), {**OFF, full: value},
                 r'gpucache: %s=".{0,200}" makes no sense: accepted are .+; (using .+|there is no limit now)' % full)
    for value in some(["%z", "%", "a%", "stdout"]):
        one_line("REPORT=" + value, {"GPUCACHE_REPORT": value},
                 r'gpucache: GPUCACHE_REPORT="%s" makes no sense: accepted are .+' % value, "table")
    for name, nearest in some(UNKNOWN):
        one_line(name, {**OFF, name: "1"},
                 "gpucache: there is no option %s; the nearest is %s" % (name, nearest))
    ran = run([MISUSE, "ok"], options={**OFF, "GPUCACHE_REUSE": "never", "GPUCACHE_LOG": "error"})
    tally.check(ran.err == "" and ran.status == 0, "misuse: LOG=error silences warnings", ran.err)
    ran = run([MISUSE, "ok"], options={**OFF, "GPUCACHE_LOG": "info"})
    wanted = ["version ", "GPUCACHE_REUSE=barrier (default)", "GPUCACHE_LOG=info (environment)",
              "device 0: "]
    for text in wanted:
        tally.check("gpucache: " + text in ran.err, "misuse: LOG=info says " + text, ran.err)


def unwritable_reports():
    with tempfile.TemporaryDirectory() as folder:
        open(folder + "/file", "w").close()
        os.symlink("loop", folder + "/loop")
        for path, why in some([("/nonexistent/report", "no such directory"),
                               (folder + "/file/report", "not a directory"),
                               (folder + "/loop/x", "too many symbolic links"),
                               ("/proc/1/nothing/x", "no such directory"),
                               (folder + "/" + "x" * 300, "name too long"),
                               (folder, "is a directory"),
                               ("/dev/full", "no space left on the device")]):
            one_line("report to " + path[-30:], {"GPUCACHE_REPORT": path},
                     "gpucache: cannot write report file .*: .*; writing to stderr", "table")


def unwritable_traces():
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(folder + "/fifo")
        for path, why in [("/nonexistent/trace", "no such directory"), (folder, "is a directory"),
                          ("/dev/null", "not a file"), (folder + "/fifo", "not a file")]:
            one_line("trace to " + path[-30:], {"GPUCACHE_TRACE": path},
                     "gpucache: GPUCACHE_TRACE=%s: %s; no trace is written" % (re.escape(path), why), "table")
            tally.check(not os.path.exists(path + ".1"), "misuse: trace to %s: no second file" % path)


def report_files():
    with tempfile.TemporaryDirectory() as folder:
        def names(pattern, times=1, case="ok", options=None):
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            for _ in range(times):
                ran = run([MISUSE, case],
                          options={"GPUCACHE_REPORT": folder + "/" + pattern, **(options or {})})
                tally.check(re.fullmatch("(gpucache: report written to %s/.*\n)*" % re.escape(folder), ran.err),
                            "misuse: report to %s: stderr" % pattern, ran.err)
            return sorted(os.listdir(folder))

        def expect(pattern, wanted, **more):
            got = names(pattern, **more)
            good = len(got) == len(wanted) and all(re.fullmatch(w, g) for w, g in zip(wanted, got))
            tally.check(good, "misuse: report files for " + pattern, "%s\nwanted %s" % (got, wanted))

        host = re.escape(socket.gethostname())
        expect("r", ["r"])
        expect("r", ["r", r"r\.1", r"r\.2"], times=3)
        expect("r%n", ["r1", "r2", "r3"], times=3)
        expect("%e-%p", [r"mem_misuse-\d+"])
        expect("%h_%r_%%", [host + "_0_%"])
        expect("%h_%r_%%", [host + "_5_%"], options={"SLURM_PROCID": "5"})
        expect("x%p", [r"x\d+", r"x\d+"], case="fork_before")
        expect("x%p", [r"x\d+"], case="fork_after")
        expect("x%p", [r"x\d+"], case="fork_many")
        expect("x", ["x"], case="exit_quick")
        expect("x", ["x"], case="exec_true")
        expect("x", ["x", r"x\.1"], case="exec_again")
        expect("x", ["x"], case="exit_live")
        expect("x", ["x"], case="main_thread_ends")
        expect("x", ["x"], case="change_directory")
    with tempfile.TemporaryDirectory() as folder:
        ran = run([MISUSE, "change_directory"], options={"GPUCACHE_REPORT": "relative"}, cwd=folder)
        tally.check(os.listdir(folder) == ["relative"], "misuse: a relative report file",
                    os.listdir(folder))


def descriptors():
    ran = run([MISUSE, "close_stderr"], options={})
    tally.check(ran.status == 0 and "Reserved memory" in ran.err,
                "misuse: a report after stderr was closed", ran.err)
    with tempfile.NamedTemporaryFile() as file:
        ran = run([MISUSE, "reuse_descriptors"], options={"MISUSE_FILE": file.name})
        tally.check(ran.status == 0 and file.read() == b"" and ran.out == "",
                    "misuse: something was written to the program's own file")


def reports():
    def one(mode, options, case):
        ran, report = run_with_report([MISUSE, case], options={**options, **SMALL})
        what = "misuse: report of %s, %s" % (case, mode)
        if not tally.check(report is not None, what + ": none", ran.err):
            return
        broken = check_books(report)
        tally.check(not broken, what, "\n".join(broken))
        tally.check(report["reason"] == "exit" and
                    report["schema"] == "gpucache-report/1" and
                    report["command"][-1] == case, what + ": head", report)

    jobs = []
    for mode, options in FEW.items():
        for case in ("ok", "counted", "double_free_large", "after_destroy", "free_other_context",
                     "async_mixes", "fill_up", "small_then_large", "thread_exit_live",
                     "null_out", "exit_live", "fork_after"):
            if case not in left_out:
                jobs.append(lambda m=mode, o=options, c=case: one(m, o, c))
    side_by_side(jobs)
    ran, report = run_with_report([MISUSE, "counted"], options={"GPUCACHE_MEMORY_LIMIT": "1G"})
    d = report["devices"][0]
    for name, value in (("cache_hits", 11), ("cache_misses", 1), ("ooms", 5), ("driver_allocs", 1),
                        ("invalid_frees", 2)):
        tally.check(d[name] == value, "misuse: counted: %s is %s, not %d" % (name, d[name], value))
    for name, current, peak, total in (("requested", 100, 8192, 45156), ):
        m = d[name + "_bytes"]
        tally.check((m["current"], m["peak"], m["total"]) == (current, peak, total),
                    "misuse: counted: %s_bytes" % name, m)
    tally.check((d["allocations"]["current"], d["allocations"]["total"]) == (1, 12),
                "misuse: counted: allocations", d["allocations"])


def text_report():
    ran = run([MISUSE, "exit_live"], options={})
    lines = ran.err.splitlines()
    tally.check(ran.status == 7, "misuse: a report does not change the status", ran.status)
    tally.check(0 < len(lines) <= 25, "misuse: a report has at most 25 lines", ran.err)
    tally.check(all(len(l) <= 75 for l in lines), "misuse: a report is at most 75 wide", ran.err)
    for row in ("Requested memory", "Allocated memory", "Active memory", "Reserved memory",
                "Outside the pool", "Allocations", "Segments"):
        tally.check(any(l.startswith("| " + row) for l in lines), "misuse: no row " + row, ran.err)
    tally.check("Still live: 4.00 MiB in 2 allocations" in ran.err, "misuse: what is live", ran.err)
    ran = run([MISUSE, "ok"], options={"GPUCACHE_REPORT": "stderr"})
    tally.check("Still live: nothing" in ran.err, "misuse: nothing is live", ran.err)


def main():
    side_by_side([lambda c=c: under_equals_native(c) for c in cases()], 8)
    side_by_side([options_without_sense, unwritable_reports, unwritable_traces, report_files, reports, text_report] +
                 ([] if GPU else [descriptors]), 4)


tally.run(main)
