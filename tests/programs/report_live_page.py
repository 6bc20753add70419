#!/usr/bin/env python3
"""Checks the live page of a process, from its first CUDA call to its end."""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

from harness import BACKEND, LIBRARY, Tally, check_books, environment, program, run

tally = Tally()
LIVE = program("live")
COMMAND = os.path.join(os.path.dirname(LIBRARY), "gpucache")
MIB = 1 << 20
OFF = {"GPUCACHE_REPORT": "off"}


def fed(command, place, feed):
    """Returns output and status of a program; feed() is called while it runs. Output goes to files, because it may be longer
    than a pipe holds."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen(command, env={**environment(False), **place.options}, stdout=out, stderr=err,
                                 stdin=subprocess.DEVNULL)
        while child.poll() is None:
            feed()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, child.returncode, out.read(), err.read())


class Place:
    """A folder for live pages of this test alone."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.options = {"XDG_RUNTIME_DIR": self.folder.name}
        os.chmod(self.folder.name, 0o700)

    def pages(self):
        try:
            return sorted(os.listdir(os.path.join(self.folder.name, "gpucache")))
        except FileNotFoundError:
            return []

    def path(self, name):
        return os.path.join(self.folder.name, "gpucache", name)

    def tool(self, *arguments, **more):
        return subprocess.run([COMMAND, *arguments], env={**environment(False), **self.options},
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **more)

    def report(self, pid):
        done = self.tool("report", "--format=json", str(pid))
        return json.loads(done.stdout) if done.returncode == 0 else None


class Program:
    """Runs report_live_page.c under the library, and sends it commands."""

    def __init__(self, place, options=None, under=True, name=LIVE, **more):
        self.place = place
        self.child = subprocess.Popen([name], executable=LIVE, env={**environment(under, {**OFF, **(options or {})}), **place.options},
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, **more)
        self.pid = self.child.pid
        self.said = []
        self.do("sync")

    def send(self, order):
        self.child.stdin.write(order + "\n")
        self.child.stdin.flush()

    def wait(self):
        said = []
        for line in self.child.stdout:
            if line == "done\n":
                break
            said.append(line.strip())
        self.said += said
        return said

    def do(self, order):
        self.send(order)
        return self.wait()

    def report(self):
        """Returns the tool's report while the program waits for its next command."""
        return self.place.report(self.pid)

    def end(self, order=None, expected=None):
        if order:
            self.send(order)
        self.child.stdin.close()
        self.child.stdin = None
        out, err = self.child.communicate(timeout=60)
        if expected is not None:
            tally.check(self.child.returncode == expected, "live: %s: status %s" % (order, self.child.returncode), err)
        return err


def write_reports(place, folder):
    """Runs a process that reports after each of four allocations, at an OOM and at its exit. Returns the paths in that order."""
    one = Program(place, {"GPUCACHE_REPORT": folder + "/r%n", "GPUCACHE_REPORT_FORMAT": "json", "GPUCACHE_MEMORY_LIMIT": "2G"})
    for size in (70 * MIB, 30 * MIB, 3 * MIB, 900):
        one.do("allocate %d" % size)
        os.kill(one.pid, signal.SIGUSR2)
        one.do("sync")
    one.do("allocate 99999999999")
    one.do("free")
    one.do("free")
    one.end("exit", 7)
    names = (name for name in os.listdir(folder) if re.fullmatch(r"r\d+", name))
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: int(name[1:]))]


def eventually(condition, seconds=60):
    """Waits until a condition holds. Returns whether it ever did."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_there():
    place = Place()
    one = Program(place)
    names = place.pages()
    tally.check(len(names) == 1 and names[0].startswith("%d-" % one.pid), "live: a page for a process", names)
    mode = os.stat(place.path(names[0]))
    tally.check(stat.S_IMODE(mode.st_mode) == 0o600 and mode.st_blocks * 512 >= mode.st_size,
                "live: the page is its user's alone, and all of it is there", mode)
    start = open("/proc/%d/stat" % one.pid).read().rsplit(")", 1)[1].split()[19]
    tally.check(names[0].split("-")[1] == start, "live: the page names the start of its process", names)
    tally.check(not any("gpucache" in os.readlink("/proc/%d/fd/%s" % (one.pid, fd)) or "memfd" in fd
                        for fd in os.listdir("/proc/%d/fd" % one.pid)), "live: no descriptor is kept")
    tally.check(len(os.listdir("/proc/%d/task" % one.pid)) == native_threads() + 2,
                "live: one thread is made, and that of decay")
    one.end("exit", 7)
    tally.check(place.pages() == [], "live: gone after exit", place.pages())
    for order, status in (("_exit", 8), (None, 0)):
        Program(place).end(order, status)
        tally.check(place.pages() == [], "live: gone after %s" % (order or "the end of main"), place.pages())
    masked = Program(place, preexec_fn=lambda: os.umask(0o777))
    tally.check(len(place.pages()) == 1 and masked.report(), "live: with an umask of everything", place.pages())
    masked.end()
    counted = Program(place, {"GPUCACHE_DISABLE": "1"})
    counted.do("allocate %d" % (5 * MIB))
    device = counted.report()["devices"][0]
    counted.do("free")
    events = place.tool("report", str(counted.pid)).stdout
    tally.check(device["backend"] == "none" and device["outside_bytes"]["stream_ordered"]["current"] == 0 and
                re.search(r"allocate +5\.00 MiB +(0x\w+)[^$]*free +5\.00 MiB +\1", events),
                "live: without a pool", events)
    counted.end()
    cut = Program(place, {"GPUCACHE_REPORT": "/dev/null"})
    os.truncate(place.path(place.pages()[0]), 0)
    ended = eventually(lambda: cut.child.poll() is not None, 2)  # the helper thread updates the page twice a second
    tally.check(not ended, "live: a page that is cut short does not end a program that sleeps", cut.child.returncode)
    if not ended:
        cut.end("exit", 7)
    none = Program(place, {"GPUCACHE_LIVE": "off"})
    tally.check(place.pages() == [], "live: none if it is switched off", place.pages())
    tally.check(len(os.listdir("/proc/%d/task" % none.pid)) == native_threads() + 1, "live: then only the thread of decay")
    none.end()


def native_threads():
    native = Program(Place(), under=False)
    threads = len(os.listdir("/proc/%d/task" % native.pid))
    native.end()
    return threads


def metrics_are_true():
    place = Place()
    one = Program(place)
    one.do("allocate %d" % (3 * MIB))
    one.do("allocate 5000")
    device = one.report()["devices"][0]
    tally.check(device["requested_bytes"]["current"] == 1000 + 3 * MIB + 5000,
                "live: what a process has live", device["requested_bytes"])
    tally.check(device["backend"] == BACKEND and device["reuse"] == "barrier" and device["name"],
                "live: texts come along", device)
    tally.check({"bytes": 3 * MIB, "count": 1, "stack": [], "frames": []} in device["live"], "live: sizes", device["live"])
    # the page of a program that makes no call, or sleeps, is current too
    one.do("free")
    one.do("allocate 6000")
    one.do("quiet 100000")
    device = one.report()["devices"][0]
    tally.check(device["requested_bytes"]["current"] == 1000 + 3 * MIB + 6000 and
                device["requested_bytes"]["total"] >= 100000 * 4096, "live: short ways only, then sleep",
                device["requested_bytes"])
    page = lambda: open(place.path(place.pages()[0]), "rb").read()
    before = page()
    tally.check(eventually(lambda: page() != before), "live: the metrics are updated when nobody asks and the program sleeps")
    one.send("quiet 1000000000")
    total = lambda: one.report()["devices"][0]["requested_bytes"]["total"]
    seen = [total()]
    for _ in range(2): # on a busy machine a report may not wait long enough for an update
        eventually(lambda: total() > seen[-1])
        seen.append(total())
    tally.check(seen[0] < seen[1] < seen[2], "live: short ways only, while they go on", seen)
    os.kill(one.pid, signal.SIGSTOP)
    tally.check(eventually(lambda: re.search(r"does not answer now; its metrics are [\d.]+ s old",
                                             place.tool("report", str(one.pid)).stderr)),
                "live: old metrics are said to be old")
    one.child.kill()
    one.end()


def counters_agree_while_they_change():
    place = Place()
    one = Program(place)
    one.send("churn")
    looks, seen = 60, set()
    for _ in range(looks):
        report = place.report(one.pid)
        if not tally.check(report, "live: a report while counters change"):
            break
        broken = check_books(report)
        tally.check(not broken, "live: counters while they change", "\n".join(broken))
        seen.add(report["devices"][0]["requested_bytes"]["total"])
    tally.check(len(seen) > looks // 4, "live: counters change", "%d of %d" % (len(seen), looks))
    said = "".join(place.tool("report", "--format=json", str(one.pid)).stderr for _ in range(looks))
    tally.check("0.000 s" not in said, "live: what is older is not 0 s older", said)
    one.do("enough")
    one.end()


def after_a_kill():
    place = Place()
    one = Program(place)
    one.do("allocate %d" % (7 * MIB))
    one.do("allocate %d" % (9 * MIB))
    one.do("free")
    one.do("allocate %d" % (1 << 50))
    one.end("kill", -signal.SIGKILL)
    report, text = place.report(one.pid), place.tool("report", str(one.pid))
    tally.check(report and report["devices"][0]["requested_bytes"]["current"] == 1000 + 7 * MIB and
                report["devices"][0]["ooms"] == 1, "live: the last metrics of a killed process", report)
    tally.check("without a last update" in text.stderr and "live" in text.stdout, "live: it is said to be gone", text.stderr)
    events = text.stdout[text.stdout.find("Time "):]
    tally.check(re.search(r"grow +2\.00 MiB", events) and re.search(r"allocate +7\.00 MiB +0x", events) and
                re.search(r"allocate +9\.00 MiB +(0x\w+)[^$]*free +9\.00 MiB +\1", events) and
                re.search(r"out of memory", events), "live: its last events", events)
    # the same by a signal that the library handles
    one = Program(place, {"GPUCACHE_REPORT": "/dev/null"})
    one.do("allocate 12345")
    one.end("abort", -signal.SIGABRT)
    text = place.tool("report", str(one.pid))
    report = place.report(one.pid)
    tally.check("died" in text.stderr and "Abort" in text.stderr and
                report["devices"][0]["requested_bytes"]["current"] == 1000 + 12345,
                "live: after a crash", text.stderr)
    # a fast pair is in the last metrics too, if the signal was seen; it is not lost in the history
    done = place.tool("ctl", str(one.pid), "report")
    tally.check(done.returncode == 1 and "has ended" in done.stderr, "live: no order to the dead", done.stderr)


def dead_pages_go():
    place = Place()
    os.mkdir(place.path(""), 0o700)
    space = os.stat("/proc/self/ns/pid").st_ino
    alive = Program(place)
    keep = ["notes", "1-2", "77-x-1", "%d-77-%d" % (5000000, space + 1), "04000000-77-%d" % space]
    for name in keep:
        open(place.path(name), "w").close()
    for i in range(2000):
        with open(place.path("%d-%d-%d" % (4000000 + i, 77, space)), "w") as file:
            file.write("x")
    time.sleep(0.05)
    start = time.monotonic()
    Program(place).end("exit", 7)
    took = time.monotonic() - start
    left = place.pages()
    tally.check(all(name in left for name in keep), "live: what is no page of a dead process stays", left[:50])
    tally.check(any(name.startswith("%d-" % alive.pid) for name in left), "live: a running process keeps its page")
    tally.check(len(left) - len(keep) - 1 <= 32, "live: %d dead pages are left" % (len(left) - len(keep) - 1))
    tally.check("%d-77-%d" % (4001999, space) in left, "live: the newest are left", left[:50])
    print("two thousand dead pages: %.0f ms for a process to start, clean up and end" % (took * 1000))
    alive.end()
    place.tool("top", "--once")


def children():
    place = Place()
    one = Program(place)
    one.do("allocate %d" % (2 * MIB))
    before = one.report()["devices"][0]
    child = int(re.match(r"child (\d+)", one.do("fork")[0]).group(1))
    time.sleep(0.2)
    tally.check(len(place.pages()) == 1, "live: the child of a fork has no page", place.pages())
    after = one.report()["devices"][0]
    tally.check(before["requested_bytes"] == after["requested_bytes"], "live: a child changes nothing",
                "%s %s" % (before["requested_bytes"], after["requested_bytes"]))
    tally.check(place.report(child) is None, "live: no report of the child")
    os.kill(child, signal.SIGKILL)
    one.do("vfork")
    tally.check(one.said[-1] == "vfork 0" and len(place.pages()) == 1, "live: vfork and exec", one.said)
    broken = os.path.join(place.folder.name, "broken")
    with open(broken, "wb") as file:
        file.write(b"\x7fELF and nothing that can be run")
    os.chmod(broken, 0o755)
    one.do("exec /no/such/program")
    one.do("exec " + broken)
    one.do("close")
    one.do("allocate 4096")
    one.do("sync")
    tally.check(place.report(one.pid) is not None, "live: an exec that fails, and closed descriptors")
    for order, what in (("exec", ""), ("bare_exec", ", past libc")):
        one.send(order)
        tally.check(eventually(lambda: place.report(one.pid) is None), "live: another program in its place" + what)
        one.child.kill()
        one.end()
        one = Program(place)
    one.end()


def of_another_version():
    """Checks pages of other versions: every layout has the version at the same place."""
    place = Place()
    one = Program(place)
    name = place.pages()[0]
    page = open(place.path(name), "rb").read()
    one.end("exit", 7)
    start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19]
    name = "%d-%s-%d" % (os.getpid(), start, os.stat("/proc/self/ns/pid").st_ino)
    for what, content, known in (
            ("another version", page[:16] + b"9.9.9".ljust(16, b"\0") + page[32:], True),
            ("another layout", page[:7] + b"2" + page[8:], True),
            ("another layout, smaller", page[:7] + b"2" + page[8:200], True),
            ("half a page", page[:len(page) // 2], False),
            ("the start of one", page[:10], False),
            ("nothing", b"", False),
            ("something else", b"x" * len(page), False)):
        with open(place.path(name), "wb") as file:
            file.write(content)
        for arguments in (("report", str(os.getpid())), ("ctl", str(os.getpid()), "report")):
            done = place.tool(*arguments)
            tally.check(done.returncode == 1 and ("another version" in done.stderr) == known,
                        "live: %s, %s" % (what, arguments[0]), "%s %s" % (done.returncode, done.stderr))
        tally.check(place.tool("top", "--once").returncode == 0 and place.tool("metrics").returncode == 0,
                    "live: %s, top and metrics" % what)
    os.mkfifo(place.path("77" + name))
    tally.check(place.tool("top", "--once").returncode == 0, "live: a pipe of such a name")


def at_once():
    """Checks that each of many programs that start together has its own page."""
    place = Place()
    many = [subprocess.Popen([LIVE], env={**environment(True, OFF), **place.options}, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(150)]
    for one in many:
        one.stdin.write("sync\n")
        one.stdin.flush()
    for one in many:
        while one.stdout.readline() not in ("done\n", ""):
            pass
    names = place.pages()
    tally.check(sorted(int(n.split("-")[0]) for n in names) == sorted(one.pid for one in many),
                "live: a page for each of many", "%d pages" % len(names))
    top = place.tool("top", "--once").stdout
    tally.check(all(re.search(r"\b%d\b" % one.pid, top) for one in many), "live: top shows all of them", top)
    for one in many:
        one.stdin.write("exit\n")
    ends = [one.communicate(timeout=60) for one in many]
    tally.check(all(one.returncode == 7 for one in many) and not any(err for _, err in ends), "live: many end",
                [err for _, err in ends if err])
    tally.check(place.pages() == [], "live: many pages go", place.pages())


def reset_peaks_are_judged():
    """Checks that run --max-peak sees a peak that the program resets before the next update of the page."""
    for options in ({}, {"GPUCACHE_LIVE": "off"}):
        place = Place()
        done = subprocess.run([COMMAND, "run", "--max-peak=64M", "--", LIVE], capture_output=True, text=True, timeout=60,
                              input="allocate 100000000\nfree\nreset_peaks\nsync\n",
                              env={**environment(False, {**OFF, **options}), **place.options})
        tally.check(done.returncode == 123 and "is above 64.00 MiB" in done.stderr,
                    "live: --max-peak after a reset, %s" % options, "%s %s" % (done.returncode, done.stderr))


def has_the_driver_without_a_pool():
    one = Program(Place(), {"GPUCACHE_DISABLE": "1"})
    version = one.report()["driver_version"]
    one.end("exit", 7)
    tally.check(version == 13000, "live: the driver's version without a pool", version)


def where_it_cannot_be():
    with tempfile.TemporaryDirectory() as folder:
        for what, make in (("a file in its place", lambda path: open(path, "w").close()),
                           ("a link in its place", lambda path: os.symlink("/tmp", path)),
                           ("a folder that others may enter", lambda path: os.mkdir(path))):
            place = Place()
            make(place.path("").rstrip("/"))
            if "others" in what:
                os.chmod(place.path(""), 0o755)
            one = Program(place)
            one.do("allocate 4096")
            names = [] if "file" in what else os.listdir(place.path(""))
            tally.check(not any(n.startswith("%d-" % one.pid) for n in names), "live: not with " + what, names)
            tally.check(place.report(one.pid) is not None, "live: elsewhere with " + what)
            tally.check(one.end("exit", 7) == "", "live: harmless: " + what)
    for what, prefix, more in (("few descriptors", "ulimit -n 4", []), ("an umask of everything", "umask 0777", []),
                               ("a sandbox", ":", ["sandbox"])):
        place = Place()
        command = ["/bin/sh", "-c", prefix + '; exec "$0" "$@"', LIVE, *more]
        done = subprocess.run(command, input="allocate 4096\nsync\nexit\n", capture_output=True, text=True,
                              timeout=60, env={**environment(True, OFF), **place.options})
        native = subprocess.run(command, input="allocate 4096\nsync\nexit\n", capture_output=True, text=True,
                                timeout=60, env={**environment(False), **place.options})
        tally.check((done.returncode, done.stdout, done.stderr) == (native.returncode, native.stdout, native.stderr),
                    "live: harmless: " + what, done.stdout + done.stderr)


def unshare(script, what):
    """Runs a script as root of its own namespaces. Returns None if that is not allowed."""
    if not shutil.which("unshare"):
        print("note: %s: left out, there is no unshare" % what)
        return None
    done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc",
                           "sh", "-c", script], capture_output=True, text=True, timeout=60,
                          env={**environment(False), "LIVE": LIVE, "LIBRARY": LIBRARY, "COMMAND": COMMAND})
    if done.returncode != 0 and "unshare" in done.stderr:
        print("note: %s: left out, %s" % (what, done.stderr.strip()))
        return None
    return done


def first_of_a_namespace(place, order):
    """Runs a program as process 1 of its namespace. Returns it with its output."""
    child = subprocess.Popen(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", LIVE],
                             env={**environment(True, OFF), **place.options}, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdin.write(order + "\n")
    child.stdin.flush()
    child.stdout.readline()  # the line of the first allocation
    return child, child.stdout.readline()


def in_other_places():
    start = ('run() { LD_PRELOAD=$LIBRARY GPUCACHE_REPORT=off "$LIVE"; echo "status $?"; }; '
             'orders() { printf "allocate 4096\\nsync\\nexit\\n"; }; ')
    wanted = "allocate 0\nallocate 0\ndone\ndone\nstatus 7\n"
    for what, prepare in (
            ("a full /dev/shm", "mount -t tmpfs -o size=16k x /dev/shm"),
            ("a read-only /dev/shm", "mount -t tmpfs -o ro x /dev/shm"),
            ("no /dev/shm", "mount -t tmpfs x /dev && mkdir /dev/fd0 && : > /dev/null"),
            ("no /proc", "mount -t tmpfs x /proc")):
        done = unshare(start + prepare + " && orders | run", what)
        if done:
            tally.check(done.stdout == wanted and not done.stderr,
                        "live: harmless: " + what, done.stdout + done.stderr)
    # else pages of other processes of this machine would be listed too
    done = unshare(start + 'mount -t tmpfs x /dev/shm && mount -t tmpfs x /run && mkdir -p -m 700 /run/user/0 && '
                   'mkfifo /run/orders /run/answers && { XDG_RUNTIME_DIR=/run/user/0 run </run/orders >/run/answers & } && '
                   'exec 3>/run/orders 4</run/answers && echo sync >&3 && read answer <&4 && '
                   'for runtime in "" /run/user/0 /run/user/0/ /nowhere; do XDG_RUNTIME_DIR=$runtime "$COMMAND" top --once; done; '
                   'echo exit >&3; cat <&4 >/dev/null; wait', "another XDG_RUNTIME_DIR")
    if done:
        tally.check(len(re.findall(r"\blive\b", done.stdout)) == 4, "live: a shell with another XDG_RUNTIME_DIR",
                    done.stdout + done.stderr)
    if not unshare("true", "programs with number 1"):
        return
    # a process of another container is neither dead nor cleaned up
    place = Place()
    child, _ = first_of_a_namespace(place, "sync")
    tally.check(len(place.pages()) == 1, "live: a page from another pid namespace", place.pages())
    Program(place).end("exit", 7)
    tally.check(len(place.pages()) == 1, "live: it is nobody's to remove", place.pages())
    top = place.tool("top", "--once").stdout
    tally.check("live" in top, "live: top shows it", top)
    metrics = place.tool("metrics").stdout
    tally.check(re.search(r'^gpucache_reserved_bytes\{pid="1",pid_namespace="\d+",', metrics, re.M), "live: its metrics", metrics[:600])
    # a number that two processes have selects none of them
    twin, _ = first_of_a_namespace(place, "sync")
    done = place.tool("ctl", "1", "limit", "1G")
    tally.check(done.returncode == 1 and "several containers" in done.stderr, "live: two number ones", done.stderr)
    rows = [line for line in place.tool("metrics").stdout.splitlines() if line.startswith('gpucache_requested_bytes{pid="1",')]
    tally.check(len(rows) >= 2 and len(set(row.split("} ")[0] for row in rows)) == len(rows), "live: metrics tell them apart", rows)
    twin.communicate("exit\n")
    child.communicate("exit\n")
    # a child that has the number of its parent
    child, line = first_of_a_namespace(place, "fork_apart")
    tally.check(line == "apart 1 3\n" and len(place.pages()) == 1,
                "live: a child with the number of its parent has no page", "%s%s" % (line, place.pages()))
    child.communicate("exit\n")


def main():
    is_there()
    metrics_are_true()
    counters_agree_while_they_change()
    after_a_kill()
    dead_pages_go()
    children()
    of_another_version()
    at_once()
    reset_peaks_are_judged()
    has_the_driver_without_a_pool()
    where_it_cannot_be()
    in_other_places()


if __name__ == "__main__":
    tally.run(main)
