#!/usr/bin/env python3
"""Truncates, changes and inspects the files that the library writes.

report_guarded_files.py [PART...]
"""
import os
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import time

from harness import EMULATED, LIBRARY, Tally, environment, part_names, program, run

TRACED = program("trace_records")
TOOL = os.path.join(os.path.dirname(LIBRARY), "gpucache")
SI_TKILL, BUS_ADRERR = -6, 2  # of <signal.h>
TICK_NS = 96  # where the header of a trace has it (src/trace/format.h)
PEAKS = 8 * (2 + 64)  # bytes of a file of peaks (src/live/peaks.h)

tally = Tally()


class Waiting:
    """A process that waits in the middle of its work until the script lets it continue."""

    def __init__(self, *arguments, options=None, drop=(), **more):
        env = environment(True, {"GPUCACHE_REPORT": "off", **(options or {})})
        for name in drop:
            env.pop(name, None)
        self.child = subprocess.Popen([TRACED, *arguments], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, **more)
        self.child.stdout.readline()

    def go_on(self):
        out, err = self.child.communicate(timeout=60)
        return self.child.returncode, err.decode()


def cut(folder):
    """Truncates a file, as logrotate's copytruncate does. The program must continue unchanged."""
    path = os.path.join(folder, "cut")
    for bytes_left in (0, 40000):
        for reports in ("off", os.path.join(folder, "r.%n")):
            one = Waiting("mix=3000,100,2,1", "wait", "mix=30000,100,2,1", "empty", options={
                "GPUCACHE_TRACE": path, "GPUCACHE_TRACE_EVENTS": "all", "GPUCACHE_REPORT": reports})
            os.truncate(path, bytes_left)
            status, err = one.go_on()
            tally.check(status == 0, "guarded: a trace that is cut to %d: status %s" % (bytes_left, status), err)
            tally.check(err.count("was cut short") == 1, "guarded: that is said once", err)
            tally.check(os.path.getsize(path) == bytes_left, "guarded: it stays as it is", os.path.getsize(path))
            os.unlink(path)


def cut_for_a_helper(folder):
    """Checks that the library's thread survives a missing page, which it meets first when it releases idle memory."""
    path = os.path.join(folder, "helper")
    one = Waiting("hold=20,3000000", "drop", "sync", "wait", options={
        "GPUCACHE_TRACE": path, "GPUCACHE_DECAY_MS": "300", "GPUCACHE_BACKEND": "pages"})
    os.truncate(path, 0)

    def mapped():
        with open("/proc/%d/maps" % one.child.pid) as maps:
            return [line for line in maps if path in line]
    before, end = mapped(), time.monotonic() + 60
    while one.child.poll() is None and mapped() == before and time.monotonic() < end:
        time.sleep(0.01)
    status, err = one.go_on()
    tally.check(status == 0, "guarded: cut, and a helper writes: status %s" % status, err)
    tally.check("was cut short" in err, "guarded: that is said", err)


def cut_for_a_report(folder):
    """Checks the last report of a process with a signal stack: the report meets the missing page."""
    path, stack = os.path.join(folder, "report"), os.path.join(folder, "stack")
    one = Waiting("hold=20,3000000", "wait", "raise=%d,%s" % (signal.SIGTERM, stack), options={
        "GPUCACHE_TRACE": path, "GPUCACHE_REPORT": os.path.join(folder, "r.%n")})
    os.truncate(path, 0)
    try:
        status, err = one.go_on()
    except subprocess.TimeoutExpired:
        one.child.kill()
        status, err = "time limit", ""
    tally.check(status == -signal.SIGTERM, "guarded: cut, and a report writes: status %s" % status, err)
    with open(stack, "rb") as file:
        frames = file.read()
    def begins(number, code):  # a siginfo_t: si_signo, si_errno, si_code
        return struct.pack("3i", number, 0, code) in frames
    tally.check(begins(signal.SIGTERM, SI_TKILL), "guarded: the signal came on the program's signal stack")
    tally.check(not begins(signal.SIGBUS, BUS_ADRERR), "guarded: the missing page put no second frame there")


def kept_apart(folder):
    """Checks that a SIGBUS of the program itself still ends the program."""
    ran = run([TRACED, "hold=1,100", "bus"], options={"GPUCACHE_TRACE": os.path.join(folder, "bus"), "GPUCACHE_REPORT": "off"})
    tally.check(ran.status == -signal.SIGBUS, "guarded: a SIGBUS of the program's own: %s" % ran.status, ran.err)


def changed(folder):
    """Changes the header of a file that the library has mapped: the library must not read it again."""
    path = os.path.join(folder, "changed")
    one = Waiting("hold=20,3000000", "wait", "drop", "sync", "empty", options={
        "GPUCACHE_TRACE": path, "GPUCACHE_TRACE_EVENTS": "1000"})
    with open(path, "r+b") as file:
        before = int.from_bytes(file.read(TICK_NS + 8)[TICK_NS:], "little")
        tally.check(0 < before < 1 << 40, "guarded: tick_ns is where this test thinks", before)
        file.seek(TICK_NS)
        file.write(bytes(8))
    status, err = one.go_on()
    tally.check(status == 0, "guarded: tick_ns is zero: status %s" % status, err)


def peaks(folder):
    path = os.path.join(folder, "peaks")
    with open(path, "wb") as file:
        file.write(b"gppeaks1" + bytes(PEAKS - 8))
    one = Waiting("hold=10,5000", "wait", "mix=3000,100,2,1", options={"GPUCACHE_PEAKS": path})
    with open(path, "rb") as file:
        tally.check(file.read()[8] == 1, "guarded: the file of peaks is used")
    os.truncate(path, 0)
    status, err = one.go_on()
    tally.check((status, err) == (0, ""), "guarded: peaks that are cut short: status %s" % status, err)


def modes(folder):
    for options, wanted in (({}, 0o600), ({"GPUCACHE_FILE_MODE": "0644"}, 0o644)):
        place = tempfile.mkdtemp(dir=folder)
        ran = run([TRACED, "hold=1,100"], preexec_fn=lambda: os.umask(0), options={
            "GPUCACHE_TRACE": place + "/trace", "GPUCACHE_REPORT": place + "/report", **options})
        tally.check(ran.status == 0, "guarded: modes", ran.err)
        for name in ("trace", "report"):
            mode = stat.S_IMODE(os.stat(place + "/" + name).st_mode)
            tally.check(mode == wanted, "guarded: %s: %o, not %o" % (name, mode, wanted))


def squatted(folder):
    """Checks that the library makes a live page, and the tool finds it, though another user owns the usual folder."""
    user = 1500000000 + os.getpid()
    usual = "/dev/shm/gpucache-%d" % user
    can_run = lambda: subprocess.run([TOOL, "--version"], user=user, group=user, capture_output=True).returncode == 0
    try:
        able = os.geteuid() == 0 and can_run()
    except PermissionError:
        able = False
    if not able:
        tally.note("guarded: a folder of another user: skipped, for want of root or of a readable build folder")
        return
    os.mkdir(usual, 0o755)
    folders = lambda: [n for n in os.listdir("/dev/shm") if n.startswith("gpucache-%d-" % user)]
    two = []
    try:
        for _ in range(2):
            two.append(Waiting("hold=10,5000", "wait", user=user, group=user, options={"GPUCACHE_LOG": "info"},
                               drop=["XDG_RUNTIME_DIR"]))
        tally.check(len(folders()) == 1, "guarded: one spare folder for all", folders())
        env = environment(False)
        env.pop("XDG_RUNTIME_DIR", None)
        said = subprocess.run([TOOL, "top", "--once"], env=env, user=user, group=user, capture_output=True, text=True).stdout
        # under qemu a process believes that it began at another time than the kernel says
        tally.check(EMULATED or all(str(one.child.pid) in said for one in two), "guarded: top finds both", said)
        for one in two:
            status, err = one.go_on()
            tally.check(status == 0 and "%s belongs to user 0: the live page lies in /dev/shm/%s" % (usual, folders()[0]) in err,
                        "guarded: who owns the folder is said", err)
        tally.check(not os.listdir(usual), "guarded: nothing in the other user's folder")
    finally:
        for name in folders():
            shutil.rmtree("/dev/shm/" + name)
        os.rmdir(usual)


def main():
    parts = (cut, cut_for_a_helper, cut_for_a_report, kept_apart, changed, peaks, modes, squatted)
    wanted = part_names([part.__name__ for part in parts])
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            if not wanted or part.__name__ in wanted:
                part(folder)


tally.run(main)
