#!/usr/bin/env python3
"""Checks where reports are written when descriptors are closed, full or replaced."""
import os
import signal
import tempfile

from harness import GPU, Tally, program, run

STDERR = program("report_output")
OFF = {"GPUCACHE_REPORT": "off"}
tally = Tally()


def same(case, options=None, why=""):
    native = run([STDERR, case], under=False)
    ran = run([STDERR, case], options=options)
    tally.check(native.status == 0 and native.out != "", "stderr: %s: natively" % case, native.err)
    tally.check((ran.status, ran.out) == (native.status, native.out), "stderr: %s%s" % (case, why),
                "natively:\n%sunder the library:\n%s" % (native.out, ran.out))


def names_of_files():
    """Checks %e with program names that contain a path or control characters."""
    for name, file in (("..", "__"), (".", "_"), ("...", "___"), ("a/..", "__"), ("a/b", "b"),
                       ("a\u009bb", "a__b"), ("\u20ac.x", "\u20ac.x")):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/in")
            ran = run([name, "use"], executable=STDERR,
                      options={"GPUCACHE_REPORT": folder + "/in/%e"})
            tally.check(ran.status == 0 and os.listdir(folder + "/in") == [file] and
                        os.listdir(folder) == ["in"], "stderr: %%e of %r" % name,
                        "%s %s" % (os.listdir(folder + "/in"), os.listdir(folder)))


def main():
    with tempfile.TemporaryDirectory() as folder:
        same("count_descriptors", OFF, ", reports off")
        same("count_descriptors", {"GPUCACHE_REPORT": folder + "/%p"}, ", reports to a file")
    same("exec_descriptors")
    same("full_stderr")
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(folder + "/live", 0o700)
            ran = run([STDERR, "closed_stdout"], options={
                "GPUCACHE_TRACE": folder + "/trace", "GPUCACHE_TRACE_EVENTS": "all", "GPUCACHE_REPORT": folder + "/report",
                "XDG_RUNTIME_DIR": folder + "/live"})
            tally.check(ran.status == 0 and sorted(os.listdir(folder)) == ["live", "report", "trace"],
                        "stderr: output to a closed stdout: status %s" % ran.status, ran.err)
    with tempfile.NamedTemporaryFile() as file:
        ran = run(["/bin/sh", "-c", 'exec "$0" no_stderr 2>&-', STDERR],
                  options={"STDERR_FILE": file.name, "GPUCACHE_NOTHING": "1"})
        tally.check(ran.status == 0 and file.read() == b"data" and ran.out == "",
                    "stderr: there was none at the start: status %s" % ran.status, ran.out)
    ran = run([STDERR, "daemon_stays"], options={})
    try:
        os.kill(int(ran.out), signal.SIGKILL)
        waited = False
    except (ProcessLookupError, ValueError):
        waited = True
    tally.check(ran.status == 0 and not waited and "Reserved memory" in ran.err,
                "stderr: the daemon's end was waited for: %.1f s" % ran.seconds, ran.out + ran.err)
    if not GPU:
        names_of_files()


tally.run(main)
