#!/usr/bin/env python3
"""Checks the last report and the exit status for every way a process can end.

`report_at_exit.py --write` writes docs/endings.md anew.
"""
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import (GPU, HERE, LIBRARY, Ran, Tally, environment, program, run, run_with_reports,
                     side_by_side)

ENDING = program("report_at_exit")
DOCUMENT = os.path.join(HERE, "..", "..", "docs", "endings.md")
DEADLY = ["TERM", "INT", "HUP", "ABRT", "SEGV", "BUS", "FPE", "ILL"]
SENT = DEADLY + ["USR2", "USR1", "KILL"]
RAISED = ["abort()", "null pointer", "truncated file", "division by 0", "trap"]
OVERFLOWS = ["stack overflow", "stack overflow, signal stack"]
EXITS = ["exit", "exit, then _exit", "_exit", "_Exit", "quick_exit", "execv", "execve", "execvp", "execvpe", "execl",
         "execlp", "execle", "fexecve", "execveat", "exec of nothing", "exec of no program"]
STATES = ["default", "handler before", "handler after", "handler before, then default",
          "handler after, then default", "default after", "ignored before", "ignored after",
          "blocked", "sigwait", "signalfd"]
HEAD = """\
<!-- Made by tests/programs/report_at_exit.py --write. Do not edit. -->

# How processes end, and what is reported

Every row was run twice, natively and under the library, on the simulated driver; a test does so again
and compares. *State* is what the program has done about the signal: before or after its first use of
CUDA. *Report* is the `reason` of each report that was written, in their order. A signal's name as
status is death by it, with *core* if the kernel says that a core was dumped. Handlers here end the
process past libc, so a handler's row has no report; a program that calls `exit` or `_exit` in its
handler gets one.

The way in which a status came about is the program's: `kill` (the names of signals), a fault or
`abort` (words), a function (the others).
"""
tally = Tally()


def core_limit():
    """Returns the size limit of a core: 1 MiB, or what this user may set."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)


def watch(command, under, options=None, **more):
    """Runs a command as run() does. Returns its Ran, with the name of the signal and "core" as status, and its reports."""
    with tempfile.TemporaryDirectory() as folder:
        report = {"GPUCACHE_REPORT": folder + "/report.%n", "GPUCACHE_REPORT_FORMAT": "json"}

        def prepare():  # the caller of this script may ignore SIGHUP
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (core_limit(), core_limit()))
            with open("/proc/self/coredump_filter", "w") as filter:
                filter.write("0")  # a core with the simulated devices' memory takes long to write

        child = subprocess.Popen(command, env=environment(under, {**report, **(options or {})}),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
                                 stdin=subprocess.DEVNULL, preexec_fn=prepare,
                                 start_new_session=True, **more)
        end = time.monotonic() + 60
        while not os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            if time.monotonic() > end:
                os.killpg(child.pid, signal.SIGKILL)
            time.sleep(0.002)
        told = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        out, err = child.communicate()
        reports = []
        for number in range(1, 100):
            try:
                with open("%s/report.%d" % (folder, number)) as file:
                    reports.append(json.loads(file.read() or '{"reason": "nothing in it"}'))
            except FileNotFoundError:
                break
    status = str(told.si_status)
    if told.si_code != os.CLD_EXITED:
        status = signal.Signals(told.si_status).name
        status += ", core" if told.si_code == os.CLD_DUMPED else ""
    return Ran(status, out.decode(), err.decode(), 0), reports


def expected(way, state):
    """Returns the reasons of the reports that a way to end must produce."""
    name = {"abort()": "ABRT", "null pointer": "SEGV", "truncated file": "BUS", "division by 0": "FPE",
            "trap": "ILL"}.get(way, way)
    if way in EXITS:  # the library reports before an exec, which then fails
        return ["exit", "exit"] if way == "exec of no program" else ["exit"]
    if way in OVERFLOWS:  # without a stack for signals the kernel runs no handler
        return ["SEGV"] if "signal" in way else []
    if way in ("USR1", "KILL"):  # the library handles neither signal
        return [] if state in ("default", "default after") or "handler" in state or way == "KILL" else ["exit"]
    if state in ("handler before", "handler after"):
        return []
    if state in ("ignored before", "ignored after", "blocked", "sigwait", "signalfd"):
        # a fault or abort() then ends the process by the default action, without a handler
        return [] if way in RAISED else ["exit"]
    return ["signal", "exit"] if way == "USR2" else [name]


def endings():
    for way in SENT + RAISED + OVERFLOWS + EXITS:
        states = STATES
        if way in EXITS + OVERFLOWS or way == "KILL":
            states = ["default"]
        if way in RAISED:
            states = [s for s in STATES if s not in ("sigwait", "signalfd")]
        if way == "abort()":  # before glibc 2.41, abort() unblocked the signal first, which caused a report
            states = [s for s in states if s != "blocked"]
        for state in states:
            yield way, state


def ending(way, state):
    command = [ENDING, way, state]
    native, _ = watch(command, under=False)
    ran, reports = watch(command, under=True)
    reasons = [report["reason"] for report in reports]
    what = "report_at_exit: %s, %s" % (way, state)
    wanted = expected(way, state)
    tally.check(reasons == wanted, "%s: reports %s, not %s" % (what, reasons, wanted), ran.out + ran.err)
    for report in reports:
        tally.check(report["devices"][0]["allocations"]["total"] == 2, what + ": the counters of the report", report)
    if reasons and reasons[0] == "signal":  # natively the signal ends it
        native_status, wanted = native.status, "0"
    else:
        native_status = wanted = native.status
        tally.check(ran.out == native.out, what + ": output", native.out + ran.out)
    tally.check(ran.status == wanted, "%s: status %s, not %s" % (what, ran.status, wanted), ran.err)
    return "| %s | %s | %s | %s | %s |" % (way, state, native_status, ran.status, ", ".join(reasons) or "none")


def table():
    lines = [HEAD, "| ending | state | native status | status | report |", "| --- | --- | --- | --- | --- |"]
    lines += [ending(way, state) for way, state in endings()]
    text = "\n".join(lines) + "\n"
    if "--write" in sys.argv:
        with open(DOCUMENT, "w") as file:
            file.write(text)
    elif not GPU:
        with open(DOCUMENT, encoding="utf-8") as file:
            written = file.read()
        if watch(["sh", "-c", "kill -ABRT $$"], under=False)[0].status != "SIGABRT, core":
            tally.note("report_at_exit: this machine dumps no cores: that column is not compared")
            written = written.replace(", core", "")
        differ = sorted(set(written.splitlines()) ^ set(text.splitlines()))
        tally.check(written == text, "report_at_exit: docs/endings.md is not what was measured", "\n".join(differ))


def same(case, *arguments, options=None, reasons=None, **more):
    command = [ENDING, case] + list(arguments)
    native, _ = watch(command, under=False, options=options, **more)
    ran, reports = watch(command, under=True, options=options, **more)
    what = "report_at_exit: " + " ".join([case] + list(arguments))
    tally.check((ran.status, ran.out) == (native.status, native.out), "%s: status %s, natively %s" % (
        what, ran.status, native.status), "natively:\n%sunder the library:\n%s%s" % (native.out, ran.out, ran.err))
    if reasons is not None:
        got = [report["reason"] for report in reports]
        tally.check(got == reasons, "%s: reports %s, not %s" % (what, got, reasons))


def survives(case, *arguments, options=None, reasons=None):
    ran, reports = watch([ENDING, case] + list(arguments), under=True, options=options)
    got = [report["reason"] for report in reports]
    what = "report_at_exit: " + " ".join([case] + list(arguments))
    tally.check(ran.status == "0" and (reasons is None or got == reasons),
                "%s: status %s, reports %s" % (what, ran.status, got), ran.out + ran.err)


def options_of_signals():
    for value, way, status, reasons in (
            ("USR1", "USR1", "0", ["signal", "exit"]), ("USR1", "USR2", "SIGUSR2", []),
            ("off", "USR2", "SIGUSR2", []), ("off", "TERM", "SIGTERM", ["TERM"]),
            ("HUP", "HUP", "0", ["signal", "exit"])):
        ran, reports = watch([ENDING, way, "default"], True, {"GPUCACHE_REPORT_SIGNAL": value})
        got = [report["reason"] for report in reports]
        tally.check((ran.status, got) == (status, reasons), "report_at_exit: GPUCACHE_REPORT_SIGNAL=%s: %s: %s %s" % (
            value, way, ran.status, got), ran.err)
    for way in ("USR2", "TERM", "null pointer"):  # no reports, no handlers
        ran, _ = watch([ENDING, way, "default"], True, {"GPUCACHE_REPORT": "off"})
        native, _ = watch([ENDING, way, "default"], False)
        tally.check((ran.status, ran.out, ran.err) == (native.status, native.out, native.err),
                    "report_at_exit: GPUCACHE_REPORT=off: %s: %s" % (way, ran.status), ran.err)


def interval():
    ran, reports = run_with_reports([ENDING, "sleeps", "1"], {"GPUCACHE_REPORT_INTERVAL": "0.1"})
    reasons = [report["reason"] for report in reports]
    tally.check(ran.status == 0 and reasons.count("interval") >= 3 and reasons[-1] == "exit",
                "report_at_exit: at an interval: status %s, reports %s" % (ran.status, reasons), ran.err)
    for _ in range(20):  # the process ends while a report is written
        ran, reports = run_with_reports([ENDING, "sleeps", "0.02"], {"GPUCACHE_REPORT_INTERVAL": "0.001"})
        tally.check(ran.status == 0 and None not in reports and reports[-1]["reason"] == "exit",
                    "report_at_exit: half a report at an interval: status %s" % ran.status)
    ran, reports = run_with_reports([ENDING, "TERM", "blocked"], {"GPUCACHE_REPORT_INTERVAL": "9"})
    tally.check(ran.status == 0, "report_at_exit: the thread of the interval takes a blocked signal: status %s" % ran.status)


def broken():
    """Breaks the library's memory range by range. The process must die of its own signal, within the time limit."""
    for how in ("unreadable", "unreadable, handler", "zero", "zero, crash"):
        for which in range(64):
            ran = run([ENDING, "broken", how, str(which)], options={"GPUCACHE_SIM_IDLE_MS": "0"})
            if ran.status == 0:
                break
            wanted = -signal.SIGSEGV if how == "zero, crash" else -signal.SIGTERM
            tally.check(ran.status == wanted, "report_at_exit: range %d %s: status %s" % (which, how, ran.status),
                        ran.err)
        tally.check(which > 1, "report_at_exit: there is memory of the library's to break")


def delivered(child, number):
    """Waits until the process has taken the signal, or has ended: pending signals arrive in no fixed order."""
    end, bit = time.monotonic() + 60, 1 << number - 1
    while child.poll() is None and time.monotonic() < end:
        with open("/proc/%d/status" % child.pid) as file:
            masks = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)$", file.read(), re.M)
        if not any(int(mask, 16) & bit for mask in masks):
            break
        time.sleep(0.002)


F_SETPIPE_SZ = 1031  # of fcntl from Python 3.10 on
PATIENCE = 1  # seconds that a report waits for its reader (src/base/write.c)


def read_in_time(command, act):
    """Runs a program whose report waits for its reader while act(child) runs. Returns (status, stderr). Repeats the run
    if act() took so long that the report was given up."""
    for _ in range(10):
        child = subprocess.Popen([ENDING] + command, env=environment(True), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        fcntl.fcntl(child.stderr, F_SETPIPE_SZ, 65536)
        child.stdout.readline()
        begun = time.monotonic()
        act(child)
        held_up = time.monotonic() - begun > 0.9 * PATIENCE
        err = child.communicate(timeout=60)[1].decode("utf-8", "replace")
        if not held_up:
            break
    return child.returncode, err


def second_signal():
    """Sends a second signal while the report waits for its reader."""
    for first, second in ((signal.SIGTERM, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGUSR2, signal.SIGUSR2)):
        def act(child):
            child.send_signal(first)
            delivered(child, first)
            time.sleep(0.2)  # until the report waits
            child.send_signal(second)
            time.sleep(0.2)

        status, err = read_in_time(["sleeps, stderr full", "2"], act)
        wanted = [-signal.SIGTERM] if first == signal.SIGTERM else [0, 8]  # a sleep may be interrupted
        word = "at SIGTERM" if first == signal.SIGTERM else "at a signal"
        tally.check(status in wanted and word in err and "at SIGINT" not in err,
                    "report_at_exit: %s, then %s: status %s" % (first.name, second.name, status), err[-2000:].strip("\0"))


def in_exit_report():
    """The report at exit waits for its reader. Meanwhile SIGTERM comes, or another thread calls _exit()."""
    for command, number, wanted, word in (
            (["sleeps, stderr full", "0"], signal.SIGTERM, [-signal.SIGTERM], "at SIGTERM"),
            (["exits twice, stderr full"], None, [0, 4], "at exit")):
        def act(child):
            time.sleep(0.2)
            if number:
                child.send_signal(number)
            time.sleep(0.3)

        status, err = read_in_time(command, act)
        tally.check(status in wanted and word in err, "report_at_exit: in the report of exit: %s: status %s" % (command[0], status),
                    err[-2000:].strip("\0"))


PYTHON = """
import ctypes, os, sys, time
def sleep():
    print("ready", flush=True)
    for _ in range(1000):  # a signal that comes just before a sleep does not end it
        time.sleep(0.05)
%s
cuda = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
for call in (lambda: cuda.cuInit(0), lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
             lambda: cuda.cuCtxSetCurrent(context), lambda: cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(5000))):
    assert call() == 0
%s
"""


def python(what, before, then, number, reasons, words):
    said = []
    for under in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                [sys.executable, "-c", PYTHON % (before, then)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=environment(under, {"GPUCACHE_REPORT": folder + "/%n", "GPUCACHE_REPORT_FORMAT": "json"}))
            if number:
                child.stdout.readline()
                child.send_signal(number)
            out, err = child.communicate(timeout=60)
            got = []
            for name in sorted(os.listdir(folder), key=int):
                with open(os.path.join(folder, name)) as file:
                    got.append(json.load(file)["reason"])
            said.append((child.returncode, words in err.decode()))
    tally.check(said[1] == said[0] and said[0][1] and got == reasons,
                "report_at_exit: Python, %s: status %s, natively %s, reports %s" % (what, said[1], said[0], got), err.decode())


def pythons():
    sleep = "sleep()"
    python("Ctrl-C", "", sleep, signal.SIGINT, ["INT"], "KeyboardInterrupt")
    python("Ctrl-C, caught", "", "try:\n    %s\nexcept KeyboardInterrupt:\n    sys.exit('caught')" % sleep,
           signal.SIGINT, ["exit"], "caught")
    python("SIGTERM", "", sleep, signal.SIGTERM, ["TERM"], "")
    python("SIGTERM, a handler", "import signal", "signal.signal(15, lambda *_: sys.exit('mine'))\n" + sleep,
           signal.SIGTERM, ["exit"], "mine")
    python("os._exit", "", "os._exit(5)", None, ["exit"], "")
    crash = "ctypes.string_at(0)"
    python("crash", "", crash, None, ["SEGV"], "")
    python("faulthandler before", "import faulthandler; faulthandler.enable()", crash, None, ["SEGV"], "Segmentation fault")
    python("faulthandler after", "", "import faulthandler; faulthandler.enable()\n" + crash, None, ["SEGV"],
           "Segmentation fault")
    python("subprocess", "", "import subprocess; sys.exit(subprocess.call(['/bin/sh', '-c', 'kill $$']) + 20)", None,
           ["exit"], "")


def small_signal_stack():
    """Raises signals on signal stacks that are too small for the handler. The process must die of the signal or of that."""
    statuses = set()
    for number in (signal.SIGTERM, signal.SIGSEGV):
        for more in range(-800, 500, 50):
            ran = run([ENDING, "small signal stack", str(more), str(int(number))], timeout=20)
            statuses.add(ran.status)
            tally.check(ran.status in (-number, -signal.SIGSEGV),
                        "report_at_exit: a signal stack of the least size %+d: status %s" % (more, ran.status), ran.err)
    tally.check(-signal.SIGTERM in statuses, "report_at_exit: no signal stack was large enough")


def first_of_container():
    # in util-linux before 2.38, unshare leaves SIGTERM ignored
    command = ["unshare", "--pid", "--fork", "--kill-child", "env", "--default-signal=TERM", ENDING]
    if not shutil.which("unshare") or run(command + ["arguments"], under=False).status != 3:
        tally.note("report_at_exit: the first process of a container: left out, unshare is not permitted")
        return
    for way, reasons in (("TERM", ["TERM", "exit"]), ("null pointer", ["SEGV"]), ("USR2", ["signal", "exit"])):
        native, _ = watch(command + [way, "default"], under=False)
        ran, reports = watch(command + [way, "default"], under=True)
        got = [report["reason"] for report in reports]
        tally.check((ran.status, ran.out, got) == (native.status, native.out, reasons),
                    "report_at_exit: first of a container: %s: status %s, natively %s, reports %s" % (
                        way, ran.status, native.status, got), ran.out + ran.err)
    command.insert(1, "--mount-proc")
    if run(command + ["arguments"], under=False).status != 3:
        tally.note("report_at_exit: a report that crashes in such a process: left out, a mount of /proc is not permitted")
        return
    statuses = []  # a SIGBUS whose report crashes by SIGSEGV
    while statuses[-1:] != [0] and len(statuses) < 64:
        ran = run(command + ["broken", "unreadable, file", str(len(statuses))],
                  options={"GPUCACHE_SIM_IDLE_MS": "0", "GPUCACHE_LIVE": "off"})
        statuses.append(ran.status)
    tally.check(set(statuses) == {0, -signal.SIGBUS, 128 + signal.SIGBUS},
                "report_at_exit: first of a container: its report crashes: statuses %s" % statuses)


def main():
    table()
    if "--write" in sys.argv:
        return
    options_of_signals()
    same("actions")
    same("inherit")
    same("children", reasons=["exit"])
    for how in ("exit", "_exit", "quick_exit", "exec"):
        same("last free", how, reasons=["exit"])
    same("last free", options={"GPUCACHE_DECAY_MS": "never"}, reasons=["exit"])
    same("last pinned free", reasons=["exit"])
    same("work after last free", reasons=["exit"])
    for _ in range(5):
        same("exit in malloc", reasons=["exit"])
    same("crash twice", reasons=["SEGV"])
    survives("within handler", reasons=["signal", "exit"])
    survives("little stack", "USR2", reasons=["signal", "exit"])
    same("little stack", "TERM", reasons=["TERM"])
    ran = run([ENDING, "restarts"])
    tally.check((ran.status, ran.out) == (0, "1\n"), "report_at_exit: a read does not start anew behind a report", ran.out)
    survives("busy", "300" if GPU else "3000", options={"GPUCACHE_REPORT": "/dev/null"})
    second_signal()
    if not GPU:
        small_signal_stack()
    in_exit_report()
    interval()
    pythons()
    if not GPU:
        broken()
        first_of_container()


tally.run(main)
