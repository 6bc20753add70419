#!/usr/bin/env python3
"""Checks that a program without CUDA runs as it does without the library."""
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from harness import LIBRARY, Tally, environment, program, run

tally = Tally()
PYTHON = os.path.realpath(sys.executable)
QUIET = program("load_without_cuda")


def same(what, command, status=0, options=None, strip=None):
    native = run(command, under=False, options=options)
    ran = run(command, options=options)
    clean = strip or (lambda text: text)
    tally.check(native.status == status, "load_without_cuda: %s: natively %s" % (what, native.status), native.err)
    tally.check((ran.status, clean(ran.out), clean(ran.err)) ==
                (native.status, clean(native.out), clean(native.err)),
                "load_without_cuda: %s: status %s" % (what, ran.status),
                "natively:\n%s%s\nunder the library:\n%s%s" % (native.out, native.err, ran.out, ran.err))


def start_up(command, rounds=60):
    """Returns the median of the start-up time in milliseconds, without and with the library. Both are measured in turn."""
    times = {False: [], True: []}
    environments = {under: environment(under) for under in times}
    for _ in range(rounds):
        for under in times:
            start = time.perf_counter()
            subprocess.run(command, env=environments[under], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            times[under].append(time.perf_counter() - start)
    return [1000 * statistics.median(times[under]) for under in (False, True)]


def main():
    programs = [
        ("ls", ["/bin/ls", "-l", "/usr/bin"], 0), ("ls of nothing", ["/bin/ls", "/nothing"], 2),
        ("sh", ["/bin/sh", "-c", "echo hello; exit 3"], 3), ("cat", ["/bin/cat", "/etc/passwd"], 0),
        ("pipe", ["/bin/sh", "-c", "ls / | sort | head -3; (exit 5)"], 5),
        ("false", ["/bin/false"], 1), ("python", [PYTHON, "-c", "pass"], 0),
        ("python dlopen", [PYTHON, "-c", "import ctypes; print(ctypes.CDLL(None).atoi(b'7'))"], 0),
        ("python exit", [PYTHON, "-c", "import sys; sys.stderr.write('e'); sys.exit(9)"], 9),
        ("look", [QUIET, "look"], 0), ("dlsym", [QUIET, "dlsym"], 0), ("close", [QUIET, "close"], 0),
        ("closeall", [QUIET, "closeall"], 0), ("status", [QUIET, "status"], 42),
        ("_exit", [QUIET, "_exit"], 43), ("SIGUSR2", [QUIET, "kill"], -12),
        ("SIGTERM", [QUIET, "term"], -15),
    ]
    if shutil.which("perl"):
        programs.append(("perl", ["perl", "-e", "print 'x' x 10; exit 4"], 4))
    for what, command, status in programs:
        same(what, command, status)
        # a program without CUDA gets no warning about options either
        same(what + ", bad options", command, status,
             options={"GPUCACHE_REUSE": "never", "GPUCACHE_NOTHING": "1", "GPUCACHE_LOG": "debug",
                      "GPUCACHE_REPORT": "/nonexistent/x"})
    ran = run([QUIET, "look"])
    tally.check(re.match(r"libcuda 0, 1 threads", ran.out), "load_without_cuda: libcuda or a thread", ran.out)
    needed = subprocess.run(["readelf", "-d", LIBRARY], stdout=subprocess.PIPE, text=True).stdout
    libraries = re.findall(r"NEEDED.*\[(.*)\]", needed)
    tally.check(all(re.match(r"(libc|libdl|libpthread|ld-linux.*)\.so", l) for l in libraries),
                "load_without_cuda: the library needs more than libc", libraries)
    for what, command in (("/bin/true", ["/bin/true"]), ("sh -c :", ["/bin/sh", "-c", ":"]),
                          ("python3 -c pass", [PYTHON, "-I", "-S", "-c", "pass"])):
        without, with_it = start_up(command, 20 if "python" in what else 60)
        print("start-up of %-16s %6.2f ms, under the library %6.2f ms (%+.2f)" % (
            what, without, with_it, with_it - without))


tally.run(main)
